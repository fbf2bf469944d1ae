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

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from math import hypot, inf
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from algosearch.errors import InvalidOp, InvalidPolicy, NoAlgorithm, NotCovered
from algosearch.ops.types import whole
from algosearch.records.choice import Choice, Precision, Rejection, Rule
from algosearch.records.record import Record, Search, SearchMode
from algosearch.records.trial import Candidate, Trial

TIE: Final = 0.003
"""Relative lag within which two candidates are as good as each other."""
WINDOW: Final = 5
"""Standard errors that a pick may truly be behind: two within which it cannot be told, three for having found so."""
MOST_TIE: Final = 0.01
"""However noisy it was: who was measured slower by more than this is not preferred for its workspace."""
LOOK_AT: Final = 4
"""So many admitted candidates must have been timed before a search that left out some of the library's list may answer
a policy. Measured on an H200: for a limit of 1 MiB the best is among the four best-ranked that fit, for zero among
three."""


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
        return _screen(self)[0](candidate)

    def pick(self, record: Record, *, mode: SearchMode = "race") -> Choice:
        """The choice from the first search of `record` that covers this policy. Pure; the order of trials is no matter.

        Raises:
            NotCovered: no search looked where this policy asks; a further search will.
            NoAlgorithm: a search covers it, and no candidate may be used; names each one's reason.
        """
        reason = "the record has no search"
        for search in record.searches:
            if mode == "exhaustive" and search.mode != "exhaustive":
                reason = "an exhaustive search was asked, and there is only a race"
                continue
            try:
                return self._pick_from(search, record)
            except NotCovered as gap:
                reason = gap.reason
        raise NotCovered(reason)

    def first(self, candidates: Sequence[Candidate], *, problem: str, digest: str = "") -> Choice:
        """The library's first candidate that this policy admits: the heuristic's answer, provisional.

        Raises:
            NoAlgorithm: the policy refuses every candidate.
        """
        offered = tuple(sorted(candidates, key=_library_order))
        rule_of, _ = _screen(self)
        rules = tuple(map(rule_of, offered))
        if None not in rules:
            refused = (Rejection.of(each, rule) for each, rule in zip(offered, rules, strict=True) if rule is not None)
            raise NoAlgorithm(problem, tuple(each.describe() for each in refused))
        first = rules.index(None)
        return Choice(
            algorithm=offered[first].algorithm,
            workspace_bytes=offered[first].workspace_bytes,
            notes=offered[first].notes,
            precision="heuristic",
            provisional=True,
            digest=digest,
            candidates=offered[: first + 1],
            rules=rules[: first + 1],
        )

    def _pick_from(self, search: Search, record: Record) -> Choice:
        trials = _in_library_order(search.trials)  # so that nothing below depends on the order they came in
        rules: list[Rule | None] = []
        rivals: list[Trial] = []
        places: list[int] = []
        soonest_us, soonest = inf, ""  # how fast somebody who was dropped early may be
        rule_of, by_notes = _screen(self)
        for place, trial in enumerate(trials):
            if by_notes is None:
                rule = rule_of(trial)
            elif (notes := trial.notes) in by_notes:
                rule = by_notes[notes]
            elif len(by_notes) < _NOTES_KEPT:
                rule = by_notes[notes] = rule_of(trial)
            else:
                rule = rule_of(trial)
            if rule is None:
                if trial.failure is not None:
                    rule = "failed"
                elif trial.stage == "final" or trial.stage == "coarse":
                    rivals.append(trial)
                    places.append(place)
                elif trial.time_us is None:
                    rule = "not_tried"
                else:
                    rule = "screened"
                    perhaps_us = trial.time_us - 3 * (trial.error_us or 0.0)
                    if perhaps_us < soonest_us:
                        soonest_us, soonest = perhaps_us, trial.algorithm
            rules.append(rule)
        _require_a_look(search, rules)
        if not rivals:
            if "screened" in rules or "not_tried" in rules:
                raise NotCovered("the candidates that are admitted were not timed as rivals")
            put_aside = (Rejection.of(t, rule) for t, rule in zip(trials, rules, strict=True) if rule is not None)
            raise NoAlgorithm(record.key.problem.describe(), tuple(each.describe() for each in put_aside))
        leader = min(rivals, key=_speed_order)
        # Screened against something that this policy refuses? Then it may be the better one after all.
        if soonest_us < _time(leader):
            raise NotCovered(f"{soonest} was dropped early and may be faster than what is left")
        pick, window, ties, precision = self._settle(leader, rivals)
        first = next(t for t, rule in zip(trials, rules, strict=True) if rule in (None, "screened"))
        for place, trial in zip(places, rivals, strict=True):
            rules[place] = None if trial is pick else "tie" if trial in ties else "slower"
        return Choice(
            algorithm=pick.algorithm,
            workspace_bytes=pick.workspace_bytes,
            notes=pick.notes,
            time_us=pick.time_us,
            first_us=first.time_us,
            error_us=pick.error_us,
            precision=precision,
            tie_window=window,
            digest=record.key.digest,
            generation=record.generation,
            candidates=trials,
            rules=tuple(rules),
        )

    def _settle(self, leader: Trial, rivals: list[Trial]) -> tuple[Trial, float, list[Trial], Precision]:
        """The pick among the ties with the leader, its window, the ties, and how well founded that is."""
        best_us = _time(leader)
        ties, worst_error, final = [], 0.0, True
        for trial in rivals:
            lag = (_time(trial) - best_us) / best_us
            error = hypot(trial.error_us or 0.0, leader.error_us or 0.0) / best_us
            if trial is leader or lag <= min(max(TIE - 3 * error, 2 * error), MOST_TIE):
                ties.append(trial)
            if trial is not leader and lag <= WINDOW * error:
                worst_error = max(worst_error, error)
                final = final and trial.is_final
        pick = leader if len(ties) == 1 else min(ties, key=self._tie_order)
        precision: Precision = "final" if final and leader.is_final and pick.is_final else "coarse"
        return pick, max(TIE, WINDOW * worst_error, pick.error), ties, precision

    def _tie_order(self, trial: Trial) -> tuple[bool, int, bool, int, str]:
        preferred = any(fnmatchcase(trial.algorithm, pattern) for pattern in self.prefer)
        return (
            not preferred,
            trial.workspace_bytes,
            "nondeterministic" in trial.notes,
            trial.rank,
            trial.algorithm,
        )


