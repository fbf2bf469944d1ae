"""`Race`: the state machine. No clock, no dice, no device: the same outcomes always lead to the same instructions.

What it promises: for every policy that `Policy.pick` takes its trials to cover, the pick is within the choice's tie
window of the best candidate looked at, as far as three standard errors can promise.

Phases, in order, each entered again whenever there is work for it: build → launch → coarse rounds → check → look
further → final rounds → finished. Which one it is, is worked out from the standings before each instruction; no
decision is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, isfinite
from typing import TypeVar

from algosearch.race.estimate import LONGEST_US, SHORTEST_US
from algosearch.race.instructions import Build, Check, Finished, Instruction, Launch, Outcome, Time, Widen
from algosearch.race.rules import RaceRules
from algosearch.race.standings import Standings
from algosearch.records import DEFAULT_POLICY, Built, Burst, Candidate, Failure, Listing, Policy, SearchMode
from algosearch.records.policy import LOOK_AT

Good = TypeVar("Good", Built, Burst)


class Race:
    """One key's race. Ask `next`, carry it out, `tell` the outcome, until it is `Finished`.

    Args:
        listing: the candidates known so far.
        policies: those that were asked: they decide what is looked at and what comes to the finals.
        failed: what is known to fail, by algorithm: it is not tried, and its trial says why.
        mode: `exhaustive` lists and times everything, and screens nobody; only what every asked policy excludes by name
            is left alone, for that may be why it was excluded: it hangs.
        rules: how much to run before a difference is believed.

    Raises:
        ValueError: the ranks of the listing do not count up from 0.
    """

    def __init__(
        self,
        listing: Listing,
        *,
        policies: Sequence[Policy] = (),
        mode: SearchMode = "race",
        failed: Mapping[str, Failure] | None = None,
        rules: RaceRules | None = None,
    ) -> None:
        _require_ranks(listing)
        self._rules = RaceRules() if rules is None else rules
        self._policies = tuple(dict.fromkeys(policies)) or (DEFAULT_POLICY,)
        self._mode = mode
        self._complete = listing.complete
        self._standings = Standings(listing.candidates, self._policies, mode, self._rules, failed or {})
        self._pending: Instruction | None = None
        self._looked: list[int] = []
        """Whom it looks at, in the order in which that was decided."""
        self._wave = 0
        """So many had been looked at before the latest look."""
        self._checked: set[int] = set()
        self._final_rounds = 0
        self._final_us = 0.0
        self._bursts = 0
        self._discards = 0
        self._drifted_rounds = 0
        self._look(self._everything() if mode == "exhaustive" else self._admitted()[: listing.look_at])

    def __repr__(self) -> str:
        looked = f"{len(self._looked)} of {len(self.candidates)}"
        pending = "between two steps" if self._pending is None else self._describe(self._pending)
        return f"<Race of {looked}, {len(self._standings.rounds)} rounds, {pending}>"

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """By rank."""
        return self._standings.candidates

    @property
    def trying(self) -> str:
        """What `next` is about, for a progress line."""
        return self._describe(self.next())

    # -- the driver's side -------------------------------------------------------------------------------------------

    def next(self) -> Instruction:
        """What to do now; the same until its outcome is told."""
        if self._pending is None:
            self._pending = self._decide()
        return self._pending

    def tell(self, outcome: Outcome) -> None:
        """The outcome of the pending instruction.

        Raises:
            ValueError: nothing is pending, the race is over, or this is no outcome of that instruction. Nothing
                changes then.
        """
        match self._pending:
            case Build(ranks):
                self._take_built(ranks, _each(outcome, len(ranks), Built))
            case Launch(ranks):
                self._take_launched(ranks, _each(outcome, len(ranks), Burst))
            case Time(bursts) as round_:
                self._take_round(round_, _each(outcome, len(bursts), Burst))
            case Check(rank):
                if outcome is not None and not isinstance(outcome, Failure):
                    raise ValueError(f"a check ends with a Failure or None, not {outcome!r}")
                self._checked.add(rank)
                if outcome is not None:
                    self._standings.failures[rank] = outcome
            case Widen():
                self._take_listing(outcome)
            case _:
                raise ValueError("nothing was asked")
        self._pending = None
        self._standings.changed()

    def drop(self, ranks: Iterable[int], failure: Failure) -> None:
        """These cannot be run: there is no memory for them. The pending instruction is withdrawn, be it the last.

        Raises:
            ValueError: no candidate has such a rank. Nothing changes then.
        """
        dropped = tuple(ranks)
        if not set(dropped) <= set(range(len(self.candidates))):
            raise ValueError(f"{dropped} are not all ranks of {self!r}")
        for rank in dropped:
            self._standings.failures.setdefault(rank, failure)
        self._pending = None
        self._standings.changed()

    def forgive(self, ranks: Iterable[int]) -> None:
        """These failed for what may be different now: they are tried once more, with finals of their own."""
        for rank in ranks:
            self._standings.failures.pop(rank, None)
        self._pending = None
        self._final_rounds, self._final_us = 0, 0.0
        self._standings.changed()

    def validate(self) -> None:
        """Assert what must be true between any two calls. For tests."""
        self._standings.validate()
        standings, ready = self._standings, set(self._standings.alive())
        assert len(set(self._looked)) == len(self._looked) <= len(self.candidates)
        assert set(standings.build_us) | self._checked <= set(self._looked)
        match self._pending:
            case Build(ranks):
                assert not set(ranks) & (set(standings.build_us) | set(standings.failures))
            case Launch(ranks):
                assert set(ranks) <= set(standings.build_us) - set(standings.launch_us) - set(standings.failures)
            case Time(bursts, limit_us):
                assert {rank for rank, _ in bursts} <= ready
                assert bursts == bursts[::-1]
                assert all(1 <= repeats <= self._rules.most_repeats for _, repeats in bursts)
                assert isfinite(limit_us)
            case Check(rank, against):
                assert rank in ready - self._checked
                assert against is None or against in ready - {rank}

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def _take_built(self, ranks: Sequence[int], outcomes: Sequence[Built | Failure]) -> None:
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._standings.failures[rank] = outcome
            else:
                self._standings.build_us[rank] = outcome.build_us

    def _take_launched(self, ranks: Sequence[int], outcomes: Sequence[Burst | Failure]) -> None:
        standings = self._standings
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, Failure):
                standings.failures[rank] = outcome
            elif not _is_time(outcome.time_us):
                standings.failures[rank] = _impossible(outcome.time_us)
            else:
                standings.launch_us[rank] = outcome.time_us
                standings.timing[rank] = outcome.timing

    def _take_round(self, round_: Time, outcomes: Sequence[Burst | Failure]) -> None:
        """Keep the bursts that count. A disturbed one, or a whole final round with drift in it, is thrown away and run
        again, until too many were: then they are taken as they are, for the device is not going to be quieter."""
        standings, patient = self._standings, self._is_patient()
        self._bursts += len(round_.bursts)
        times: dict[int, list[float]] = {}
        for (rank, _), outcome in zip(round_.bursts, outcomes, strict=True):
            if isinstance(outcome, Failure):
                standings.failures.setdefault(rank, outcome)
            elif not _is_time(outcome.time_us):
                self._discards += 1
                if not patient:
                    standings.failures.setdefault(rank, _impossible(outcome.time_us))
            elif outcome.disturbed is not None and patient:
                self._discards += 1
            else:
                times.setdefault(rank, []).append(outcome.time_us)
                standings.timing[rank] = outcome.timing
        if round_.final:
            self._final_us += sum(
                b.time_us * b.repeats for b in outcomes if isinstance(b, Burst) and _is_time(b.time_us)
            )
            if self._drifted_rounds < self._rules.most_discards and self._drifted(round_.bursts[0][0], times):
                self._drifted_rounds += 1
                return
            self._final_rounds += 1
        # One burst of two is not the same time on average as the others have; nor does one candidate tell of a level.
        whole = {rank: self._of_two(*each) for rank, each in times.items() if len(each) == 2}
        if len(whole) > 1 or (whole and len(round_.bursts) == 2):
            standings.rounds.append(whole)
        elif times and not patient:
            standings.rounds.append(whole or {rank: each[0] for rank, each in times.items()})

    def _of_two(self, first: float, last: float) -> float:
        """What two bursts of one round say. No clock drifts so far within a round: the longer one was interrupted."""
        low, high = (first, last) if first < last else (last, first)
        return low if high > self._rules.interrupted * low else (first + last) / 2

    def _is_patient(self) -> bool:
        return self._discards < max(self._rules.most_discards, self._rules.disturbed_share * self._bursts)

    def _drifted(self, reference: int, times: Mapping[int, Sequence[float]]) -> bool:
        if len(times.get(reference, ())) < 2:
            return False
        first, last = times[reference]
        return abs(last - first) / min(first, last) > max(self._rules.drift, 4 * self._standings.noise(reference))

    def _take_listing(self, outcome: Outcome) -> None:
        known = self.candidates
        if not isinstance(outcome, Listing):
            raise ValueError(f"a widening ends with a Listing, not {outcome!r}")
        if outcome.candidates[: len(known)] != known:
            raise ValueError("a wider listing must begin as the narrower one")
        _require_ranks(outcome)
        # A backend that calls a listing incomplete and then has no more to list would be asked for ever.
        self._complete = outcome.complete or len(outcome.candidates) == len(known)
        self._standings.offer(outcome.candidates)
        if self._mode == "exhaustive":
            self._look(self._everything())

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _decide(self) -> Instruction:
        if self._mode == "exhaustive" and not self._complete:
            return Widen(None)
        while True:
            step = self._build() or self._launch() or self._coarse() or self._check()
            if step is not None:
                return step
            further = self._further()
            if isinstance(further, Widen):
                return further
            if not further:
                return self._final() or Finished(self._standings.trials(), self._complete)
            self._look(further)

    def _build(self) -> Build | None:
        failed, built = self._standings.failures, self._standings.build_us
        ranks = tuple(rank for rank in self._looked if rank not in built and rank not in failed)
        return Build(ranks) if ranks else None

    def _launch(self) -> Launch | None:
        """One at a time, so that the first ones bound the later ones."""
        for rank in self._looked:
            if rank not in self._standings.launch_us and rank not in self._standings.failures:
                return Launch((rank,), self._standings.limit_us())
        return None

    def _coarse(self) -> Time | None:
        """A round of all that could still win something and were not run often enough for that."""
        standings = self._standings
        wanted = [
            rank
            for rank in standings.front()
            if (samples := standings.estimates()[rank].samples) == 0
            or (samples < self._rules.coarse_rounds and standings.has_rival(rank))
        ]
        if not wanted:
            return None
        if standings.rounds:
            # Those who come late are compared with those before them through somebody who runs with both.
            anchor = min(standings.alive(), key=lambda rank: (-standings.estimates()[rank].samples, rank))
            wanted = [anchor, *(rank for rank in wanted if rank != anchor)]
        turn = len(standings.rounds) % len(wanted)
        order = wanted[turn:] + wanted[:turn]
        return Time(self._there_and_back(order, self._rules.coarse_us), standings.limit_us())

    def _check(self) -> Check | None:
        """The fastest first: it is the one that the others would be dropped for. Against another one, if there is one
        that has passed: where two differ, their backend knows where to look."""
        for rank in sorted(self._standings.front(), key=self._standings.time_us):
            if rank not in self._checked:
                others = [other for other in (*self._standings.front(), *self._standings.alive()) if other != rank]
                passed = (other for other in others if other in self._checked)
                return Check(rank, next(passed, next(iter(others), None)))
        return None

    def _further(self) -> list[int] | Widen | None:
        """More to look at: what an asked policy lacks, or as many again if the latest ones were worth it."""
        if self._mode == "exhaustive":
            return None
        wider = Widen(2 * max(len(self.candidates), LOOK_AT))
        for policy in range(len(self._policies)):
            lacking = self._standings.lacking(policy)
            if lacking:
                return lacking
            if lacking is None and not self._complete:
                return wider
        rest = [rank for rank in self._admitted() if rank not in self._looked]
        if not rest and self._complete:
            return None
        # Of the first look, its second half counts as the latest.
        if not self._standings.found_better(self._looked[: self._wave or len(self._looked) // 2]):
            return None
        return rest[: len(self._looked)] or wider

    def _final(self) -> Time | None:
        """A round of those between whom an asked policy is undecided, the leader first and last; None if done."""
        undecided, factor = self._standings.undecided()
        if not undecided or self._final_rounds >= self._rules.most_rounds:
            return None
        leader, *others = undecided
        turn = self._final_rounds % len(others)
        bursts = self._there_and_back([leader, *others[turn:], *others[:turn]], self._rules.burst_us)
        if not self._is_worth_a_round(bursts, factor):
            return None
        return Time(bursts, self._standings.limit_us(), final=True)

    def _is_worth_a_round(self, bursts: Sequence[tuple[int, int]], factor: float) -> bool:
        """Whether the budget allows for one more; beyond it, whether windows that are good enough are in reach."""
        rules, standings = self._rules, self._standings
        round_us = sum(standings.time_us(rank) * repeats for rank, repeats in bursts)
        budget_us = rules.final_budget_us * (1 if self._final_rounds >= rules.least_rounds else 2)
        if self._final_us + round_us <= budget_us:
            return True
        rounds = (factor - 1) * min(standings.estimates()[rank].samples for rank, _ in bursts)
        return rounds > 0 and self._final_us + max(1.0, rounds) * round_us <= rules.patience * rules.final_budget_us

    def _everything(self) -> list[int]:
        return [
            rank
            for rank, candidate in enumerate(self.candidates)
            if any(policy.refuses(candidate) != "excluded" for policy in self._policies)
        ]

    def _admitted(self) -> list[int]:
        return self._standings.admitted()

    def _look(self, ranks: Iterable[int]) -> None:
        self._wave = len(self._looked)
        self._looked.extend(rank for rank in ranks if rank not in self._looked)

    def _there_and_back(self, order: Sequence[int], burst_us: float) -> tuple[tuple[int, int], ...]:
        most = self._rules.most_repeats
        bursts = tuple(
            (rank, max(1, ceil(min(most, burst_us / max(self._standings.time_us(rank), 1e-6))))) for rank in order
        )
        return bursts + bursts[::-1]

    def _describe(self, instruction: Instruction) -> str:
        match instruction:
            case Build(ranks):
                return f"building {_count(len(ranks))}"
            case Widen():
                return "listing more candidates"
            case Launch(ranks):
                return f"first run of {self.candidates[ranks[0]].algorithm}"
            case Time(bursts, final=final):
                return f"{'finals' if final else 'timing'} of {_count(len(bursts) // 2)}"
            case Check(rank):
                return f"checking {self.candidates[rank].algorithm}"
            case Finished():
                return "done"


def _require_ranks(listing: Listing) -> None:
    if [candidate.rank for candidate in listing.candidates] != list(range(len(listing.candidates))):
        raise ValueError("the ranks of a listing must count up from 0")


def _each(outcome: Outcome, asked: int, good: type[Good]) -> tuple[Good | Failure, ...]:
    if not isinstance(outcome, tuple) or len(outcome) != asked:
        raise ValueError(f"{asked} outcomes were asked for, and this is {outcome!r}")
    checked = tuple(each for each in outcome if isinstance(each, good | Failure))
    if len(checked) != asked:
        raise ValueError(f"each outcome must be a {good.__name__} or a Failure")
    return checked


def _count(candidates: int) -> str:
    return "1 candidate" if candidates == 1 else f"{candidates} candidates"


def _is_time(us: float) -> bool:
    return SHORTEST_US <= us <= LONGEST_US  # also false for NaN


def _impossible(us: float) -> Failure:
    return Failure("launch_failed", f"it reported a time of {us} µs", (("time_us", str(us)),))
