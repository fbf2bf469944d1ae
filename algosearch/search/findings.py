"""What a worker brought back, as it goes into a record, and into the store."""

from __future__ import annotations

import time
from typing import Final

from algosearch._version import VERSION
from algosearch.devices.worker import Found
from algosearch.records import Key, Provenance, Record, Search, SearchMode, Trials
from algosearch.search.flight import Flight
from algosearch.search.tiers import Tiers

_MOST_COMMITS: Final = 8
"""Times that a search is appended to what somebody else has just committed, before it is good for this process only."""


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


async def committed(tiers: Tiers, flight: Flight, search: Search) -> Record | None:
    """The record of a flight's key, as everybody goes by it now, with this search in it. If somebody else committed
    first, the flight learns theirs, and ours is appended to it; None if nobody aboard lacks anything then."""
    record = extended(flight.key, flight.record, search)
    for _ in range(_MOST_COMMITS):
        kept = await tiers.commit(record, storable=flight.storable)
        if kept is record or kept.agreed() == record.agreed():
            return kept
        flight.learned(kept, "store")
        if flight.wanted() is None:
            return None
        record = extended(flight.key, flight.record, search)
    return record
