"""From the rounds of a race to a time and an error for each candidate.

A round's bursts share the clock of that moment. So each is taken as *time of the candidate × level of the round*, both
estimated in turn; a clock that ramps up, or a machine that is slower for a second, moves the level and not the
comparison. What is left over is noise. All of it is done on logarithms, where that product is a sum.

The time is a 20 % trimmed mean (Tukey & McLaughlin 1963), with its standard error from the Winsorised variance (Yuen
1974): a burst with a context switch in it, 10 ms in 1 ms, moves neither. A handful of rounds knows its own scatter
badly, and an error that is too small decides what is not decided. So a candidate's noise is its own or, if that
happens to be less, its own drawn towards everybody's; and the error grows, as Student's t does, where few rounds tell
of any noise. `tests/race/test_estimate.py` holds the errors to what they say: of 2 to 5 candidates after 3 to 30
rounds, with one burst in 50 an outlier or one candidate three times as noisy as the others, differences scatter by 0.45
to 1.2 of their errors.

A round of one candidate alone tells nothing of the others. Such rounds add to its samples and say where the level is
now; the comparisons stay those of the rounds that were shared. Of a candidate that never met another the error is that
of its time, levels and all.

Rejected: the minimum (wrong by 1 to 1.4 % on an H200), the mean (one outlier decides), the median (as robust, and needs
half as many samples again).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from math import exp, log, sqrt
from statistics import median
from typing import Final, NamedTuple

import msgspec

from algosearch.race.rules import RaceRules

TRIM: Final = 5
"""One in so many is left out at each end."""
ENOUGH: Final = 6
"""Rounds from which on a candidate's own Winsorised variance says something; before, its plain one, which an outlier
blows up: better too long an error than too short a one."""
TRIMMING_COSTS: Final[Mapping[int, float]] = {3: 1.35, 4: 1.19, 5: 1.14}
"""The variance of a trimmed mean of so few, in units of the mean's. Yuen's formula has it in it from `ENOUGH` on."""
DEFAULT: Final = RaceRules()
DRAWN_BY: Final = 8
"""The weight, in degrees of freedom, of everybody's noise in each one's."""
STUDENT: Final = 4
"""With f degrees of freedom in all an error is 1 + 4 / f times as long: so three of them stay three, within 10 %."""
LEAST: Final = 2e-4
"""Relative error at least: clocks tick, and samples that are all alike prove nothing finer."""
SINGLE: Final = 0.1
"""Relative error of a candidate about whose noise nothing is known: one round, and a context switch may be in it."""
SINGLE_TIMES: Final = 2.0
"""Where the noise is known, the error of a candidate after one round in units of it: nothing confirms it yet."""
INTERRUPTION_US: Final = 10_000.0
SLOW_SINGLE: Final = 0.03
"""The error of a long run is no more than `INTERRUPTION_US` and this part of it: much has evened out within it."""
LOADING_US: Final = 50_000.0
SLOW_LAUNCH: Final = 0.05
"""The error of a long launch is no more than `LOADING_US` and this part of it: so a candidate whose first run takes a
second, where others take milliseconds, is clearly slower, and is not run again to find that out."""
SHORTEST_US: Final = 1e-4
LONGEST_US: Final = 1e12
"""A tenth of a nanosecond, eleven days: what lies outside is no time of a run, whoever reports it."""
SWEEPS: Final = 2
"""The first pass, round by round, is nearly right already."""

Rounds = Sequence[Mapping[int, float]]


class Estimate(msgspec.Struct, frozen=True, gc=False):
    """How long one run takes, and how sure that is."""

    time_us: float
    error_us: float
    """Standard error; of the difference of two, hypot of theirs."""
    samples: int
    """Rounds behind it; 0 if there is only the first launch."""


class _Noise(NamedTuple):
    variance: float
    """Of one round, relative: such that, divided by the rounds, it is the variance of the estimate."""
    freedom: int


def estimates(
    rounds: Rounds,
    launches: Mapping[int, float],
    rules: RaceRules = DEFAULT,
    *,
    unsure: Set[int] = frozenset(),
) -> dict[int, Estimate]:
    """An estimate for each rank that ran.

    Args:
        rounds: the time of one run by rank, in µs, for each round that counts.
        launches: the time of the first launch by rank, in µs; the estimate of who was never timed.
        rules: what a launch tells; left out, the default ones.
        unsure: whose launches were disturbed, so that even a long one tells little.
    """
    found = {rank: Estimate(us, _launch_error_us(us, rules, unsure=rank in unsure), 0) for rank, us in launches.items()}
    if not rounds:
        return found
    logs = [{rank: log(us) for rank, us in each.items()} for each in rounds]
    levels, centre = _two_ways([each for each in logs if len(each) > 1])
    levels = _with_alone(logs, levels, centre)
    left, counts = _left_over(logs, levels, centre)
    errors = _errors(left, counts, shared=sum(len(each) > 1 for each in logs), usual=rules.usual_noise)
    late = median(levels[-max(3, len(levels) // 2) :])  # what is reported is the speed of a device that is warm
    for rank, where in centre.items():
        time_us = min(max(exp(where + late), SHORTEST_US), LONGEST_US)
        if counts[rank] == 1:  # a context switch in the only round; not in the launch as well
            time_us = min(time_us, launches.get(rank, time_us))
        single = rules.usual_noise * SINGLE_TIMES or min(SINGLE, SLOW_SINGLE + INTERRUPTION_US / time_us)
        error = errors.get(rank, single)
        found[rank] = Estimate(time_us, time_us * error, counts[rank])
    return found


def _launch_error_us(us: float, rules: RaceRules, *, unsure: bool) -> float:
    if unsure:
        return DEFAULT.launch_error * us + rules.launch_gap_us
    error_us = rules.launch_error * us + rules.launch_gap_us
    return min(error_us, SLOW_LAUNCH * us + LOADING_US)


def _two_ways(logs: Sequence[Mapping[int, float]]) -> tuple[list[float], dict[int, float]]:
    """The level of each round, and the middle of each rank's bursts with the levels taken off."""
    levels: list[float] = []
    shown: dict[int, tuple[float, int]] = {}
    for each in logs:  # each round against what the earlier ones have shown
        again = [us - shown[rank][0] for rank, us in each.items() if rank in shown]
        level = _level(again) if again else levels[-1] if levels else 0.0
        levels.append(level)
        for rank, us in each.items():
            mean, count = shown.get(rank, (0.0, 0))
            shown[rank] = (mean + (us - level - mean) / (count + 1), count + 1)
    centre: dict[int, float] = {}
    for sweep in range(SWEEPS + 1):
        levelled: dict[int, list[float]] = {rank: [] for rank in shown}
        for each, level in zip(logs, levels, strict=True):
            for rank, us in each.items():
                levelled[rank].append(us - level)
        centre = {rank: _trimmed_mean(values) for rank, values in levelled.items()}
        if sweep < SWEEPS:
            levels = [_level([us - centre[rank] for rank, us in each.items()]) for each in logs]
    return levels, centre


