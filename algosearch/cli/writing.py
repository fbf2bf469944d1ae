"""A store that a verb changes: opened for writing, and refused if nothing would be kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from algosearch.cli.places import Place, require_read
from algosearch.errors import StoreUnusable
from algosearch.stores import Store


@asynccontextmanager
async def opened_to_write(place: Place) -> AsyncIterator[Store]:
    """The store at a place, for the length of the block; made if there is none.

    Raises:
        StoreUnusable: it cannot be opened, or what is written would not be kept.
    """
    store = place.store(read_only=False)
    await store.open()
    try:
        statistics = await store.statistics()
        require_read(store)
        if not statistics.writable:
            why = "; ".join(statistics.trouble) or "it can only be read"
            raise StoreUnusable(store.location, why, "make it writable, or name another one")
        yield store
    finally:
        await store.aclose()
