"""`Buffers`: the memory of one op while it is raced: its tensors, one workspace, and guards around what is written."""

from __future__ import annotations

from typing import Final

import numpy as np

from algosearch.backends.cpu.arena import ALIGNMENT_BYTES, Array
from algosearch.backends.cpu.tensors import Tensor, fill, tensors_of
from algosearch.ops import Op

GUARD_BYTES: Final = 4096
_PATTERN: Final = 0xA5
_NAN: Final = 0xFF
"""Of these bytes every floating-point type is NaN, so that what a run reads before it wrote it shows in its result."""
# Of each allocation, beyond what was asked for: two guards, and room to align what is between them.
_SURROUNDINGS_BYTES: Final = 2 * GUARD_BYTES + ALIGNMENT_BYTES


def needed_bytes(op: Op, workspace_bytes: int) -> int:
    """What `Buffers` will take, and with them the two results that are compared in a check."""
    tensors = tensors_of(op)
    results_bytes = 2 * sum(each.size_bytes for each in tensors if each.written)
    surroundings_bytes = (len(tensors) + 1) * _SURROUNDINGS_BYTES
    return sum(each.size_bytes for each in tensors) + results_bytes + workspace_bytes + surroundings_bytes


class Buffers:
    """Made filled, and all of it touched, so that no run is slowed by the system finding the memory.

    Raises:
        MemoryError: there is not so much.
    """

    def __init__(self, op: Op, workspace_bytes: int) -> None:
        self.workspace_bytes = workspace_bytes
        self._guarded = {each.name: _Guarded(each.size_bytes) for each in tensors_of(op)}
        self._workspace = _Guarded(workspace_bytes)
        self.written: tuple[Tensor, ...] = tuple(each for each in tensors_of(op) if each.written)
        self.tensors: dict[str, Array] = {}
        """By name, each as one row. What is only read cannot be written: numpy refuses."""
        for each in tensors_of(op):
            memory = self._guarded[each.name].inside().view(each.data_type)
            fill(memory, each)
            memory.flags.writeable = each.written
            self.tensors[each.name] = memory

    def workspace(self, size_bytes: int) -> Array:
        """Bytes of a workspace for a plan that stated `size_bytes`: not one more than that."""
        assert size_bytes <= self.workspace_bytes, f"{size_bytes} bytes, and {self.workspace_bytes} are loaded"
        return self._workspace.inside(size_bytes)

    def spoil(self, size_bytes: int) -> None:
        """Make of all that a plan with this workspace will write something that no run leaves behind."""
        for each in self.written:
            fill(self.tensors[each.name], each)
            self._guarded[each.name].paint()
        self._workspace.inside(size_bytes).fill(_NAN)
        self._workspace.paint(size_bytes)

    def trespassed(self, size_bytes: int) -> str | None:
        """Outside what was written since `spoil`, or None if every guard is as it was."""
        for each in self.written:
            if not self._guarded[each.name].is_whole():
                return each.name
        return None if self._workspace.is_whole(size_bytes) else "workspace"


class _Guarded:
    """Aligned bytes between two guards. The one behind moves up if only a part is used."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        memory = np.empty(size_bytes + _SURROUNDINGS_BYTES, np.uint8)
        start = GUARD_BYTES - memory.ctypes.data % ALIGNMENT_BYTES
        self._start = start + ALIGNMENT_BYTES if start < GUARD_BYTES else start
        self._memory = memory
        memory.fill(_PATTERN)

    def inside(self, size_bytes: int | None = None) -> Array:
        return self._memory[self._start : self._end(size_bytes)]

    def paint(self, size_bytes: int | None = None) -> None:
        for guard in self._guards(size_bytes):
            guard.fill(_PATTERN)

    def is_whole(self, size_bytes: int | None = None) -> bool:
        return all(bool((guard == _PATTERN).all()) for guard in self._guards(size_bytes))

    def _end(self, size_bytes: int | None) -> int:
        return self._start + (self._size_bytes if size_bytes is None else size_bytes)

    def _guards(self, size_bytes: int | None) -> tuple[Array, Array]:
        end = self._end(size_bytes)
        return self._memory[self._start - GUARD_BYTES : self._start], self._memory[end : end + GUARD_BYTES]
