"""`Tiers`: where records are looked for, in order: the process's memory, then the store.

What a later tier knows is written to the earlier ones. A store is best effort: whatever it cannot do costs the cached
answers, never the search.

Invariant: the generation of a record that was first seen here stays, for as long as the record is in memory: somebody
has answers from it, and the next ones must fit to them. What a repair has put into the store is for who opens after.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from algosearch.errors import StoreUnusable
from algosearch.records import Key, Record
from algosearch.stores.base import Miss, Store

logger = logging.getLogger("algosearch.stores")

MEMORY_RECORDS: Final = 20_000
"""Records kept in the process's memory; the least recently used one goes first and stays in the store."""


class Tiers:
    """Memory and at most one store. Lives on the engine's loop."""

    def __init__(self, store: Store | None, *, memory_records: int = MEMORY_RECORDS) -> None:
        self._store = store
        self._usable = False
        self._memory: OrderedDict[str, Record] = OrderedDict()
        self._memory_records = memory_records
        self.trouble: str | None = None
        """Why the store is not used, or None."""

    def renewed(self, store: Store) -> Tiers:
        """For a child of a fork: with a store that is its own, and what its parent had seen."""
        tiers = Tiers(store, memory_records=self._memory_records)
        tiers._memory = self._memory
        return tiers

    async def open(self) -> None:
        """Open the store; if that cannot be, say so once and go on without it."""
        if self._store is None:
            return
        try:
            await self._store.open()
        except StoreUnusable as error:
            self.trouble = str(error)
            logger.warning("going on without a store: %s", error)
        except Exception as error:  # the contract forbids it; even so it must not cost the searcher
            self.trouble = f"{type(error).__name__}: {error}"
            logger.exception("going on without a store: opening it broke")
        else:
            self._usable = True

    async def aclose(self) -> None:
        """Close the store. Harmless if called twice."""
        self._usable = False
        if self._store is not None:
            try:
                await self._store.aclose()
            except Exception:  # as in `open`
                logger.exception("closing the store broke")

    @property
    def store(self) -> Store | None:
        """The store, if it could be opened."""
        return self._store if self._usable else None

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
        """One answer a key from the store, in one trip; what is found is remembered."""
        store = self.store
        if store is None:
            reason = self.trouble or "there is no store"
            return [Miss("unreadable" if self.trouble else "absent", reason)] * len(keys)
        try:
            answers = await store.get_many(keys)
        except Exception as error:  # the contract forbids it; even so it must not cost a search
            logger.exception("reading %s broke", store.location)
            return [Miss("unreadable", f"{type(error).__name__}: {error}")] * len(keys)
        return [self.remember(answer) if isinstance(answer, Record) else answer for answer in answers]

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
        return self.remember(record)
