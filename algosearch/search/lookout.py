"""`Lookout`: what became meanwhile of everything that queues here, seen in two trips instead of key by key.

Where many processes search the same keys, most of what queues is held or done by others before its turn comes. To
find that out one claim at a time would be most of what a thousand ranks ask of their server. So whoever meets one
surprise (a claim refused, a record that was not there) looks after all: the records of what queues are read, and whose
claims they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Final

from algosearch.records import Record
from algosearch.search.claims import Claims
from algosearch.search.flight import Flight
from algosearch.search.tiers import Tiers

PAUSE_S: Final = 0.05
"""The least between two looks."""


class Lookout:
    """Of one engine. Lives on its loop; does nothing where no others share the store."""

    def __init__(self, tiers: Tiers, claims: Claims, flights: Mapping[str, Flight]) -> None:
        self._tiers = tiers
        self._claims = claims
        self._flights = flights
        self._looked_at = 0.0

    async def look(self) -> None:
        """Look after everything that queues, unless that was done a moment ago."""
        if not self._tiers.shared or monotonic() < self._looked_at + PAUSE_S:
            return
        self._looked_at = float("inf")
        try:
            flights = self._queued()
            answers = await self._tiers.read([flight.key for flight in flights])
            for flight, answer in zip(flights, answers, strict=True):
                if isinstance(answer, Record) and not flight.ended:
                    flight.learned(answer, "store")
            await self._claims.look_around([flight.key.digest for flight in self._queued()])
        finally:
            self._looked_at = monotonic()

    def _queued(self) -> list[Flight]:
        return [each for each in self._flights.values() if each.state == "queued" and each.storable and each.wanted()]
