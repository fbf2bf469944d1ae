"""What a child does is timed by a clock that stands still while this process does."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from algosearch.devices.blame import Blame
from algosearch.devices.job import Step
from algosearch.devices.remote.watch import Watch

LIMIT_S = 5.0


class Timers:
    """As much of a loop as a watch uses, on a clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Timer]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, call: Callable[..., None], *args: Any) -> Timer:
        timer = Timer(when, lambda: call(*args))
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> Timer:
        return self.call_at(self.now_s + delay_s, call, *args)

    def run(self, seconds: float) -> None:
        """All that is due fires when it is due."""
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            when, _, timer = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, when)
            timer.fire()
        self.now_s = end_s

    def stand_still(self, seconds: float) -> None:
        """The process is stopped: what is due fires when it goes on."""
        self.now_s += seconds
        self.run(0.0)


class Timer:
    def __init__(self, when: float, fire: Callable[[], None]) -> None:
        self._when = when
        self._fire = fire
        self._cancelled = False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._cancelled = True

    def fire(self) -> None:
        if not self._cancelled:
            self._fire()


class Watched:
    """A child that begins what a test says and then does nothing."""

    def __init__(self, *, owes: bool = False) -> None:
        self.timers = Timers()
        self.overdue: list[str] = []
        loop = cast("asyncio.AbstractEventLoop", self.timers)
        self.watch = Watch(loop, LIMIT_S, owes=lambda: owes, on_overdue=self._note)

    def _note(self, why: str, blamed: tuple[Blame, ...]) -> None:
        self.overdue.append(why)

    def launches(self, limit_s: float = LIMIT_S) -> None:
        self.watch.begins(Step(side="lane", job=1, deed="launch", algorithms=("simulated/t:a",), limit_s=limit_s))


def test_what_takes_too_long_is_overdue() -> None:
    child = Watched()
    child.launches()
    child.timers.run(LIMIT_S - 0.1)
    assert child.overdue == []
    child.timers.run(0.2)
    assert child.overdue == ["first run of simulated/t:a took longer than 5 s"]


@pytest.mark.parametrize("before_s", [0.0, 0.5, 3.7, LIMIT_S - 0.01])
@pytest.mark.parametrize("still_s", [2.0, 1_000_000.0])
def test_what_could_not_be_seen_is_not_held_against_it(before_s: float, still_s: float) -> None:
    """Stopped with its parent, it is no nearer to its end when both go on."""
    child = Watched()
    child.launches()
    child.timers.run(before_s)
    child.timers.stand_still(still_s)
    left_s = LIMIT_S - before_s
    child.timers.run(max(0.0, left_s - 1.1))
    assert child.overdue == []
    child.timers.run(2.5)
    assert len(child.overdue) == 1, "nor is it forgiven more than that"


def test_what_begins_when_all_goes_on_has_its_own_limit_only() -> None:
    child = Watched()
    child.launches()
    child.timers.now_s += 1000.0
    child.launches()  # its word is read before the timers fire
    child.timers.run(LIMIT_S - 0.1)
    assert child.overdue == []
    child.timers.run(0.2)
    assert len(child.overdue) == 1


def test_silence_is_counted_likewise() -> None:
    child = Watched(owes=True)
    child.watch.heard()
    child.timers.stand_still(1000.0)
    child.timers.run(LIMIT_S - 1.1)
    assert child.overdue == []
    child.timers.run(2.5)
    assert child.overdue == ["its process has said nothing for 5 s"]
