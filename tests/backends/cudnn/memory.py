"""Memory of this process as the device memory of a fake: aligned, typed, in and out of numpy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from algosearch.backends.cudnn.graph import GraphTensor

Row = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
NUMPY_TYPES: Final = {"float16": "f2", "bfloat16": "u2", "float32": "f4", "float64": "f8", "int8": "i1"}


def aligned(size: int, alignment: int = 4096) -> Bytes:
    """Zeroed bytes at an address that keeps every promise that an op can make."""
    memory = np.zeros(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size]


class Memory:
    """The tensors of an op by name, each as bytes."""

    def __init__(self, tensors: Iterable[GraphTensor]) -> None:
        self.tensors = {tensor.name: tensor for tensor in tensors}
        self.bytes = {name: aligned(tensor.bytes) for name, tensor in self.tensors.items()}

    @property
    def pointers(self) -> dict[int, int]:
        """Addresses by uid."""
        return {tensor.uid: self.bytes[name].ctypes.data for name, tensor in self.tensors.items()}

    def values(self, name: str) -> Row:
        """A tensor in its own type, float32 in place of bfloat16: a copy."""
        row = self._row(name)
        if self.tensors[name].element_type == "bfloat16":
            return (row.astype(np.uint32) << 16).view(np.float32)
        return row.copy()

    def fill(self, name: str, values: Row) -> None:
        """Values that the tensor's type can represent exactly."""
        row = self._row(name)
        if self.tensors[name].element_type == "bfloat16":
            row[:] = values.astype(np.float32).view(np.uint32) >> 16
        else:
            row[:] = values

    def size(self, name: str) -> int:
        """Elements."""
        return self._row(name).size

    def _row(self, name: str) -> Row:
        return self.bytes[name].view(NUMPY_TYPES[self.tensors[name].element_type])
