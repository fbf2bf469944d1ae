"""The estimates: are they where the truth is, and do their errors say how far off they are?"""

from __future__ import annotations

import random
from math import exp, hypot, log, sqrt

import pytest

from algosearch.race.estimate import SINGLE, Estimate, estimates
from algosearch.race.rules import STEADY

TRUE_US = (100.0, 103.0, 110.0, 150.0, 99.0)


def rounds_of(
    dice: random.Random,
    count: int,
    candidates: int,
    noise: float,
    *,
    outliers: float = 0.0,
    first: float = 1.0,
    level: float = 0.02,
) -> list[dict[int, float]]:
    """Rounds at levels that wander, by 2 % as a rule; the first candidate's noise is so many times the others'."""

    def burst(rank: int) -> float:
        us = TRUE_US[rank] * exp(dice.gauss(0.0, noise * (first if rank == 0 else 1.0)))
        return us * (1 + 9 * dice.random()) if dice.random() < outliers else us

    levels = [exp(dice.gauss(0.0, level)) for _ in range(count)]
    return [{rank: level * burst(rank) for rank in range(candidates)} for level in levels]


def off_by(found: dict[int, Estimate], a: int, b: int) -> float:
    """How many standard errors of their difference two estimates are from the truth."""
    error = hypot(found[a].error_us / found[a].time_us, found[b].error_us / found[b].time_us)
    return abs(log(found[b].time_us / found[a].time_us) - log(TRUE_US[b] / TRUE_US[a])) / error


@pytest.mark.parametrize("candidates", [2, 3, 5])
@pytest.mark.parametrize("count", [3, 4, 5, 7, 12, 30])
@pytest.mark.parametrize(("outliers", "first"), [(0.0, 1.0), (0.02, 1.0), (0.0, 3.0)])
def test_the_errors_are_honest(candidates: int, count: int, outliers: float, first: float) -> None:
    """Not shorter than the truth is off (three of them are rarely exceeded), and not three times as long."""
    dice = random.Random(count)
    off = [
        off_by(estimates(rounds_of(dice, count, candidates, 0.005, outliers=outliers, first=first), {}), 0, 1)
        for _ in range(300)
    ]
    assert 0.33 < sqrt(sum(each**2 for each in off) / len(off)) < 1.2
    assert sum(each > 3 for each in off) <= 0.025 * len(off)


@pytest.mark.parametrize("factor", [1.0, 0.6])
def test_a_level_moves_no_comparison(factor: float) -> None:
    levels = [2.0, 1.5, 1.2, 1.0, 1.0, 1.0, factor]
    found = estimates([{rank: us * level for rank, us in enumerate(TRUE_US)} for level in levels], {})
    for rank, us in enumerate(TRUE_US):
        assert found[rank].time_us / found[0].time_us == pytest.approx(us / TRUE_US[0])
    assert found[0].time_us == pytest.approx(100.0)


def test_who_ran_only_while_the_clock_was_slow_is_compared_fairly() -> None:
    rounds = [{0: 160.0, 1: 320.0}, {0: 150.0, 1: 300.0}, {0: 100.0}, {0: 100.0, 2: 101.0}, {0: 100.0, 2: 101.0}]
    found = estimates(rounds, {})
    assert found[1].time_us == pytest.approx(200.0)
    assert found[2].time_us == pytest.approx(101.0)


@pytest.mark.parametrize("count", [3, 5, 8])
def test_a_context_switch_moves_nothing(count: int) -> None:
    """10 ms in 1 ms."""
    rounds = [{0: 1000.0 + n % 3, 1: 1100.0 + n % 2} for n in range(count)]
    rounds[1][0] += 10_000.0
    found = estimates(rounds, {})
    assert found[0].time_us == pytest.approx(1001.0, rel=0.005)
    assert found[1].time_us == pytest.approx(1100.5, rel=0.005)


