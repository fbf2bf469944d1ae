"""Plans that run: on what, through which handle, with or without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_void_p
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.plan import Plan
from algosearch.backends.cudnn.status import suspects_context
from algosearch.ops import ConvOp, canonical
from tests.backends import reference
from tests.backends.cudnn.fake import BEYOND, BEYOND_WORKSPACE, WRONG, FakeCudnn
from tests.backends.cudnn.memory import Memory, aligned
from tests.strategies import conv_ops

SMALL = ConvOp(input_shape=(2, 4, 6, 6), filter_shape=(8, 4, 3, 3), padding_low=(1, 1))


class Running:
    """A plan of an op with memory of this process for its tensors."""

    def __init__(self, handle: Handle, op: ConvOp, engine: int = 5) -> None:
        self.graph = ConvolutionGraph(handle, op)
        plan = self.graph.build(engine, ())
        assert isinstance(plan, Plan)
        self.plan = plan
        self.memory = Memory(self.graph.tensors)
        self.workspace = aligned(plan.workspace_bytes + 1)

    @property
    def pointers(self) -> dict[int, int]:
        return self.memory.pointers

    def destroy(self) -> None:
        self.plan.destroy()
        self.graph.destroy()


@pytest.fixture
def running(handle: Handle) -> Iterator[Running]:
    running = Running(handle, SMALL)
    yield running
    running.destroy()


@settings(max_examples=60)
@given(op=conv_ops(largest=5), seed=st.integers(0, 9))
def test_what_runs_is_the_convolution(fake_session: FakeCudnn, op: ConvOp, seed: int) -> None:
    """Strides, paddings, dilations, groups, directions, types: whatever of them was told wrongly, it would differ."""
    op = replace(canonical(op), alignment_bytes=max(8, op.alignment_bytes))  # below an element's size it is refused
    handle = Handle(fake_session.library)
    running = Running(handle, op)
    dice = np.random.default_rng(seed)
    memory = running.memory
    for name in memory.tensors:
        memory.fill(name, dice.integers(-3, 4, memory.size(name)))
    operands = {name: memory.values(name) for name in memory.tensors}
    pack = running.plan.variant_pack(running.pointers, running.workspace.ctypes.data)
    assert pack.launch_long() == 0
    (written,) = (tensor.name for tensor in running.graph.tensors if tensor.written)
    found, right = memory.values(written).astype("f8"), reference.conv(op, operands)
    np.testing.assert_allclose(found, right, rtol=2**-8 if op.output_type == "bfloat16" else 2**-11)
    running.destroy()
    handle.destroy()


def test_a_pack_carries_the_addresses_and_the_workspace(fake: FakeCudnn, running: Running) -> None:
    fake.journal()
    pack = running.plan.variant_pack({1: 0x1000, 2: 0x2000, 3: 0x3000}, 0x4000)
    assert fake.journal() == [
        "set 16 1000 3 3: 1 2 3",
        "set 16 1001 6 3: 0x1000 0x2000 0x3000",
        "set 16 1003 6 1: 0x4000",
        "finalize 16",
    ]
    pack.destroy()
    pack.destroy()


def test_without_a_workspace_the_address_is_null(fake: FakeCudnn, running: Running) -> None:
    fake.journal()
    running.plan.variant_pack({1: 0x1000}, 0)
    assert "set 16 1003 6 1: (nil)" in fake.journal()


def test_it_runs_on_the_stream_of_the_handle_it_is_given(fake: FakeCudnn, running: Running) -> None:
    lane = Handle(fake.library)
    lane.set_stream(0x77)
    fake.journal()
    pack = running.plan.variant_pack(running.pointers, running.workspace.ctypes.data, handle=lane)
    assert pack.launch() == 0
    own = running.plan.variant_pack(running.pointers, running.workspace.ctypes.data)
    assert own.launch() == 0
    assert [line for line in fake.journal() if line.startswith("execute")] == ["execute on 0x77", "execute on (nil)"]
    lane.destroy()


def test_the_lock_is_kept_where_it_is_short_and_given_up_where_it_is_long(fake: FakeCudnn, running: Running) -> None:
    pack = running.plan.variant_pack(running.pointers, running.workspace.ctypes.data)
    fake.watch_lock()
    fake.journal()
    pack.launch()
    pack.launch_long()
    pack.launch()
    assert fake.journal() == ["+execute on (nil)", "-execute on (nil)", "+execute on (nil)"]
    plan = running.graph.build(5, ())
    assert isinstance(plan, Plan)
    running.graph.heuristics("instant")
    plan.destroy()
    told = fake.journal()
    assert "-finalize 5" in told
    assert "-finalize 4" in told
    assert "-destroy 5" in told
    assert "+finalize 3" in told
    assert all(line.startswith("+") for line in told if line[1:4] == "set")


def test_a_launch_is_one_prepared_call(fake: FakeCudnn, running: Running) -> None:
    """Nothing of Python's stands between two launches of a burst."""
    pack = running.plan.variant_pack(running.pointers, running.workspace.ctypes.data)
    for launch, view in ((pack.launch, fake.library.short), (pack.launch_long, fake.library.long)):
        assert isinstance(launch, partial)
        assert launch.func is view.cudnnBackendExecute
        assert all(isinstance(argument, c_void_p) for argument in launch.args)


