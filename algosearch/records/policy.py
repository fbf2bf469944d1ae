"""`Policy`: a pure function from a record to a choice.

A policy is never part of a key: another workspace limit, determinism, an excluded algorithm are other picks from the
same trials. What a record's searches did not look at is a named miss (`NotCovered`), never a wrong answer.

How a pick is made, in this order:

1. Each candidate that failed, or that the policy refuses, is put aside with its reason.
2. The *leader* is the fastest of those left that were timed as rivals (stage coarse or final).
3. A rival is a tie with the leader if its measured lag is within `TIE`, after taking off three standard errors of the
   difference, or within two standard errors, whichever is more, but never beyond `MOST_TIE`. Among ties: what the
   policy prefers, then less workspace, then deterministic, then the library's order.
4. The pick's promise (`Choice.tie_window`) is max(`TIE`, five standard errors): two within which candidates cannot be
   told apart and three for the error of having found so; and no less than the standard error of the pick's own time.
   `docs/decisions/0003-tie-window.md` has the arithmetic.
5. The choice is `final` if its trial and those of all rivals within that promise are, and else `coarse`
   (`docs/decisions/0005-final-and-bounded.md`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import compress
from math import hypot
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from algosearch.errors import InvalidOp, InvalidPolicy, NoAlgorithm, NotCovered
from algosearch.ops.types import whole
from algosearch.records.choice import RULES, Choice, Precision, Rule, rejections
from algosearch.records.record import Record, Search, SearchMode
from algosearch.records.screen import Screen
from algosearch.records.trial import NONDETERMINISTIC, PRECISE, Candidate, Trial
from algosearch.records.trials import STAGES, Trials

TIE: Final = 0.003
"""Relative lag within which two candidates are as good as each other."""
WINDOW: Final = 5
"""Standard errors that a pick may truly be behind: two within which it cannot be told, three for having found so."""
MOST_TIE: Final = 0.01
"""However noisy it was: who was measured slower by more than this is not preferred for its workspace."""
LOOK_AT: Final = 4
"""So many admitted candidates must have been timed before a search that left out some of the library's list may answer
a policy; unless one of them is as good as if nothing had been refused. Measured on an H200: for a limit of 1 MiB the
best is among the four best-ranked that fit, for zero among three."""
AS_GOOD: Final = MOST_TIE
"""Relative lag behind the fastest of all up to which one is as good as if nothing had been refused."""


_NOTE_SWITCHES: Final[tuple[tuple[Rule, str, bool], ...]] = (
    ("nondeterministic", "deterministic", True),
    ("tf32", "allow_tf32", False),
    ("reduced_precision", "allow_reduced_precision", False),
    ("down_converts", "allow_down_conversion", False),
    ("range_limited", "allow_range_limited", False),
    ("runtime_compiled", "allow_runtime_compiled", False),
)
"""The note that is refused when this field of the policy has this value."""
_SWITCHES: Final = tuple(field for _, field, _ in _NOTE_SWITCHES)


class Policy(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False, forbid_unknown_fields=True):
    """What a caller may use. The defaults are those of a framework: everything but converting inputs down.

    Raises:
        InvalidPolicy: naming the field, its value and the rule.
    """

    workspace_limit_bytes: int | None = None
    """The most workspace a choice may need; None for no limit, 0 for none at all."""
    deterministic: bool = False
    """Only algorithms whose result is the same bits every time; none with a note that this version does not know."""
    allow_tf32: bool = True
    """float32 on tensor cores with ten-bit mantissas."""
    allow_reduced_precision: bool = True
    """Sums of products in fewer bits than the op's accumulate type."""
    allow_down_conversion: bool = False
    """Inputs converted to fewer bits."""
    allow_range_limited: bool = True
    """Algorithms that are right only for a limited range of values, as cuDNN's persistent batch norm."""
    allow_runtime_compiled: bool = True
    """Algorithms whose code is compiled when they are built (up to a second each)."""
    exclude: tuple[str, ...] = ()
    """Patterns (`fnmatch`) of canonical algorithm strings never to pick."""
    prefer: tuple[str, ...] = ()
    """Patterns to prefer among ties."""

    def __post_init__(self) -> None:
        if self.workspace_limit_bytes is not None:
            try:
                limit = whole("workspace_limit_bytes", self.workspace_limit_bytes, least=0)
            except InvalidOp as error:
                raise InvalidPolicy(error.field, error.value, f"{error.rule}, or None for no limit") from None
            force_setattr(self, "workspace_limit_bytes", limit)
        for field in _SWITCHES:
            if not isinstance(getattr(self, field), bool):
                raise InvalidPolicy(field, getattr(self, field), "must be True or False")
        for field in ("exclude", "prefer"):
            force_setattr(self, field, _patterns(field, getattr(self, field)))

    def refuses(self, candidate: Candidate | Trial) -> Rule | None:
        """The rule by which this candidate may not be used, or None. Looks at neither times nor failures."""
        return _screen(self).rule_of(candidate)

    def pick(self, record: Record, *, mode: SearchMode = "race") -> Choice:
        """The choice from the first search of `record` that covers this policy. Pure; the order of trials is no matter.

        Raises:
            NotCovered: no search looked where this policy asks; a further search will.
            NoAlgorithm: a search covers it, and no candidate may be used; names each one's reason. A later search that
                has one answers all the same: what failed for want of memory may run another time.
        """
        reason = "the record has no search"
        hopeless: NoAlgorithm | None = None
        for search in record.searches:
            if mode == "exhaustive" and search.mode != "exhaustive":
                reason = "an exhaustive search was asked, and there is only a race"
                continue
            try:
                return self._pick_from(search, record, everything=mode == "exhaustive")
            except NotCovered as gap:
                reason = gap.reason
            except NoAlgorithm as error:
                if not self._met_trouble(search):
                    raise
                hopeless = error
        raise NotCovered(reason) if hopeless is None else hopeless

    def first(self, candidates: Sequence[Candidate], *, problem: str, digest: str = "") -> Choice:
        """The library's first candidate that this policy admits: the heuristic's answer, provisional.

        Raises:
            NoAlgorithm: the policy refuses every candidate.
        """
        offered = tuple(sorted(candidates, key=_library_order))
        verdicts = bytes(RULES.index(self.refuses(candidate)) for candidate in offered)
        first = verdicts.find(0)
        if first < 0:
            raise NoAlgorithm(problem, tuple(each.describe() for each in rejections(offered, verdicts)))
        return Choice(
            algorithm=offered[first].algorithm,
            workspace_bytes=offered[first].workspace_bytes,
            notes=offered[first].notes,
            reserve_bytes=offered[first].reserve_bytes,
            precision="heuristic",
            provisional=True,
            digest=digest,
            seen=offered[: first + 1],
            verdicts=verdicts[: first + 1],
        )

    def _pick_from(self, search: Search, record: Record, *, everything: bool) -> Choice:
        trials = search.trials
        verdicts = _screen(self).verdicts(trials)
        gap = _gap(verdicts, complete=search.complete, everything=everything)
        rivals = tuple(compress(range(len(verdicts)), verdicts.translate(_IS_RIVAL)))
        if not rivals:
            if gap is not None:
                raise NotCovered(gap)
            if _SCREENED in verdicts or _NOT_TRIED in verdicts:
                raise NotCovered("the candidates that are admitted were not timed as rivals")
            put_aside = rejections(trials, verdicts)
            raise NoAlgorithm(record.key.problem.describe(), tuple(each.describe() for each in put_aside))
        times, errors = trials.times_us, trials.errors_us
        leader = _leader(trials, rivals, times)
        if gap is not None and (everything or not _is_as_good(trials, times, leader)):
            raise NotCovered(gap)
        _require_nobody_sooner(trials, verdicts, times, errors, leader)
        pick, window, ties, precision = self._settle(trials, rivals, leader, times, errors)
        first = len(verdicts) - len(verdicts.lstrip(_REFUSED))
        told = bytearray(verdicts.translate(_SLOWER))
        for place in ties:
            told[place] = _TIE
        told[pick] = 0
        return Choice(
            algorithm=trials.algorithms[pick],
            workspace_bytes=trials.workspace_bytes(pick),
            notes=trials.note_sets[trials.notes[pick]],
            reserve_bytes=trials.reserve_bytes(pick),
            time_us=times[pick],
            error_us=errors[pick],
            first_us=times[first] if verdicts[first] in _LOOKED_AT else None,
            precision=precision,
            tie_window=window,
            alone=search.provenance.alone,
            digest=record.key.digest,
            generation=record.generation,
            seen=trials,
            verdicts=bytes(told),
        )

    def _met_trouble(self, search: Search) -> bool:
        """Whether a candidate that may be used failed for what may be different another time."""
        trials = search.trials
        return any(failure.is_trouble and self.refuses(trials[place]) is None for place, failure in trials.failures)

    def _settle(
        self,
        trials: Trials,
        rivals: tuple[int, ...],
        leader: int,
        times: tuple[float, ...],
        errors: tuple[float, ...],
    ) -> tuple[int, float, list[int], Precision]:
        """The pick among the ties with the leader, its window, the ties, and how well founded that is."""
        best_us, best_error_us = times[leader], errors[leader]
        most_us = MOST_TIE * best_us
        ties, worst_error, final = [leader], 0.0, _is_final(trials, leader, times, errors)
        for place in rivals:
            lag_us, error_us = times[place] - best_us, errors[place]
            if place == leader or (lag_us > most_us and lag_us > WINDOW * (error_us + best_error_us)):
                continue  # beyond what either of the tests below admits
            lag, error = lag_us / best_us, hypot(error_us, best_error_us) / best_us
            if lag <= min(max(TIE - 3 * error, 2 * error), MOST_TIE):
                ties.append(place)
            if lag <= WINDOW * error:
                worst_error = max(worst_error, error)
                final = final and _is_final(trials, place, times, errors)
        pick = leader
        if len(ties) > 1:
            pick = min(ties, key=lambda place: self._tie_order(trials, place))
        precision: Precision = "final" if final and _is_final(trials, pick, times, errors) else "coarse"
        return pick, max(TIE, WINDOW * worst_error, errors[pick] / times[pick]), ties, precision

    def _tie_order(self, trials: Trials, place: int) -> tuple[bool, int, bool, int]:
        preferred = any(fnmatchcase(trials.algorithms[place], pattern) for pattern in self.prefer)
        notes = trials.note_sets[trials.notes[place]]
        return not preferred, trials.workspace_bytes(place), NONDETERMINISTIC in notes, place