def test_what_is_known_of_little_is_not_believed() -> None:
    launched = estimates([], {0: 100.0, 1: 3e6})
    assert launched[0] == Estimate(100.0, 30.0, 0)
    assert launched[1].error_us < 0.3 * 3e6
    once = estimates([{0: 100.0, 1: 150.0}], {0: 400.0, 1: 120.0})
    assert once[0] == Estimate(pytest.approx(100.0), pytest.approx(100.0 * SINGLE), 1)  # type: ignore[arg-type]
    assert once[1].time_us == pytest.approx(120.0)  # no run takes longer than the first one did


def test_samples_that_are_all_alike_prove_nothing_finer_than_the_clock() -> None:
    found = estimates([{0: 100.0, 1: 100.0}] * 20, {})
    assert found[0].error_us == pytest.approx(100.0 * 2e-4)


@pytest.mark.parametrize("count", [4, 5, 7, 12, 30])
@pytest.mark.parametrize(("outliers", "shared"), [(0.0, 0), (0.02, 0), (0.0, 1), (0.0, 3)])
def test_the_error_of_who_runs_alone_is_that_of_its_time(count: int, outliers: float, shared: int) -> None:
    """After so many shared rounds, at a level that is no more than noise."""
    dice = random.Random(count)
    off = []
    for _ in range(300):
        rounds = [
            *rounds_of(dice, shared, 3, 0.005, outliers=outliers, level=0.0),
            *rounds_of(dice, count, 1, 0.005, outliers=outliers, level=0.0),
        ]
        found = estimates(rounds, {})[0]
        off.append(abs(log(found.time_us / TRUE_US[0])) * found.time_us / found.error_us)
    assert 0.3 < sqrt(sum(each**2 for each in off) / len(off)) < 1.2
    assert sum(each > 3 for each in off) <= 0.025 * len(off)


@pytest.mark.parametrize("shared", [3, 4, 7])
@pytest.mark.parametrize("alone", [5, 30])
def test_rounds_of_one_alone_change_no_comparison(shared: int, alone: int) -> None:
    """Wherever the level has gone meanwhile. The error of the difference may be too short, by a third at most."""
    dice = random.Random(alone)
    off = []
    for _ in range(300):
        together = rounds_of(dice, shared, 3, 0.005)
        lone = [each[0] for each in rounds_of(dice, alone, 1, 0.005)]
        rounds = [*together, *({0: 0.7 * us} for us in lone)]
        before, after = estimates(together, {}), estimates(rounds, {})
        for rank in (1, 2):
            ratio = before[rank].time_us / before[0].time_us
            assert after[rank].time_us / after[0].time_us == pytest.approx(ratio)
        assert after[0].time_us == pytest.approx(70.0, rel=0.05)
        off.append(off_by(after, 0, 1))
    assert 0.33 < sqrt(sum(each**2 for each in off) / len(off)) < 1.35


def test_a_long_run_tells_more_than_a_short_one() -> None:
    once = estimates([{0: 1e6, 1: 1.2e6}], {0: 1e6, 1: 1.2e6})
    assert once[0].error_us < 0.05 * 1e6
    launched = estimates([], {0: 1e6, 1: 1e6}, unsure={1})
    assert launched[0].error_us == pytest.approx(0.1e6)
    assert launched[1].error_us == pytest.approx(0.3e6)


def test_a_known_noise_need_not_be_found_out() -> None:
    """One round says as much as two standard errors of the noise that is known allow; a handful is held to it, too."""
    launches = {0: 10.0, 1: 12.0}
    once = estimates([{0: 10.0, 1: 12.0}], launches, STEADY)
    assert once[0].error_us == pytest.approx(2 * STEADY.usual_noise * 10.0)
    assert estimates([{0: 10.0, 1: 12.0}], launches)[0].error_us == pytest.approx(1.0)
    often = estimates([{0: 10.0, 1: 12.0}] * 4, launches, STEADY)
    assert 0.5 * STEADY.usual_noise * 10.0 < often[0].error_us < STEADY.usual_noise * 10.0


def test_a_disturbed_first_run_screens_nobody() -> None:
    found = estimates([], {0: 10.0, 1: 100.0}, STEADY, unsure={1})
    assert found[0].error_us == pytest.approx(STEADY.launch_error * 10.0 + STEADY.launch_gap_us)
    assert STEADY.clearly * found[1].error_us > 0.9 * found[1].time_us
