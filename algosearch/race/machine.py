"""`Race`: the state machine. No clock, no dice, no device: the same outcomes always lead to the same instructions.

What it promises: for every policy that `Policy.pick` takes its trials to cover, the pick is within the choice's tie
window of the best candidate looked at, whatever the noise, as far as three standard errors can promise.

How. Nothing is decided for good. Failures and bursts are facts and are kept; who is *screened*, who is on the *front*,
who is a *finalist* is worked out from them afresh before each instruction. So a winner whose output turns out wrong
takes nothing with it: what it had screened is back at once, and is run as far as it now deserves.

Phases, in order, each entered again whenever there is work for it: look further → build → launch → coarse rounds →
check → final rounds → finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, hypot, isfinite
from typing import cast

from algosearch.race.estimate import Estimate, estimates
from algosearch.race.instructions import Build, Check, Finished, Instruction, Launch, Outcome, Time, Widen
from algosearch.race.rules import RaceRules
from algosearch.records import (
    DEFAULT_POLICY,
    Built,
    Burst,
    Candidate,
    Failure,
    Listing,
    Policy,
    SearchMode,
    Stage,
    Trial,
    refusable,
)
from algosearch.records.policy import LOOK_AT, TIE

_SAMPLES_KEPT = 96


class Race:
    """One key's race. Ask `next`, carry it out, `tell` the outcome, until it is `Finished`."""

    def __init__(
        self,
        listing: Listing,
        *,
        policies: Sequence[Policy] = (),
        mode: SearchMode = "race",
        rules: RaceRules | None = None,
    ) -> None:
        self.candidates: tuple[Candidate, ...] = listing.candidates
        """By rank."""
        self.trying = ""
        """What the last instruction is about, for a progress line."""
        self._rules = RaceRules() if rules is None else rules
        self._policies = tuple(dict.fromkeys(policies)) or (DEFAULT_POLICY,)
        self._mode = mode
        self._complete = listing.complete
        self._pending: Instruction | None = None
        # Facts. Invariant: they only grow.
        self._looked: list[int] = []
        self._failures: dict[int, Failure] = {}
        self._build_us: dict[int, float] = {}
        self._launch_us: dict[int, float] = {}
        self._rounds: list[dict[int, float]] = []
        self._final_rounds = 0
        self._final_us = 0.0
        self._discards = 0
        self._checked: set[int] = set()
        self._timing: dict[int, str] = {}
        self._wave = 0
        """So many had been looked at before the latest ones were."""
        # Worked out from the facts, and forgotten whenever one is added.
        self._known: dict[int, Estimate] | None = None
        self._on_front: list[int] | None = None
        # Never changes: whom each asked policy refuses, and who could screen whom.
        self._refused: dict[tuple[int, int], bool] = {}
        self._may_screen: dict[tuple[int, int], bool] = {}
        self._look(self._first_look(listing.look_at))

    def __repr__(self) -> str:
        return (
            f"<Race of {len(self._looked)}/{len(self.candidates)}, {len(self._rounds)} rounds, {self.trying or 'new'}>"
        )

    # -- the driver's side -------------------------------------------------------------------------------------------

    def next(self) -> Instruction:
        """What to do now; the same until its outcome is told."""
        if self._pending is None:
            self._pending = self._decide()
            self.trying = self._describe(self._pending)
        return self._pending

    def tell(self, outcome: Outcome) -> None:
        """The outcome of the pending instruction.

        Raises:
            ValueError: nothing is pending, the race is over, or this is no outcome of that instruction. Nothing
                changes then.
        """
        instruction = self._pending
        match instruction:
            case Build(ranks):
                self._take_built(ranks, _each(outcome, ranks, Built))
            case Launch(ranks):
                self._take_launched(ranks, _each(outcome, ranks, Burst))
            case Time(bursts):
                self._take_round(bursts, _each(outcome, bursts, Burst))
            case Check(rank):
                if outcome is not None and not isinstance(outcome, Failure):
                    raise ValueError(f"a check ends with a Failure or None, not {outcome!r}")
                self._checked.add(rank)
                if outcome is not None:
                    self._failures[rank] = outcome
            case Widen():
                self._take_listing(outcome)
            case _:
                raise ValueError("nothing was asked")
        self._forget()

    def drop(self, ranks: Iterable[int], failure: Failure) -> None:
        """These cannot be run: there is no memory for them. The pending instruction is withdrawn."""
        for rank in ranks:
            self._failures[rank] = failure
        self._forget()

    def _forget(self) -> None:
        self._pending = None
        self._known = None
        self._on_front = None

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def _take_built(self, ranks: Sequence[int], outcomes: Sequence[Built | Failure]) -> None:
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._failures[rank] = outcome
            else:
                self._build_us[rank] = outcome.build_us

    def _take_launched(self, ranks: Sequence[int], outcomes: Sequence[Burst | Failure]) -> None:
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._failures[rank] = outcome
            elif not _is_time(outcome.time_us):
                self._failures[rank] = _impossible(outcome.time_us)
            else:
                self._launch_us[rank] = outcome.time_us
                self._timing[rank] = outcome.timing

    def _take_round(self, bursts: Sequence[tuple[int, int]], outcomes: Sequence[Burst | Failure]) -> None:
        final = self._is_final
        times: dict[int, list[float]] = {}
        for (rank, _), outcome in zip(bursts, outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._failures.setdefault(rank, outcome)
                continue
            self._final_us += outcome.time_us * outcome.repeats if final and _is_time(outcome.time_us) else 0.0
            if not _is_time(outcome.time_us):
                self._discards += 1
                if self._discards > self._rules.most_discards:
                    self._failures.setdefault(rank, _impossible(outcome.time_us))
            elif outcome.disturbed is not None and self._discards < self._rules.most_discards:
                self._discards += 1
            else:
                times.setdefault(rank, []).append(outcome.time_us)
                self._timing[rank] = outcome.timing
        reference = times.get(bursts[0][0], []) if final else []
        if len(reference) == 2 and self._discards < self._rules.most_discards:
            drift = abs(reference[1] - reference[0]) / min(reference)
            if drift > max(self._rules.drift, 4 * self._noise(bursts[0][0])):
                self._discards += 1
                return
        self._final_rounds += final
        if times:
            self._rounds.append({rank: sum(each) / len(each) for rank, each in times.items()})

    def _take_listing(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Listing):
            raise ValueError(f"a widening ends with a Listing, not {outcome!r}")
        if outcome.candidates[: len(self.candidates)] != self.candidates:
            raise ValueError("a wider listing must begin as the narrower one")
        # A backend that calls a listing incomplete and then has no more to list would be asked for ever.
        self._complete = outcome.complete or len(outcome.candidates) == len(self.candidates)
        self.candidates = outcome.candidates
        if self._mode == "exhaustive":
            self._look(range(len(self.candidates)))

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _decide(self) -> Instruction:
        if self._mode == "exhaustive" and not self._complete:
            return Widen(None)
        while True:
            step = self._build() or self._launch() or self._coarse() or self._check()
            if step is not None:
                return step
            if not (further := self._further()):
                break
            if isinstance(further, Widen):
                return further
            self._look(further)
        return self._final() or self._finish()

    def _build(self) -> Build | None:
        ranks = tuple(r for r in self._looked if r not in self._build_us and r not in self._failures)
        return Build(ranks) if ranks else None

    def _launch(self) -> Launch | None:
        """One at a time, so that the first ones bound the later ones."""
        for rank in self._looked:
            if rank not in self._launch_us and rank not in self._failures:
                return Launch((rank,), self._limit_us())
        return None

    def _coarse(self) -> Time | None:
        """A round of all that could still win something and was not run often enough for that."""
        known = self._estimates()
        front = self._front()
        wanted = [
            rank
            for rank in front
            if known[rank].samples == 0
            or (known[rank].samples < self._rules.coarse_rounds and self._has_rival(rank, front, known))
        ]
        if not wanted:
            return None
        turn = len(self._rounds) % len(wanted)
        order = wanted[turn:] + wanted[:turn]
        return Time(tuple((rank, self._repeats(known[rank], 20.0)) for rank in order), self._limit_us())

    def _has_rival(self, rank: int, front: Sequence[int], known: dict[int, Estimate]) -> bool:
        mine = known[rank].time_us
        return any(
            other != rank and max(mine, known[other].time_us) <= self._rules.worth_it * min(mine, known[other].time_us)
            for other in front
        )

    def _check(self) -> Check | None:
        known = self._estimates()
        front = sorted(self._front(), key=lambda rank: known[rank].time_us)
        for rank in front:
            if rank not in self._checked:
                others = [other for other in (*front, *sorted(self._alive())) if other != rank]
                return Check(rank, others[0] if others else None)
        return None

    def _further(self) -> list[int] | Widen | None:
        """More candidates to look at, if an asked policy lacks some or the latest ones were worth it."""
        if self._mode == "exhaustive":
            return None
        for policy in range(len(self._policies)):
            lacking = self._lacking(policy)
            if lacking or (lacking is None and not self._complete):
                return lacking or Widen(2 * max(len(self.candidates), LOOK_AT))
        rest = [rank for rank in self._admitted() if rank not in self._looked]
        if not (rest or not self._complete) or not self._latest_was_worth_it():
            return None
        return rest[: len(self._looked)] or Widen(2 * max(len(self.candidates), LOOK_AT))

    def _lacking(self, policy: int) -> list[int] | None:
        """What must be looked at before `Policy.pick` takes this policy for covered; None if the list has too few."""
        have, lacking = 0, []
        for rank in range(len(self.candidates)):
            if have + len(lacking) >= LOOK_AT:
                return lacking
            if not self._admits(policy, rank) or rank in self._failures:
                continue
            if rank in self._launch_us:
                have += 1
            else:
                lacking.append(rank)
        return lacking if lacking or have >= LOOK_AT else None

    def _latest_was_worth_it(self) -> bool:
        """Did the latest look find something better for an asked policy? Of the first look, its second half."""
        known = self._estimates()
        before = self._looked[: self._wave or len(self._looked) // 2]
        for policy in range(len(self._policies)):
            admitted = [rank for rank in self._alive() if self._admits(policy, rank)]
            then = [known[rank].time_us for rank in admitted if rank in before]
            now = [known[rank].time_us for rank in admitted]
            if then and min(now) < (1 - self._rules.improvement) * min(then):
                return True
        return False

    def _final(self) -> Time | None:
        rules = self._rules
        if self._final_rounds >= rules.most_rounds:
            return None
        spent = self._final_us * (1 + 1 / max(self._final_rounds, 1))
        if spent > rules.final_budget_us * (1 if self._final_rounds >= rules.least_rounds else 2):
            return None
        leader, finalists = self._finalists()
        if len(finalists) < 2:
            return None
        known = self._estimates()
        others = [rank for rank in finalists if rank != leader]
        turn = self._final_rounds % len(others)
        order = [leader, *others[turn:], *others[:turn], leader]
        bursts = tuple((rank, self._repeats(known[rank], rules.burst_us)) for rank in order)
        return Time(bursts, self._limit_us())

    def _finalists(self) -> tuple[int, list[int]]:
        """Those between whom an asked policy is not yet decided, and the fastest of them."""
        known = self._estimates()
        undecided: set[int] = set()
        for policy in range(len(self._policies)):
            admitted = [rank for rank in self._front() if self._admits(policy, rank)]
            if not admitted:
                continue
            leader = min(admitted, key=lambda rank: known[rank].time_us)
            for rank in admitted:
                if rank != leader and not self._is_decided(known[leader], known[rank]):
                    undecided |= {leader, rank}
        if not undecided:
            return -1, []
        return min(undecided, key=lambda rank: known[rank].time_us), sorted(undecided)

    def _is_decided(self, leader: Estimate, other: Estimate) -> bool:
        lag = (other.time_us - leader.time_us) / leader.time_us
        error = hypot(other.error_us, leader.error_us) / leader.time_us
        if lag > self._rules.finalist and lag > 3 * error:
            return True
        enough = min(leader.samples, other.samples) >= self._rules.coarse_rounds + self._rules.least_rounds
        return enough and (5 * error <= TIE or (lag > 3 * error and lag > TIE))

    def _finish(self) -> Finished:
        known, front = self._estimates(), set(self._front())
        decided = {rank for p in range(len(self._policies)) for rank in self._final_for(p, front, known)}
        return Finished(
            tuple(
                self._trial(rank, known.get(rank), rank in front, rank in decided)
                for rank in range(len(self.candidates))
            ),
            self._complete,
        )

    def _final_for(self, policy: int, front: set[int], known: dict[int, Estimate]) -> list[int]:
        admitted = [rank for rank in front if self._admits(policy, rank)]
        if not admitted:
            return []
        best = min(known[rank].time_us for rank in admitted)
        return [rank for rank in admitted if known[rank].time_us <= (1 + self._rules.finalist) * best]

    def _trial(self, rank: int, estimate: Estimate | None, on_front: bool, decided: bool) -> Trial:
        candidate = self.candidates[rank]
        stage: Stage = "listed"
        if estimate is not None:
            stage = "final" if decided and on_front else "coarse" if on_front else "screened"
        samples = [round(each[rank], 3) or 0.001 for each in self._rounds if rank in each]
        return Trial(
            algorithm=candidate.algorithm,
            rank=rank,
            workspace_bytes=candidate.workspace_bytes,
            notes=candidate.notes,
            stage=stage,
            time_us=None if estimate is None else round(estimate.time_us, 4) or 0.0001,
            error_us=None if estimate is None else round(estimate.error_us, 4),
            samples_us=tuple(samples[-_SAMPLES_KEPT:]),
            build_us=self._build_us.get(rank),
            timing=self._timing.get(rank, ""),
            failure=self._failures.get(rank),
        )

    # -- what the facts say ------------------------------------------------------------------------------------------

    def _estimates(self) -> dict[int, Estimate]:
        if self._known is None:
            self._known = estimates(self._rounds, self._launch_us)
        return self._known

    def _alive(self) -> list[int]:
        return [rank for rank in self._launch_us if rank not in self._failures]

    def _front(self) -> list[int]:
        """Who is alive and not screened: whom some policy could pick."""
        if self._on_front is None:
            known, alive = self._estimates(), self._alive()
            if self._mode == "race":
                alive = [rank for rank in alive if not any(self._screens(other, rank, known) for other in alive)]
            self._on_front = alive
        return self._on_front

    def _screens(self, other: int, rank: int, known: dict[int, Estimate]) -> bool:
        a, b = known[other], known[rank]
        if b.time_us - a.time_us <= self._rules.clearly * hypot(a.error_us, b.error_us):
            return False
        may = self._may_screen.get((other, rank))
        if may is None:
            first, second = self.candidates[other], self.candidates[rank]
            may = self._may_screen[other, rank] = (
                first.workspace_bytes <= second.workspace_bytes
                and refusable(first.notes) <= refusable(second.notes)
                and all(self._admits(p, other) for p in range(len(self._policies)) if self._admits(p, rank))
            )
        return may

    def _admits(self, policy: int, rank: int) -> bool:
        """Whether the asked policy with this number admits a candidate."""
        refused = self._refused.get((policy, rank))
        if refused is None:
            refused = self._policies[policy].refuses(self.candidates[rank]) is not None
            self._refused[policy, rank] = refused
        return not refused

    def _noise(self, rank: int) -> float:
        estimate = self._estimates()[rank]
        return estimate.error_us * max(estimate.samples, 1) ** 0.5 / estimate.time_us

    @property
    def _is_final(self) -> bool:
        """A final round, and no other, begins and ends with its reference."""
        return (
            isinstance(self._pending, Time)
            and len(self._pending.bursts) > 2
            and (self._pending.bursts[0][0] == self._pending.bursts[-1][0])
        )

    def _admitted(self) -> list[int]:
        policies = range(len(self._policies))
        return [rank for rank in range(len(self.candidates)) if any(self._admits(p, rank) for p in policies)]

    def _first_look(self, look_at: int | None) -> list[int]:
        if self._mode == "exhaustive":
            return list(range(len(self.candidates)))
        return self._admitted()[:look_at]

    def _look(self, ranks: Iterable[int]) -> None:
        self._wave = len(self._looked)
        self._looked.extend(rank for rank in ranks if rank not in self._looked)

    def _limit_us(self) -> float:
        best = min((e.time_us for rank, e in self._estimates().items() if rank not in self._failures), default=0.0)
        return max(self._rules.limit_us, self._rules.hopeless * best)

    def _repeats(self, estimate: Estimate, burst_us: float) -> int:
        return max(1, min(self._rules.most_repeats, ceil(burst_us / estimate.time_us)))

    def _describe(self, instruction: Instruction) -> str:
        match instruction:
            case Build(ranks):
                return f"building {len(ranks)} candidates"
            case Widen():
                return "listing more candidates"
            case Launch(ranks):
                return f"first run of {self.candidates[ranks[0]].algorithm}"
            case Time(bursts):
                return f"{'finals of' if self._is_final else 'timing'} {len({rank for rank, _ in bursts})} candidates"
            case Check(rank):
                return f"checking {self.candidates[rank].algorithm}"
            case _:
                return "done"


def _each(outcome: Outcome, asked: Sequence[object], good: type) -> tuple[Built | Burst | Failure, ...]:
    if not isinstance(outcome, tuple) or len(outcome) != len(asked):
        raise ValueError(f"{len(asked)} outcomes were asked for, and this is {outcome!r}")
    if not all(isinstance(each, good | Failure) for each in outcome):
        raise ValueError(f"each outcome must be a {good.__name__} or a Failure")
    return cast("tuple[Built | Burst | Failure, ...]", outcome)


def _is_time(us: float) -> bool:
    return isfinite(us) and us > 0.0


def _impossible(us: float) -> Failure:
    return Failure("launch_failed", f"it reported a time of {us} µs", (("time_us", str(us)),))
