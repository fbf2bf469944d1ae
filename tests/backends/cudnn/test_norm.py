"""Batch norm through both of cuDNN's APIs, against a fake that computes it."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import addressof, c_float
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch.backends.cudnn.candidates import legacy_algorithm, legacy_mode_of, norm_listing, pair_listing
from algosearch.backends.cudnn.enums import HeuristicMode, LegacyMode
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.legacy_norm import IN_PLACE, MODES, LegacyCandidate, LegacyNorm, Mode
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.norm import EPSILON, MOMENTUM, UIDS, norm_tensors
from algosearch.backends.cudnn.norm_graph import NormGraph, can_be_a_graph
from algosearch.backends.cudnn.norm_pair import PairPlan
from algosearch.backends.cudnn.offer import offer_of
from algosearch.backends.cudnn.plan import Plan, Runnable
from algosearch.backends.cudnn.status import CudnnError
from algosearch.ops import BatchNormOp, canonical
from algosearch.records import Candidate, Failure, InvalidAlgorithm
from tests.backends import reference
from tests.backends.cudnn.fake import SOURCES, FakeCudnn, compiled
from tests.backends.cudnn.host_gpu import HostGpu
from tests.backends.cudnn.memory import Memory, aligned
from tests.strategies import batch_norm_ops

PLAIN = BatchNormOp(shape=(4, 3, 5, 6), layout="channels_last")
FUSED = BatchNormOp(shape=(4, 3, 5, 6), layout="channels_last", data_type="float16", fusion="add_activation")
PAIR = replace(FUSED, phase="training")
PERSISTENT, SPATIAL = "cudnn/legacy:spatial_persistent", "cudnn/legacy:spatial"
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}


@pytest.fixture
def handle(fake: FakeCudnn) -> Iterator[Handle]:
    handle = Handle(fake.library)
    yield handle
    handle.destroy()


class Running:
    """A way to do an op, with memory of this process for its tensors."""

    def __init__(self, plan: Runnable, op: BatchNormOp, memory: Memory | None = None) -> None:
        self.plan, self.op = plan, op
        self.memory = Memory(norm_tensors(op)) if memory is None else memory
        self.reserve = aligned(plan.reserve_bytes)
        self.workspace = aligned(plan.workspace_bytes)

    def fill(self, seed: int = 0) -> None:
        dice = np.random.default_rng(seed)
        for name, tensor in self.memory.tensors.items():
            if not tensor.written:
                self.memory.fill(name, dice.integers(1, 9, self.memory.size(name)) / 4)

    def run(self, **scalars: float) -> dict[str, Any]:
        """Run it; what was read, and the address of a number by name."""
        read = {name: self.memory.values(name) for name, tensor in self.memory.tensors.items() if not tensor.written}
        numbers = {name: c_float(value) for name, value in scalars.items()}
        pointers = self.memory.pointers | {UIDS["reserve"]: self.reserve.ctypes.data}
        pointers |= {UIDS[name]: addressof(number) for name, number in numbers.items()}
        pack = self.plan.variant_pack(pointers, self.workspace.ctypes.data)
        assert pack.launch_long() == 0
        return read

    def prepare_in_place(self) -> None:
        names = {uid: name for name, uid in UIDS.items()}
        for source, target in IN_PLACE:
            if names[target] in self.memory.bytes and names[source] in self.memory.bytes:
                self.memory.bytes[names[target]][:] = self.memory.bytes[names[source]]

    def check(self, read: dict[str, Any], *, epsilon: float = EPSILON, momentum: float = MOMENTUM) -> None:
        right = reference.batch_norm(self.op, read, epsilon=epsilon, momentum=momentum)
        tolerance = TOLERANCE[self.op.data_type]
        for name, values in right.items():
            found = self.memory.values(name)
            np.testing.assert_allclose(found, values, rtol=tolerance, atol=tolerance, err_msg=name)


# -- the legacy API --------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(op=batch_norm_ops(phases=("training_forward", "inference", "backward")), seed=st.integers(0, 9))
@example(op=FUSED, seed=1)
@example(op=replace(FUSED, phase="backward"), seed=1)
@example(op=replace(FUSED, fusion="activation", data_type="bfloat16"), seed=1)
@example(op=replace(FUSED, fusion="activation", phase="backward"), seed=1)
def test_every_mode_that_is_offered_is_the_batch_norm(fake_session: FakeCudnn, op: BatchNormOp, seed: int) -> None:
    op = canonical(op)
    handle = Handle(fake_session.library)
    norm = LegacyNorm(handle, op)
    for candidate in norm.candidates():
        plan = norm.build(candidate.mode)
        assert isinstance(plan, Runnable)
        assert (plan.workspace_bytes, plan.reserve_bytes) == (candidate.workspace_bytes, candidate.reserve_bytes)
        running = Running(plan, op)
        running.fill(seed)
        if op.phase == "backward" and op.fusion != "none":
            _run_forward(handle, running, candidate.mode, seed)
        running.prepare_in_place()
        running.check(running.run())
        plan.destroy()

    handle.destroy()


def _run_forward(handle: Handle, backward: Running, mode: Mode, seed: int) -> None:
    """What a backward pass reads: its output, statistics and reserve."""
    op = replace(backward.op, phase="training_forward")
    plan = LegacyNorm(handle, op).build(mode)
    assert isinstance(plan, Runnable)
    forward = Running(plan, op)
    forward.fill(seed)
    for name in ("input", "scale", "bias"):
        forward.memory.bytes[name] = backward.memory.bytes[name]
    forward.run()
    for name in ("output", "saved_mean", "saved_inverse_deviation"):
        backward.memory.bytes[name][:] = forward.memory.bytes[name]
    assert forward.reserve.size == backward.reserve.size > 0
    backward.reserve[:] = forward.reserve
    plan.destroy()


@pytest.mark.parametrize(
    ("op", "modes"),
    [
        (PLAIN, ["spatial_persistent", "spatial"]),
        (replace(PLAIN, layout="channels_first"), ["spatial", "spatial_persistent"]),
        (replace(PLAIN, phase="inference"), ["spatial"]),
        (replace(PLAIN, statistics="per_activation"), ["per_activation"]),
        (replace(PLAIN, data_type="float64", parameter_type="float64"), ["spatial"]),
        (FUSED, ["spatial_persistent"]),
        (replace(FUSED, phase="backward", fusion="activation"), ["spatial_persistent"]),
        (replace(FUSED, layout="channels_first"), []),
        (replace(PLAIN, shape=(1 << 16, 1 << 15, 2, 2)), []),
    ],
)
def test_what_is_not_supported_is_not_offered(handle: Handle, op: BatchNormOp, modes: list[str]) -> None:
    norm = LegacyNorm(handle, op)
    assert [candidate.mode for candidate in norm.candidates()] == modes
    for mode in set(MODES) - set(modes):
        failure = norm.build(mode)
        assert isinstance(failure, Failure)
        assert failure.kind == "not_supported"


def test_sizes_and_notes(handle: Handle) -> None:
    persistent, spatial = LegacyNorm(handle, PLAIN).candidates()
    assert persistent == LegacyCandidate(
        mode="spatial_persistent", workspace_bytes=64 + 16 * 3, reserve_bytes=0, notes=("range_limited",)
    )
    assert spatial == LegacyCandidate(mode="spatial", workspace_bytes=0, reserve_bytes=0, notes=())
    (fused,) = LegacyNorm(handle, replace(FUSED, phase="backward")).candidates()
    assert (fused.workspace_bytes, fused.reserve_bytes) == (2 * (64 + 16 * 3), 4 * 3 * 5 * 6 // 8)


def test_epsilon_and_momentum_may_be_the_callers(handle: Handle) -> None:
    for op in (PLAIN, replace(PLAIN, phase="inference")):
        norm = LegacyNorm(handle, op)
        plan = norm.build("spatial")
        assert isinstance(plan, Runnable)
        running = Running(plan, op)
        running.fill()
        running.prepare_in_place()
        running.check(running.run(epsilon=0.5, momentum=0.25), epsilon=0.5, momentum=0.25)
        plan.destroy()


def test_a_version_without_the_legacy_calls_offers_none(tmp_path: Any) -> None:
    sources = [source for source in SOURCES if source != "fake_legacy.c"]
    handle = Handle(Library(compiled(tmp_path / "libgraphonly.so", sources=sources), "given"))
    norm = LegacyNorm(handle, PLAIN)
    assert norm.candidates() == []
    assert isinstance(norm.build("spatial"), Failure)
    handle.destroy()


@pytest.mark.parametrize(("status", "kind"), [(3000, "not_supported"), (4003, "out_of_memory"), (4000, "build_failed")])
def test_a_mode_that_fails_to_be_described(fake: FakeCudnn, handle: Handle, status: int, kind: str) -> None:
    fake.script("mode", status, what=2)
    norm = LegacyNorm(handle, PLAIN)
    failure = norm.build("spatial_persistent")
    assert isinstance(failure, Failure)
    assert failure.kind == kind
    if status == 4003:
        with pytest.raises(CudnnError):
            norm.candidates()
    else:
        assert [candidate.mode for candidate in norm.candidates()] == ["spatial"]


def test_a_missing_part_is_not_a_missing_mode(fake: FakeCudnn, handle: Handle) -> None:
    fake.script("legacy", 1008)
    with pytest.raises(CudnnError, match="cudnnSetTensorNdDescriptor"):
        LegacyNorm(handle, PLAIN).candidates()


def test_it_runs_through_the_handle_and_lock_that_are_asked_for(fake: FakeCudnn, handle: Handle) -> None:
    plan = LegacyNorm(handle, PLAIN).build("spatial")
    assert isinstance(plan, Runnable)
    running = Running(plan, PLAIN)
    pack = plan.variant_pack(running.memory.pointers, 0, handle=handle)
    fake.script("execute", 5000, what=1)
    assert pack.launch() == pack.launch_long() == 5000
    plan.destroy()
    with pytest.raises(AssertionError, match="destroyed"):
        pack.launch()


# -- the graph API ---------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    op=batch_norm_ops(phases=("training_forward", "backward")).map(canonical).filter(can_be_a_graph),
    seed=st.integers(0, 9),
)
def test_a_graph_is_the_batch_norm(fake_session: FakeCudnn, op: BatchNormOp, seed: int) -> None:
    handle = Handle(fake_session.library)
    graph = NormGraph(handle, op)
    plan = graph.build(5, ())
    assert isinstance(plan, Plan)
    graph.destroy()
    running = Running(plan, op)
    running.fill(seed)
    running.check(running.run())
    plan.destroy()
    handle.destroy()


def test_a_graphs_epsilon_and_momentum_may_be_the_callers(handle: Handle) -> None:
    graph = NormGraph(handle, PLAIN)
    plan = graph.build(5, ())
    assert isinstance(plan, Plan)
    running = Running(plan, PLAIN)
    running.fill()
    running.check(running.run(epsilon=0.5, momentum=0.25), epsilon=0.5, momentum=0.25)
    plan.destroy()
    graph.destroy()


def test_which_ops_have_a_graph() -> None:
    assert can_be_a_graph(PLAIN)
    assert can_be_a_graph(replace(PLAIN, phase="backward"))
    for change in ({"phase": "inference"}, {"fusion": "activation"}, {"statistics": "per_activation"}):
        assert not can_be_a_graph(replace(PLAIN, **change))


def test_a_forward_pass_is_told_with_numbers_by_value(fake: FakeCudnn, handle: Handle) -> None:
    fake.journal()
    NormGraph(handle, PLAIN).destroy()
    told = fake.journal()
    assert "set 17 902 3 4: 1 3 1 1" in told
    assert "set 17 903 3 4: 3 1 3 3" in told
    assert told.count("set 17 908 2 1: 1") == 2
    operation = [line for line in told if line.startswith("set 29")]
    assert operation[:2] == ["set 29 2000 27 1: 2", "set 29 2001 28 1: 1"]
    assert sorted(int(line.split()[2]) for line in operation) == [*range(2000, 2014)]


def test_a_backward_pass_is_told(fake: FakeCudnn, handle: Handle) -> None:
    fake.journal()
    NormGraph(handle, replace(PLAIN, phase="backward")).destroy()
    operation = [line for line in fake.journal() if line.startswith("set 30")]
    assert operation[0] == "set 30 2100 27 1: 2"
    assert {int(line.split()[2]) for line in operation} == {*range(2100, 2110)} - {2106}


# -- candidates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "width", "expected", "complete"),
    [
        ("channels_last", 1, ["P", "S", "G0", "G1"], False),
        ("channels_last", 5, ["P", "S", "G0", "G1", "G2"], False),
        ("channels_last", 6, ["P", "S", "G0", "G1", "G2", "G3"], True),
        ("channels_last", None, ["P", "S", "G0", "G1", "G2", "G3"], True),
        ("channels_first", 1, ["S", "P"], False),
        ("channels_first", 3, ["S", "P", "G0"], False),
        ("channels_first", None, ["S", "P", "G0", "G1", "G2", "G3"], True),
    ],
)
def test_listing(
    fake: FakeCudnn, handle: Handle, layout: Any, width: int | None, expected: list[str], complete: bool
) -> None:
    fake.forget_engines()
    fake.engine(0)
    for value in range(4):
        fake.config(0, [(30, value)], mode=HeuristicMode.INSTANT)  # which the fake answers for A as well
    op = replace(PLAIN, layout=layout)
    graph = NormGraph(handle, op)
    found = norm_listing(LegacyNorm(handle, op), graph, width)
    graph.destroy()
    short = {"cudnn/legacy:spatial": "S", "cudnn/legacy:spatial_persistent": "P"}
    names = [short.get(each.algorithm, each.algorithm.replace("cudnn/graph:0?30=", "G")) for each in found.candidates]
    assert (names, found.complete) == (expected, complete)
    assert [each.rank for each in found.candidates] == list(range(len(expected)))
    assert found.look_at == (None if complete else {"channels_last": 4, "channels_first": 2}[layout])


def test_listing_without_a_graph(handle: Handle) -> None:
    found = norm_listing(LegacyNorm(handle, FUSED), None, 1)
    assert [each.algorithm for each in found.candidates] == ["cudnn/legacy:spatial_persistent"]
    assert found.complete


# -- pairs -----------------------------------------------------------------------------------------------------------


def listed(handle: Handle, op: BatchNormOp) -> tuple[Candidate, ...]:
    forward, backward = (LegacyNorm(handle, each) for each in op.passes)
    found = pair_listing(forward, backward)
    assert found.complete
    assert found.steady
    assert [each.rank for each in found.candidates] == list(range(len(found.candidates)))
    return found.candidates


def test_a_pair_is_listed_with_the_larger_workspace_and_the_reserve_between_its_passes(handle: Handle) -> None:
    (only,) = listed(handle, PAIR)
    assert only == Candidate(
        algorithm=PERSISTENT,
        rank=0,
        workspace_bytes=2 * (64 + 16 * 3),
        notes=("range_limited",),
        reserve_bytes=4 * 3 * 5 * 6 // 8,
    )
    sizes = [LegacyNorm(handle, each).candidates()[0] for each in PAIR.passes]
    assert only.workspace_bytes == max(each.workspace_bytes for each in sizes)
    assert {only.reserve_bytes} == {each.reserve_bytes for each in sizes}


def test_a_mode_that_does_one_pass_only_does_no_pair(fake: FakeCudnn, handle: Handle) -> None:
    fake.script("fused", 1, what=LegacyMode.SPATIAL)
    assert [each.algorithm for each in listed(handle, PAIR)] == [PERSISTENT, SPATIAL]
    fake.script("backward", 3000, what=LegacyMode.SPATIAL_PERSISTENT)
    assert [each.algorithm for each in listed(handle, PAIR)] == [SPATIAL]
    offer = offer_of(handle, PAIR, HostGpu())
    assert offer is not None
    before = fake.live()
    failure = offer.make(PERSISTENT)
    assert isinstance(failure, Failure)
    assert failure.kind == "not_supported"
    assert fake.live() == before, "the forward pass's plan is given back"
    made = offer.make("cudnn/graph:5")
    assert isinstance(made, Failure)
    offer.destroy()


@settings(max_examples=40)
@given(op=batch_norm_ops(phases=("training",), data_types=("float16", "bfloat16")), seed=st.integers(0, 9))
@example(op=PAIR, seed=1)
def test_every_pair_that_is_offered_is_both_passes(fake_session: FakeCudnn, op: BatchNormOp, seed: int) -> None:
    op = canonical(op)
    fake_session.reset()
    fake_session.script("fused", 1, what=LegacyMode.SPATIAL)
    handle = Handle(fake_session.library)
    offer = offer_of(handle, op, HostGpu())
    assert offer is not None
    for candidate in offer.listing(None).candidates:
        made = offer.make(candidate.algorithm)
        assert not isinstance(made, Failure)
        sizes = made.plan.workspace_bytes, made.plan.reserve_bytes
        assert sizes == (candidate.workspace_bytes, candidate.reserve_bytes)
        running = Running(made.plan, op)
        running.fill(seed)
        running.prepare_in_place()
        read = running.run()
        running.check(read | {name: running.memory.values(name) for name in op.passes[0].output_shapes})
        made.destroy()
    offer.destroy()
    handle.destroy()
    fake_session.reset()


@pytest.mark.parametrize(("forward", "backward"), [(PERSISTENT, SPATIAL), (SPATIAL, PERSISTENT)])
def test_passes_of_two_modes_do_not_fit_together(fake: FakeCudnn, handle: Handle, forward: str, backward: str) -> None:
    """What a pair is for: that this cannot be picked."""
    fake.script("fused", 1, what=LegacyMode.SPATIAL)
    plans = []
    for op, algorithm in zip(PAIR.passes, (forward, backward), strict=True):
        mode = legacy_mode_of(algorithm)
        assert mode is not None
        plan = LegacyNorm(handle, op).build(mode)
        assert isinstance(plan, Runnable)
        plans.append(plan)
    running = Running(PairPlan(handle, *plans), PAIR)
    running.fill(1)
    running.prepare_in_place()
    read = running.run()
    with pytest.raises(AssertionError, match="gradient"):
        running.check(read | {name: running.memory.values(name) for name in PAIR.passes[0].output_shapes})
    running.plan.destroy()


def test_a_pack_of_a_pair_ends_with_the_first_pass_that_fails_and_gives_both_back(
    fake: FakeCudnn, handle: Handle
) -> None:
    offer = offer_of(handle, PAIR, HostGpu())
    assert offer is not None
    before = fake.live()
    made = offer.make(PERSISTENT)
    assert not isinstance(made, Failure)
    assert "PairPlan" in repr(made.plan)
    running = Running(made.plan, PAIR)
    pointers = running.memory.pointers | {UIDS["reserve"]: running.reserve.ctypes.data}
    pack = made.plan.variant_pack(pointers, running.workspace.ctypes.data)
    assert pack.launch() == pack.launch_long() == 0
    running.memory.bytes["input_gradient"][:] = 0x5A
    fake.script("execute", 5000, what=LegacyMode.SPATIAL_PERSISTENT, times=1)
    assert pack.launch() == 5000, "forward"
    assert (running.memory.bytes["input_gradient"] == 0x5A).all(), "and backward was not run"
    fake.script("execute", 0, what=LegacyMode.SPATIAL_PERSISTENT, times=1)
    fake.script("execute", 5003, what=LegacyMode.SPATIAL_PERSISTENT, times=1)
    assert pack.launch_long() == 5003, "backward"
    pack.destroy()
    assert pack.is_destroyed
    for launch in (pack.launch, pack.launch_long):
        with pytest.raises(AssertionError, match="destroyed"):
            launch()
    made.destroy()
    made.destroy()
    assert fake.live() == before
    offer.destroy()


def test_a_pair_is_no_call_of_the_legacy_api(handle: Handle) -> None:
    plan = LegacyNorm(handle, PAIR).build("spatial_persistent")
    assert isinstance(plan, Runnable)
    with pytest.raises(AssertionError, match="two calls"):
        plan.variant_pack({}, 0)
    plan.destroy()


def test_names_of_modes() -> None:
    for mode in MODES:
        assert legacy_mode_of(str(legacy_algorithm(mode))) == mode
    assert legacy_mode_of("cudnn/graph:0") is None
    assert legacy_mode_of("cudnn/legacy:other") is None
    with pytest.raises(InvalidAlgorithm):
        legacy_mode_of("nonsense")
