"""A round: in which order its bursts run, and what their times say.

There and back (A B C C B A) everybody runs at the same time on average, so that a clock that changes evenly changes no
comparison. Two economies: who is much slower than another is in the middle and runs once, at the same time on average
as well; and a round that would take very long, or on a restless device, goes one way, the next one the other way, which
comes to the same over two rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil

from algosearch.race.estimate import LONGEST_US, SHORTEST_US
from algosearch.race.instructions import Time
from algosearch.race.rules import RaceRules
from algosearch.records import Burst, Failure

Bursts = tuple[tuple[int, int], ...]
"""(rank, repeats), in the order in which they run."""
Result = tuple[tuple[int, int], Burst | Failure]
"""A burst and its outcome."""


def laid_out(
    order: Sequence[int],
    time_us: Callable[[int], float],
    rules: RaceRules,
    *,
    burst_us: float,
    odd: bool,
    restless: bool,
) -> Bursts:
    """A round of these ranks.

    Args:
        order: in which they go there.
        time_us: of one run, by rank.
        burst_us: how long a burst should be at least.
        odd: every second round; so that those that go one way go the other way.
        restless: bursts are often disturbed. Of fewer bursts more rounds are whole.
    """
    most = rules.most_repeats
    there = [(rank, max(1, ceil(min(most, burst_us / max(time_us(rank), 1e-6))))) for rank in order]
    if len(there) == 1:
        return tuple(there)
    if restless or 2 * lasts_us(there, time_us) > rules.long_round_us:
        return tuple(reversed(there)) if odd else tuple(there)
    slowest = max(there, key=lambda burst: time_us(burst[0]))
    if time_us(slowest[0]) > rules.worth_it * min(time_us(rank) for rank in order):
        there.remove(slowest)
        return (*there, slowest, *reversed(there))
    return (*there, *reversed(there))


def lasts_us(bursts: Sequence[tuple[int, int]], time_us: Callable[[int], float]) -> float:
    """How long these bursts are expected to take."""
    return sum(time_us(rank) * repeats for rank, repeats in bursts)


def each_round(time: Time, outcomes: Sequence[Burst | Failure]) -> Iterator[tuple[Result, ...]]:
    """The rounds of an instruction."""
    length = len(time.bursts) // time.rounds
    pairs = tuple(zip(time.bursts, outcomes, strict=True))
    for start in range(0, len(pairs), length):
        yield pairs[start : start + length]


def middle_us(times_us: Sequence[float], rules: RaceRules) -> float:
    """What the bursts of one candidate in one round say. No clock drifts so far within a round: if two differ by that
    much, the longer one was interrupted."""
    low, high = min(times_us), max(times_us)
    return low if high > rules.interrupted * low else sum(times_us) / len(times_us)


def drift(times_us: Sequence[float]) -> float:
    """By how much the first and the last burst of the reference differ, relative to the faster one."""
    return abs(times_us[-1] - times_us[0]) / min(times_us)


def is_time(us: float) -> bool:
    """Whether this can be the time of a run. False for NaN, too."""
    return SHORTEST_US <= us <= LONGEST_US


def impossible(us: float) -> Failure:
    """Of a candidate that goes on reporting what is no time."""
    return Failure("launch_failed", f"it reported a time of {us} µs", (("time_us", str(us)),))


def times_of(results: Mapping[int, list[float]], asked: Mapping[int, int], rules: RaceRules) -> dict[int, float]:
    """The time of each rank all of whose bursts count: one burst of two is not the same time on average as the others
    have."""
    return {rank: middle_us(times, rules) for rank, times in results.items() if len(times) == asked[rank]}
