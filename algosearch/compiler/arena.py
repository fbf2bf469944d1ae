"""One arena for everything that a step makes: blocks with lifetimes in, offsets out. Pure.

Placing blocks whose lifetimes overlap so that the whole is smallest is NP-hard (dynamic storage allocation). Here: the
largest block first, each at the lowest offset where it meets no block that lives when it does; what a few other orders
give is tried as well, and the smallest arena is kept. Every order is a fixed one, so that equal blocks give equal
offsets in every process.

The bound: at no moment can an arena be smaller than what lives at it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, Literal

import msgspec

__all__ = ("ALIGNMENT_BYTES", "Arena", "Block", "BlockKey", "BlockKind", "lay_out", "lower_bound_bytes")

BlockKind = Literal["tensor", "workspace"]
BlockKey = tuple[BlockKind, str]
"""A tensor's name, or that of the task whose workspace it is: a task and a tensor may be called alike."""

ALIGNMENT_BYTES: Final = 256
"""Of every offset: what the CUDA allocator guarantees (`cudaMalloc`), and all that a vectorised kernel asks for."""


class Block(msgspec.Struct, frozen=True, gc=False):
    """Memory that is needed for some time."""

    key: BlockKey
    bytes: int
    first: int
    """The first task that needs it."""
    last: int
    """The last one; it lives from the beginning of the one to the end of the other."""

    @property
    def padded_bytes(self) -> int:
        """Up to where the next block can begin."""
        return -(-self.bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Arena(msgspec.Struct, frozen=True, kw_only=True):
    """Where each block lies."""

    offsets: dict[BlockKey, int]
    bytes: int
    lower_bound_bytes: int
    """What lives at the worst moment."""
    worst: int
    """That moment: a task."""


def lay_out(blocks: Sequence[Block]) -> Arena:
    """The smallest arena that was found. Blocks without bytes get no offset. Keys are unique."""
    blocks = [block for block in blocks if block.bytes]
    bound, worst = lower_bound_bytes(blocks)
    best: dict[BlockKey, int] = {}
    best_bytes = -1
    for order in _ORDERS:
        offsets, total = _place(sorted(blocks, key=order))
        if best_bytes < 0 or total < best_bytes:
            best, best_bytes = offsets, total
        if best_bytes == bound:
            break
    return Arena(offsets=best, bytes=max(best_bytes, 0), lower_bound_bytes=bound, worst=worst)


def lower_bound_bytes(blocks: Sequence[Block]) -> tuple[int, int]:
    """The most that lives at one moment, and the first such moment."""
    if not blocks:
        return 0, 0
    changes = [0] * (max(block.last for block in blocks) + 2)
    for block in blocks:
        changes[block.first] += block.padded_bytes
        changes[block.last + 1] -= block.padded_bytes
    alive = list(accumulate(changes))
    most = max(alive)
    return most, alive.index(most)


_ORDERS: Final[tuple[Callable[[Block], tuple[int, int, int, BlockKey]], ...]] = (
    lambda block: (-block.padded_bytes, 0, block.first, block.key),
    lambda block: (-block.padded_bytes * (block.last - block.first + 1), 0, block.first, block.key),
    lambda block: (-(block.padded_bytes**2) * (block.last - block.first + 1), 0, block.first, block.key),
    # By magnitude, so that of blocks of one kind those that live longest lie together, out of the others' way.
    lambda block: (-block.padded_bytes.bit_length(), block.first - block.last, -block.padded_bytes, block.key),
    lambda block: (block.first - block.last, -block.padded_bytes, 0, block.key),
    lambda block: (block.first, -block.padded_bytes, 0, block.key),
)


def _place(blocks: Sequence[Block]) -> tuple[dict[BlockKey, int], int]:
    """Each block at the lowest offset that is free for all of its life."""
    placed: list[tuple[int, int, int, int]] = []
    """(offset, end, first, last), the lowest first."""
    offsets: dict[BlockKey, int] = {}
    total = 0
    for block in blocks:
        size, offset = block.padded_bytes, 0
        for lower, end, first, last in placed:
            if last < block.first or block.last < first:
                continue
            if lower - offset >= size:
                break
            offset = max(offset, end)
        entry = (offset, offset + size, block.first, block.last)
        placed.insert(bisect_right(placed, entry), entry)
        offsets[block.key] = offset
        total = max(total, offset + size)
    return offsets, total
