"""Verification: the best of a stored record is run again, and what came of it is a `Verdict`.

A record ages without anybody noticing: a driver, a clock, a cooler change what is in no key. So the pick and its
nearest rivals are timed anew, against each other, in one small race on a device of the record's own environment. Two
things can have changed, and they are told apart: how long the pick takes (`drifted`), and whether it is still the best
of them (`beaten`). Times of two searches are only roughly comparable, which is what the tolerance is for; the rivals,
timed together, are not in doubt beyond the race's own window.

To repair is to search the key afresh and to replace its record by one of the next generation, which every store takes.
Answers already given do not change: a searcher keeps the generation that it first saw, until it closes.

Guarantees: a record of another environment is named and left alone, whatever it says; nothing is written unless repair
was asked; every verification is decided, failed or given up, whatever breaks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Literal

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from algosearch.devices.pool import Pool, Turn
from algosearch.errors import AlgosearchError, NoAlgorithm, NotCovered, SearcherClosed, SearchFailed
from algosearch.records import (
    Candidate,
    Choice,
    Environment,
    Failure,
    Key,
    Listing,
    Policy,
    Record,
    SearchMode,
    Trial,
)
from algosearch.search.affinity import FIRST, Precedence
from algosearch.search.findings import search_of
from algosearch.search.listings import FIRST_LOOK
from algosearch.search.milestone import Milestone
from algosearch.search.tiers import Tiers

logger = logging.getLogger("algosearch.verification")

TOLERANCE: Final = 0.1
"""Relative. A time that differs by less from the stored one is the same time: searches of one kernel on one machine, a
day apart, differ by a few per cent."""
RIVALS: Final = 3
"""Run beside the pick: the fastest of the others that the policy admits, those that the race dropped early among them.
Whoever was slower than all of those is not likely to be the best now."""

Finding = Literal["steady", "drifted", "beaten", "failed", "hopeless", "uncovered", "foreign"]
"""`steady`: the pick is the best, and takes as long as it did. `drifted`: it is the best, and takes another time.
`beaten`: another is clearly faster now. `failed`: it does not run any more. `hopeless`: the record has no candidate
that works, so that there is nothing to run. `uncovered`: its searches did not look where the policy asks. `foreign`: it
was made in another environment than that of any device here."""
REPAIRABLE: Final[frozenset[Finding]] = frozenset({"drifted", "beaten", "failed", "hopeless"})


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one record."""

    digest: str
    problem: str
    finding: Finding
    reason: str = ""
    """What is behind it, in words."""
    algorithm: str | None = None
    """The stored pick; None if there is none."""
    stored_us: float | None = None
    """Its time a run as it is stored."""
    now_us: float | None = None
    """And as it was measured now; None if it was not."""
    best: str | None = None
    """The fastest now: the pick, or a rival of it."""
    best_us: float | None = None
    repaired: bool = False
    """True if a record of the next generation was written in its place."""
    generation: int = 0
    """Of the record that is stored now."""

    @property
    def drift(self) -> float | None:
        """How much longer the pick takes now, relative to the stored time; below 0 if it takes less."""
        return self.now_us / self.stored_us - 1 if self.now_us is not None and self.stored_us is not None else None


