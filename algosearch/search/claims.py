"""`Claims`: which keys this engine searches and nobody else, and which others search, so that it waits for them.

A key is claimed in the store when its turn comes at a device, not before, so that others can take what queues here.
While it is held, one task of the engine's loop renews it, writes down what is about to be launched, and gives it back
in the end; whoever was refused waits for a record, or for the claim to lapse, and one feed tells all of them.

Rules:
- A claim saves others work; it is nothing that an answer depends on. Where the store cannot claim, breaks or lies, the
  key is searched all the same, and `commit` keeps the answers apart.
- A lost claim stops no search. What it finds is committed after what it began from; who comes second adopts.
- All times of leases are the store's. Our own clock says only when to look and when to renew.
- A claim that is given back says nothing; one that lapses says that its owner died. So it is given back whatever
  becomes of its flight, except by who leaves it for the next one to see (`Hold.leave`).

Rejected: a task for each claim (a thousand timers), a poll for each key that is waited for (SQLite tells with one
number whether anything was committed), claims on everything in the queue (one process would take all of it).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

import anyio
from anyio.abc import TaskGroup

from algosearch.records import Key, Record
from algosearch.search.affinity import Affinity
from algosearch.search.counts import ClaimCounts
from algosearch.search.feed import Feed, Queue, Waited
from algosearch.search.hold import Hold
from algosearch.search.tiers import Tiers
from algosearch.stores.base import Claim

logger = logging.getLogger("algosearch.claims")

EXPIRY_S: Final = 10.0
"""How long a claim holds others up after the last sign of life of its owner."""
BEATS: Final = 4
"""Signs of life in that time: so many must fail in a row before a claim of somebody alive lapses."""
PATIENCE_S: Final = 120.0
"""How long to wait for somebody who keeps a claim alive and shows no progress, before the key is searched beside it."""
FAREWELL_S: Final = 1.0
"""How long giving back what is held may take in the end."""
FAREWELLS: Final = 3
"""Times that it is tried."""
_LONGEST: Final = 80
"""Characters of an owner's name that are shown."""


