"""`Arena`: where each temporary of a kernel lies in its workspace, decided before any memory exists.

A kernel takes its regions when it is made, which costs no memory and says to the byte what a run needs. Bound to a
workspace, the same regions become the arrays that the run works in: what is stated is what is used, by construction.
numpy lets no view leave the workspace, and a run that allocates anything beside it is caught by a test.

Rejected: adding the sizes up in a formula beside the code (the two drift apart), and measuring a first run (the
workspace must be known before anything is run).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from algosearch.ops import Shape

Array = npt.NDArray[Any]
Run = Callable[[], None]

ALIGNMENT_BYTES: Final = 64
"""Of every region, and of the workspace: a cache line, and the widest vector."""


def at(values: Array, *index: Any) -> Array:
    """`values[index]`, for an index whose length is not known here. (numpy's types make nothing of one unpacked.)"""
    part: Array = values[index]
    return part


class Region(msgspec.Struct, frozen=True, gc=False):
    """A place in a workspace that does not exist yet."""

    offset_bytes: int
    shape: Shape
    data_type: str

    def of(self, workspace: Array) -> Array:
        """The array in this place of `workspace`, which is one of bytes. A view; never a copy."""
        data_type = np.dtype(self.data_type)
        end_bytes = self.offset_bytes + prod(self.shape) * data_type.itemsize
        assert end_bytes <= workspace.size, f"{self!r} does not lie in {workspace.size} bytes"
        return workspace[self.offset_bytes : end_bytes].view(data_type).reshape(self.shape)


class Arena:
    """Hands out regions one after the other. After `rewind` a place is handed out again, for a later use of it."""

    def __init__(self) -> None:
        self.total_bytes = 0
        """The end of the region that ends last: the workspace that all of them need."""
        self._next_bytes = 0

    def __repr__(self) -> str:
        return f"<Arena of {self.total_bytes} bytes>"

    def take(self, shape: Shape, data_type: str) -> Region:
        """The next region, for a dense array."""
        offset_bytes = -(-self._next_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._next_bytes = offset_bytes + prod(shape) * np.dtype(data_type).itemsize
        self.total_bytes = max(self.total_bytes, self._next_bytes)
        return Region(offset_bytes, shape, data_type)

    def mark(self) -> int:
        """This point, to `rewind` to."""
        return self._next_bytes

    def rewind(self, mark: int) -> None:
        """Hand out again what was taken since `mark`. Its regions must no longer be needed when the new ones are."""
        self._next_bytes = mark