def _with_alone(
    logs: Sequence[Mapping[int, float]], shared_levels: Sequence[float], centre: dict[int, float]
) -> list[float]:
    """The levels of all rounds, those of one candidate alone among them; and in `centre` whoever ran only so.

    All rounds of one candidate alone have one level: what they differ by is its noise, for all that anybody can tell.
    """
    alone: dict[int, list[float]] = {}
    for each in logs:
        if len(each) == 1:
            ((rank, us),) = each.items()
            alone.setdefault(rank, []).append(us)
    middle = {rank: _trimmed_mean(values) for rank, values in alone.items()}
    for rank, where in middle.items():
        centre.setdefault(rank, where - (shared_levels[-1] if shared_levels else 0.0))
    shared = iter(shared_levels)
    return [next(shared) if len(each) > 1 else middle[(rank := next(iter(each)))] - centre[rank] for each in logs]


def _left_over(
    logs: Sequence[Mapping[int, float]], levels: Sequence[float], centre: Mapping[int, float]
) -> tuple[dict[int, list[float]], dict[int, int]]:
    """What of each rank's bursts neither its time nor the level explains; and of how many its time is a mean: of those
    in shared rounds or of those alone, for the one says nothing of the other's level."""
    left: dict[int, list[float]] = {rank: [] for rank in centre}
    together = Counter(rank for each in logs if len(each) > 1 for rank in each)
    alone = Counter(rank for each in logs if len(each) == 1 for rank in each)
    counts = {rank: max(together[rank], alone[rank]) for rank in centre}
    for each, level in zip(logs, levels, strict=True):
        for rank, us in each.items():
            kind, other = (together, alone) if len(each) > 1 else (alone, together)
            if kind[rank] == 1 and other[rank]:
                continue  # its time, or the level, explains all of it
            # A level that was estimated from k bursts took a k-th of their variance away.
            sharing = len(each) if len(each) > 1 else alone[rank] if together[rank] else 0
            left[rank].append((us - level - centre[rank]) * (sqrt(sharing / (sharing - 1)) if sharing else 1.0))
    return left, counts


