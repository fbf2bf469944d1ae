"""One arena for everything that a step makes: blocks with lifetimes in, offsets out. Pure.

Placing blocks whose lifetimes overlap so that the whole is smallest is NP-hard (dynamic storage allocation). Here each
block goes to the lowest gap between those that live when it does, in several orders, and the smallest arena is kept:
the largest first; and what lives at the worst moment first, which has to lie without a gap, stacked by when it ends or
by when it began. Where that is far from the bound, what sticks out at the top is placed before everything else, again
and again. Every order is a fixed one, so that equal blocks give equal offsets in every process.

Rejected: the tightest gap in place of the lowest. It was hardly ever better, and never the best.

The bound: at no moment can an arena be smaller than what lives at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = (
    "ALIGNMENT_BYTES",
    "Arena",
    "Block",
    "BlockKey",
    "BlockKind",
    "lay_out",
    "lay_out_in_turns",
    "lower_bound_bytes",
)

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


def lay_out(blocks: Sequence[Block], *, within_bytes: int | None = None) -> Arena:
    """The smallest arena that was found. Blocks without bytes get no offset. Keys are unique.

    Args:
        within_bytes: look longer for an arena of so many, where the bound allows it.
    """
    turns = _laying_out(blocks, within_bytes)
    while (arena := _turn(turns)) is None:
        pass
    return arena


async def lay_out_in_turns(blocks: Sequence[Block], *, within_bytes: int | None = None) -> Arena:
    """`lay_out`, which takes minutes for a hundred thousand blocks: a checkpoint every few milliseconds.

    Cancellation: nothing is left behind.
    """
    turns = _laying_out(blocks, within_bytes)
    while True:
        arena = _turn(turns)
        if arena is not None:
            return arena

        await asyncio.sleep(0)


def _turn(turns: Generator[None, None, Arena]) -> Arena | None:
    """One more; the arena, if it was the last one."""
    try:
        next(turns)
    except StopIteration as end:
        arena: Arena = end.value
        return arena
    return None


def _laying_out(blocks: Sequence[Block], within_bytes: int | None) -> Generator[None, None, Arena]:
    """`lay_out`, interrupted after every few blocks."""
    blocks = [block for block in blocks if block.bytes]
    bound, worst = lower_bound_bytes(blocks)
    best = _Layout([])
    tried: list[_Layout] = []
    for order in _orders(worst):
        tried.append(_Layout(sorted(blocks, key=order)))
        yield from tried[-1].place()
        best = min(tried, key=lambda layout: layout.bytes)
        if best.bytes == bound:
            break

    small_enough = _GOOD_ENOUGH * bound
    if within_bytes is not None and within_bytes >= bound:
        small_enough = min(small_enough, within_bytes)
    if best.bytes > small_enough:
        best = yield from _improved(tried, small_enough)
    return Arena(offsets=best.offsets, bytes=best.bytes, lower_bound_bytes=bound, worst=worst)


def _improved(layouts: Sequence[_Layout], small_enough: float) -> Generator[None, None, _Layout]:
    """The best that comes of placing what sticks out at the top before everything else, again and again."""
    layouts = sorted(layouts, key=lambda layout: layout.bytes)[:_IMPROVED]
    best = layouts[0]
    for _ in range(_MOST_PLACED // (len(best.order) * len(layouts))):
        layouts = [_Layout(layout.order_with_tops_first()) for layout in layouts]
        for layout in layouts:
            yield from layout.place()

        best = min((best, *layouts), key=lambda layout: layout.bytes)
        if best.bytes <= small_enough:
            break

    return best


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


_GOOD_ENOUGH: Final = 1.05
"""With so many times the bound nobody looks for a better one, unless it has to fit: that costs seconds in a large
graph."""
_IMPROVED: Final = 3
_AT_ONCE: Final = 128
"""Blocks are placed between two turns of others."""
_MOST_PLACED: Final = 80_000
"""So many layouts are improved, until so many blocks have been placed."""


def _orders(worst: int) -> tuple[Callable[[Block], tuple[int, int, int, BlockKey]], ...]:
    """By what blocks are sorted; `worst` is the moment at which most lives."""

    def later(block: Block) -> bool:
        return not block.first <= worst <= block.last

    def life(block: Block) -> int:
        return block.last - block.first + 1

    def size(block: Block) -> int:
        return block.padded_bytes

    return (
        lambda block: (0, -size(block), block.first, block.key),
        lambda block: (later(block), -size(block) if later(block) else -block.last, block.first, block.key),
        lambda block: (later(block), -size(block) if later(block) else block.first, -block.last, block.key),
        lambda block: (0, -size(block) * life(block), block.first, block.key),
        lambda block: (0, -life(block), -size(block), block.key),
        lambda block: (later(block), -life(block), -size(block), block.key),
    )


class _Shelf:
    """The blocks that lie already, the lowest first; in columns, for most of the work is to see who is in the way."""

    def __init__(self, room: int, dtype: npt.DTypeLike) -> None:
        self._rows = np.zeros((4, room), dtype=dtype)
        """Offset, end, first and last task of each."""
        self._count = 0

    def lowest(self, block: Block) -> int:
        """Where a block can lie: in the lowest gap that takes it, or above all that is in its way."""
        offsets, ends, first, last = self._rows[:, : self._count]
        in_its_way = np.flatnonzero((first <= block.last) & (last >= block.first))
        if not in_its_way.size:
            return 0

        tops = np.maximum.accumulate(ends[in_its_way])
        floors = np.concatenate((np.zeros(1, dtype=tops.dtype), tops[:-1]))
        gaps = np.flatnonzero(offsets[in_its_way] - floors >= block.padded_bytes)
        return int(floors[gaps[0]] if gaps.size else tops[-1])

    def put(self, block: Block, offset: int) -> int:
        """Put it there; where it ends."""
        rows, count, end = self._rows, self._count, offset + block.padded_bytes
        place = int(np.searchsorted(rows[0, :count], offset, side="right"))
        rows[:, place + 1 : count + 1] = rows[:, place:count]
        rows[:, place] = (offset, end, block.first, block.last)
        self._count += 1
        return end


class _Layout:
    """Blocks placed one after the other, each in a gap that is free for all of its life."""

    def __init__(self, order: Sequence[Block]) -> None:
        self.order = order
        self.offsets: dict[BlockKey, int] = {}
        self.bytes = 0

    def place(self) -> Iterator[None]:
        """Place them all, once; interrupted after every few."""
        # Models of absurd size are laid out as well; what does not fit a machine's integer is counted in Python's.
        small = sum(block.padded_bytes for block in self.order) < 1 << 62
        shelf = _Shelf(len(self.order), np.int64 if small else object)
        for number, block in enumerate(self.order, start=1):
            self.offsets[block.key] = offset = shelf.lowest(block)
            self.bytes = max(self.bytes, shelf.put(block, offset))
            if number % _AT_ONCE == 0:
                yield

    def order_with_tops_first(self) -> list[Block]:
        """Those that end where the arena ends come first, the others after them as they came."""
        return sorted(self.order, key=lambda block: self.offsets[block.key] + block.padded_bytes < self.bytes)
