"""Batch norm through both of cuDNN's APIs, against a fake that computes it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch.backends.cudnn.candidates import legacy_algorithm, legacy_mode_of, norm_listing
from algosearch.backends.cudnn.enums import HeuristicMode, LegacyMode
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.legacy_norm import MODES, LegacyCandidate, LegacyNorm, Mode
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.norm_graph import NormGraph, can_be_a_graph
from algosearch.backends.cudnn.plan import Plan, Runnable
from algosearch.backends.cudnn.status import CudnnError
from algosearch.ops import BatchNormOp, canonical
from algosearch.records import Failure, InvalidAlgorithm
from tests.backends.cudnn.fake import SOURCES, FakeCudnn, compiled
from tests.backends.cudnn.running_norm import Running
from tests.strategies import batch_norm_ops

PLAIN = BatchNormOp(shape=(4, 3, 5, 6), layout="channels_last")
FUSED = BatchNormOp(shape=(4, 3, 5, 6), layout="channels_last", data_type="float16", fusion="add_activation")


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


ACTIVATIONS = replace(PLAIN, statistics="per_activation")


def test_statistics_of_each_activation_are_told_channels_first(fake: FakeCudnn, handle: Handle) -> None:
    """For the library orders their parameters so, whatever the layout of the input."""
    fake.journal()
    for op in (ACTIVATIONS, replace(ACTIVATIONS, shape=(4, 5, 6, 3), layout="channels_first")):
        assert [each.mode for each in LegacyNorm(handle, op).candidates()] == ["per_activation"]
        assert [line for line in fake.journal() if line.startswith("tensor")] == ["tensor 0: 4/90 5/18 6/3 3/1"]
    LegacyNorm(handle, PLAIN).candidates()
    assert {line for line in fake.journal() if line.startswith("tensor")} == {"tensor 0: 4/90 3/1 5/18 6/3"}


@pytest.mark.parametrize(
    ("script", "axis", "read"),
    [
        ("derive", 1, r"type 0, \(size, stride\) \[\(3, 1\), \(5, 18\), \(6, 3\)\]"),
        ("derive_type", 1, r"type 2, \(size, stride\) \[\(3, 30\), \(5, 6\), \(6, 1\)\]"),
    ],
)
def test_a_mode_that_would_read_the_parameters_elsewhere_is_refused(
    fake: FakeCudnn, handle: Handle, script: str, axis: int, read: str
) -> None:
    op = replace(ACTIVATIONS, layout="channels_first", data_type="float16")
    fake.script(script, axis, what=LegacyMode.PER_ACTIVATION)
    before = fake.live()
    norm = LegacyNorm(handle, op)
    assert norm.candidates() == []
    failure = norm.build("per_activation")
    assert isinstance(failure, Failure)
    assert failure.kind == "not_supported"
    are = r"type 0, \(size, stride\) \[\(3, 30\), \(5, 6\), \(6, 1\)\]"
    assert re.fullmatch(f"per_activation would read the parameters as {read}, and they are {are}", failure.message)
    assert fake.live() == before
    fake.reset()
    assert len(norm.candidates()) == 1


def test_an_axis_of_size_one_may_have_any_stride(fake: FakeCudnn, handle: Handle) -> None:
    fake.journal()
    assert [each.mode for each in LegacyNorm(handle, PLAIN).candidates()] == ["spatial_persistent", "spatial"]
    assert [line for line in fake.journal() if line.startswith("read")] == ["read 4 of 8 axes"] * 2


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
    # However many were listed, for whoever could use none of the first: a race begins with few, and stays with them.
    assert found.look_at == {"channels_last": 4, "channels_first": 2}[layout]
    assert found.look_up_to == found.look_at


def test_listing_without_a_graph(handle: Handle) -> None:
    found = norm_listing(LegacyNorm(handle, FUSED), None, 1)
    assert [each.algorithm for each in found.candidates] == ["cudnn/legacy:spatial_persistent"]
    assert found.complete


def test_names_of_modes() -> None:
    for mode in MODES:
        assert legacy_mode_of(str(legacy_algorithm(mode))) == mode
    assert legacy_mode_of("cudnn/graph:0") is None
    assert legacy_mode_of("cudnn/legacy:other") is None
    with pytest.raises(InvalidAlgorithm):
        legacy_mode_of("nonsense")