class Claims:
    """The claims of one engine. Lives on its loop; whoever makes it calls `aclose`.

    Args:
        expiry_s: of a claim, by the store's clock.
        patience_s: as `PATIENCE_S`.
    """

    def __init__(
        self, tiers: Tiers, tasks: TaskGroup, *, expiry_s: float = EXPIRY_S, patience_s: float = PATIENCE_S
    ) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
        """Unique for each engine of each process of each host."""
        self.counts = ClaimCounts()
        self.affinity = Affinity(self.owner)
        self._tiers = tiers
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._expiry_s = expiry_s
        how = {"expiry_s": expiry_s, "patience_s": patience_s}
        self._feed = Feed(tiers, tasks, owner=self.owner, counts=self.counts, **how)
        self._held: dict[str, Hold] = {}
        """By digest, from the moment that it is asked for. Invariant: what this engine may own in the store is here or
        among what it gives back."""
        self._owed: set[str] = set()
        """Digests that could not be given back."""
        self._paying = False
        self._leaving: dict[str, asyncio.Event] = {}
        """To be given back; the event is set when that is done."""
        self._woken = asyncio.Event()
        self._keeping_house = False
        self._broken: set[str] = set()
        """Calls of the store that broke the contract; each is logged once."""

    def __repr__(self) -> str:
        return f"<Claims {self.owner}: {len(self._held)} held, {len(self._leaving)} leaving, {self._feed!r}>"

    def on(self, key: Key, *, alone: bool = False) -> Hold:
        """A hold on a key, nothing taken yet.

        Args:
            alone: take nothing, ask nobody.
        """
        return Hold(self, key, alone=alone)

    async def wait(self, key: Key, holder: Claim, known: Record | None, *, refusals: int = 1) -> Waited:
        """Until there is a newer record than `known`, or the claim of `holder` is free, or nothing more is to be
        expected of it.

        Args:
            refusals: how often this key was refused in a row; a store that says "free" and "taken" by turns is asked
                less and less often.

        Cancellation: nothing is left of it.
        """
        self.counts.waited += refusals == 1
        return await self._feed.wait(key, holder, known, refusals=refusals)

    def expect(self, key: Key, holder: Claim, known: Record | None, end: Callable[[Waited], None]) -> None:
        """The same without a task, of a key in a queue that is listened for: `end` is called with the outcome, unless
        it is forgotten before."""
        self.counts.waited += 1
        self._feed.expect(key, holder, known, end)

    def forget_expected(self, digest: str) -> None:
        """What `expect` was told, ends otherwise."""
        self._feed.forget(digest)

    async def aclose(self) -> None:
        """Give everything back, within a second. The task group has ended. To be shielded by the caller."""
        store, owned = self._tiers.store, [*self._held, *self._leaving, *self._owed]
        for hold in self._held.values():
            hold.end()
        self._held, self._leaving = {}, {}
        with anyio.move_on_after(FAREWELL_S):
            for _ in range(FAREWELLS):
                owned = [digest for digest in owned if store is not None and not await self._release(digest)]
                if owned:
                    await anyio.sleep(FAREWELL_S / FAREWELLS / 2)

    # -- for holds ---------------------------------------------------------------------------------------------------

    async def take(self, hold: Hold) -> bool:
        """As `Hold.take`."""
        store = self._tiers.store
        if store is None:
            return True
        while (gone := self._leaving.get(hold.digest)) is not None:
            await gone.wait()
        self._held[hold.digest] = hold
        try:
            claim = await store.claim(hold.digest, self.owner, expiry_s=self._expiry_s, reading=hold.key)
            genuine = claim.digest == hold.digest and isinstance(claim.owner, str)
        except Exception as error:  # the contract forbids it; even so it must not cost a search
            self._note("claim", error)
            return True
        if not genuine:
            self._note("claim", AssertionError(f"asked for {hold.digest}, and this is {claim!r}"))
            return True
        if claim.owner != self.owner:
            self.forget(hold)
            hold.holder = claim
            return False
        self.counts.won += 1
        self.counts.taken_over += claim.lapses > 0
        hold.begin(claim, self._next_beat(), lasting=store.lasting)
        self._keep_house_soon()
        return True

    async def of_others(self, digests: Sequence[str]) -> dict[str, Claim]:
        """In one trip, by digest, what others hold of these."""
        store = self._tiers.store
        try:
            holders = await store.holders(digests) if store is not None and digests else []
        except Exception as error:  # as in `take`
            self._note("holders", error)
            return {}
        return {
            digest: holder
            for digest, holder in zip(digests, holders, strict=False)
            if holder is not None and holder.owner != self.owner
        }

    def listen(self, queue: Queue) -> None:
        """Bring what is heard of it to this queue, for as long as something is in it."""
        self._feed.listen(queue)

    def drained(self) -> None:
        """Nothing is in the queue any more that was listened for."""
        self._feed.drained()

    def rivals(self) -> bool:
        """Whether others search the same keys, or may do so."""
        return self._tiers.shared or self._feed.waits

    def give_back(self, hold: Hold) -> None:
        """As the end of a hold's block: soon, in the background."""
        if self._held.get(hold.digest) is hold:
            self.forget(hold)
            self._leaving[hold.digest] = asyncio.Event()
            self._tasks.start_soon(self._let_go, hold.digest)

    def forget(self, hold: Hold) -> None:
        """It is not ours any more, or to be left as it is."""
        hold.end()
        if self._held.get(hold.digest) is hold:
            del self._held[hold.digest]

    def write_down(self, hold: Hold, trying: str, written: threading.Event) -> None:
        """What is about to be launched. From any thread; `written` is set when it is in the store, or cannot be."""

        def note() -> None:
            if hold.note(trying, written):
                self._woken.set()

        try:
            self._loop.call_soon_threadsafe(note)
        except RuntimeError:  # the loop has ended
            written.set()

    # -- keeping house -----------------------------------------------------------------------------------------------

    def _next_beat(self) -> float:
        return monotonic() + self._expiry_s / BEATS

    def _keep_house_soon(self) -> None:
        self._woken.set()
        if not self._keeping_house:
            self._keeping_house = True
            self._tasks.start_soon(self._keep_house)

    async def _keep_house(self) -> None:
        """Renew and write down, until nothing is held. A launch may wait for it: nothing else is done here."""
        try:
            while self._held:
                due = min((hold.beat_at for hold in self._held.values()), default=monotonic())
                if not self._woken.is_set():
                    with anyio.move_on_after(due - monotonic()):
                        await self._woken.wait()
                self._woken.clear()
                # Who is due soon is renewed with those who are due.
                soon = monotonic() + self._expiry_s / BEATS / 2
                is_due = monotonic() >= due
                for hold in tuple(self._held.values()):
                    if hold.unwritten or (is_due and hold.beat_at <= soon):
                        await self._renew(hold)
        finally:
            self._keeping_house = False

    async def _renew(self, hold: Hold) -> None:
        store = self._tiers.store
        written = hold.written()
        hold.beat_at = self._next_beat()
        try:
            if store is None:
                return
            claim = Claim(digest=hold.digest, owner=self.owner, lapses=hold.lapses, trying=hold.trying)
            if await store.renew(claim, expiry_s=self._expiry_s) or not hold.in_force:
                return
            # It has lapsed. If nobody has taken it over, it may be had again: this process has not died.
            again = await store.claim(hold.digest, self.owner, expiry_s=self._expiry_s, trying=hold.trying)
            if again.owner != self.owner and hold.in_force:
                self.forget(hold)
                self.counts.lost += 1
                logger.warning("the claim on %s lapsed, and another process has taken it over", hold.digest[:12])
        except Exception as error:  # as in `take`
            self._note("renew", error)
        finally:
            for each in written:
                each.set()

    async def _let_go(self, digest: str) -> None:
        if not await self._release(digest):
            self._owed.add(digest)
            if not self._paying:
                self._paying = True
                self._tasks.start_soon(self._pay_back)
        gone = self._leaving.pop(digest, None)
        if gone is not None:
            gone.set()

    async def _pay_back(self) -> None:
        """Give back what could not be given back: lapsed, it would say that its owner died."""
        try:
            while self._owed:
                await anyio.sleep(self._expiry_s / BEATS)
                for digest in tuple(self._owed):
                    self._owed.discard(digest)
                    if digest not in self._held and digest not in self._leaving:
                        self._leaving[digest] = asyncio.Event()
                        await self._let_go(digest)
        finally:
            self._paying = False

    async def _release(self, digest: str) -> bool:
        """Whether it is given back."""
        store = self._tiers.store
        try:
            return store is None or await store.release(Claim(digest=digest, owner=self.owner))
        except Exception as error:  # as in `take`
            self._note("release", error)
            return False

    def _note(self, call: str, error: Exception) -> None:
        if call not in self._broken:
            self._broken.add(call)
            logger.error("%s of the store broke; going on without claims", call, exc_info=error)


def shown(owner: str) -> str:
    """An owner's name for a person: its host and process. It comes out of the store, and may be anything."""
    return ascii((owner.rpartition(":")[0] or owner)[:_LONGEST])[1:-1]
