"""`Policy`: a pure function from a record to a choice.

A policy is never part of a key: another workspace limit, determinism, an excluded algorithm are other picks from the
same trials. What a record's searches did not look at is a named miss (`NotCovered`), never a wrong answer.

How a pick is made, in this order:

1. Each candidate that failed, or that the policy refuses, is put aside with its reason.
2. The *leader* is the fastest of those left that were timed as rivals (stage coarse or final).
3. A rival is a tie with the leader if its measured lag is within `TIE`, after taking off three standard errors of the
   difference, or within two standard errors, whichever is more. Among ties: what the policy prefers, then less
   workspace, then deterministic, then the library's order.
4. The pick's promise (`Choice.tie_window`) is max(`TIE`, five standard errors): two within which candidates cannot be
   told apart and three for the error of having found so. `docs/decisions/0003-tie-window.md` has the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import hypot
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from algosearch.errors import InvalidOp, InvalidPolicy, NoAlgorithm, NotCovered
from algosearch.ops.types import whole
from algosearch.records.choice import Choice, Rejection, Rule
from algosearch.records.record import Record, Search, SearchMode
from algosearch.records.trial import Candidate, Trial

TIE: Final = 0.003
"""Relative lag within which two candidates are as good as each other."""
LOOK_AT: Final = 4
"""So many admitted candidates must have been timed before a search that left out some of the library's list may answer
a policy. Measured on an H200: for a limit of 1 MiB the best is among the four best-ranked that fit, for zero among
three."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False, forbid_unknown_fields=True):
    """What a caller may use. The defaults are those of a framework: everything but converting inputs down.

    Raises:
        InvalidPolicy: naming the field, its value and the rule.
    """

    workspace_limit_bytes: int | None = None
    """The most workspace a choice may need; None for no limit, 0 for none at all."""
    deterministic: bool = False
    """Only algorithms whose result is the same bits every time."""
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
        if self.workspace_limit_bytes is not None and type(self.workspace_limit_bytes) is not int:
            try:
                limit = whole("workspace_limit_bytes", self.workspace_limit_bytes, least=0)
            except InvalidOp as error:
                raise InvalidPolicy(error.field, error.value, error.rule) from None
            force_setattr(self, "workspace_limit_bytes", limit)
        if self.workspace_limit_bytes is not None and self.workspace_limit_bytes < 0:
            raise InvalidPolicy("workspace_limit_bytes", self.workspace_limit_bytes, "must be at least 0, or None")
        for field in ("exclude", "prefer"):
            patterns = getattr(self, field)
            if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
                raise InvalidPolicy(field, patterns, "must be a sequence of patterns")
            force_setattr(self, field, tuple(patterns))

    def refuses(self, candidate: Candidate | Trial) -> Rule | None:
        """The rule by which this candidate may not be used, or None. Looks at neither times nor failures."""
        limit = self.workspace_limit_bytes
        if limit is not None and candidate.workspace_bytes > limit:
            return "workspace_limit"
        for note in candidate.notes:
            match note:
                case "nondeterministic":
                    refused = self.deterministic
                case "tf32":
                    refused = not self.allow_tf32
                case "reduced_precision":
                    refused = not self.allow_reduced_precision
                case "down_converts":
                    refused = not self.allow_down_conversion
                case "range_limited":
                    refused = not self.allow_range_limited
                case "runtime_compiled":
                    refused = not self.allow_runtime_compiled
                case _:
                    if note.startswith("unknown_") and self.deterministic:
                        return "unknown_note"
                    continue
            if refused:
                return note
        if self.exclude and any(fnmatchcase(candidate.algorithm, pattern) for pattern in self.exclude):
            return "excluded"
        return None

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
        refused: list[Rejection] = []
        for candidate in sorted(candidates, key=_library_order):
            rule = self.refuses(candidate)
            if rule is None:
                return Choice(
                    algorithm=candidate.algorithm,
                    workspace_bytes=candidate.workspace_bytes,
                    notes=candidate.notes,
                    precision="heuristic",
                    provisional=True,
                    digest=digest,
                    rejections=tuple(refused),
                )
            refused.append(Rejection(candidate.algorithm, rule, candidate.workspace_bytes))
        raise NoAlgorithm(problem, tuple(rejection.describe() for rejection in refused))

    def _pick_from(self, search: Search, record: Record) -> Choice:
        rejections: list[tuple[Trial, Rule]] = []
        rivals: list[Trial] = []
        aside: list[Trial] = []
        for trial in search.trials:
            rule = self.refuses(trial)
            if rule is not None:
                rejections.append((trial, rule))
            elif trial.failure is not None:
                rejections.append((trial, "failed"))
            elif trial.stage == "final" or trial.stage == "coarse":
                rivals.append(trial)
            else:
                aside.append(trial)
        if not search.complete and len(rivals) + sum(t.stage == "screened" for t in aside) < LOOK_AT:
            raise NotCovered(f"fewer than {LOOK_AT} of the candidates looked at are admitted, and the library has more")
        if not rivals:
            if aside:
                raise NotCovered("the candidates that are admitted were not timed as rivals")
            raise NoAlgorithm(record.key.problem.describe(), _reasons(rejections))
        leader = min(rivals, key=_speed_order)
        pick, window, ties = self._settle(leader, rivals)
        for trial in aside:
            # Screened against something that this policy refuses? Then it may be the better one after all.
            if trial.time_us is not None and trial.time_us < _time(pick):
                raise NotCovered(f"{trial.algorithm} was dropped early and may be faster than what is left")
            rejections.append((trial, "not_tried" if trial.time_us is None else "screened"))
        rejections.extend((t, "tie" if t in ties else "slower") for t in rivals if t is not pick)
        first = min((t for t in (*rivals, *aside) if t.time_us is not None), key=_library_order)
        return Choice(
            algorithm=pick.algorithm,
            workspace_bytes=pick.workspace_bytes,
            notes=pick.notes,
            time_us=pick.time_us,
            first_us=first.time_us,
            precision="final" if pick.stage == "final" else "coarse",
            tie_window=window,
            digest=record.key.digest,
            generation=record.generation,
            rejections=tuple(
                Rejection(t.algorithm, rule, t.workspace_bytes, t.time_us, t.failure)
                for t, rule in sorted(rejections, key=_rejection_order)
            ),
        )

    def _settle(self, leader: Trial, rivals: list[Trial]) -> tuple[Trial, float, list[Trial]]:
        """The pick among the ties with the leader, its window, and the ties."""
        best_us = _time(leader)
        ties, worst_error = [], 0.0
        for trial in rivals:
            lag = (_time(trial) - best_us) / best_us
            error = hypot(trial.error_us or 0.0, leader.error_us or 0.0) / best_us
            if trial is leader or lag <= max(TIE - 3 * error, 2 * error):
                ties.append(trial)
            if lag <= 5 * error:
                worst_error = max(worst_error, error)
        pick = leader if len(ties) == 1 else min(ties, key=self._tie_order)
        return pick, max(TIE, 5 * worst_error), ties

    def _tie_order(self, trial: Trial) -> tuple[bool, int, bool, int, str]:
        preferred = any(fnmatchcase(trial.algorithm, pattern) for pattern in self.prefer)
        return (
            not preferred,
            trial.workspace_bytes,
            "nondeterministic" in trial.notes,
            trial.rank,
            trial.algorithm,
        )


DEFAULT_POLICY: Final = Policy()


def _time(trial: Trial) -> float:
    assert trial.time_us is not None, f"{trial.algorithm} is {trial.stage} without a time"
    return trial.time_us


def _speed_order(trial: Trial) -> tuple[float, int, int, str]:
    return (_time(trial), trial.workspace_bytes, trial.rank, trial.algorithm)


def _library_order(candidate: Candidate | Trial) -> tuple[int, str]:
    return (candidate.rank, candidate.algorithm)


def _rejection_order(rejection: tuple[Trial, Rule]) -> tuple[int, str]:
    return _library_order(rejection[0])


def _reasons(rejections: list[tuple[Trial, Rule]]) -> tuple[str, ...]:
    return tuple(
        Rejection(t.algorithm, rule, t.workspace_bytes, t.time_us, t.failure).describe()
        for t, rule in sorted(rejections, key=_rejection_order)
    )
