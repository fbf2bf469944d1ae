"""The session over the fake libcudnn and host memory: the contract of all backends, and what is cuDNN's own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from algosearch.backends.base import Backend
from algosearch.backends.cudnn.buffers import Buffers
from algosearch.backends.cudnn.enums import HeuristicMode, LegacyMode
from algosearch.backends.cudnn.graph import GraphTensor
from algosearch.backends.cudnn.norm_pair import PairPlan
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical
from algosearch.records import Built, Burst, Candidate, Failure, FailureKind
from tests.backends.contract import BackendContract
from tests.backends.cudnn.fake import BEYOND, BEYOND_WORKSPACE, WRONG, FakeCudnn
from tests.backends.cudnn.host_backend import OP, HostBackend, gpu_of, loaded
from tests.backends.driven import Driven

HALVES: dict[str, Any] = {"input_type": "float16", "filter_type": "float16", "output_type": "float16"}
PAIR: dict[str, Any] = {
    "shape": (2, 8, 4, 4),
    "phase": "training",
    "fusion": "add_activation",
    "layout": "channels_last",
}


class TestCudnnOnTheHost(BackendContract):
    has_dear = True

    @pytest.fixture(autouse=True)
    def _with(self, fake: FakeCudnn) -> None:
        self._fake = fake
        fake.script("fused", 1, what=LegacyMode.SPATIAL)  # so that a pair has two candidates, of two reserves

    def backend(self) -> Backend:
        return HostBackend(self._fake)

    def ops(self) -> Sequence[Op]:
        last: dict[str, Any] = {f"{name}_layout": "channels_last" for name in ("input", "filter", "output")}
        return (
            OP,
            ConvOp(input_shape=(1, 4, 5, 5), filter_shape=(4, 2, 1, 1), groups=2, **HALVES, **last),
            ConvOp(input_shape=(2, 3, 7, 7), filter_shape=(5, 3, 3, 3), stride=(2, 2), direction="backward_filter"),
            BatchNormOp(shape=(4, 8, 5, 5)),
            BatchNormOp(shape=(4, 8, 5, 5), phase="inference", layout="channels_last"),
            BatchNormOp(shape=(4, 8, 5, 5), phase="backward", layout="channels_last"),
            BatchNormOp(shape=(4, 6), statistics="per_activation"),
            *(
                BatchNormOp(**PAIR | {"fusion": fusion, "data_type": data_type})
                for fusion in ("activation", "add_activation")
                for data_type in ("float16", "bfloat16")
            ),
        )

    def impossible_ops(self) -> Sequence[Op]:
        return ()

    def wrong(self) -> tuple[Backend, Op, str, FailureKind] | None:
        self._fake.engine(77, behaviour=WRONG)
        self._fake.config(77)
        return HostBackend(self._fake), OP, "cudnn/graph:77", "wrong_result"


class TestCudnnRotatingOnTheHost(TestCudnnOnTheHost):
    def backend(self) -> Backend:
        return HostBackend(self._fake, timing="rotating")


@pytest.mark.parametrize(
    ("behaviour", "workspace_bytes"), [(BEYOND, 0), (BEYOND_WORKSPACE, 512), (BEYOND_WORKSPACE, 7)]
)
@pytest.mark.parametrize("compared", [False, True])
def test_who_writes_beyond_its_buffers_is_found(
    fake: FakeCudnn, driven: Driven, behaviour: int, workspace_bytes: int, compared: bool
) -> None:
    fake.engine(77, behaviour=behaviour)
    fake.config(77, workspace_bytes=workspace_bytes)
    fake.engine(78)
    fake.config(78, workspace_bytes=10_000)
    plans = loaded(driven)
    failure = driven.check(plans["cudnn/graph:77"], plans["cudnn/graph:78"] if compared else None)
    assert failure is not None
    assert failure.kind == "out_of_bounds"
    assert driven.check(plans["cudnn/graph:78"], None) is None


def test_a_wrong_rival_does_not_make_the_right_one_wrong(fake: FakeCudnn, driven: Driven) -> None:
    fake.engine(77, behaviour=WRONG)
    fake.config(77)
    fake.engine(78)
    fake.config(78)
    plans = loaded(driven)
    right, wrong = plans["cudnn/graph:78"], plans["cudnn/graph:77"]
    assert driven.check(right, wrong) is None
    failure = driven.check(wrong, right)
    assert failure is not None
    assert failure.kind == "wrong_result"
    assert "should be" in failure.message


def test_who_agrees_with_one_that_passed_is_run_once(fake: FakeCudnn, driven: Driven) -> None:
    plans = list(loaded(driven).values())
    assert driven.check(plans[0], plans[1]) is None
    fake.journal()
    assert driven.check(plans[2], plans[0]) is None
    assert sum(line.lstrip("+-").startswith("execute") for line in fake.journal()) == 1


@pytest.mark.parametrize(("promised_bytes", "told_bytes"), [(4, 4), (256, 256), (512, 256), (4096, 256)])
def test_no_more_alignment_is_told_than_there_is(
    fake: FakeCudnn, driven: Driven, promised_bytes: int, told_bytes: int
) -> None:
    """Where tensors lie in a search's memory, and padded copies in a workspace."""
    op = replace(OP, alignment_bytes=promised_bytes)
    fake.journal()
    plans = driven.runnable(op)
    told = {line.partition(": ")[2] for line in fake.journal() if line.lstrip("+-").startswith("set 17 900 ")}
    assert told == {str(told_bytes)}
    driven.load_for(op, plans)
    for _, plan in plans:
        assert isinstance(driven.launch(plan), Burst)


