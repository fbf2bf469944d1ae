"""Arrays for a plan: of the right shape, type and layout, in the host's memory, filled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from algosearch.backends.running import Slot

Array = npt.NDArray[Any]

DTYPES: Final = {"float16": "f2", "bfloat16": "u2", "float32": "f4", "float64": "f8", "int8": "i1"}
"""numpy has no bfloat16: its bits."""


def row_of(slot: Slot, seed: int) -> Array:
    """A tensor's memory as one row at an aligned address, of numbers that its type can hold; NaN (int8: -1) if it is
    written."""
    size = prod(slot.shape)
    dtype = np.dtype(DTYPES[slot.element_type])
    memory = np.zeros(size * dtype.itemsize + 4096, np.uint8)
    start = -memory.ctypes.data % 4096
    row: Array = memory[start : start + size * dtype.itemsize].view(dtype)
    if slot.written:
        row.view(np.uint8)[:] = 0xFF
        return row
    dice = np.random.default_rng((seed, *slot.name.encode()))
    drawn = dice.integers(1 if "variance" in slot.name or "deviation" in slot.name else -4, 5, size) / 4
    if slot.element_type == "bfloat16":
        row[:] = drawn.astype(np.float32).view(np.uint32) >> 16
    else:
        row[:] = drawn * 4 if slot.element_type == "int8" else drawn
    return row


def shaped(slot: Slot, row: Array) -> Array:
    """A row as its owner sees it: a view of the slot's shape."""
    size = row.itemsize
    return np.lib.stride_tricks.as_strided(row, slot.shape, tuple(each * size for each in slot.strides))


def rows_for(slots: Iterable[Slot], seed: int = 0) -> dict[str, Array]:
    """A row for each."""
    return {slot.name: row_of(slot, seed) for slot in slots}


def values(slot: Slot, row: Array) -> Array:
    """A row as numbers."""
    if slot.element_type == "bfloat16":
        return (row.astype(np.uint32) << 16).view(np.float32)
    return row


def numbers(slots: Mapping[str, Slot], rows: Mapping[str, Array], *, written: bool = False) -> dict[str, Array]:
    """Copies of what is read, or of what is written, as numbers."""
    return {name: values(slots[name], row).copy() for name, row in rows.items() if slots[name].written == written}
