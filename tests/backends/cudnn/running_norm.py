"""A batch norm's plan run on this process's memory, and held against the definition."""

from __future__ import annotations

from ctypes import addressof, c_float
from typing import Any, Final

import numpy as np

from algosearch.backends.cudnn.legacy_norm import IN_PLACE
from algosearch.backends.cudnn.norm import EPSILON, MOMENTUM, UIDS, norm_tensors
from algosearch.backends.cudnn.plan import Runnable
from algosearch.ops import BatchNormOp
from tests.backends import reference
from tests.backends.cudnn.memory import Memory, aligned

TOLERANCE: Final = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}


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
