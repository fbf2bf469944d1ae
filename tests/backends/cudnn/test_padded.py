"""Padded candidates in a session and in a caller's process, over the fake libcudnn and host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from algosearch.backends.cudnn.candidates import engine_of, without_padding
from algosearch.backends.cudnn.enums import BehaviorNote, NumericalNote
from algosearch.backends.cudnn.gpu import CudaFault
from algosearch.backends.cudnn.padding import padded_to
from algosearch.backends.cudnn.running import CudnnRunner
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.errors import InvalidCall, RunFailed
from algosearch.ops import ConvOp, canonical
from algosearch.ops.conv import DIRECTIONS
from algosearch.records import Built, Burst, Candidate, Environment, Failure
from tests.backends import reference
from tests.backends.cudnn.fake import BEYOND_WORKSPACE, WRONG, FakeCudnn
from tests.backends.cudnn.host_backend import DEVICE, HostBackend, gpu_of
from tests.backends.cudnn.host_gpu import HostGpu
from tests.backends.cudnn.host_home import HostHome, OnDevice, words_on_streams
from tests.backends.cudnn.memory import aligned
from tests.backends.cudnn.test_running import built, on_device, run
from tests.backends.driven import Driven
from tests.backends.padded import padded_candidates
from tests.backends.slots import numbers, rows_for

HALVES: Final[dict[str, Any]] = {"input_type": "float16", "filter_type": "float16", "output_type": "float16"}
SINGLES: Final[dict[str, Any]] = dict.fromkeys(HALVES, "float32")
BRAINS: Final[dict[str, Any]] = dict.fromkeys(HALVES, "bfloat16")
LAST: Final[dict[str, Any]] = {f"{name}_layout": "channels_last" for name in ("input", "filter", "output")}
OP: Final = canonical(ConvOp(input_shape=(2, 3, 7, 6), filter_shape=(8, 3, 3, 3), padding_low=(1, 1), **HALVES, **LAST))
OPS: Final = [
    OP,
    replace(OP, filter_shape=(5, 3, 3, 3), stride=(2, 1)),
    canonical(replace(OP, input_shape=(2, 1, 7, 6), filter_shape=(8, 1, 3, 3))),
    replace(OP, input_shape=(1, 8, 5, 5), filter_shape=(5, 8, 1, 1)),
    replace(OP, **BRAINS),
    replace(OP, **SINGLES),
    ConvOp(input_shape=(1, 3, 3, 4, 5), filter_shape=(4, 3, 2, 2, 2), **HALVES, **LAST),
]
LISTED: Final = canonical(replace(OP, input_shape=(32, 3, 112, 112), filter_shape=(32, 3, 3, 3)))
"""Large enough to be worth it; never run here."""
SPACIOUS: Final = 77
WORKSPACE_BYTES: Final = {5: 1024, SPACIOUS: 1000}
"""Of the engines themselves."""


@pytest.fixture(params=["warm", "rotating"])
def driven(fake: FakeCudnn, request: pytest.FixtureRequest) -> Iterator[Driven]:
    fake.engine(SPACIOUS)
    fake.config(SPACIOUS, workspace_bytes=1000)
    gpu = HostGpu(l2_bytes=1 << 12)
    with Driven(HostBackend(fake, timing=request.param, gpu=gpu), DEVICE) as driven:
        yield driven


def multiple_of(op: ConvOp) -> int:
    return 4 if op.input_type == "float32" else 8


def engine(candidate: Candidate) -> int:
    return engine_of(without_padding(candidate.algorithm)[0])[0]


def loaded(driven: Driven, op: ConvOp) -> dict[int, int]:
    """Plans by engine: those of the op by their number, the padded ones by that and 1000."""
    padded = padded_candidates(driven, op, multiple_of(op))
    found = driven.runnable(op)
    plans = [*((engine(each), each, plan) for each, plan in found)]
    for each in padded:
        outcome = driven.build(op, each)
        assert not isinstance(outcome, Failure), outcome
        plans.append((1000 + engine(each), each, outcome.plan))
    driven.load_for(op, [(each, plan) for _, each, plan in plans])
    for _, _, plan in plans:
        assert isinstance(driven.launch(plan), Burst)
    return {number: plan for number, _, plan in plans}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", OPS, ids=ConvOp.describe)
def test_its_result_is_that_of_the_op(driven: Driven, op: ConvOp, direction: Any) -> None:
    op = replace(op, direction=direction)
    plans = loaded(driven, op)
    for number in (1005, 1000 + SPACIOUS):
        assert driven.check(plans[number], None) is None, "by the definition"
        assert driven.check(plans[number], plans[5]) is None
        assert driven.check(plans[5], plans[number]) is None
        driven.unload()
        assert driven.load(op, 1 << 20) is None


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_its_result_is_right_in_every_element(driven: Driven, direction: Any) -> None:
    op = replace(OP, direction=direction, filter_shape=(5, 3, 3, 3))
    plans = loaded(driven, op)
    assert driven.check(plans[1005], None) is None
    session = driven.session
    assert isinstance(session, CudnnSession)
    assert session.buffers is not None
    (result,) = session.buffers.written
    tensors = {each.name: session.buffers.contents(each) for each in session.buffers.tensors}
    found = tensors.pop(result.name)
    right = reference.conv(op, {name: row.astype(np.float64) for name, row in tensors.items()})
    np.testing.assert_allclose(found, right, rtol=5e-3, atol=5e-3)


def test_its_workspace_holds_the_copies_and_the_engines(driven: Driven) -> None:
    padding = padded_to(OP, 8)
    assert padding is not None
    (spacious,) = [each for each in padded_candidates(driven, OP) if engine(each) == SPACIOUS]
    assert spacious.workspace_bytes == padding.scratch_bytes + 1000
    loaded(driven, OP)
    session = driven.session
    assert isinstance(session, CudnnSession)
    plans = [each.made.plan for each in session._plans.values() if each.candidate == spacious]
    assert [each.workspace_bytes for each in plans] == [spacious.workspace_bytes]
    assert [each.queued for each in plans] == [2]


@pytest.mark.parametrize(("behaviour", "kind"), [(WRONG, "wrong_result"), (BEYOND_WORKSPACE, "out_of_bounds")])
def test_an_engine_that_fails_on_the_copies_is_found(
    fake: FakeCudnn, driven: Driven, behaviour: int, kind: str
) -> None:
    fake.engine(78, behaviour=behaviour)
    fake.config(78, workspace_bytes=1000)
    op = replace(OP, direction="backward_data", input_shape=(1, 7, 7, 6), filter_shape=(8, 7, 3, 3))
    plans = loaded(driven, op)
    failure = driven.check(plans[1078], plans[5])
    assert failure is not None
    assert failure.kind == kind


def test_copies_are_part_of_every_run(driven: Driven) -> None:
    plans = loaded(driven, replace(OP, direction="backward_filter"))
    gpu = gpu_of(driven)
    gpu.row_copies.clear()
    driven.time([(plans[5], 3), (plans[1005], 4)])
    assert len(gpu.row_copies) == 4 * 2, "the input before, the filter behind"
    assert [copies[0].widens for _, copies in gpu.row_copies] == [True, False] * 4
    assert {stream for stream, _ in gpu.row_copies} == {gpu.stream}


def test_a_run_that_is_refused_copies_nothing_out(fake: FakeCudnn, driven: Driven) -> None:
    plans = loaded(driven, replace(OP, direction="backward_filter"))
    gpu = gpu_of(driven)
    gpu.row_copies.clear()
    fake.script("execute", 3007, what=5)
    failure = driven.launch(plans[1005])
    assert isinstance(failure, Failure)
    assert failure.kind == "not_supported"
    assert len(gpu.row_copies) == 1


def test_a_search_lists_a_few_of_them_behind_the_first(fake: FakeCudnn, driven: Driven) -> None:
    fake.forget_engines()
    for number in range(12):
        fake.engine(
            number,
            numerical=[] if number == 1 else [NumericalNote.TENSOR_CORE],
            behavior={
                2: [BehaviorNote.RUNTIME_COMPILATION],
                3: [BehaviorNote.REQUIRES_FILTER_INT8X32_REORDER],
            }.get(number, []),
        )
        fake.config(number)
    padded = [f"cudnn/graph:{number}?pad=8" for number in (0, 1, 4, 5, 6, 7)]
    for width in (1, 8, None):
        listing = driven.enumerate(LISTED, width)
        names = [each.algorithm for each in listing.candidates]
        assert [each.rank for each in listing.candidates] == list(range(len(names)))
        assert names[6:12] == padded
        assert not any("pad" in name for name in (*names[:6], *names[12:]))
        assert listing.look_at == 16
    assert not any("pad" in each.algorithm for each in driven.enumerate(OP, 1).candidates), "one that is not worth it"


def test_what_is_hopeless_or_reads_beyond_is_not_looked_at_for_being_padded(fake: FakeCudnn, driven: Driven) -> None:
    """Neither of a large op, whose padded engine 0 takes milliseconds, nor where engine 1 reads where nothing is."""
    fake.forget_engines()
    for number in range(3):
        fake.engine(number)
        fake.config(number)
    large = replace(LISTED, filter_shape=(64, 3, 3, 3))
    lopsided = canonical(replace(LISTED, direction="backward_filter", padding_low=(0, 0), padding_high=(1, 1)))
    for op, padded in ((LISTED, [0, 1, 2]), (large, [1, 2]), (lopsided, [0, 2])):
        names = [each.algorithm for each in driven.enumerate(op, 1).candidates]
        assert [name for name in names if "pad" in name] == [f"cudnn/graph:{number}?pad=8" for number in padded]


@pytest.mark.parametrize("configs", [1, 3])
def test_where_few_are_listed_they_come_last(fake: FakeCudnn, driven: Driven, configs: int) -> None:
    fake.forget_engines()
    for number in range(configs):
        fake.engine(number)
        fake.config(number)
    names = [each.algorithm for each in driven.enumerate(LISTED, 1).candidates]
    plain = [f"cudnn/graph:{number}" for number in range(configs)]
    assert names == [*plain, *(f"{name}?pad=8" for name in plain)]


def test_an_op_that_the_library_cannot_do_padded_has_its_own_candidates(fake: FakeCudnn, driven: Driven) -> None:
    outcome = driven.build(LISTED, Candidate(algorithm="cudnn/graph:5", rank=0, workspace_bytes=1024))
    assert isinstance(outcome, Built), "and with it the graph that is not padded"
    fake.script("finalize", 3000, what=15, times=1)
    names = [each.algorithm for each in driven.enumerate(LISTED, 1).candidates]
    assert "cudnn/graph:5" in names
    assert not any("pad" in name for name in names)
    failure = driven.build(LISTED, Candidate(algorithm="cudnn/graph:5?pad=8", rank=0, workspace_bytes=0))
    assert isinstance(failure, Failure)
    assert failure.kind == "not_supported"


@pytest.mark.parametrize("name", ["cudnn/graph:5?pad=8", "cudnn/graph:5?pad=7", "cudnn/graph:5?pad=-8"])
def test_what_cannot_be_padded_so_is_not_built(driven: Driven, name: str) -> None:
    whole = canonical(ConvOp(input_shape=(2, 8, 6, 6), filter_shape=(8, 8, 3, 3)))
    op = whole if name.endswith("=8") else OP
    failure = driven.build(op, Candidate(algorithm=name, rank=0, workspace_bytes=0))
    assert isinstance(failure, Failure)
    assert failure.kind == "not_supported"


# -- in the caller's process ------------------------------------------------------------------------------------------


@pytest.fixture
def home() -> HostHome:
    return HostHome()


@pytest.fixture
def runner(fake: FakeCudnn, home: HostHome) -> Iterator[CudnnRunner]:
    fake.engine(SPACIOUS)
    fake.config(SPACIOUS, workspace_bytes=1000)
    runner = CudnnRunner(fake.library, home, Environment(backend="cudnn", device="Host"))
    yield runner
    runner.close()
    assert home.depth == 0


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", OPS, ids=ConvOp.describe)
@pytest.mark.parametrize("number", [5, SPACIOUS])
def test_it_is_built_again_from_its_name(runner: CudnnRunner, op: ConvOp, direction: Any, number: int) -> None:
    op = replace(op, direction=direction)
    padding = padded_to(canonical(op), multiple_of(op))
    assert padding is not None
    with built(runner, op, f"cudnn/graph:{number}?pad={padding.multiple}") as plan:
        assert plan.workspace_bytes == padding.scratch_bytes + WORKSPACE_BYTES[number]
        for seed in range(3):
            run(plan, seed)
            run(plan, seed, workspace=OnDevice(aligned(plan.workspace_bytes)))


def test_it_copies_on_the_stream_that_is_named(fake: FakeCudnn, runner: CudnnRunner, home: HostHome) -> None:
    """Also where the same arrays, and the same workspace, are used on another stream."""
    with built(runner, OP, "cudnn/graph:5?pad=8") as plan:
        rows = rows_for(plan.slots.values())
        arrays, room = on_device(plan, rows), OnDevice(aligned(plan.workspace_bytes))
        fake.journal()
        for stream in (8, 9, 9, 8):
            plan(**arrays, stream=stream, workspace=room)
        assert [stream for stream, _ in home.row_copies] == [8, 9, 9, 8]
        executed = [line for line in words_on_streams(fake.journal()) if line.startswith("execute")]
        assert executed == [f"execute on {stream:#x}" for stream in (8, 9, 9, 8)]


def test_captured_with_a_workspace_only(runner: CudnnRunner, home: HostHome) -> None:
    home.capturing.add(9)
    with built(runner, OP, "cudnn/graph:5?pad=8") as plan:
        run(plan)
        with pytest.raises(InvalidCall, match="must be given to a call that is captured"):
            run(plan, stream=9)
        run(plan, stream=9, workspace=OnDevice(aligned(plan.workspace_bytes)))


def test_a_copy_that_fails_is_said(runner: CudnnRunner, home: HostHome) -> None:
    with built(runner, OP, "cudnn/graph:5?pad=8") as plan:
        run(plan)
        home.fault = CudaFault("cuLaunchKernel", 700, "an illegal memory access was encountered")
        with pytest.raises(RunFailed, match="illegal memory access"):
            run(plan)
        home.fault = None
        run(plan)


def test_what_it_reads_is_left_as_it_was(runner: CudnnRunner) -> None:
    for direction in DIRECTIONS:
        op = replace(OP, direction=direction, filter_shape=(5, 3, 3, 3))
        with built(runner, op, "cudnn/graph:5?pad=8") as plan:
            rows = rows_for(plan.slots.values())
            before = numbers(plan.slots, rows)
            plan(**on_device(plan, rows))
            for name, values in numbers(plan.slots, rows).items():
                assert np.array_equal(values, before[name])


def test_a_device_that_cannot_copy_builds_none(
    fake: FakeCudnn, runner: CudnnRunner, home: HostHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise CudaFault("cuModuleLoadData", 222, "the provided PTX was compiled with an unsupported toolchain")

    before = fake.live()
    monkeypatch.setattr(home, "prepare_rows", refuse)
    failure = runner.build(OP, "cudnn/graph:5?pad=8")
    assert isinstance(failure, Failure)
    assert failure.kind == "build_failed"
    runner.close()
    assert fake.live() <= before
