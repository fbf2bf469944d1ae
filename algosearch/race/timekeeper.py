"""`Timekeeper`: which of the bursts that were run count, and what of them goes into the standings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from algosearch.race.budget import Budget
from algosearch.race.instructions import Time
from algosearch.race.rounds import Result, drift, each_round, impossible, is_time, times_of
from algosearch.race.rules import RaceRules
from algosearch.race.standings import Standings
from algosearch.records import Burst, Failure


class Timekeeper:
    """A disturbed burst, or a whole final round with drift in it, is thrown away and run again, until too many were:
    then they are taken as they are, for the device is not going to be quieter, and the standings know it. So is a round
    in which nobody is left who could be compared with those before, while there is time for another."""

    def __init__(self, standings: Standings, budget: Budget, rules: RaceRules) -> None:
        self._standings = standings
        self._budget = budget
        self._rules = rules

    def take(self, time: Time, outcomes: Sequence[Burst | Failure]) -> None:
        """The outcome of an instruction."""
        for results in each_round(time, outcomes):
            self._take_round(results, time)
        self._standings.timed()

    def _take_round(self, results: Sequence[Result], time: Time) -> None:
        standings, budget = self._standings, self._budget
        patient = budget.is_patient(standings.best_us())
        before_us = budget.spent_us
        times: dict[int, list[float]] = {}
        disturbed: set[int] = set()
        for (rank, repeats), outcome in results:
            if isinstance(outcome, Failure):
                standings.fail(rank, outcome)
            elif not is_time(outcome.time_us):
                budget.lose_nonsense()
                if not patient:
                    standings.fail(rank, impossible(outcome.time_us))
            else:
                budget.spend(outcome.time_us * repeats)
                standings.saw(rank, outcome.time_us)
                if outcome.disturbed is not None and patient:
                    budget.lose(outcome.time_us * repeats)
                    continue
                times.setdefault(rank, []).append(outcome.time_us)
                standings.timing[rank] = outcome.timing
                if outcome.disturbed is not None:
                    disturbed.add(rank)
        asked = Counter(rank for (rank, _), _ in results)
        if time.final:
            drifted = self._drifted(results[0][0][0], times)
            if not budget.counts_final(budget.spent_us - before_us, alone=time.alone, drifted=drifted):
                return
        whole = times_of(times, asked, self._rules)
        if len(whole) < 2 and len(asked) > 1:  # one candidate tells of no level
            whole = {} if patient else whole or {rank: each[0] for rank, each in times.items()}
        again_us = budget.spent_us - before_us
        if patient and self._lost_the_others(asked, whole) and budget.allows(again_us, standings.best_us()):
            whole = {}
        if whole:
            standings.rounds.append(whole)
            standings.disturbed.update(disturbed & set(whole))

    def _lost_the_others(self, asked: Iterable[int], whole: Container[int]) -> bool:
        """Whether those of a round who had run in an earlier one as well are not in it any more: what the rest differ
        by from all before them would be the clock's."""
        earlier = {rank for each in self._standings.rounds for rank in each}
        common = [rank for rank in asked if rank in earlier and rank not in self._standings.failures]
        return bool(common) and not any(rank in whole for rank in common)

    def _drifted(self, reference: int, times: Mapping[int, Sequence[float]]) -> bool:
        bursts = times.get(reference, ())
        return len(bursts) > 1 and drift(bursts) > max(self._rules.drift, 4 * self._standings.noise(reference))
