"""`Listings`: candidates for who does not wait for the race: mode heuristic, a deadline that has passed, and a key that
nobody searches any more.

A library is asked for the first few of its list, and for more only as long as somebody may use none of those: what a
policy admits may come late in the list, and to say that there is none one has to have seen all of it.
"""

from __future__ import annotations

import logging
from typing import Final

from anyio.abc import TaskGroup
from msgspec.structs import replace

from algosearch.devices.pool import Turn
from algosearch.search.counts import Counts
from algosearch.search.flight import Flight

logger = logging.getLogger("algosearch.engine")

FIRST_LOOK: Final = 10
"""Candidates asked for at first: on an H200 the first ten of the library's list hold the best of a plain op to within
0.4 %. A backend lists more where its order is known to be poor, and the race asks for more where it has reason to."""


class Listings:
    """Those of one tower. Lives on the engine's loop."""

    def __init__(self, tasks: TaskGroup, counts: Counts) -> None:
        self._tasks = tasks
        self._counts = counts

    def ask_soon(self, flight: Flight) -> None:
        """Out of turn, in the background, if somebody aboard lacks any."""
        flight.offer()
        if flight.lacks_candidates:
            self._tasks.start_soon(self._ask_out_of_turn, flight)

    async def ask(self, flight: Flight, turn: Turn | None = None) -> None:
        """Until nobody aboard lacks any. At that device, or at one that is free for it.

        Raises:
            what the backend raises; DeviceUnavailable, SearchFailed.
        """
        flight.offer()
        while flight.lacks_candidates and not flight.ended:
            await self.widen(flight, turn)

    async def widen(self, flight: Flight, turn: Turn | None = None) -> None:
        """More of them than are known, once; what comes meanwhile with a search, or by another task, counts. After the
        last ones the listing is complete. Raises as `ask`."""
        known = flight.listing
        async with flight.listing_lock:
            await flight.listed_ahead()
            if flight.listing is not known or flight.ended:
                return
            width = FIRST_LOOK if known is None else 2 * max(len(known.candidates), FIRST_LOOK)
            self._counts.listings += 1
            listing = await (turn or flight.pool).enumerate(flight.op, width)
            if known is not None and len(listing.candidates) <= len(known.candidates):
                # A backend that calls a listing incomplete and then has no more to list would be asked for ever.
                listing = replace(listing, complete=True)
            if not flight.ended:
                flight.listed(listing)

    async def _ask_out_of_turn(self, flight: Flight) -> None:
        try:
            await self.ask(flight)
        except Exception as error:
            # The flight meets the same trouble in its turn, and tells every waiter there.
            logger.debug("candidates of %s out of turn: %s", flight.op.describe(), error)
