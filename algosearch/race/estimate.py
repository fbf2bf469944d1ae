"""From the bursts of a race to a time and an error for each candidate.

A round's bursts share the clock of that moment. So each burst is taken as *time of the candidate × level of the round*,
both estimated in turn; a clock that ramps up, or a machine that is slower for a second, moves the level and not the
comparison. What is left over is noise.

The time is the 20 % trimmed mean (Tukey & McLaughlin 1963): one burst with a context switch in it, 10 ms in 1 ms, moves
it little. The noise of a candidate is its own scatter, drawn towards that of all candidates, and that towards what is
usual: a handful of samples knows its own scatter badly, and an error that is too small decides what is not decided.
Rejected: the minimum (wrong by 1 to 1.4 % on an H200), the mean (one outlier decides), the median (as robust, and needs
half as many samples again).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median
from typing import Final

import msgspec

TRIM: Final = 0.2
EFFICIENCY: Final = 1.06
"""Standard error of the trimmed mean in units of the mean's, for normal noise."""
SINGLE: Final = 0.025
"""Relative noise of a lone round until others tell more (H200: one run each picks 3.3 % wrong; a round has two)."""
USUAL: Final = 0.005
"""Relative noise that is usual, with the weight of `USUAL_SAMPLES`."""
USUAL_SAMPLES: Final = 4
DRAWN_BY: Final = 8
"""The weight, in samples, of everybody's noise in each one's."""
OUTLIER: Final = 4.0
"""Robust deviations beyond which a burst counts as that far and no further."""
LAUNCH_ERROR: Final = 0.3
"""Relative error of a first launch taken as a time: code is loaded in it."""

Rounds = Sequence[Mapping[int, float]]


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """How long one run takes, and how sure that is."""

    time_us: float
    error_us: float
    """Standard error; of the difference of two, hypot of theirs."""
    samples: int
    """Rounds behind it; 0 if there is only the first launch."""


def estimates(rounds: Rounds, launches: Mapping[int, float]) -> dict[int, Estimate]:
    """An estimate for each rank that ran.

    Args:
        rounds: the time of one run by rank, the mean of its two bursts, for each round that counts.
        launches: the time of the first launch by rank; the estimate of who was never timed.
    """
    found = {rank: Estimate(us, LAUNCH_ERROR * us, 0) for rank, us in launches.items()}
    if not rounds:
        return found
    levels = _first_levels(rounds)
    levelled = _levelled(rounds, levels)
    for _ in range(3):
        centre = {rank: trimmed_mean(times) for rank, times in levelled.items()}
        levels = [
            median([us / centre[rank] for rank, us in each.items()]) if len(each) > 1 else level
            for each, level in zip(rounds, levels, strict=True)
        ]
        levelled = _levelled(rounds, levels)
    late = median(levels[-(len(levels) + 2) // 3 :])  # what is reported is the speed of a device that is warm
    centre = {rank: trimmed_mean(times) for rank, times in levelled.items()}
    noise = _noise(levelled, centre)
    for rank, times in levelled.items():
        # Each level was estimated from the same bursts, and took a share of their noise away.
        scatter = noise[rank] * sqrt(_regained(rank, rounds)) * EFFICIENCY / sqrt(len(times))
        found[rank] = Estimate(centre[rank] * late, centre[rank] * late * scatter, len(times))
    return found


def _first_levels(rounds: Rounds) -> list[float]:
    """How slow each round was, against the first one: by those whom earlier rounds have shown already."""
    levels: list[float] = []
    shown: dict[int, float] = {}
    for each in rounds:
        again = [us / shown[rank] for rank, us in each.items() if rank in shown]
        levels.append(median(again) if again else levels[-1] if levels else 1.0)
        for rank, us in each.items():
            shown.setdefault(rank, us / levels[-1])
    return levels


def _levelled(rounds: Rounds, levels: Sequence[float]) -> dict[int, list[float]]:
    levelled: dict[int, list[float]] = {}
    for each, level in zip(rounds, levels, strict=True):
        for rank, us in each.items():
            levelled.setdefault(rank, []).append(us / level)
    return levelled


def _noise(levelled: Mapping[int, Sequence[float]], centre: Mapping[int, float]) -> dict[int, float]:
    """The relative noise of one round, for each rank."""
    squares = {
        rank: [(us / centre[rank] - 1) ** 2 for us in times] for rank, times in levelled.items() if len(times) > 1
    }
    if not squares:
        return dict.fromkeys(levelled, SINGLE)
    everything = [square for each in squares.values() for square in each]
    # 2.198 = 1.4826²: from the median absolute deviation to the standard deviation of normal noise.
    most = OUTLIER**2 * max(2.198 * median(everything), USUAL**2)
    sums = {rank: sum(min(square, most) for square in each) for rank, each in squares.items()}
    freedom = sum(len(each) - 1 for each in squares.values())
    pooled = (sum(sums.values()) + USUAL_SAMPLES * USUAL**2) / (freedom + USUAL_SAMPLES)
    noise = {
        rank: sqrt((sums[rank] + DRAWN_BY * pooled) / (len(each) - 1 + DRAWN_BY)) for rank, each in squares.items()
    }
    return {rank: noise.get(rank, max(SINGLE, sqrt(pooled))) for rank in levelled}


def _regained(rank: int, rounds: Rounds) -> float:
    sizes = [len(each) for each in rounds if rank in each and len(each) > 1]
    return sum(k / (k - 1) for k in sizes) / len(sizes) if sizes else 1.0


def trimmed_mean(values: Sequence[float]) -> float:
    """Without the lowest and the highest fifth; the median of fewer than five."""
    if len(values) < 5:
        return median(values)
    cut = int(TRIM * len(values))
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)
