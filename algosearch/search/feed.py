"""`Feed`: who waits for what another process searches, and the one poll that tells all of them.

A store says cheaply whether anybody else has written (`Store.changes`), and one that is told of it, what. While
somebody waits it is asked every few milliseconds, and one trip reads the records and one the claims of what has
changed, or of everything that is waited for where the store does not know. From time to time all is looked at although
nothing has changed: a lapse is no change. Nobody waits: no poll, no task.

Whatever a store says, nobody waits for ever: who keeps a claim alive and shows no progress is waited for
`patience_s`, and a claim that is free and taken by turns is asked for less and less often.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, Literal, Protocol

import anyio
from anyio.abc import TaskGroup

from algosearch.records import Key, Record
from algosearch.search.counts import ClaimCounts
from algosearch.search.tiers import Tiers
from algosearch.stores.base import Claim, Store

logger = logging.getLogger("algosearch.claims")

POLL_S: Final = 0.02
"""Between two questions whether anything has changed, on average: each waits between half and one and a half of it, so
that processes that began together do not ask together."""
BUSY_S: Final = 0.2
"""The same while something queues here: who has work of its own is in no hurry to hear of others'."""
GATHER_S: Final = 0.1
"""The same where hosts share the store and many of them are waited for: what is written meanwhile is one trip."""
CROWD: Final = 8
"""So many beside the first. The fewer they are, the sooner they are heard, for in the end everybody here waits for the
last one: to gather news all the same would make a search that is shared by two the longer by a fifth."""
SOON_S: Final = 0.005
"""The shortest, for the last one: its news is waited for without asking."""
LOOKS: Final = 4
"""So many times in the length of a claim everything is looked at, changed or not: a lapse is no change."""
LOOK_S: Final = 2.0
"""The longest between two such looks."""
_MOST_DOUBLINGS: Final = 9

Waited = Record | Literal["free", "stuck"]
"""How waiting ends: a newer record; the claim is free; nothing more is to be expected of who has it."""


class Queue(Protocol):
    """What has not come to a device yet: there, too, it is of use to hear what others have found."""

    def __len__(self) -> int: ...

    def among(self, digests: frozenset[str] | None) -> list[Key]:
        """The keys in it, of these; None for all."""
        ...

    def heard(self, record: Record) -> None:
        """Somebody has written a record."""
        ...