_SCREENED: Final = RULES.index("screened")
_NOT_TRIED: Final = RULES.index("not_tried")
_TIE: Final = RULES.index("tie")
_FINAL: Final = STAGES.index("final")
_LISTED: Final = STAGES.index("listed")
# Tables for `translate`, and sets of verdicts: one pass in C over all trials.
_IS_RIVAL: Final = bytes(verdict == 0 for verdict in range(256))
_IS_SCREENED: Final = bytes(verdict == _SCREENED for verdict in range(256))
_SLOWER: Final = bytes([RULES.index("slower"), *range(1, 256)])
_LOOKED_AT: Final = bytes([0, _SCREENED])
_REFUSED: Final = bytes(set(range(256)) - {*_LOOKED_AT, _NOT_TRIED})


def _gap(verdicts: bytearray, *, complete: bool, everything: bool) -> str | None:
    """Why it cannot be said that the first `LOOK_AT` that are admitted were looked at, or `everything`; None if they
    were. `verdicts` in the library's order."""
    if everything and _NOT_TRIED in verdicts:
        return "the exhaustive search left out candidates that this policy admits"
    looked_at = 0
    for verdict in verdicts:
        if verdict in _LOOKED_AT:
            looked_at += 1
            if looked_at == LOOK_AT:
                return None
        elif verdict == _NOT_TRIED:
            return "candidates that the library prefers and this policy admits were not looked at"
    if not complete:
        return f"only {looked_at} of the candidates looked at are admitted, and the library has more"
    return None


