"""A plan's arrays on a GPU, as CuPy, PyTorch and DLPack have them; run, recorded in a CUDA graph, and held against the
definition in every element."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from algosearch import Plan
from algosearch.backends.cudnn.contents import conv_allowance, norm_allowance
from algosearch.backends.cudnn.norm import EPSILON, MOMENTUM
from algosearch.backends.running import Slot
from algosearch.ops import BatchNormOp
from tests.backends import reference
from tests.backends.slots import Array, numbers, rows_for
from tests.gpu.reference import conv


class Dlpack:
    """An array that has DLPack and nothing else."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)


def with_cupy(slot: Slot, row: Array) -> tuple[Any, Any]:
    """A row on the device, and the same as the slot sees it."""
    import cupy

    there = cupy.asarray(row)
    size = row.itemsize
    return there, cupy.ndarray(slot.shape, row.dtype, there.data, tuple(each * size for each in slot.strides))


def with_torch(slot: Slot, row: Array) -> tuple[Any, Any]:
    import torch

    there = torch.from_numpy(row).cuda()
    return there, there.as_strided(slot.shape, slot.strides)


def with_dlpack(slot: Slot, row: Array) -> tuple[Any, Any]:
    there, view = with_cupy(slot, row)
    return there, Dlpack(view)


ALL: Final = (with_cupy, with_torch, with_dlpack)


class OnDevice:
    """An op's arrays on the device."""

    def __init__(self, plan: Plan, using: Any, seed: int = 0) -> None:
        self.plan = plan
        self.rows = rows_for(plan.slots.values(), seed)
        made = {name: using(plan.slots[name], row) for name, row in self.rows.items()}
        self._there = {name: there for name, (there, _) in made.items()}
        self.arrays = {name: view for name, (_, view) in made.items()}

    def fill(self, seed: int) -> None:
        """Other numbers, at the same addresses; waited for."""
        self.rows = rows_for(self.plan.slots.values(), seed)
        for name, row in self.rows.items():
            there = self._there[name]
            if hasattr(there, "copy_"):
                import torch

                there.copy_(torch.from_numpy(row))
            else:
                there.set(row)
        synchronize()

    def check(self) -> None:
        """Every element of every result; waits for the device."""
        synchronize()
        for name, slot in self.plan.slots.items():
            if slot.written:
                there = self._there[name]
                self.rows[name][:] = there.cpu().numpy() if hasattr(there, "cpu") else there.get()
        op, read = self.plan.op, numbers(self.plan.slots, self.rows)
        read |= numbers(self.plan.slots, self.rows, written=True)  # from which the gradients of a pair follow
        if isinstance(op, BatchNormOp):
            right = reference.batch_norm(op, read, epsilon=EPSILON, momentum=MOMENTUM)
            allowed = {name: norm_allowance(op, name) for name in right}
        else:
            written = next(name for name, slot in self.plan.slots.items() if slot.written)
            right = {written: conv(op, read)}
            notes = {note for each in self.plan.choice.candidates for note in each.notes}
            allowed = {written: conv_allowance(op, notes)}
        for name, values in right.items():
            allowance = allowed[name].twice()  # its numbers are a little larger than a trial's
            excess = np.abs(self.rows[name] - values) / (allowance.absolute + allowance.relative * np.abs(values))
            assert (excess <= 1.0).all(), (self.plan, name, float(np.nanmax(excess)))


def synchronize() -> None:
    import cupy

    cupy.cuda.runtime.deviceSynchronize()


def capture_and_replay(plan: Plan) -> None:
    """Record a plan in a CUDA graph of PyTorch's and in one of CuPy's, and hold what each replay leaves against the
    definition: in other arrays' contents, in a workspace that holds nothing like what the plan left there, and on
    arrays that it was not bound to before."""
    import cupy
    import torch

    there = OnDevice(plan, with_torch)
    room = torch.empty(max(1, plan.workspace_bytes), dtype=torch.uint8, device="cuda")
    plan(**there.arrays, workspace=room)  # whatever is loaded, is loaded outside of the capture
    synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(**there.arrays, workspace=room)
    for seed in (1, 2):
        there.fill(seed)
        room.fill_(0xFF)
        graph.replay()
        there.check()
    del graph  # before the plan
    here, other = OnDevice(plan, with_cupy), OnDevice(plan, with_cupy)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        plan(**other.arrays)
        stream.synchronize()
        stream.begin_capture()
        plan(**here.arrays)
        recorded = stream.end_capture()
    here.fill(3)
    recorded.launch(stream)
    here.check()
    del recorded
