"""`Race`: the state machine. No clock, no dice, no device: the same outcomes always lead to the same instructions.

What it promises: for every policy that `Policy.pick` takes its trials to cover, the pick is within the choice's tie
window of the best candidate looked at, as far as three standard errors can promise. What it may cost is bounded
(`algosearch.race.budget`).

Phases, in order, each entered again whenever there is work for it: build → launch → coarse rounds → look at what is
lacking → check → look further → final rounds → finished. Which one it is, is worked out from the standings before each
instruction; no decision is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import Final

from algosearch.race.budget import Budget
from algosearch.race.instructions import (
    Build,
    Check,
    Finished,
    Instruction,
    Launch,
    Outcome,
    Time,
    Widen,
    describe,
    each_of,
)
from algosearch.race.rounds import Bursts, impossible, is_time, laid_out, lasts_us
from algosearch.race.rules import RaceRules, rules_for
from algosearch.race.standings import Standings
from algosearch.race.timekeeper import Timekeeper
from algosearch.records import DEFAULT_POLICY, PRECISE, Built, Burst, Candidate, Failure, Listing, Policy, SearchMode
from algosearch.records.policy import LOOK_AT

_FAR: Final = 4
"""By so much a list is made longer that has too few of what a policy admits."""


class Race:
    """One key's race. Ask `next`, carry it out, `tell` the outcome, until it is `Finished`.

    Args:
        listing: the candidates known so far.
        policies: those that were asked: they decide what is looked at and what comes to the finals.
        mode: `exhaustive` lists and times everything, and screens nobody; only what every asked policy excludes by name
            is left alone, for that may be why it was excluded: it hangs.
        rules: how much to run before a difference is believed; left out, what the noise of the backend asks for.
        failed: what is known already of candidates, by algorithm: they are not built or run again, and their trials
            say why. So a race starts again without the one that took its worker with it. Names that the library does
            not list are ignored.

    Raises:
        ValueError: the ranks of the listing do not count up from 0.
    """

    def __init__(
        self,
        listing: Listing,
        *,
        policies: Sequence[Policy] = (),
        mode: SearchMode = "race",
        rules: RaceRules | None = None,
        failed: Mapping[str, Failure] | None = None,
    ) -> None:
        _require_ranks(listing)
        self._rules = rules_for(listing) if rules is None else rules
        self._policies = tuple(dict.fromkeys(policies)) or (DEFAULT_POLICY,)
        self._mode = mode
        self._complete = listing.complete
        self._up_to = listing.look_up_to
        self._known = dict(failed or {})
        self._standings = Standings(listing.candidates, self._policies, mode, self._rules)
        self._budget = Budget(self._rules)
        self._timekeeper = Timekeeper(self._standings, self._budget, self._rules)
        self._pending: Instruction | None = None
        self._looked: dict[int, None] = {}
        """Whom it looks at, in the order in which that was decided."""
        self._unbuilt: list[int] = []
        self._unlaunched: deque[int] = deque()
        """Who of them still has to be, and others whom nobody has taken out yet."""
        self._covered = -1
        """As the standings are after so many changes, nothing is lacking."""
        self._settled = -1
        """As the standings are after so many changes, no coarse round is to be run."""
        self._unchecked: deque[int] = deque()
        """The same for checks, the fastest first,"""
        self._lined_up = -1
        """as the standings are after so many changes."""
        self._wave = 0
        """So many had been looked at before the latest look."""
        self._checked: dict[int, None] = {}
        """In the order in which they were."""
        self._fail_known()
        self._look(self._everything() if mode == "exhaustive" else self._hopeful()[: listing.look_at])

    def __repr__(self) -> str:
        looked = f"{len(self._looked)} of {len(self.candidates)}"
        pending = "between two steps" if self._pending is None else describe(self._pending, self.candidates)
        return f"<Race of {looked}, {len(self._standings.rounds)} rounds, {pending}>"

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """By rank."""
        return self._standings.candidates

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
                self._take_built(ranks, each_of(outcome, len(ranks), Built))
            case Launch(ranks):
                self._take_launched(ranks, each_of(outcome, len(ranks), Burst))
            case Time(bursts) as time:
                self._timekeeper.take(time, each_of(outcome, len(bursts), Burst))
            case Check(rank):
                if outcome is not None and not isinstance(outcome, Failure):
                    raise ValueError(f"a check ends with a Failure or None, not {outcome!r}")
                self._checked[rank] = None
                if outcome is not None:
                    self._standings.fail(rank, outcome)
            case Widen():
                self._take_listing(outcome)
            case _:
                raise ValueError("nothing was asked")
        self._pending = None

    def drop(self, ranks: Iterable[int], failure: Failure) -> None:
        """These cannot be run: there is no memory for them. The pending instruction is withdrawn, be it the last.

        Raises:
            ValueError: no candidate has such a rank. Nothing changes then.
        """
        dropped = tuple(ranks)
        if not set(dropped) <= set(range(len(self.candidates))):
            raise ValueError(f"{dropped} are not all ranks of {self!r}")
        for rank in dropped:
            self._standings.fail(rank, failure)
        self._pending = None

    def forgive(self, ranks: Iterable[int]) -> None:
        """These failed for what may be different now: they are tried once more, with finals of their own."""
        for rank in ranks:
            self._standings.forgive(rank)
        self._unbuilt, self._unlaunched = list(self._looked), deque(self._looked)
        self._pending = None
        self._budget.final_rounds, self._budget.final_us = 0, 0.0

    def validate(self) -> None:
        """Assert what must be true between any two calls. For tests."""
        self._standings.validate()
        standings, ready = self._standings, set(self._standings.alive())
        assert set(self._looked) <= set(range(len(self.candidates)))
        assert set(self._looked) <= {*self._unbuilt, *standings.build_us, *standings.failures}
        assert set(self._looked) <= {*self._unlaunched, *standings.launch_us, *standings.failures}
        assert set(standings.build_us) | set(self._checked) <= set(self._looked)
        match self._pending:
            case Build(ranks):
                assert not set(ranks) & (set(standings.build_us) | set(standings.failures))
            case Launch(ranks):
                assert set(ranks) <= set(standings.build_us) - set(standings.launch_us) - set(standings.failures)
            case Time(bursts, limit_us, rounds=rounds):
                assert {rank for rank, _ in bursts} <= ready
                assert all(1 <= repeats <= self._rules.most_repeats for _, repeats in bursts)
                length = len(bursts) // rounds
                for each in (bursts[start : start + length] for start in range(0, len(bursts), length)):
                    assert sorted({*each}) == sorted({*bursts[:length]})
                    assert each == each[::-1] or len(set(each)) == len(each)
                assert isfinite(limit_us)
            case Check(rank, against):
                assert rank in ready - set(self._checked)
                assert against is None or against in ready - {rank}

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def _take_built(self, ranks: Sequence[int], outcomes: Sequence[Built | Failure]) -> None:
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._standings.fail(rank, outcome)
            else:
                self._standings.build_us[rank] = outcome.build_us

    def _take_launched(self, ranks: Sequence[int], outcomes: Sequence[Burst | Failure]) -> None:
        standings = self._standings
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, Failure):
                standings.fail(rank, outcome)
            elif not is_time(outcome.time_us):
                standings.fail(rank, impossible(outcome.time_us))
            else:
                standings.launched(rank, outcome)

    def _take_listing(self, outcome: Outcome) -> None:
        known = self.candidates
        if not isinstance(outcome, Listing):
            raise ValueError(f"a widening ends with a Listing, not {outcome!r}")
        if outcome.candidates[: len(known)] != known:
            raise ValueError("a wider listing must begin as the narrower one")
        _require_ranks(outcome)
        # A backend that calls a listing incomplete and then has no more to list would be asked for ever.
        self._complete = outcome.complete or len(outcome.candidates) == len(known)
        self._up_to = outcome.look_up_to
        self._standings.offer(outcome.candidates)
        self._fail_known()
        if self._mode == "exhaustive":
            self._look(self._everything())

    def _fail_known(self) -> None:
        for rank, candidate in enumerate(self.candidates):
            if candidate.algorithm in self._known:
                self._standings.fail(rank, self._known[candidate.algorithm])

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _decide(self) -> Instruction:
        if self._mode == "exhaustive" and not self._complete:
            return Widen(None)
        while True:
            # What is lacking comes before a check: alone, one is held against the definition, for a tenth of a second.
            step = (
                self._build()
                or self._launch()
                or self._coarse()
                or self._lacking()
                or self._check()
                or self._further()
                or self._final()
                or Finished(self._standings.trials(), self._complete)
            )
            if not isinstance(step, list):
                return step
            self._look(step)

    def _build(self) -> Build | None:
        failed, built = self._standings.failures, self._standings.build_us
        self._unbuilt = [rank for rank in self._unbuilt if rank not in built and rank not in failed]
        return Build(tuple(self._unbuilt)) if self._unbuilt else None

    def _launch(self) -> Launch | None:
        """One at a time, so that the first ones bound the later ones."""
        launched, failed = self._standings.launch_us, self._standings.failures
        while self._unlaunched:
            rank = self._unlaunched[0]
            if rank not in launched and rank not in failed:
                return Launch((rank,), self._standings.limit_us())
            self._unlaunched.popleft()
        return None

    def _coarse(self) -> Time | None:
        """A round of all that could still win something and were not run often enough for that. Within the bound, but
        for the first look at somebody."""
        standings = self._standings
        wanted = standings.want_coarse() if self._settled != standings.changes else []
        new = [rank for rank in wanted if not standings.estimates()[rank].samples]
        for some in (wanted, new):
            if not some:
                break
            # Those who come late are compared with those before them through somebody who runs with both.
            anchor = standings.anchor() if standings.rounds else some[0]
            order = [anchor, *(rank for rank in some if rank != anchor)]
            first = len(standings.rounds)
            rounds = [self._coarse_round(order, number) for number in range(first, first + self._coarse_rounds(some))]
            bursts = tuple(burst for each in rounds for burst in each)
            if self._budget.allows(lasts_us(bursts, standings.time_us), standings.best_us()):
                return Time(bursts, standings.limit_us(), rounds=len(rounds))
            if some is new:
                return Time(rounds[0], standings.limit_us())
        self._settled = standings.changes
        return None

    def _coarse_rounds(self, ranks: Sequence[int]) -> int:
        """How many to run before it is looked again."""
        standings, rules = self._standings, self._rules
        had = min(standings.estimates()[rank].samples for rank in ranks)
        return max(1, min(rules.together, rules.coarse_rounds - had))

    def _coarse_round(self, order: Sequence[int], number: int) -> Bursts:
        turn = number // 2 % len(order)
        return self._laid_out([*order[turn:], *order[:turn]], number, self._rules.coarse_us)

    def _check(self) -> Check | None:
        """The fastest first: it is the one that the others would be dropped for. Against another one, the first that
        passed if there is one: where two differ, their backend knows where to look."""
        standings = self._standings
        if self._lined_up != standings.changes:
            self._unchecked, self._lined_up = deque(standings.fastest()), standings.changes
        while self._unchecked and self._unchecked[0] in self._checked:
            self._unchecked.popleft()
        if not self._unchecked:
            return None
        rank = self._unchecked[0]
        against = next((other for other in self._checked if other not in standings.failures), None)
        if against is None:
            # The fastest, for it is run: some take a thousand times as long as the best.
            against = next((other for other in (*standings.fastest(), *standings.alive()) if other != rank), None)
        return Check(rank, against)

    def _lacking(self) -> list[int] | Widen | None:
        """What an asked policy lacks; None if nothing."""
        if self._mode == "exhaustive" or self._covered == self._standings.changes:
            return None
        for policy in range(len(self._policies)):
            lacking = self._standings.lacking(policy)
            if lacking:
                return lacking
            if lacking is None and not self._complete:
                # What it admits stands far behind: a narrow step would be followed by another.
                return Widen(_FAR * max(len(self.candidates), LOOK_AT))
        self._covered = self._standings.changes
        return None

    def _further(self) -> list[int] | Widen | None:
        """As many again to look at, if the latest ones were worth it, and what follows is hopeful; None if not."""
        rest = [rank for rank in self._hopeful() if rank not in self._looked]
        if self._mode == "exhaustive" or (not rest and (self._complete or self._up_to is not None)):
            return None
        # Of the first look, its second half counts as the latest.
        if not self._standings.found_better(set(islice(self._looked, self._wave or len(self._looked) // 2))):
            return None
        return rest[: len(self._looked)] or Widen(2 * max(len(self.candidates), LOOK_AT))

    def _final(self) -> Time | None:
        """Rounds of those between whom an asked policy is undecided, the leader first and last; and when nothing is,
        of the leaders whose time is not known well enough. None if done, or if it is not worth more."""
        standings, budget, rules = self._standings, self._budget, self._rules
        undecided, factor = standings.undecided()
        ranks = undecided or standings.vague(PRECISE) or standings.vague(rules.good_enough)
        if not ranks:
            return None
        done = budget.final_rounds if undecided else budget.alone_rounds
        several = max(1 + done // rules.at_once, min(rules.together, rules.least_rounds - done))
        rounds = [self._final_round(ranks, number) for number in range(done, done + several)]
        round_us, best_us = lasts_us(rounds[0], standings.time_us), standings.best_us()
        if undecided:
            samples = min(standings.estimates()[rank].samples for rank in undecided)
            worth_it = budget.allows_final(round_us, best_us, factor, samples)
        else:
            worth_it = budget.allows_alone(round_us, best_us, precise=not standings.vague(PRECISE))
        if not worth_it:
            return None
        rounds = rounds[: budget.fitting(round_us, best_us)]
        bursts = tuple(burst for each in rounds for burst in each)
        return Time(bursts, standings.limit_us(), final=True, alone=not undecided, rounds=len(rounds))

    def _final_round(self, ranks: Sequence[int], number: int) -> Bursts:
        leader, *others = ranks
        turn = number // 2 % len(others) if others else 0
        return self._laid_out([leader, *others[turn:], *others[:turn]], number, self._rules.burst_us)

    def _laid_out(self, order: Sequence[int], number: int, burst_us: float) -> Bursts:
        return laid_out(
            order,
            self._standings.time_us,
            self._rules,
            burst_us=burst_us,
            odd=number % 2 == 1,
            restless=self._budget.is_restless,
        )

    def _everything(self) -> list[int]:
        return [
            rank
            for rank, candidate in enumerate(self.candidates)
            if rank not in self._standings.failures
            and any(policy.refuses(candidate) != "excluded" for policy in self._policies)
        ]

    def _hopeful(self) -> list[int]:
        failed, hopeful = self._standings.failures, range(len(self.candidates))[: self._up_to]
        return [rank for rank in self._standings.admitted() if rank in hopeful and rank not in failed]

    def _look(self, ranks: Iterable[int]) -> None:
        self._wave = len(self._looked)
        new = [rank for rank in ranks if rank not in self._looked]
        self._looked |= dict.fromkeys(new)
        self._unbuilt += new
        self._unlaunched += new


def _require_ranks(listing: Listing) -> None:
    if [candidate.rank for candidate in listing.candidates] != list(range(len(listing.candidates))):
        raise ValueError("the ranks of a listing must count up from 0")
