"""Homes: what the contract suite knows of the place where a store keeps its records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from algosearch.records import Key, Record
from algosearch.stores import Miss, Store

EXPIRY_S: Final = 10.0


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Home(ABC):
    """One place where records live."""

    def __init__(self) -> None:
        self.clock = Clock()

    @abstractmethod
    def handle(self) -> Store:
        """One more handle on this home, not yet opened. Claims expire by `self.clock`."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """A handle for the length of a block."""
        store = self.handle()
        await store.open()
        try:
            yield store
        finally:
            await store.aclose()


class BytesHome(Home):
    """A home where records lie as bytes."""

    @abstractmethod
    def plant(self, digest: str, raw: bytes) -> None:
        """Put bytes where a record of this digest would lie."""


async def read(store: Store, key: Key) -> Record | Miss:
    (answer,) = await store.get_many([key])
    return answer


async def scanned(store: Store) -> list[tuple[str, Record | Miss]]:
    return [item async for item in store.scan()]