def test_each_thread_has_its_own_handle_and_enters_the_device(fake: FakeCudnn, driven: Driven) -> None:
    """Prepare, the lane, and compile once there is something for it."""
    fake.journal()
    listing = driven.enumerate(OP)
    (dear,) = (candidate for candidate in listing.candidates if candidate.is_dear)
    plans = [driven.build(OP, candidate) for candidate in listing.candidates if not candidate.is_dear]
    driven.load_for(OP, [(candidate, 0) for candidate in listing.candidates])
    assert isinstance(plans[0], Built)
    assert isinstance(driven.launch(plans[0].plan), Burst)
    assert _handles(fake) == ["create handle"] * 2
    assert len(gpu_of(driven).entered) == 2
    compiled = driven.build(OP, dear)
    assert isinstance(compiled, Built)
    assert isinstance(driven.launch(compiled.plan), Burst)
    driven.close()
    assert _handles(fake) == ["create handle", *["destroy handle"] * 3]
    assert len(gpu_of(driven).entered) == 3
    assert threading.get_ident() not in gpu_of(driven).entered


def _handles(fake: FakeCudnn) -> list[str]:
    """Those that were made and given back since the journal was last read."""
    return [
        line for line in (each.lstrip("+-") for each in fake.journal()) if line in ("create handle", "destroy handle")
    ]


def test_a_burst_that_cannot_prove_itself_says_so(driven: Driven) -> None:
    plan = next(iter(loaded(driven).values()))
    gpu = gpu_of(driven)
    gpu.slow_calls = dict.fromkeys(range(1, 10_000), 1e6)
    (burst,) = driven.time([(plan, 3)])
    assert isinstance(burst, Burst)
    assert burst.disturbed is not None
    gpu.slow_calls.clear()
    (burst,) = driven.time([(plan, 3)])
    assert isinstance(burst, Burst)
    assert burst.disturbed is None


def test_nothing_of_an_op_is_left_on_the_device(fake: FakeCudnn, driven: Driven) -> None:
    before = gpu_of(driven).taken_bytes
    for _ in range(2):
        plans = loaded(driven)
        assert gpu_of(driven).taken_bytes > before
        driven.unload()
        assert gpu_of(driven).taken_bytes == before
        driven.destroy(list(plans.values()))


def test_only_so_many_graphs_are_kept(fake: FakeCudnn, driven: Driven) -> None:
    sizes = range(3, 3 + 20)
    ops = [canonical(ConvOp(input_shape=(1, 8, size, size), filter_shape=(8, 8, 1, 1))) for size in sizes]
    live = []
    for op in ops:
        driven.enumerate(op, 1)
        live.append(fake.live())
    assert len(set(live[10:])) == 1, "graphs pile up"
    assert driven.runnable(ops[0]), "a graph that was given back is made again"


def test_what_the_library_refuses_has_no_candidates(fake: FakeCudnn, driven: Driven) -> None:
    fake.script("finalize", 3000, what=15)
    op = canonical(ConvOp(input_shape=(1, 8, 9, 9), filter_shape=(8, 8, 1, 1)))
    listing = driven.enumerate(op)
    assert listing.candidates == ()
    assert listing.complete
    failure = driven.build(op, Candidate(algorithm="cudnn/graph:1", rank=0, workspace_bytes=0))
    assert isinstance(failure, Failure)
    assert failure.kind == "not_supported"


