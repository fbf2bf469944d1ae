"""`Tiers`: where records are looked for, in order: the process's memory, the store, and a base that is only read.

What a later tier knows is remembered in memory; a base's records are not copied into the store, which holds what was
found beside it. What is found is written to the store alone: a further search for a key of the base becomes a record
of the store, with the base's searches in it, and hides it. A store is best effort: whatever it cannot do costs the
cached answers, never the search.

Invariant: the generation of a record that was first seen here stays, for as long as the record is in memory: somebody
has answers from it, and the next ones must fit to them. What a repair has put into the store is for who opens after.
Only what all hosts have agreed on replaces it (`Tiers.revise`), and those answers with it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from algosearch.errors import StoreUnusable
from algosearch.records import Key, Record
from algosearch.stores.base import Committed, Miss, Store

logger = logging.getLogger("algosearch.stores")

MEMORY_RECORDS: Final = 20_000
"""Records kept in the process's memory; the least recently used one goes first and stays in the store."""


class Tier:
    """One store behind the memory. Whatever it cannot do costs its answers, and nothing else."""

    def __init__(self, store: Store, *, what: str) -> None:
        self._store = store
        self._what = what
        """What it is called in the log: `a store`, `a base`."""
        self._usable = False
        self.trouble: str | None = None
        """Why it is not used, or None."""

    @property
    def store(self) -> Store | None:
        """The store, if it could be opened."""
        return self._store if self._usable else None

    async def open(self) -> None:
        """Open the store; if that cannot be, say so once and go on without it."""
        try:
            await self._store.open()
        except StoreUnusable as error:
            self.trouble = str(error)
            logger.warning("going on without %s: %s", self._what, error)
        except Exception as error:  # the contract forbids it; even so it must not cost the searcher
            self.trouble = f"{type(error).__name__}: {error}"
            logger.exception("going on without %s: opening it broke", self._what)
        else:
            self._usable = True

    async def aclose(self) -> None:
        """Close the store. Harmless if called twice."""
        self._usable = False
        try:
            await self._store.aclose()
        except Exception:  # as in `open`
            logger.exception("closing %s broke", self._what)

    async def read(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """One answer a key, in one trip."""
        if not self._usable:
            return [Miss("unreadable", self.trouble or f"{self._what} is not open")] * len(keys)
        try:
            return await self._store.get_many(keys)
        except Exception as error:  # as in `open`
            logger.exception("reading %s broke", self._store.location)
            return [Miss("unreadable", f"{type(error).__name__}: {error}")] * len(keys)


class Tiers:
    """Memory, at most one store that is written to, and behind it at most one that is only read. Lives on the engine's
    loop."""

    def __init__(self, store: Store | None, *, base: Store | None = None, memory_records: int = MEMORY_RECORDS) -> None:
        self._own = None if store is None else Tier(store, what="a store")
        self._base = None if base is None else Tier(base, what="a base store")
        self._tiers = tuple(tier for tier in (self._own, self._base) if tier is not None)
        """In the order in which they are asked."""
        self._memory: OrderedDict[str, Record] = OrderedDict()
        self._memory_records = memory_records

    def renewed(self, store: Store, base: Store | None) -> Tiers:
        """For a child of a fork: with stores that are its own, and what its parent had seen."""
        tiers = Tiers(store, base=base, memory_records=self._memory_records)
        tiers._memory = self._memory
        return tiers

    async def open(self) -> None:
        """Open every store; what cannot be opened is said once and gone on without."""
        for tier in self._tiers:
            await tier.open()

    async def aclose(self) -> None:
        """Close every store. Harmless if called twice."""
        for tier in self._tiers:
            await tier.aclose()

    @property
    def store(self) -> Store | None:
        """The store that is written to, if it could be opened."""
        return None if self._own is None else self._own.store

    @property
    def base(self) -> Store | None:
        """The store that is only read, if it could be opened."""
        return None if self._base is None else self._base.store

    @property
    def trouble(self) -> str | None:
        """Why the store that is written to is not used, or None."""
        return None if self._own is None else self._own.trouble

    @property
    def shared(self) -> bool:
        """Whether other hosts go by the store that is written to, too."""
        return bool(getattr(self.store, "shared", False))

    def revise(self, record: Record) -> None:
        """Go by this one from now on, whatever was seen before: the store that all share says so. The one exception to
        the invariant."""
        if record.key.digest in self._memory:
            self._memory[record.key.digest] = record

    def recall(self, digest: str) -> Record | None:
        """The record in memory, if it is there; at once."""
        record = self._memory.get(digest)
        if record is not None:
            self._memory.move_to_end(digest)
        return record

    def remember(self, record: Record) -> Record:
        """Keep a record in memory, unless a newer one or another generation is there: the one to go on with."""
        seen = self._memory.get(record.key.digest)
        if seen is not None and (seen.generation != record.generation or seen.revision > record.revision):
            return seen
        self._memory[record.key.digest] = record
        self._memory.move_to_end(record.key.digest)
        while len(self._memory) > self._memory_records:
            self._memory.popitem(last=False)
        return record

    async def read(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """One answer a key from the first store that has one, in one trip to each; what is found is remembered. Where
        none has, the miss that says most: of what lies there and cannot be read, rather than of nothing."""
        answers: list[Record | Miss] = [Miss("absent", "there is no store")] * len(keys)
        for tier in self._tiers:
            left = [place for place, answer in enumerate(answers) if isinstance(answer, Miss)]
            if not left:
                break
            for place, answer in zip(left, await tier.read([keys[place] for place in left]), strict=True):
                if isinstance(answer, Record):
                    answers[place] = self.remember(answer)
                elif _says_nothing(answers[place]):
                    answers[place] = answer
        return answers

    async def commit(self, record: Record, *, storable: bool) -> Record:
        """Keep a record that was found after the one in the tiers; the record to go on with is returned.

        Args:
            storable: False if the environment is incomplete, so that the record is good for this process only.
        """
        store = self.store
        if store is not None and storable:
            try:
                winner = (await store.commit(record, after=record.revision - 1)).record
                if winner.generation == record.generation or record.revision == 1:  # else it goes on from what was seen
                    record = winner
            except Exception:  # as in `read`
                logger.exception("writing to %s broke", store.location)
                record = record.marked_alone() if self.shared else record
        return self.remember(record)

    async def replace(self, record: Record) -> Committed | None:
        """Put a repaired record, of a higher generation, into the store; None if there is no store, or it broke.

        Memory keeps what it has: a searcher goes on with the generation that it first saw.
        """
        store = self.store
        try:
            return None if store is None else await store.commit(record, after=record.revision - 1)
        except Exception:  # the contract forbids it; even so it must not cost what was found
            logger.exception("writing a repaired record broke")
            return None


def _says_nothing(answer: Record | Miss) -> bool:
    return isinstance(answer, Miss) and answer.kind == "absent"