def _is_as_good(trials: Trials, times: tuple[float, ...], leader: int) -> bool:
    """Whether the library's first `LOOK_AT` were looked at, whatever the policy says of them, and nobody who ran is
    faster by more than `AS_GOOD`. Who else is admitted is no better than the best of all, which was looked for."""
    failed = {place for place, _ in trials.failures}
    works = [place for place in range(len(times)) if place not in failed]
    if len(works) < LOOK_AT or any(trials.stages[place] == _LISTED for place in works[:LOOK_AT]):
        return False
    best_us = min(times[place] for place in works if trials.stages[place] != _LISTED)
    return times[leader] <= (1 + AS_GOOD) * best_us


def _leader(trials: Trials, rivals: tuple[int, ...], times: tuple[float, ...]) -> int:
    """The fastest; of several, who needs the least workspace, then the library's first."""
    times_us = [times[place] for place in rivals]
    best_us = min(times_us)
    assert best_us > 0.0, "a rival without a time"
    if times_us.count(best_us) == 1:
        return rivals[times_us.index(best_us)]
    fastest = (place for place in rivals if times[place] == best_us)
    return min(fastest, key=lambda place: (trials.workspace_bytes(place), place))


def _is_final(trials: Trials, place: int, times: tuple[float, ...], errors: tuple[float, ...]) -> bool:
    """`Trial.is_final` of one of the columns."""
    return trials.stages[place] == _FINAL and errors[place] <= PRECISE * times[place]


def _require_nobody_sooner(
    trials: Trials, verdicts: bytearray, times: tuple[float, ...], errors: tuple[float, ...], leader: int
) -> None:
    """Raises NotCovered if somebody was screened against something that this policy refuses, and may be the better one
    after all."""
    best_us = times[leader]
    screened = compress(range(len(times)), verdicts.translate(_IS_SCREENED))
    sooner = [place for place in screened if times[place] - 3 * errors[place] < best_us]
    if sooner:
        soonest = min(sooner, key=lambda place: times[place] - 3 * errors[place])
        raise NotCovered(f"{trials.algorithms[soonest]} was dropped early and may be faster than what is left")


_library_order = attrgetter("rank", "algorithm")


def _patterns(field: str, value: object) -> tuple[str, ...]:
    """Taken once, for it may be a generator. Not from a set: equal sets have other orders, and so would policies."""
    if not isinstance(value, str | bytes | Set | Mapping) and isinstance(value, Iterable):
        patterns = tuple(value)
        if all(isinstance(pattern, str) for pattern in patterns):
            return patterns
    raise InvalidPolicy(field, value, "must be a sequence of patterns")


@lru_cache(maxsize=64)
def _screen(policy: Policy) -> Screen:
    return Screen(
        limit_bytes=policy.workspace_limit_bytes,
        refused={note: note for note, field, value in _NOTE_SWITCHES if getattr(policy, field) is value},
        strict=policy.deterministic,
        exclude=policy.exclude,
    )


DEFAULT_POLICY: Final = Policy()
