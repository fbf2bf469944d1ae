"""`SharedStore`: a server that many hosts share, with a directory of this host in front of it.

The server decides, the directory remembers. What comes from the server is written to the directory; what the directory
has is answered without reading it from the server, once a tag has said that the server has the same. Claims are the
server's. So all ranks of a job agree, and a job whose server is gone still knows what it knew.

While the server is away the job goes on alone: what it finds is marked (`Provenance.alone`) and kept in the directory.
When the server is back (or another one, or emptied), everything that this handle has given is compared with what lies
there: what the server lacks is offered, what it has otherwise is adopted, and whoever asked for it is told
(`on_revised`). A record found alone by an earlier job is treated alike when it is next asked for.

Invariant: nothing on the server is marked `alone`: what lies there is what everybody goes by.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from algosearch.errors import StoreUnusable, UndecodableRecord
from algosearch.forks import renew_in_children
from algosearch.records import Key, Record, wire
from algosearch.stores import rules
from algosearch.stores.base import Claim, Committed, Miss, Store, StoreStatistics
from algosearch.stores.layout import tag_of
from algosearch.stores.server import CHUNK, ServerStore

logger = logging.getLogger("algosearch.stores")

GIVEN: Final = 20_000
"""Records of which it is remembered what was given, to be compared when the server is back."""

Revised = Callable[[Sequence[tuple[Record, Record]]], None]
"""Pairs: what was given, and what is to be gone by from now on."""


class SharedStore:
    """A server and a directory as one store. Made closed; it touches nothing before `open`.

    Args:
        server: decides.
        directory: in front of it; None for nothing. It is opened and closed with this one.
    """

    lasting = True
    shared = True

    def __init__(self, server: ServerStore, directory: Store | None) -> None:
        self.server = server
        self.directory = directory
        self.on_revised: Revised = _nobody_asked
        """Called on the loop with what is not any more as it was given. Set by whoever wants to know."""
        self._reset()
        renew_in_children(self)

    def _reset(self) -> None:
        self._open = False
        self._near: Store | None = None
        """The directory, while it can be used."""
        self._given: OrderedDict[str, Record] = OrderedDict()
        self._alone: set[str] = set()
        """Those of them that the server has not taken."""
        self._comparing: asyncio.Task[None] | None = None
        self._compare_again = False

    def renew_after_fork(self) -> None:
        """The child's copy is closed, and has given nothing."""
        self._reset()

    def __repr__(self) -> str:
        return f"<SharedStore {self.location} behind {self.directory!r}>"

    @property
    def location(self) -> str:
        """The server's."""
        return self.server.location

    def require_read(self) -> None:
        """As `ServerStore.require_read`."""
        self.server.require_read()

    async def open(self) -> None:
        """As `Store.open`. Neither a server that is away nor a directory that cannot be used is a hindrance."""
        if self.directory is not None and self._near is None:
            try:
                await self.directory.open()
                self._near = self.directory
            except StoreUnusable as error:
                logger.warning("going on without a directory before %s: %s", self.location, error)
        self._open = True
        self.server.on_return = self._returned
        self.server.on_pulse = self._pulsed
        try:
            await self.server.open()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """As `Store.aclose`."""
        comparing, self._comparing = self._comparing, None
        near, self._near = self._near, None
        self._open = False
        try:
            if comparing is not None:
                comparing.cancel()
                await asyncio.gather(comparing, return_exceptions=True)
        finally:
            try:
                await self.server.aclose()
            finally:
                if near is not None:
                    await near.aclose()

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """As `Store.get_many`: from the directory what the server has as well, from the server what it has otherwise.

        While the server is away, or says nothing, what the directory has.
        """
        answers: list[Record | Miss] = [Miss("absent", "not in the store")] * len(keys)
        if self._near is not None:
            answers = await self._near.get_many(keys)
        left = await self._settled(keys, answers)
        if left:
            fetched = await self.server.get_many([keys[place] for place in left])
            # At the same time: then the directory does it in one trip.
            await asyncio.gather(*(self._keep_near(answer) for answer in fetched if isinstance(answer, Record)))
            for place, answer in zip(left, fetched, strict=True):
                if isinstance(answer, Record) or not isinstance(answers[place], Record):
                    answers[place] = answer
        for answer in answers:
            if isinstance(answer, Record):
                self._give(answer)
        return answers

    async def _settled(self, keys: Sequence[Key], answers: list[Record | Miss]) -> list[int]:
        """The places of what is to be read from the server, after everything that the directory has and the server
        lacks was offered to it."""
        known = {place: answer for place, answer in enumerate(answers) if isinstance(answer, Record)}
        if not known:
            return list(range(len(keys)))
        tags = await self.server.tags([keys[place].digest for place in known])
        if tags is None:
            return [place for place in range(len(keys)) if place not in known]
        other = set()
        for (place, record), tag in zip(known.items(), tags, strict=True):
            if tag and (record.alone or tag != tag_of(wire.encode(record))):
                other.add(place)
            elif not tag:
                answers[place] = (await self._offered(record)) or record
        return [place for place in range(len(keys)) if place not in known or place in other]

    async def commit(self, record: Record, *, after: int) -> Committed:
        """As `Store.commit`: the server's word. Where it cannot say, the record is kept in the directory, marked
        `alone`, and given back so."""
        committed = await self.server.commit(record.agreed(), after=after)
        if committed.kept:
            await self._keep_near(committed.record)
            self._give(committed.record)
            return committed
        if not self._open or not _can_be_stored(record):
            return Committed(record, won=True, kept=False)
        alone = record.marked_alone()
        if self._near is None:
            self._give(alone)
            return Committed(alone, won=True, kept=False)
        kept = await self._near.commit(alone, after=after)
        self._give(kept.record)
        return kept

    async def claim(
        self, digest: str, owner: str, *, expiry_s: float, trying: str = "", reading: Key | None = None
    ) -> Claim:
        """As `Store.claim`, at the server."""
        claim = await self.server.claim(digest, owner, expiry_s=expiry_s, trying=trying, reading=reading)
        if isinstance(claim.found, Record):
            await self._keep_near(claim.found)
            self._give(claim.found)
        return claim

    async def renew(self, claim: Claim, *, expiry_s: float) -> bool:
        """As `Store.renew`, at the server."""
        return await self.server.renew(claim, expiry_s=expiry_s)

    async def release(self, claim: Claim) -> bool:
        """As `Store.release`, at the server."""
        return await self.server.release(claim)

    async def holders(self, digests: Sequence[str]) -> list[Claim | None]:
        """As `Store.holders`, at the server."""
        return await self.server.holders(digests)

    async def changes(self) -> bool | frozenset[str]:
        """As `Store.changes`, of the server."""
        return await self.server.changes()

    async def scan(self) -> AsyncIterator[tuple[str, Record | Miss]]:
        """As `Store.scan`: what is on the server; while it is away, what is in the directory."""
        source: Store | None = self.server if self.server.reachable or self._near is None else self._near
        assert source is not None
        async for item in source.scan():
            yield item

    async def delete(self, digests: Sequence[str]) -> int:
        """As `Store.delete`, on the server and in this host's directory. Another host whose directory has the record
        offers it again when it is next asked for it."""
        deleted = await self.server.delete(digests)
        near = 0 if self._near is None else await self._near.delete(digests)
        for digest in digests:
            self._given.pop(digest, None)
            self._alone.discard(digest)
        return deleted if self.server.reachable else near

    async def statistics(self) -> StoreStatistics:
        """As `Store.statistics`, of the server."""
        return await self.server.statistics()

    # -- agreeing ----------------------------------------------------------------------------------------------------

    def _returned(self) -> None:
        """The server is back, or is another one."""
        self._compare_again = True
        if self._comparing is None or self._comparing.done():
            self._comparing = asyncio.create_task(self._compare(), name="algosearch-server-compare")

    def _pulsed(self) -> None:
        """A server that is there and did not take something may take it by now."""
        if self._alone:
            self._returned()

    async def _compare(self) -> None:
        """Bring what was given and what the server has together, until nothing new has happened to it meanwhile."""
        while self._compare_again:
            self._compare_again = False
            given = list(self._given.values())
            for start in range(0, len(given), CHUNK):
                chunk = given[start : start + CHUNK]
                tags = await self.server.tags([record.key.digest for record in chunk])
                if tags is None:
                    return  # gone again: whoever sees it return compares
                revised = []
                for record, tag in zip(chunk, tags, strict=True):
                    if record.alone or tag != tag_of(wire.encode(record)):
                        now = await self._agreed_on(record, is_there=bool(tag))
                        if now is not None:
                            revised.append((record, now))
                        elif not self.server.writable:
                            break  # it takes none of them; the next pulse tries again
                if revised:
                    self.on_revised(revised)

    async def _agreed_on(self, given: Record, *, is_there: bool) -> Record | None:
        """What is to be gone by in place of what was given; None if that has not changed, or cannot be found out."""
        now: Record | None = None
        if is_there:
            (answer,) = await self.server.get_many([given.key])
            now = answer if isinstance(answer, Record) else None
        now = now or await self._offered(given)
        if now is None or now == self._given.get(given.key.digest):
            return None
        await self._keep_near(now)
        self._give(now)
        return now

    async def _offered(self, record: Record) -> Record | None:
        """The record that the server has, after this one was offered; None if it cannot be reached."""
        committed = await self.server.commit(record.agreed(), after=0)
        if not committed.kept:
            return None
        if committed.record != record:
            await self._keep_near(committed.record)
        return committed.record

    async def _keep_near(self, record: Record) -> None:
        """Have the directory remember it, whatever it had."""
        if self._near is None:
            return
        committed = await self._near.commit(record, after=record.revision - 1)
        if not committed.won and committed.record != record:
            await self._near.commit(record, after=committed.record.revision)

    def _give(self, record: Record) -> None:
        self._given[record.key.digest] = record
        self._given.move_to_end(record.key.digest)
        (self._alone.add if record.alone else self._alone.discard)(record.key.digest)
        while len(self._given) > GIVEN:
            digest, _ = self._given.popitem(last=False)
            self._alone.discard(digest)


def _can_be_stored(record: Record) -> bool:
    try:
        rules.storable(record)
    except UndecodableRecord:
        return False
    return True


def _nobody_asked(revised: Sequence[tuple[Record, Record]]) -> None:
    pass