class Feed:
    """Those who wait, and the task that looks for all of them. Lives on the engine's loop, in its task group."""

    def __init__(
        self,
        tiers: Tiers,
        tasks: TaskGroup,
        *,
        owner: str,
        counts: ClaimCounts,
        expiry_s: float,
        patience_s: float,
    ) -> None:
        self._tiers = tiers
        self._tasks = tasks
        self._owner = owner
        self._counts = counts
        self._expiry_s = expiry_s
        self._patience_s = patience_s
        self._look_s = min(expiry_s / LOOKS, LOOK_S)
        self._waits: dict[str, _Wait] = {}
        self._unseen: set[str] = set()
        """What nobody has looked at yet, by digest: it may have been committed or given back since it was refused."""
        self._queue: Queue = _Nothing()
        self._running = False
        self._drained = asyncio.Event()
        """Set when nothing queues here any more."""
        self._look_at = 0.0
        """When to look whether or not anything has changed, of `time.monotonic`."""
        self._broken = False

    def __repr__(self) -> str:
        return f"{len(self._waits)} waited for"

    async def wait(self, key: Key, holder: Claim, known: Record | None, *, refusals: int) -> Waited:
        """As `Claims.wait`."""
        over: asyncio.Future[Waited] = asyncio.get_running_loop().create_future()

        def end(outcome: Waited) -> None:
            if not over.done():
                over.set_result(outcome)

        wait = self._waits[key.digest] = _Wait(key, holder, known, end)
        wait.not_before = wait.since + POLL_S * 2 ** min(refusals - 1, _MOST_DOUBLINGS) if refusals > 1 else 0.0
        self._unseen.add(key.digest)
        self._run_soon()
        try:
            return await over
        finally:
            if self._waits.get(key.digest) is wait:
                del self._waits[key.digest]

    def expect(self, key: Key, holder: Claim, known: Record | None, end: Callable[[Waited], None]) -> None:
        """As `wait`, of what was listened for since it was last looked at: `end` is called, on the loop, with how it
        ended; never after `forget`."""
        self._waits[key.digest] = _Wait(key, holder, known, end)
        self._run_soon()

    def forget(self, digest: str) -> None:
        """Nobody waits for it any more."""
        self._waits.pop(digest, None)

    def listen(self, queue: Queue) -> None:
        """As `Claims.listen`."""
        self._queue = queue
        self._run_soon()

    def drained(self) -> None:
        """Nothing queues here any more: from now on it is of interest what others do."""
        self._drained.set()

    @property
    def waits(self) -> bool:
        """Whether others search what is wanted here."""
        return bool(self._waits)

    def _run_soon(self) -> None:
        if not self._running:
            self._running = True
            self._tasks.start_soon(self._run)

    async def _run(self) -> None:
        try:
            while self._waits or self._queue:
                await self._pause()
                store = self._tiers.store
                if store is None:
                    for wait in tuple(self._waits.values()):
                        self._end(wait, "stuck")
                else:
                    await self._look(store, await self._changed(store))
        finally:
            self._running = False

    async def _pause(self) -> None:
        """Between two looks. One that is long because something queues ends when nothing does."""
        if self._queue:
            self._drained.clear()
            with anyio.move_on_after(BUSY_S * random.uniform(0.5, 1.5)):
                await self._drained.wait()
        else:
            waited_for = len({wait.holder.owner for wait in self._waits.values()})
            gather_s = max(SOON_S, GATHER_S * min(1.0, (waited_for - 1) / CROWD))
            await anyio.sleep((gather_s if self._tiers.shared else POLL_S) * random.uniform(0.5, 1.5))

    async def _changed(self, store: Store) -> bool | frozenset[str]:
        """What the store says of changes. Not asked while there is something that nobody has looked at: a store may
        take its time to answer."""
        if self._unseen and not self._queue and getattr(store, "shared", False):
            return False
        try:
            return await store.changes()
        except Exception as error:  # the contract forbids it
            self._note(error)
            return False

    async def _look(self, store: Store, changed: bool | frozenset[str]) -> None:
        """Look at what has changed or was never looked at; at all claims if it is time for that."""
        unseen, self._unseen = self._unseen, set()
        known = changed if isinstance(changed, frozenset) else frozenset[str]()
        is_due = monotonic() >= self._look_at
        everything = changed is True or (is_due and not getattr(store, "shared", False))
        waits = list(self._waits.values())
        await self._look_at_each(
            store,
            [each for each in waits if everything or each.key.digest in known or each.key.digest in unseen],
            queued=self._queue.among(None if changed is True else known),
        )
        if everything:
            self._look_at = monotonic() + self._look_s
        elif is_due:  # what is committed is told; only whose claims have lapsed is not
            self._look_at = monotonic() + self._look_s
            waits = self._going_on(waits)
            holders = await self._holders(store, waits)
            free = [wait for wait, holder in zip(waits, holders, strict=True) if holder is None]
            for wait, holder in zip(waits, holders, strict=True):
                if holder is not None:
                    self._judge(wait, holder)
            await self._look_at_each(store, free)

    def _going_on(self, waits: Sequence[_Wait]) -> list[_Wait]:
        return [wait for wait in waits if self._waits.get(wait.key.digest) is wait]

    async def _look_at_each(self, store: Store, waits: Sequence[_Wait], *, queued: Sequence[Key] = ()) -> None:
        """The records of these, and the claims on what is waited for and has none yet."""
        if not waits and not queued:
            return
        answers = await self._tiers.read([*(wait.key for wait in waits), *queued])
        for wait, answer in zip(waits, answers, strict=False):
            if isinstance(answer, Record) and wait.is_news(answer):
                self._end(wait, answer)
        for answer in answers[len(waits) :]:
            if not isinstance(answer, Record):
                continue

            waited_for = self._waits.get(answer.key.digest)  # its turn may have come while this was read
            if waited_for is None:
                self._queue.heard(answer)
            elif waited_for.is_news(answer):
                self._end(waited_for, answer)
        waits = self._going_on(waits)
        holders = await self._holders(store, waits) if waits else []
        for wait, holder in zip(waits, holders, strict=True):
            self._judge(wait, holder)

    async def _holders(self, store: Store, waits: Sequence[_Wait]) -> list[Claim | None]:
        """Who holds what they wait for; the same as before for a while, if the store breaks over it."""
        try:
            holders = await store.holders([wait.key.digest for wait in waits])
            if len(holders) == len(waits) and all(isinstance(holder, Claim | None) for holder in holders):
                return holders
            raise AssertionError(f"{len(waits)} claims were asked for, and this is {holders!r}")
        except Exception as error:  # the contract forbids it
            self._note(error)
            lapsed = monotonic() - self._expiry_s * (1 + 1 / LOOKS)
            return [wait.holder if wait.since > lapsed else None for wait in waits]

    def _judge(self, wait: _Wait, holder: Claim | None) -> None:
        now = monotonic()
        if holder is None or holder.owner == self._owner:
            if now >= wait.not_before:
                self._end(wait, "free")
        elif holder != wait.holder:
            if holder.lapses != wait.holder.lapses:
                self._end(wait, "free")  # another owner: to ask again tells whether this key is to be waited for at all
            wait.holder, wait.since = holder, now
        elif now >= wait.since + self._patience_s:
            logger.warning("%r shows no progress since %.0f s; searching beside it", holder.owner, now - wait.since)
            self._end(wait, "stuck")

    def _end(self, wait: _Wait, outcome: Waited) -> None:
        """It is over, once."""
        if self._waits.get(wait.key.digest) is wait:
            del self._waits[wait.key.digest]
            self._counts.longest_wait_s = max(self._counts.longest_wait_s, monotonic() - wait.began)
            wait.end(outcome)

    def _note(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            logger.error("the store broke while it was watched", exc_info=error)


class _Nothing:
    """Nothing queues."""

    def __len__(self) -> int:
        return 0

    def among(self, digests: frozenset[str] | None) -> list[Key]:
        return []

    def heard(self, record: Record) -> None:
        pass


class _Wait:
    """One key that somebody waits for."""

    def __init__(self, key: Key, holder: Claim, known: Record | None, end: Callable[[Waited], None]) -> None:
        self.key = key
        self.end = end
        """Told how it ended."""
        self.holder = holder
        self.began = self.since = monotonic()
        """When this claim was first seen like this."""
        self.not_before = 0.0
        """When to believe that it is free."""
        self._known = (-1, -1) if known is None else (known.generation, known.revision)

    def is_news(self, record: Record) -> bool:
        """Whether it tells more than what was known."""
        return (record.generation, record.revision) > self._known
