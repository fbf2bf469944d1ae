"""`Record`: all that is known of one key: a tuple of searches, each with every trial.

Invariants:
- A record only grows: a further search is appended, so that no answer already given changes (a policy is answered
  from the first search that covers it). Only a repair replaces it, with a new generation.
- `revision` is the number of searches: the compare-and-swap value of `Store.commit`.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from algosearch.records.key import Key
from algosearch.records.trial import Count, Duration
from algosearch.records.trials import Trials

SearchMode = Literal["race", "exhaustive"]


class Provenance(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Where a search comes from. Never part of a key."""

    version: str
    """Of algosearch."""
    found_at_s: Count
    """Unix time of the end of the search."""
    seconds: Duration
    """What the search cost, waiting in queues not counted."""
    alone: bool = False
    """True if it was found while the shared store could not be reached."""


class Search(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """One search: every candidate that was known, and what became of it."""

    mode: SearchMode
    complete: bool
    """True if the library had no more candidates than the trials name."""
    trials: Trials
    provenance: Provenance


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything known of one key. Immutable: to add is to make another with one more search."""

    key: Key
    searches: tuple[Search, ...]
    generation: int = 0
    """Counts repairs."""

    @property
    def revision(self) -> int:
        """How many searches it holds: what `commit(record, after=…)` compares."""
        return len(self.searches)

    @property
    def alone(self) -> bool:
        """Whether one of its searches was found while the shared store could not be reached, and is not agreed on."""
        return any(search.provenance.alone for search in self.searches)

    def marked_alone(self) -> Record:
        """The same, its newest search found alone."""
        *before, last = self.searches
        return replace(self, searches=(*before, _marked(last, alone=True)))

    def agreed(self) -> Record:
        """The same, nothing in it found alone; itself if nothing is."""
        if not self.alone:
            return self
        return replace(self, searches=tuple(_marked(search, alone=False) for search in self.searches))


def _marked(search: Search, *, alone: bool) -> Search:
    return replace(search, provenance=replace(search.provenance, alone=alone))
