"""`Tower`: every flight of an engine, from the inquiry that starts it to the answers of all who joined.

A miss, step by step: the inquiry finds the flight of its key, or a new one takes off → the store is read, for all that
was asked in one turn in one trip → the queue of the devices' pool → the key is claimed, or another process waited for →
candidates (first milestone) → race → commit → answers (second milestone).

Lives on the engine's loop. Invariants:
- Single flight comes before everything else: before the store is read and before the queue.
- Every inquiry that was admitted is answered, failed or withdrawn, whatever breaks.
- What a store does wrong costs cached answers, or a search twice; never a search.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from algosearch.devices.job import MustCompile
from algosearch.devices.pool import Pool, Turn
from algosearch.devices.worker import Found, nobody_asked
from algosearch.errors import AlgosearchError, SearcherClosed
from algosearch.ops import Op, searched_as
from algosearch.records import Environment, Key, Listing, Policy, Record, SearchMode, not_to_try
from algosearch.search.claims import Claims, shown
from algosearch.search.counts import Counts
from algosearch.search.findings import committed, search_of
from algosearch.search.flight import Flight
from algosearch.search.hold import Hold
from algosearch.search.inquiry import Inquiry, Source
from algosearch.search.keys import KEYS_KEPT, Keys
from algosearch.search.listings import FIRST_LOOK, Listings
from algosearch.search.lookout import Lookout
from algosearch.search.statistics import FlightStatus
from algosearch.search.tiers import Tiers
from algosearch.stores.base import Miss

logger = logging.getLogger("algosearch.engine")


class Tower:
    """Owns the flights; the engine owns the tower, the tiers, the claims and the task group."""

    def __init__(self, tiers: Tiers, tasks: TaskGroup, claims: Claims) -> None:
        self.counts = Counts()
        self.claims = claims
        self._tiers = tiers
        self._tasks = tasks
        self._flights: dict[str, Flight] = {}
        """By the key's digest. Invariant: no ended flight is in it."""
        self._keys = Keys()
        self._listings = Listings(tasks, self.counts)
        self._searched: set[str] = set()
        """Digests of the keys that this engine has searched. Too few cost a second search of what is hopeless."""
        self._lookout = Lookout(tiers, claims, tasks, fly=self._fly, tell=self._tell)
        self._given_up: set[str] = set()
        """Of those that nobody searches any more, so that each is complained of once."""

    def __repr__(self) -> str:
        return f"<Tower {len(self._flights)} flights>"

    def flights(self) -> tuple[FlightStatus, ...]:
        """What is under way, the oldest first; from any thread."""
        now = perf_counter()  # one moment for all: ages that are taken one after the other can change places
        return tuple(flight.status(now) for flight in tuple(self._flights.values()))

    def admit(self, pool: Pool, inquiries: Sequence[Inquiry]) -> None:
        """Take inquiries that came in one turn, all for one pool."""
        environment = pool.known_environment
        if environment is None:
            self._tasks.start_soon(self._admit_when_open, pool, inquiries)
        else:
            self._route(pool, environment, inquiries)

    def withdraw(self, pool: Pool, inquiry: Inquiry) -> None:
        """Nobody has an open request for it any more."""
        flight = self._flight_of(pool, inquiry)
        if flight is not None and flight.leave(inquiry):
            self._end(flight, "dropped")

    def list_now(self, pool: Pool, inquiry: Inquiry) -> None:
        """Ask for the candidates of its key at once, out of turn; if it is not aboard a flight, once it is."""
        flight = self._flight_of(pool, inquiry)
        if flight is not None:
            self._listings.ask_soon(flight)

    def _flight_of(self, pool: Pool, inquiry: Inquiry) -> Flight | None:
        """The flight of its key, if there is one; it may not be aboard."""
        environment = pool.known_environment
        if environment is None:
            return None
        return self._flights.get(self._keys.of(pool, environment, inquiry.question.op).digest)

    def fail_all(self, error: AlgosearchError) -> None:
        """The end: every flight fails."""
        for flight in tuple(self._flights.values()):
            flight.fail(error)
        self._flights.clear()

    def revised(self, records: Mapping[str, Record]) -> None:
        """All hosts go by these from now on, by digest; so does what is under way."""
        for record in records.values():
            self._tiers.revise(record)
            flight = self._flights.get(record.key.digest)
            if flight is not None and flight.record is not None:
                flight.record = record

    async def _admit_when_open(self, pool: Pool, inquiries: Sequence[Inquiry]) -> None:
        try:
            environment = await pool.environment()
        except Exception as error:
            for inquiry in inquiries:
                inquiry.fail(error)
        except BaseException:  # cancelled: the engine ends
            for inquiry in inquiries:
                inquiry.fail(SearcherClosed())
            raise
        else:
            self._route(pool, environment, inquiries)

    def _route(self, pool: Pool, environment: Environment, inquiries: Sequence[Inquiry]) -> None:
        """Put each inquiry on the flight of its key, and let new flights take off together."""
        fresh: list[Flight] = []
        try:
            self._board(pool, environment, inquiries, fresh)
            self._take_off(fresh)
        except Exception as error:  # a bug of ours, and even so nobody waits for ever
            logger.exception("admitting questions broke")
            for inquiry in inquiries:
                inquiry.fail(error)
            for flight in fresh:  # who joined one that never took off would wait, too
                self._fail(flight, error)

    def _board(self, pool: Pool, environment: Environment, inquiries: Sequence[Inquiry], fresh: list[Flight]) -> None:
        for inquiry in inquiries:
            if inquiry.withdrawn:
                continue
            key = self._keys.of(pool, environment, op := inquiry.question.op)
            flight = self._flights.get(key.digest)
            if flight is None:
                flight = self._new_flight(key, searched_as(op), pool, storable=environment.incomplete is None)
                fresh.append(flight)
            flight.join(inquiry)
            if flight.state != "reading":
                self._catch_up(flight, inquiry)
            if inquiry.lacks_guess:
                self.list_now(pool, inquiry)

    def _new_flight(self, key: Key, op: Op, pool: Pool, *, storable: bool) -> Flight:
        flight = Flight(key, op, pool, storable=storable, searched=key.digest in self._searched)
        flight.place = self.claims.affinity.place(op, key.digest, at_once=self._tiers.shared)
        self._flights[key.digest] = flight
        return flight

    def _catch_up(self, flight: Flight, inquiry: Inquiry) -> None:
        """What has already happened to a flight, for an inquiry that joins it late."""
        if inquiry.question.mode == "cached":
            flight.refuse_cached("it is being searched right now")
        elif inquiry.question.mode == "heuristic":
            self._listings.ask_soon(flight)

    def _take_off(self, flights: Sequence[Flight]) -> None:
        to_read = []
        for flight in flights:
            record = self._tiers.recall(flight.key.digest)
            if record is not None:
                self.counts.memory_hits += 1
                self._tell(flight, record, "memory")
            elif flight.is_idle:
                self._end(flight, "landed")
            if not flight.ended:
                to_read.append(flight)
        if to_read:
            self._tasks.start_soon(self._read, to_read)

    async def _read(self, flights: Sequence[Flight]) -> None:
        """One trip to the store for all of them; those that it does not answer queue."""
        flights = sorted(flights, key=lambda flight: flight.precedence)
        answers = await self._tiers.read([flight.key for flight in flights])
        for flight, answer in zip(flights, answers, strict=True):
            with self._failing(flight):
                self._take_read(flight, answer)

    def _take_read(self, flight: Flight, answer: Record | Miss) -> None:
        if flight.ended:
            return
        if isinstance(answer, Record):
            self.counts.store_hits += 1
            flight.learned(answer, "store")
            reason = "its searches do not cover this policy"
        else:
            self.counts.store_misses[answer.kind] += 1
            reason = answer.reason
        flight.refuse_cached(reason)
        if flight.is_idle:
            self._end(flight, "landed")
        elif flight.wanted() is None:  # only the heuristic's answer is asked
            self._tasks.start_soon(self._fly, flight)
        else:
            flight.move("queued")
            self._lookout.line_up(flight)

    def _tell(self, flight: Flight, record: Record, source: Source = "store") -> None:
        """What is known of its key. It ends if nobody aboard waits for more."""
        with self._failing(flight):
            flight.learned(record, source)
            if flight.is_idle:
                self._end(flight, "landed")

    @contextmanager
    def _failing(self, flight: Flight) -> Iterator[None]:
        """What breaks within this block is a bug of ours. It fails this flight, and no other one."""
        try:
            yield
        except Exception as error:
            logger.exception("%s broke", flight.op.describe())
            self._fail(flight, error)

    async def _fly(self, flight: Flight) -> None:
        """From the queue to the answers. Whatever happens, the flight ends and every waiter hears of it."""
        if flight.ended:  # dropped before this task began
            return
        try:
            with anyio.CancelScope() as flight.scope:
                await self._search(flight)
                self._land(flight)
        except MustCompile:
            self._queue_as_dear(flight)
        except Exception as error:
            logger.warning(
                "%s failed: %s", flight.op.describe(), error, exc_info=not isinstance(error, AlgosearchError)
            )
            self._fail(flight, error)

    def _queue_as_dear(self, flight: Flight) -> None:
        """Something dear is to be built for it: its claim was given back, and it queues again, without a task."""
        flight.is_dear = True
        flight.scope = None
        if not flight.is_idle:
            flight.note_trying("")
            flight.move("queued")
            self._lookout.line_up(flight)
        elif not flight.ended:  # withdrawn while it raced
            self._end(flight, "dropped")

    async def _search(self, flight: Flight) -> None:
        """Queue, claim and search, or wait for who does, until nobody waits for an answer of this flight."""
        if flight.state == "reading":
            flight.move("queued")
            await self._listings.ask(flight)
        refusals = 0
        while flight.wanted() is not None:
            with self.claims.on(flight.key, alone=flight.stuck or not flight.storable) as hold:
                if await self._search_in_turn(flight, hold) or flight.ended:
                    return
            refusals += 1
            await self._wait_elsewhere(flight, hold, refusals)

    async def _wait_elsewhere(self, flight: Flight, hold: Hold, refusals: int) -> None:
        """Another process searches it: whatever it finds is learned, and the flight queues again."""
        assert hold.holder is not None
        flight.move("elsewhere")
        flight.note_trying(f"waiting for {shown(hold.holder.owner)}")
        waited = await self.claims.wait(flight.key, hold.holder, flight.record, refusals=refusals)
        flight.stuck = waited == "stuck"
        if not flight.ended:
            flight.note_trying("")
            if isinstance(waited, Record):
                flight.learned(waited, "store")
            flight.move("queued")

    async def _search_in_turn(self, flight: Flight, hold: Hold) -> bool:
        """Wait for a turn and use it. False if the key is another process's: the turn goes to the next key at once."""
        called, flight.turn = flight.turn, None
        async with flight.pool.turn(flight, called) as turn:
            if flight.wanted() is None:
                return True
            if not await hold.take() and not hold.is_hopeless:
                await self._lookout.refused(flight, hold.holder)
                return False
            if flight.ended:
                return True
            if hold.is_hopeless:
                await self._give_up(flight, turn, hold)
                return True
            if hold.in_force:
                await self._look_again(flight, hold)
            async with flight.listing_lock:  # it may be listed out of turn
                pass
            wanted = flight.wanted()  # only now: others may have joined, or have left, meanwhile
            if wanted is None:
                return True
            mode, policies = wanted
            found = await self._race(flight, turn, hold, mode, policies)
        flight.move("committing")
        await self._commit(flight, found, mode, policies)
        return True

    async def _race(
        self, flight: Flight, turn: Turn, hold: Hold, mode: SearchMode, policies: tuple[Policy, ...]
    ) -> Found:
        """The device lists the candidates, unless they are known, and races them: all in one message."""
        flight.move("listing", turn.device)

        def listed(listing: Listing) -> None:
            if flight.state == "listing":
                self.counts.listings += 1
                flight.listed(listing)
                flight.move("racing", turn.device)
                self._listings.ask_soon(flight)

        if flight.listing is not None:
            flight.move("racing", turn.device)
        with flight.listing_ahead():
            return await turn.search(
                flight.op,
                flight.listing,
                width=FIRST_LOOK,
                policies=policies,
                mode=mode,
                failed=not_to_try(flight.record) | hold.verdict(),
                # Who died of this key is known as long as the claim is held: it is not given back for that.
                compiles=flight.is_dear or hold.lapses > 0,
                on_trying=flight.note_trying,
                # A candidate that cannot end this process must not be accused of its end.
                on_launch=nobody_asked if turn.survives_crashes else hold.about_to_launch,
                on_listed=listed,
            )

    async def _look_again(self, flight: Flight, hold: Hold) -> None:
        """What was committed between the last look and the claim is found now. While it is held nobody else begins."""
        if hold.found is None:
            (answer,) = await self._tiers.read([flight.key])
        else:
            answer = self._tiers.remember(hold.found) if isinstance(hold.found, Record) else hold.found
        if isinstance(answer, Record):
            flight.learned(answer, "store")

    async def _give_up(self, flight: Flight, turn: Turn, hold: Hold) -> None:
        """Too many processes died of it: no search, the library's first candidate for everybody."""
        hold.leave()
        if flight.key.digest not in self._given_up:
            self._given_up.add(flight.key.digest)
            logger.warning(
                "one process after the other died while it searched %s: it is answered by the library's first "
                "candidate, and not searched until a day later",
                flight.op.describe(),
            )
        flight.move("listing", turn.device)
        await self._listings.ask(flight, turn)
        suspects = {hold.suspect, hold.holder.trying if hold.holder else "", *not_to_try(flight.record)}
        while not flight.guess(suspects) and not flight.ended:
            await self._listings.widen(flight, turn)

    async def _commit(self, flight: Flight, found: Found, mode: SearchMode, policies: tuple[Policy, ...]) -> None:
        """Keep what was found. If somebody else committed first, theirs is adopted; where it does not cover what was
        asked here, ours is appended to it."""
        self.counts.note_search(found)
        if len(self._searched) >= KEYS_KEPT:
            self._searched.clear()
        self._searched.add(flight.key.digest)
        record = await committed(self._tiers, flight, search_of(found, mode))
        if record is None:
            return
        self.counts.found_alone += record.alone
        flight.searched = True
        flight.learned(record, "search")
        flight.refuse_uncovered(mode, policies)

    def _land(self, flight: Flight) -> None:
        """End it; who joined too late to be covered boards the next flight of the key."""
        if flight.ended:
            return
        late = flight.hand_over()
        self._end(flight, "landed")
        if late:
            following = self._new_flight(flight.key, flight.op, flight.pool, storable=flight.storable)
            with self._failing(following):
                for inquiry in late:
                    following.join(inquiry)
                self._take_off([following])

    def _fail(self, flight: Flight, error: Exception) -> None:
        self._end(flight, "failed")
        flight.fail(error)

    def _end(self, flight: Flight, state: Literal["landed", "failed", "dropped"]) -> None:
        if not flight.ended:
            flight.move(state)
        self._lookout.leave(flight)
        self.counts.failed += state == "failed"
        self.counts.dropped += state == "dropped"
        if self._flights.get(flight.key.digest) is flight:
            del self._flights[flight.key.digest]
