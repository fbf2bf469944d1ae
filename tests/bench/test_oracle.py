"""`bench/oracle.py` prices candidates, and ends."""

from collections.abc import Sequence
from typing import cast

import oracle

from algosearch.backends.base import Session
from algosearch.records import Burst


class Clock:
    """A session that only times: a plan's µs are its number. An odd one is disturbed, always."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst, ...]:
        assert limit_us is None
        self.asked.append(tuple(plan for plan, _ in bursts))
        return tuple(
            Burst(time_us=float(plan), repeats=repeats, timing="gated", disturbed="always" if plan % 2 else None)
            for plan, repeats in bursts
        )


def test_whoever_is_disturbed_each_time_is_taken_as_it_is() -> None:
    clock = Clock()
    assert oracle._round(cast("Session", clock), {"a": 4, "b": 3, "c": 8}, {"a": 1, "b": 2, "c": 1}) == {
        "a": 4.0,
        "b": 3.0,
        "c": 8.0,
    }
    assert clock.asked == [(4, 3, 8), *[(3,)] * (oracle.PATIENCE - 1)]


def test_whoever_is_not_is_run_once() -> None:
    clock = Clock()
    assert oracle._round(cast("Session", clock), {"a": 4}, {"a": 1}) == {"a": 4.0}
    assert clock.asked == [(4,)]
