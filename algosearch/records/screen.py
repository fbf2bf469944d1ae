"""`Screen`: what a policy refuses, candidate by candidate or over all trials of a search at once.

The verdict on a candidate is one byte, a place in `RULES`; 0 for whom nothing speaks against. A choice keeps the
verdicts, and spells them out when somebody asks why.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import translate
from typing import Final

from algosearch.ops.types import LARGEST
from algosearch.records.choice import RULES, Rule
from algosearch.records.trial import Candidate, Trial
from algosearch.records.trials import STAGES, Trials

_NOTES_KEPT: Final = 1000
"""Sets of notes remembered for a policy; more are no library's, and not worth the memory."""
_BY_STAGE: Final = bytes(
    RULES.index({"listed": "not_tried", "screened": "screened", "coarse": None, "final": None}[stage])
    for stage in STAGES
).ljust(256, bytes([RULES.index("not_tried")]))
"""The verdict on who is not refused, by stage."""
_FAILED: Final = RULES.index("failed")
_EXCLUDED: Final = RULES.index("excluded")
_WORKSPACE_LIMIT: Final = RULES.index("workspace_limit")


class Screen:
    """Made for one policy, with everything looked up that is the same for all candidates.

    Args:
        limit_bytes: the most workspace; None for no limit but what can be addressed.
        refused: rules by the note that they refuse.
        strict: whether notes that this version does not know are refused.
        exclude: patterns of names.
    """

    __slots__ = ("_excluded", "_known", "_limit_bytes", "_refused", "_strict")

    def __init__(
        self, *, limit_bytes: int | None, refused: Mapping[str, Rule], strict: bool, exclude: Collection[str]
    ) -> None:
        self._limit_bytes = limit_bytes
        self._refused = refused
        self._strict = strict
        self._excluded = re.compile("|".join(map(translate, exclude))).match if exclude else None
        self._known: dict[tuple[str, ...], int] = {}
        """Verdicts on sets of notes, of which there are few."""

    def rule_of(self, candidate: Candidate | Trial) -> Rule | None:
        """The rule by which a candidate may not be used, or None."""
        if candidate.workspace_bytes > (LARGEST if self._limit_bytes is None else self._limit_bytes):
            return "workspace_limit"
        rule = self._rule_of_notes(candidate.notes)
        if rule is None and self._excluded is not None and self._excluded(candidate.algorithm):
            return "excluded"
        return rule

    def verdicts(self, trials: Trials) -> bytearray:
        """The verdict on each: `rule_of`, then whether it failed, then its stage; 0 for who was timed as a rival."""
        verdicts = bytearray(trials.stages.translate(_BY_STAGE))
        for place, _ in trials.failures:
            verdicts[place] = _FAILED
        # What has the say comes last.
        if self._excluded is not None:
            for place, name in enumerate(trials.algorithms):
                if self._excluded(name):
                    verdicts[place] = _EXCLUDED
        of_sets = list(map(self._known.get, trials.note_sets))
        if None in of_sets:
            of_sets = list(map(self._verdict_of, trials.note_sets))
        if any(of_sets):
            for place, number in enumerate(trials.notes):
                if verdict := of_sets[number]:
                    verdicts[place] = verdict
        if self._limit_bytes is not None:
            for place, workspace_bytes in enumerate(trials.workspaces_bytes):
                if workspace_bytes > self._limit_bytes:
                    verdicts[place] = _WORKSPACE_LIMIT
        return verdicts

    def _verdict_of(self, notes: tuple[str, ...]) -> int:
        verdict = RULES.index(self._rule_of_notes(notes))
        if len(self._known) < _NOTES_KEPT:
            self._known[notes] = verdict
        return verdict

    def _rule_of_notes(self, notes: tuple[str, ...]) -> Rule | None:
        for note in notes:
            if note in self._refused:
                return self._refused[note]
            if self._strict and note.startswith("unknown_"):
                return "unknown_note"
        return None
