"""`Queries`: what a compile asked, how often, in which stage, and how long each answer was waited for.

The figures of the complaint that this library answers: for each kind of op and each shape the number of queries, the
time of the first and of the later ones, and so whether a cache worked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from time import perf_counter
from typing import Final, Literal

import msgspec

from algosearch.ops import ConvOp, Op, searched_as

__all__ = ("Queries", "QueryStatistics", "Stage", "Wait")

Stage = Literal["passes", "reserve", "task graph", "memory plan"]

WORKED: Final = 0.1
"""A cache worked where a later query takes, in the mean, at most this share of the first,"""
AT_ONCE_US: Final = 5.0
"""or no longer than this, where the first one was quick already: it was asked early, say, and answered meanwhile."""


_RUNS: Final = 4
_MANY: Final = 32
"""Of fewer there are fewer runs: to measure them would take longer than to ask."""
_AT_ONCE: Final = 1 << 16
"""Asked between two turns of others: some 20 ms, if the answers are in memory, where asking is no checkpoint."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that was waited for."""

    stage: Stage
    awaited: str
    """What: `workspace`, `choice`, `reserve`, `tmp size`."""
    problem: str
    began_s: float
    """Since the compile began."""
    seconds: float


class QueryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """All queries of one problem."""

    kind: str
    problem: str
    queries: int
    first_us: float
    """The first time that it was asked; of its size and of its choice, where both were asked, the sum."""
    later_us: float | None
    """The mean of all others; None if there was none."""
    least_later_us: float | None
    """The same of the quickest among several runs of them, in which the machine made no pause."""

    @property
    def cached(self) -> bool | None:
        """Whether a cache worked; None if nothing was asked twice."""
        return None if self.least_later_us is None else self.least_later_us <= max(WORKED * self.first_us, AT_ONCE_US)


class _Asked:
    """The running sums of one problem."""

    __slots__ = ("first_s", "later_s", "least_later_s", "queries", "ways")

    def __init__(self) -> None:
        self.queries = 0
        self.ways: set[str] = set()
        """What was awaited so far. The first query of each way is a first one: a size that was known early says
        nothing of whether the choice was cached."""
        self.first_s = 0.0
        self.later_s = 0.0
        self.least_later_s = inf

    @property
    def later(self) -> int:
        """How many queries were no first ones."""
        return self.queries - len(self.ways)


class Again:
    """The same question asked over and over, by one device after the other. What was asked counts, also if it is ended
    before all have asked."""

    __slots__ = ("count", "least_s", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.least_s = inf
        """What one took, in the quickest of several runs of them."""

    async def ask(self, ask: Callable[[], Awaitable[object]], times: int) -> None:
        """So often."""
        runs = _RUNS if times >= _MANY else min(2, times)
        for run in range(runs):
            wanted = times * (run + 1) // runs
            while self.count < wanted:
                at_once = min(wanted - self.count, _AT_ONCE)
                await self._ask_at_once(ask, at_once)
                if at_once == _AT_ONCE:
                    await asyncio.sleep(0)

    async def _ask_at_once(self, ask: Callable[[], Awaitable[object]], times: int) -> None:
        began, before = perf_counter(), self.count
        try:
            for _ in range(times):
                await ask()
                self.count += 1
        finally:
            seconds = perf_counter() - began
            self.seconds += seconds
            if self.count > before:
                self.least_s = min(self.least_s, seconds / (self.count - before))


class Queries:
    """The log of one compile. `began` is when it began, by `perf_counter`."""

    def __init__(self) -> None:
        self.began = perf_counter()
        self.waits: list[Wait] = []
        self._asked: dict[Op, _Asked] = {}
        self._seconds: dict[Stage, float] = {}

    def note(self, stage: Stage, awaited: str, op: Op, began: float, ended: float, again: Again | None = None) -> None:
        """One query was answered, from when to when by `perf_counter`; and after it, `again` more of the same op."""
        asked = self._asked.get(op)
        if asked is None:
            asked = self._asked[op] = _Asked()
        seconds = ended - began
        if awaited in asked.ways:
            asked.later_s += seconds
            asked.least_later_s = min(asked.least_later_s, seconds)
        else:
            asked.first_s += seconds
            asked.ways.add(awaited)
        asked.queries += 1
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
        if again is not None:
            asked.queries += again.count
            asked.later_s += again.seconds
            asked.least_later_s = min(asked.least_later_s, again.least_s)
            self._seconds[stage] += again.seconds
        self.waits.append(
            Wait(
                stage=stage,
                awaited=awaited,
                problem=op.describe(),
                began_s=began - self.began,
                seconds=seconds,
            )
        )

    @property
    def count(self) -> int:
        """All queries."""
        return sum(asked.queries for asked in self._asked.values())

    @property
    def distinct(self) -> int:
        """How many different keys they were about: equal problems have one, and so have a fused batch norm's passes."""
        return len({searched_as(op) for op in self._asked})

    @property
    def seconds(self) -> dict[Stage, float]:
        """Spent waiting for answers, by stage."""
        return dict(self._seconds)

    def seconds_of(self, kind: str) -> float:
        """Spent waiting for the answers about one kind of op, `conv` or `batch_norm`."""
        return sum(asked.first_s + asked.later_s for op, asked in self._asked.items() if _kind(op) == kind)

    def statistics(self) -> tuple[QueryStatistics, ...]:
        """One line for each problem, the longest wait first."""
        lines = [
            QueryStatistics(
                kind=_kind(op),
                problem=op.describe(),
                queries=asked.queries,
                first_us=asked.first_s * 1e6,
                later_us=asked.later_s * 1e6 / asked.later if asked.later else None,
                least_later_us=asked.least_later_s * 1e6 if asked.later else None,
            )
            for op, asked in self._asked.items()
        ]
        return tuple(sorted(lines, key=lambda line: -(line.first_us + (line.later_us or 0.0) * (line.queries - 1))))


def _kind(op: Op) -> str:
    return "conv" if isinstance(op, ConvOp) else "batch_norm"
