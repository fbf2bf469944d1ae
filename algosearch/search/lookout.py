"""`Lookout`: the flights that queue here without a task, and what others make of their keys meanwhile.

Where many processes search the same keys, most of what queues is held or done by others before its turn comes. To find
that out one claim at a time would be most of what a thousand ranks ask of their server, and a task for each most of
what it costs them. So a flight has none until its turn has come; the feed hears of records and brings them here; and
whoever is refused one claim looks in one trip whose claims there are on all that queue. What was seen to be another's
is waited for without a task as well.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any, Final

from anyio.abc import TaskGroup

from algosearch.devices.pool import Turn
from algosearch.records import Key, Record
from algosearch.search.claims import Claims, shown
from algosearch.search.feed import Waited
from algosearch.search.flight import Flight
from algosearch.search.tiers import Tiers
from algosearch.stores.base import Claim

PAUSE_S: Final = 0.1
"""The least between two looks."""
SEEN_S: Final = 2.0
"""How long who was seen to hold a claim is taken to hold it still."""


class Lookout:
    """Of one engine. Lives on its loop.

    Args:
        fly: what a flight does with its turn.
        tell: tells a flight what was found, and ends it if nobody aboard waits for more. Raises nothing.
    """

    def __init__(
        self,
        tiers: Tiers,
        claims: Claims,
        tasks: TaskGroup,
        *,
        fly: Callable[[Flight], Coroutine[Any, Any, None]],
        tell: Callable[[Flight, Record], None],
    ) -> None:
        self._tiers = tiers
        self._claims = claims
        self._tasks = tasks
        self._fly = fly
        self._tell = tell
        self._flights: dict[str, Flight] = {}
        """By digest: all that are in the queue of a pool."""
        self._elsewhere: dict[str, Claim] = {}
        """Whose claims were seen on what is queued here."""
        self._seen_at = float("-inf")
        """When that was: what a look that is under way, or was given up, would have seen is not known."""
        self._looked_at = 0.0
        """When the latest look ended, however it did; infinite while one is under way."""
        self._changed: set[str] = set()
        """Of which there were news while a look was under way: what it saw of them may be older."""

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
        self._leave_queue(flight)
        if flight.expects:
            flight.expects = False
            self._claims.forget_expected(flight.key.digest)
        turn, flight.turn = flight.turn, None
        if turn is not None:
            flight.pool.give_back(turn)

    def _leave_queue(self, flight: Flight) -> None:
        if self._flights.get(flight.key.digest) is flight:
            del self._flights[flight.key.digest]
            if not self._flights:
                self._claims.drained()

    async def refused(self, flight: Flight, holder: Claim | None) -> None:
        """This one is another's: see who holds what else queues here, unless that was done a moment ago."""
        if holder is not None:
            self._claims.affinity.met(flight.op, holder.owner)
        if not self._tiers.shared or monotonic() < self._looked_at + PAUSE_S:
            return
        self._looked_at = float("inf")
        self._changed.clear()
        try:
            seen = await self._claims.of_others(tuple(self._flights))
            self._elsewhere = {digest: claim for digest, claim in seen.items() if digest not in self._changed}
            self._seen_at = monotonic()
            for digest, claim in self._elsewhere.items():
                if digest in self._flights:
                    self._claims.affinity.met(self._flights[digest].op, claim.owner)
        finally:
            self._looked_at = monotonic()

    def _called(self, flight: Flight, turn: Turn) -> bool:
        digest = flight.key.digest
        self._leave_queue(flight)
        seen = self._elsewhere.pop(digest, None)
        holder = seen if monotonic() < self._seen_at + SEEN_S else None
        if holder is not None and turn.worker is not None and not flight.stuck:
            flight.expects = True
            flight.move("elsewhere")
            flight.note_trying(f"waiting for {shown(holder.owner)}")
            self._claims.expect(flight.key, holder, flight.record, partial(self._over, flight))
            return False
        flight.turn = turn
        self._tasks.start_soon(self._fly, flight)
        return True

    def _over(self, flight: Flight, outcome: Waited) -> None:
        """Who had it has found something, or has let go of it, or will never do either."""
        flight.expects = False
        flight.stuck = outcome == "stuck"
        flight.note_trying("")
        if isinstance(outcome, Record):
            self._tell(flight, outcome)
            if flight.ended:
                return
        flight.move("queued")
        self.line_up(flight)

    # -- for the feed ------------------------------------------------------------------------------------------------

    def among(self, digests: frozenset[str] | None) -> list[Key]:
        """The keys that queue here, of these; None for all."""
        if digests is None:
            self._elsewhere.clear()  # nothing is believed any more, and the next who is refused looks at once
            if self._looked_at != float("inf"):  # else one is under way
                self._looked_at = 0.0
            self._changed.update(self._flights)
            return [flight.key for flight in self._flights.values()]
        for digest in digests:
            self._elsewhere.pop(digest, None)  # who had it may have let go of it
        self._changed.update(digests & self._flights.keys())
        return [self._flights[digest].key for digest in digests if digest in self._flights]

    def heard(self, record: Record) -> None:
        """Somebody has written a record."""
        flight = self._flights.get(record.key.digest)
        if flight is not None:
            self._tell(flight, record)