def test_fallback_comes_behind_the_heuristics(fake: FakeCudnn, driven: Driven) -> None:
    fake.forget_engines()
    for index, mode in ((5, HeuristicMode.INSTANT), (9, HeuristicMode.FALLBACK)):
        fake.engine(index)
        fake.config(index, mode=mode)
    assert [each.algorithm for each in driven.enumerate(OP).candidates] == ["cudnn/graph:5", "cudnn/graph:9"]


# -- pairs -----------------------------------------------------------------------------------------------------------


def test_a_pass_of_a_pair_is_not_searched_alone(driven: Driven) -> None:
    for op in BatchNormOp(**PAIR, data_type="float16").passes:
        with pytest.raises(AssertionError, match="not what is searched"):
            driven.enumerate(op)


def test_a_pair_is_checked_by_what_its_own_forward_pass_wrote(fake: FakeCudnn, driven: Driven) -> None:
    fake.script("fused", 1, what=LegacyMode.SPATIAL)
    pair = BatchNormOp(**PAIR, data_type="float16")
    plans = loaded(driven, pair)
    persistent, spatial = plans.values()
    for plan, other in ((persistent, None), (spatial, persistent), (persistent, spatial), (spatial, None)):
        assert driven.time([(persistent, 2), (spatial, 3)])
        assert driven.check(plan, other) is None


def test_a_pair_that_does_not_write_its_reserve_cannot_live_on_what_an_earlier_run_left_there(
    fake: FakeCudnn, driven: Driven
) -> None:
    pair = BatchNormOp(**PAIR, data_type="float16")
    ((_, plan),) = plans = driven.runnable(pair)
    driven.load_for(pair, plans)
    assert isinstance(driven.launch(plan), Burst)
    assert driven.check(plan) is None
    fake.script("keep", 1, what=LegacyMode.SPATIAL_PERSISTENT)
    assert isinstance(driven.launch(plan), Burst)
    failure = driven.check(plan)
    assert failure is not None
    assert failure.kind == "wrong_result"
    assert "gradient" in failure.message


def test_what_several_results_are_judged_by_is_read_once(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = BatchNormOp(**PAIR, data_type="float16")
    ((_, plan),) = plans = driven.runnable(pair)
    driven.load_for(pair, plans)
    assert isinstance(driven.launch(plan), Burst)
    read, contents = list[str](), Buffers.contents

    def noting(buffers: Buffers, tensor: GraphTensor) -> Any:
        read.append(tensor.name)
        return contents(buffers, tensor)

    monkeypatch.setattr(Buffers, "contents", noting)
    assert driven.check(plan) is None
    assert len(read) == len(set(read))
    assert set(read) >= {"input", "scale", "addend", "output", "output_gradient"}


def test_who_writes_beyond_its_reserve_is_found(fake: FakeCudnn, driven: Driven) -> None:
    pair = BatchNormOp(**PAIR, data_type="float16")
    ((_, plan),) = plans = driven.runnable(pair)
    driven.load_for(pair, plans)
    fake.script("beyond", 1, what=LegacyMode.SPATIAL_PERSISTENT)
    assert isinstance(driven.launch(plan), Burst)
    failure = driven.check(plan)
    assert failure is not None
    assert failure.kind == "out_of_bounds"


def test_a_pair_whose_gradients_are_of_another_reserve_is_found(
    fake: FakeCudnn, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.script("fused", 1, what=LegacyMode.SPATIAL)
    pair = BatchNormOp(**PAIR, data_type="float16")
    session = driven.session
    assert isinstance(session, CudnnSession)
    plans = driven.runnable(pair)
    (_, persistent), (_, spatial) = plans
    mixed = session._plans[persistent].made.plan, session._plans[spatial].made.plan
    assert isinstance(mixed[0], PairPlan)
    assert isinstance(mixed[1], PairPlan)
    monkeypatch.setattr(mixed[0], "_passes", (mixed[0]._passes[0], mixed[1]._passes[1]))
    monkeypatch.setattr(mixed[0], "reserve_bytes", max(each.reserve_bytes for each in mixed))
    driven.load_for(pair, plans)
    for _, plan in plans:
        assert isinstance(driven.launch(plan), Burst)
    assert driven.check(spatial, persistent) is None, "it is the other one that is wrong"
    failure = driven.check(persistent, spatial)
    assert failure is not None
    assert failure.kind == "wrong_result"
    assert "gradient" in failure.message
    monkeypatch.undo()
