"""What a worker brought back, as it goes into a record."""

from __future__ import annotations

import time

from algosearch._version import VERSION
from algosearch.devices.worker import Found
from algosearch.records import Key, Provenance, Record, Search, SearchMode, Trials


def search_of(found: Found, mode: SearchMode) -> Search:
    """The search that was made, now."""
    return Search(
        mode=mode,
        complete=found.complete,
        trials=Trials.of(found.trials),
        provenance=Provenance(version=VERSION, found_at_s=int(time.time()), seconds=round(found.seconds, 6)),
    )


def extended(key: Key, before: Record | None, search: Search) -> Record:
    """The record of a key with one more search."""
    if before is None:
        return Record(key=key, searches=(search,))
    return Record(key=key, searches=(*before.searches, search), generation=before.generation)
