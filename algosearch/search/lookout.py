"""`Lookout`: the flights that queue here without a task, and what others make of their keys meanwhile.

Where many processes search the same keys, most of what queues is held or done by others before its turn comes. To find
that out one claim at a time would be most of what a thousand ranks ask of their server, and a task for each most of
what it costs them. So a flight has none until its turn has come; the feed hears of records and brings them here; and
whoever is refused one claim looks in one trip whose claims there are on all that queue. A key that was seen to be
another's is waited for without a task, once and for `SEEN_S`; after that it is asked for, and waited for with patience.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any, Final

from anyio.abc import TaskGroup

from algosearch.devices.pool import Turn
from algosearch.records import Key, Record
from algosearch.search.claims import SEEN_S, Claims, shown
from algosearch.search.flight import Flight
from algosearch.search.tiers import Tiers

PAUSE_S: Final = 0.5
"""The least between two looks."""


class Lookout:
    """Of one engine. Lives on its loop.

    Args:
        fly: what a flight does with its turn.
        land: ends a flight whose waiters have all been answered.
    """

    def __init__(
        self,
        tiers: Tiers,
        claims: Claims,
        tasks: TaskGroup,
        *,
        fly: Callable[[Flight], Coroutine[Any, Any, None]],
        land: Callable[[Flight], None],
    ) -> None:
        self._tiers = tiers
        self._claims = claims
        self._tasks = tasks
        self._fly = fly
        self._land = land
        self._flights: dict[str, Flight] = {}
        """By digest: all that have no task."""
        self._parked: dict[str, float] = {}
        """Of those, who is another's; and until when that is believed, of `time.monotonic`."""
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._flights)

    def line_up(self, flight: Flight) -> None:
        """Let it queue; it flies when its turn has come."""
        self._flights[flight.key.digest] = flight
        flight.turn = flight.pool.line_up(flight, partial(self._called, flight))
        if self._tiers.shared:
            self._claims.listen(self)

    def leave(self, flight: Flight) -> None:
        """It has ended, wherever it was."""
        if self._flights.get(flight.key.digest) is flight:
            del self._flights[flight.key.digest]
            self._parked.pop(flight.key.digest, None)
        turn, flight.turn = flight.turn, None
        if turn is not None:
            flight.pool.give_back(turn)

    async def look(self) -> None:
        """See who holds what queues here, unless that was done a moment ago."""
        if not self._tiers.shared or monotonic() < self._looked_at + PAUSE_S:
            return
        self._looked_at = float("inf")
        try:
            await self._claims.look_around([digest for digest in self._flights if digest not in self._parked])
        finally:
            self._looked_at = monotonic()

    def _called(self, flight: Flight, turn: Turn) -> bool:
        digest = flight.key.digest
        holder = self._claims.seen_elsewhere(digest)
        if holder is not None and turn.worker is not None and not flight.was_parked:
            self._claims.counts.waited += 1
            self._parked[digest] = monotonic() + SEEN_S
            flight.was_parked = True
            flight.move("elsewhere")
            flight.note_trying(f"waiting for {shown(holder.owner)}")
            return False
        del self._flights[digest]
        flight.turn = turn
        self._tasks.start_soon(self._fly, flight)
        return True

    # -- for the feed ------------------------------------------------------------------------------------------------

    def among(self, digests: frozenset[str] | None) -> list[Key]:
        """The keys that queue here, of these; None for all."""
        if digests is None:
            return [flight.key for flight in self._flights.values()]
        return [self._flights[digest].key for digest in digests if digest in self._flights]

    def heard(self, record: Record) -> None:
        """Somebody has written a record."""
        flight = self._flights.get(record.key.digest)
        if flight is not None:
            flight.learned(record, "store")
            if flight.is_idle:
                self._land(flight)

    def freed(self, digest: str) -> None:
        """Somebody has given a key back, and there is no record."""
        if digest in self._parked:
            self._unpark(digest)

    def wake(self) -> None:
        """Ask for what was believed to be another's for long enough."""
        now = monotonic()
        for digest in [digest for digest, until in self._parked.items() if now >= until]:
            self._unpark(digest)

    def _unpark(self, digest: str) -> None:
        del self._parked[digest]
        flight = self._flights[digest]
        flight.move("queued")
        flight.note_trying("")
        self.line_up(flight)