class Verification:
    """One record on its way to a verdict. Made in a caller's thread; everything else happens on the engine's loop.

    Args:
        tolerance: relative; a time that differs by more is a drift.
        repair: whether to search the key afresh and replace the record, if its verdict is in `REPAIRABLE`.
    """

    def __init__(self, record: Record, *, policy: Policy, tolerance: float = TOLERANCE, repair: bool = False) -> None:
        self.record = record
        self.policy = policy
        self.tolerance = tolerance
        self.repair = repair
        self.decided: Milestone[Verdict] = Milestone()
        self.scope: anyio.CancelScope | None = None
        """Around everything that is done for it, from the moment that it begins."""
        self._given_up = False

    @property
    def awaited(self) -> int:
        """Its weight in the queue of a device: that of one who waits."""
        return 1

    @property
    def precedence(self) -> Precedence:
        """Its place among equally awaited ones: in the order in which they come."""
        return FIRST

    @property
    def is_dear(self) -> bool:
        """Whatever it comes to, it keeps its place."""
        return False

    @property
    def stands_back(self) -> bool:
        """It does not."""
        return False

    @property
    def given_up(self) -> bool:
        """True once nobody waits for it any more."""
        return self._given_up

    def give_up(self) -> None:
        """Nobody waits for it any more: a search under way stops between two instructions. On the engine's loop."""
        self._given_up = True
        if self.scope is not None:
            self.scope.cancel()

    def fail(self, error: AlgosearchError) -> None:
        """It cannot be decided."""
        self.decided.fail(error)

    def verdict(self, finding: Finding, reason: str = "", *, choice: Choice | None = None) -> Verdict:
        """One about this record."""
        return Verdict(
            digest=self.record.key.digest,
            problem=self.record.key.problem.describe(),
            finding=finding,
            reason=reason,
            algorithm=None if choice is None else choice.algorithm,
            stored_us=None if choice is None else choice.time_us,
            generation=self.record.generation,
        )


class Verifier:
    """Decides verifications. Lives on the engine's loop.

    Args:
        pools: the devices, whenever it is asked.
    """

    def __init__(self, tiers: Tiers, tasks: TaskGroup, pools: Callable[[], Sequence[Pool]]) -> None:
        self._tiers = tiers
        self._tasks = tasks
        self._pools = pools

    def begin(self, verification: Verification) -> None:
        """Decide it, in a task of its own."""
        self._tasks.start_soon(self._decide, verification)

    async def _decide(self, verification: Verification) -> None:
        problem = verification.record.key.problem.describe()
        try:
            with anyio.CancelScope() as verification.scope:
                if not verification.given_up:
                    verification.decided.set(await self._verify(verification))
        except AlgosearchError as error:
            verification.decided.fail(error)
        except Exception as error:
            logger.exception("verifying %s broke", problem)
            failed = SearchFailed(problem, f"{type(error).__name__}: {error}")
            failed.__cause__ = error
            verification.decided.fail(failed)
        finally:
            verification.decided.fail(SearcherClosed())  # given up, or the engine ends: else it is decided by now

    async def _verify(self, verification: Verification) -> Verdict:
        pool, why_not = await self._pool_for(verification.record.key)
        if pool is None:
            return verification.verdict("foreign", why_not)
        try:
            choice = verification.policy.pick(verification.record)
        except NotCovered as error:
            return verification.verdict("uncovered", error.reason)
        except NoAlgorithm as error:
            choice, hopeless = None, "; ".join(error.reasons[:3]) or "the library offers no candidate"
        async with pool.turn(verification) as turn:
            if choice is None:
                verdict = verification.verdict("hopeless", hopeless)
            else:
                verdict = await _retimed(turn, verification, choice)
            if not verification.repair or verdict.finding not in REPAIRABLE:
                return verdict
            environment = pool.known_environment
            if environment is not None and environment.incomplete is not None:
                return replace(verdict, reason=f"{verdict.reason}; not repaired: {environment.incomplete}")
            record = await _searched_afresh(turn, verification)
        committed = await self._tiers.replace(record)
        if committed is None or not committed.kept:
            return replace(verdict, reason=f"{verdict.reason}; not repaired: the store did not keep it")
        if committed.record.alone:
            return replace(verdict, reason=f"{verdict.reason}; not repaired: the shared store did not take it")
        if not committed.won:
            return replace(
                verdict,
                reason=f"{verdict.reason}; another process repaired it",
                generation=committed.record.generation,
            )
        return replace(verdict, repaired=True, generation=record.generation)

    async def _pool_for(self, key: Key) -> tuple[Pool | None, str]:
        """The devices of a key's environment; or None, and how the nearest that there are differ."""
        wanted = key.environment
        why_not = f"there is no {wanted.device} of {wanted.backend} here"
        for pool in self._pools():
            if (pool.devices[0].backend, pool.kind) != (wanted.backend, wanted.device):
                continue
            try:
                environment = await pool.environment()
            except AlgosearchError as error:
                why_not = str(error)
                continue
            if replace(environment, incomplete=None) == wanted:
                return pool, ""
            why_not = _difference(wanted, environment)
        return None, why_not


