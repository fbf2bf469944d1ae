"""The memory store: the contract, and its bound."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from algosearch.records import Record
from algosearch.stores import MemoryStore
from tests.stores.contract import StoreContract
from tests.stores.homes import EXPIRY_S, Home, read
from tests.stores.nouns import some_key, some_record


class MemoryHome(Home):
    def __init__(self) -> None:
        super().__init__()
        self._first = MemoryStore(clock=self.clock)

    def handle(self) -> MemoryStore:
        return MemoryStore(clock=self.clock, beside=self._first)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def new_home(self) -> Callable[[], Home]:
        return MemoryHome


async def test_the_least_recently_used_record_goes_first() -> None:
    store = MemoryStore(limit_records=3)
    await store.open()
    for n in range(3):
        await store.commit(some_record(n), after=0)
    assert isinstance(await read(store, some_key(0)), Record)
    await store.commit(some_record(3), after=0)
    kept = [n for n in range(4) if isinstance(await read(store, some_key(n)), Record)]
    assert kept == [0, 2, 3]
    assert (await store.statistics()).records == 3


async def test_a_commit_that_adds_a_search_evicts_nobody() -> None:
    store = MemoryStore(limit_records=2)
    for n in range(2):
        await store.commit(some_record(n), after=0)
    await store.commit(some_record(0, searches=2), after=1)
    assert (await store.statistics()).records == 2
    assert await read(store, some_key(1)) == some_record(1)


async def test_claims_are_never_evicted() -> None:
    store = MemoryStore(limit_records=1)
    await store.claim(some_key(0).digest, "a", expiry_s=EXPIRY_S)
    for n in range(10):
        await store.commit(some_record(n), after=0)
        await store.claim(some_key(n).digest, "a", expiry_s=EXPIRY_S)
    assert (await store.statistics()).claims == 10
    assert (await store.claim(some_key(0).digest, "b", expiry_s=EXPIRY_S)).owner == "a"


async def test_a_memory_of_ones_own_is_changed_by_nobody_else() -> None:
    store = MemoryStore()
    await store.open()
    await store.commit(some_record(), after=0)
    await store.claim(some_key().digest, "a", expiry_s=EXPIRY_S)
    assert not await store.changes()


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="limit_records = 0"):
        MemoryStore(limit_records=0)
