"""Which rounds count."""

from __future__ import annotations

import pytest

from algosearch.race import Time
from algosearch.race.budget import Budget
from algosearch.race.rules import STEADY, RaceRules
from algosearch.race.standings import Standings
from algosearch.race.timekeeper import Timekeeper
from algosearch.records import DEFAULT_POLICY, Burst, Candidate, Failure

LATE = Time(((0, 1), (2, 1), (3, 1), (3, 1), (2, 1), (0, 1)), limit_us=1e6)
"""Two who come late, and one who has run before."""


def standings_after_one_round(rules: RaceRules, *, launched: int = 4) -> Standings:
    """Of four candidates 0 and 1 have run together."""
    candidates = tuple(Candidate(algorithm=f"simulated/t:{rank}", rank=rank, workspace_bytes=0) for rank in range(4))
    standings = Standings(candidates, (DEFAULT_POLICY,), "race", rules)
    for rank in range(launched):
        standings.build_us[rank] = 1.0
        standings.launched(rank, Burst(time_us=1000.0, repeats=1, timing="virtual"))
    standings.rounds.append({0: 1000.0, 1: 1100.0})
    standings.timed()
    return standings


def bursts(*, of_the_first: Burst | Failure) -> tuple[Burst | Failure, ...]:
    """The clock is twice as fast by now."""
    late = [Burst(time_us=time_us, repeats=1, timing="virtual") for time_us in (510.0, 520.0, 520.0, 510.0)]
    return (of_the_first, *late, Burst(time_us=500.0, repeats=1, timing="virtual"))


@pytest.mark.parametrize("rules", [RaceRules(), STEADY], ids=["usual", "steady"])
def test_a_round_without_those_that_had_run_before_is_run_again(rules: RaceRules) -> None:
    """Else those that come late would seem twice as fast as all before them."""
    standings = standings_after_one_round(rules)
    keeper = Timekeeper(standings, Budget(rules), rules)
    disturbed = Burst(time_us=900.0, repeats=1, timing="virtual", disturbed="somebody else ran")
    keeper.take(LATE, bursts(of_the_first=disturbed))
    assert len(standings.rounds) == 1
    keeper.take(LATE, bursts(of_the_first=Burst(time_us=500.0, repeats=1, timing="virtual")))
    assert standings.rounds[1] == {0: 500.0, 2: 510.0, 3: 520.0}
    assert standings.time_us(0) < standings.time_us(2) < standings.time_us(1)


def test_a_round_counts_if_nobody_is_left_to_run_with() -> None:
    standings = standings_after_one_round(STEADY)
    keeper = Timekeeper(standings, Budget(STEADY), STEADY)
    standings.fail(1, Failure("wrong_result", "it is wrong"))
    keeper.take(LATE, bursts(of_the_first=Failure("launch_failed", "it did not run")))
    assert standings.rounds[1] == {2: 510.0, 3: 520.0}


def test_a_round_counts_if_there_is_no_time_for_another() -> None:
    standings, budget = standings_after_one_round(STEADY), Budget(STEADY)
    keeper = Timekeeper(standings, budget, STEADY)
    budget.spend(budget.bound_us(standings.best_us()) - 1.0)
    disturbed = Burst(time_us=900.0, repeats=1, timing="virtual", disturbed="somebody else ran")
    keeper.take(LATE, bursts(of_the_first=disturbed))
    assert standings.rounds[1] == {2: 510.0, 3: 520.0}