def _require_a_look(search: Search, rules: list[Rule | None]) -> None:
    """Raises NotCovered unless the first `LOOK_AT` that are admitted were looked at; `rules` in the library's order."""
    looked_at = 0
    for rule in rules:
        if rule is None or rule == "screened":
            looked_at += 1
            if looked_at == LOOK_AT:
                return
        elif rule == "not_tried":
            raise NotCovered("candidates that the library prefers and this policy admits were not looked at")
    if not search.complete:
        raise NotCovered(f"only {looked_at} of the candidates looked at are admitted, and the library has more")


def _time(trial: Trial) -> float:
    assert trial.time_us is not None, f"{trial.algorithm} is {trial.stage} without a time"
    return trial.time_us


_speed_order = attrgetter("time_us", "workspace_bytes", "rank", "algorithm")  # of rivals only: each has a time
_library_order = attrgetter("rank", "algorithm")
_rank = attrgetter("rank")
_NOTES_KEPT: Final = 1000
"""Sets of notes remembered for a policy; more are no library's, and not worth the memory."""


def _in_library_order(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Sorted; at a third of the price where they lie in order, as a race leaves them."""
    ranks = list(map(_rank, trials))
    return trials if ranks == sorted(set(ranks)) else tuple(sorted(trials, key=_library_order))


def _patterns(field: str, value: object) -> tuple[str, ...]:
    """Taken once, for it may be a generator. Not from a set: equal sets have other orders, and so would policies."""
    if not isinstance(value, str | bytes | Set | Mapping) and isinstance(value, Iterable):
        patterns = tuple(value)
        if all(isinstance(pattern, str) for pattern in patterns):
            return patterns
    raise InvalidPolicy(field, value, "must be a sequence of patterns")


@lru_cache(maxsize=64)
def _screen(
    policy: Policy,
) -> tuple[Callable[[Candidate | Trial], Rule | None], dict[tuple[str, ...], Rule | None] | None]:
    """`policy.refuses`, with everything looked up that is the same for all candidates; and, if it looks at nothing but
    their notes, a place for what it says of each set of notes, of which there are few."""
    limit, strict = policy.workspace_limit_bytes, policy.deterministic
    refused: dict[str, Rule] = {note: note for note, field, value in _NOTE_SWITCHES if getattr(policy, field) is value}
    excluded = re.compile("|".join(map(translate, policy.exclude))).match if policy.exclude else None

    def rule_of(candidate: Candidate | Trial) -> Rule | None:
        if limit is not None and candidate.workspace_bytes > limit:
            return "workspace_limit"
        for note in candidate.notes:
            if note in refused:
                return refused[note]
            if strict and note.startswith("unknown_"):
                return "unknown_note"
        return "excluded" if excluded is not None and excluded(candidate.algorithm) else None

    return rule_of, {} if limit is None and excluded is None else None


DEFAULT_POLICY: Final = Policy()