def test_statuses_come_back_as_they_are(fake: FakeCudnn, running: Running) -> None:
    pack = running.plan.variant_pack(running.pointers, running.workspace.ctypes.data)
    for status in (3007, 5003, 4004):
        fake.reset()
        fake.script("execute", status)
        assert pack.launch() == pack.launch_long() == status
        error = fake.library.error(status, "running it")
        assert "scripted: execute 5" in error.message
        assert (
            error.failure("running").kind
            == {3007: "not_supported", 5003: "launch_failed", 4004: "out_of_memory"}[status]
        )
        assert suspects_context(status) == (status == 5003)


def test_a_missing_address_and_a_broken_promise_are_noticed(fake: FakeCudnn, running: Running) -> None:
    workspace = running.workspace.ctypes.data
    pack = running.plan.variant_pack({1: running.pointers[1], 2: running.pointers[2]}, workspace)
    assert pack.launch() == 2000
    pack = running.plan.variant_pack({**running.pointers, 1: running.pointers[1] + 4}, workspace)
    assert pack.launch() == 2003


def test_a_pack_is_forgotten_once_it_is_destroyed(running: Running) -> None:
    """A caller may bind a plan to other tensors at every call."""
    for _ in range(100):
        kept = running.plan.variant_pack(running.pointers, 0)
        running.plan.variant_pack(running.pointers, 0).destroy()
        kept.destroy()
        assert kept.is_destroyed
    last = running.plan.variant_pack(running.pointers, 0)
    assert "1 packs" in repr(running.plan)
    assert not last.is_destroyed


def test_nothing_runs_after_the_end(running: Running) -> None:
    pack = running.plan.variant_pack(running.pointers, running.workspace.ctypes.data)
    running.plan.destroy()
    with pytest.raises(AssertionError, match="destroyed"):
        pack.launch()
    with pytest.raises(AssertionError, match="destroyed"):
        pack.launch_long()


@pytest.mark.parametrize("behaviour", [WRONG, BEYOND, BEYOND_WORKSPACE])
def test_the_fake_can_be_bad(fake: FakeCudnn, handle: Handle, behaviour: int) -> None:
    fake.engine(9, behaviour=behaviour)
    fake.config(9, workspace_bytes=64)
    good, bad = Running(handle, SMALL), Running(handle, SMALL, 9)
    for running in (good, bad):
        running.memory.bytes["output"] = aligned(running.memory.bytes["output"].size + 4)
        pack = running.plan.variant_pack(running.pointers, running.workspace.ctypes.data)
        assert pack.launch() == 0
    differs = bad.memory.bytes["output"] != good.memory.bytes["output"]
    assert differs[:-4].any() == (behaviour == WRONG)
    assert differs[-4:].any() == (behaviour == BEYOND)
    assert (bad.workspace[64] != 0) == (behaviour == BEYOND_WORKSPACE)
    good.destroy()
    bad.destroy()
