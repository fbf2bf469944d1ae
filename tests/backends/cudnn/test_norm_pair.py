"""Both passes of a fused batch norm as one, against a fake that computes them."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch.backends.cudnn.candidates import legacy_mode_of, pair_listing
from algosearch.backends.cudnn.enums import LegacyMode
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.legacy_norm import LegacyNorm
from algosearch.backends.cudnn.norm import UIDS
from algosearch.backends.cudnn.norm_pair import PairPlan
from algosearch.backends.cudnn.offer import offer_of
from algosearch.backends.cudnn.plan import Runnable
from algosearch.ops import BatchNormOp, canonical
from algosearch.records import Candidate, Failure
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.host_gpu import HostGpu
from tests.backends.cudnn.running_norm import Running
from tests.strategies import batch_norm_ops

FUSED = BatchNormOp(shape=(4, 3, 5, 6), layout="channels_last", data_type="float16", fusion="add_activation")
PAIR = replace(FUSED, phase="training")
PERSISTENT, SPATIAL = "cudnn/legacy:spatial_persistent", "cudnn/legacy:spatial"


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
