"""`Queries`: what a compile asked, how often, in which stage, and how long each answer was waited for.

The figures of the complaint that this library answers: for each kind of op and each shape the number of queries, the
time of the first and of the later ones, and so whether a cache worked.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final, Literal

import msgspec

from algosearch.ops import ConvOp, Op

__all__ = ("Queries", "QueryStatistics", "Stage", "Wait")

Stage = Literal["passes", "reserve", "task graph", "memory plan"]

WORKED: Final = 0.1
"""A cache worked where a later query takes, in the mean, at most this share of the first,"""
AT_ONCE_US: Final = 5.0
"""or no longer than this, where the first one was quick already: it was asked early, say, and answered meanwhile."""


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

    @property
    def cached(self) -> bool | None:
        """Whether a cache worked; None if nothing was asked twice."""
        return None if self.later_us is None else self.later_us <= max(WORKED * self.first_us, AT_ONCE_US)


class _Asked:
    """The running sums of one problem."""

    __slots__ = ("first_s", "later_s", "queries", "ways")

    def __init__(self) -> None:
        self.queries = 0
        self.ways: set[str] = set()
        """What was awaited so far. The first query of each way is a first one: a size that was known early says
        nothing of whether the choice was cached."""
        self.first_s = 0.0
        self.later_s = 0.0

    @property
    def later(self) -> int:
        """How many queries were no first ones."""
        return self.queries - len(self.ways)


class Queries:
    """The log of one compile. `began` is when it began, by `perf_counter`."""

    def __init__(self) -> None:
        self.began = perf_counter()
        self.waits: list[Wait] = []
        self._asked: dict[Op, _Asked] = {}
        self._seconds: dict[Stage, float] = {}

    def note(self, stage: Stage, awaited: str, op: Op, began: float, *, again: int = 0, again_s: float = 0.0) -> None:
        """One query has just been answered that began at `began`, and before or after it `again` more of the same op,
        which took `again_s` in all."""
        asked = self._asked.get(op)
        if asked is None:
            asked = self._asked[op] = _Asked()
        seconds = perf_counter() - began - again_s
        if awaited in asked.ways:
            asked.later_s += seconds
        else:
            asked.first_s += seconds
            asked.ways.add(awaited)
        asked.queries += 1 + again
        asked.later_s += again_s
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds + again_s
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
            )
            for op, asked in self._asked.items()
        ]
        return tuple(sorted(lines, key=lambda line: -(line.first_us + (line.later_us or 0.0) * (line.queries - 1))))


def _kind(op: Op) -> str:
    return "conv" if isinstance(op, ConvOp) else "batch_norm"