async def _retimed(turn: Turn, verification: Verification, choice: Choice) -> Verdict:
    """Run the pick and its nearest rivals, and compare."""
    candidates = _contenders(choice)
    listing = Listing(candidates=candidates, complete=True)
    op, policy = verification.record.key.problem, verification.policy
    # Exhaustive: all of them to the end, and nobody put aside early.
    found = await turn.search(op, listing, policies=(policy,), mode="exhaustive")
    trials = {trial.algorithm: trial for trial in found.trials}
    pick = trials[choice.algorithm]
    verdict = verification.verdict("steady", choice=choice)
    if pick.failure is not None or pick.time_us is None:
        failure = pick.failure or Failure("launch_failed", "it did not run to the end")
        verdict = replace(verdict, finding="failed", reason=f"{failure.kind}: {failure.message}")
    ran = [trial for trial in found.trials if trial.failure is None and trial.time_us is not None]
    if not ran:
        return verdict
    again = policy.pick(
        Record(key=verification.record.key, searches=(search_of(found, "exhaustive"),)), mode="exhaustive"
    )
    best = trials[again.algorithm]
    assert best.time_us is not None
    verdict = replace(verdict, now_us=pick.time_us, best=best.algorithm, best_us=best.time_us)
    if verdict.finding == "failed" or pick.time_us is None:
        return verdict
    lag = pick.time_us / best.time_us - 1
    if lag > again.tie_window:
        return replace(
            verdict, finding="beaten", reason=f"{best.algorithm} is faster now: the pick takes {_changed(lag)}"
        )
    drift = verdict.drift
    if drift is not None and abs(drift) > verification.tolerance:
        return replace(verdict, finding="drifted", reason=f"it takes {_changed(drift)}")
    return verdict


def _contenders(choice: Choice) -> tuple[Candidate, ...]:
    """The pick and the fastest of its rivals, in the library's order and numbered afresh."""
    timed = [each for each in choice.candidates if isinstance(each, Trial) and each.time_us is not None]
    ruled = dict(zip((each.algorithm for each in choice.candidates), choice.rules, strict=True))
    rivals = sorted(
        (trial for trial in timed if ruled[trial.algorithm] in ("slower", "tie", "screened")),
        key=lambda trial: trial.time_us or 0.0,
    )
    chosen = {choice.algorithm, *(trial.algorithm for trial in rivals[:RIVALS])}
    kept = [trial for trial in timed if trial.algorithm in chosen]
    return tuple(
        Candidate(algorithm=trial.algorithm, rank=rank, workspace_bytes=trial.workspace_bytes, notes=trial.notes)
        for rank, trial in enumerate(kept)
    )


async def _searched_afresh(turn: Turn, verification: Verification) -> Record:
    """A record of the next generation, with one new search in it."""
    before = verification.record
    mode: SearchMode = "exhaustive" if any(search.mode == "exhaustive" for search in before.searches) else "race"
    op = before.key.problem
    found = await turn.search(op, None, width=FIRST_LOOK, policies=(verification.policy,), mode=mode)
    return Record(key=before.key, searches=(search_of(found, mode),), generation=before.generation + 1)


def _difference(wanted: Environment, here: Environment) -> str:
    theirs, ours = dict(wanted.facts), dict(here.facts)
    names = [name for name in sorted(theirs.keys() | ours.keys()) if theirs.get(name) != ours.get(name)]
    return ", ".join(f"{name} was {theirs.get(name, 'unknown')} and is {ours.get(name, 'unknown')}" for name in names)


def _changed(relative: float) -> str:
    if relative >= 1:
        return f"{1 + relative:.1f} times as long"
    return f"{abs(relative):.1%} {'more' if relative > 0 else 'less'}"