def _errors(
    left: Mapping[int, Sequence[float]], counts: Mapping[int, int], *, shared: int, usual: float
) -> dict[int, float]:
    """The relative standard error of each rank's estimate, where there is enough to tell, of so many shared rounds.

    A `usual` noise of the backend, where that is known, counts like `DRAWN_BY` further rounds that scatter by it.
    """
    own = {rank: _noise(values) for rank, values in left.items() if len(values) > 1}
    # Levels cost freedom too: of n shared rounds of k candidates (n - 1) (k - 1) in all are left.
    bursts = sum(len(left[rank]) for rank in own)
    freedom = sum(noise.freedom for noise in own.values()) * max(0.0, 1 - shared / max(1, bursts))
    if usual:
        freedom += DRAWN_BY
    if freedom < 2 or not own:
        return {}
    errors: dict[int, float] = {}
    # The median, so that one candidate's outlier is not everybody's noise; and the median of χ² is not its mean.
    seen = median([noise.variance / (1 - 2 / (9 * noise.freedom)) ** 3 for noise in own.values()])
    pooled = max(seen, usual * usual)
    for rank, noise in own.items():
        drawn = (DRAWN_BY * pooled + noise.freedom * noise.variance) / (DRAWN_BY + noise.freedom)
        count = counts[rank]
        variance = max(noise.variance, drawn) * TRIMMING_COSTS.get(count, 1.0) / count
        errors[rank] = max(LEAST, sqrt(variance) * (1 + STUDENT / freedom))
    return errors


def _noise(values: Sequence[float]) -> _Noise:
    count = len(values)
    ordered = sorted(values)
    if count < ENOUGH:
        mean = sum(ordered) / count
        return _Noise(sum((value - mean) ** 2 for value in ordered) / (count - 1), count - 1)
    cut = count // TRIM
    low, high = ordered[cut], ordered[-1 - cut]
    winsorised = [low] * cut + ordered[cut : count - cut] + [high] * cut
    mean = sum(winsorised) / count
    kept = count - 2 * cut
    squares = sum((value - mean) ** 2 for value in winsorised)
    return _Noise(squares / (kept * (kept - 1)) * count, kept - 1)


def _level(values: Sequence[float]) -> float:
    """Of a round with few bursts the mean: their middle would follow one candidate and hide its noise."""
    return _trimmed_mean(values) if len(values) >= ENOUGH else sum(values) / len(values)


def _trimmed_mean(values: Sequence[float]) -> float:
    """Without the lowest and the highest fifth; of three or four, the middle."""
    count = len(values)
    if count < 3:
        return sum(values) / count
    cut = max(1, count // TRIM)
    kept = sorted(values)[cut : count - cut]
    return sum(kept) / len(kept)
