"""The directory store's thread: it waits so that the loop need not, and is never left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from algosearch.errors import StoreUnusable
from algosearch.stores import DirectoryStore, Miss, directory
from algosearch.stores.shelf import Shelf
from tests.stores.directories import DirectoryHome, warnings
from tests.stores.homes import EXPIRY_S, read, scanned
from tests.stores.nouns import some_key, some_record


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Raises in whatever blocks the loop's thread."""
    with blockbuster_ctx("algosearch") as blockbuster:
        yield blockbuster


async def test_the_loop_is_never_blocked(home: DirectoryHome, no_blocking: BlockBuster) -> None:
    async with home.opened() as store:
        await store.commit(some_record(), after=0)
        assert await read(store, some_key()) == some_record()
        claim = await store.claim(some_key().digest, "a", expiry_s=EXPIRY_S)
        assert await store.renew(claim, expiry_s=EXPIRY_S)
        assert await store.holders([claim.digest]) == [claim]
        await store.release(claim)
        await store.changes()
        assert len(await scanned(store)) == 1
        assert (await store.statistics()).records == 1
        await store.delete([some_key().digest])


class Gate:
    """Holds the store's thread, as a disk that does not answer."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, shelf: Shelf | None = None) -> None:
        self.entered.set()
        assert self.opened.wait(10.0)

    def paths(self) -> list[Path]:
        self()
        return []


async def entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.wait, 10.0)


async def test_a_disk_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "UNANSWERED_S", 0.01)
    gate = Gate()
    store = DirectoryStore(gate.paths)
    with pytest.raises(StoreUnusable, match="does not answer"):
        await store.open()
    assert await read(store, some_key()) == Miss("unreadable", "the store is not open")
    gate.opened.set()


async def test_closing_does_not_wait_for_ever(
    home: DirectoryHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(directory, "CLOSE_S", 0.01)
    store = home.handle()
    await store.open()
    gate = Gate()
    held = asyncio.create_task(store._do(gate, None))
    await entered(gate)
    await store.aclose()
    assert "still busy" in warnings(caplog)[0]
    gate.opened.set()
    await held


async def test_a_call_that_was_begun_is_finished_after_its_caller_was_cancelled(home: DirectoryHome) -> None:
    async with home.opened() as store:
        assert isinstance(store, DirectoryStore)
        gate = Gate()

        def hold_and_commit(shelf: Shelf) -> None:
            gate()
            shelf.commit(some_record(), 0)

        begun = asyncio.create_task(store._do(hold_and_commit, None))
        await entered(gate)
        waiting = asyncio.create_task(store.commit(some_record(1), after=0))
        await asyncio.sleep(0)
        begun.cancel()
        waiting.cancel()
        await asyncio.gather(begun, waiting, return_exceptions=True)
        gate.opened.set()
        first, second = await store.get_many([some_key(0), some_key(1)])
        assert first == some_record()
        assert isinstance(second, Miss), "what was not begun is not done"


async def test_opened_again_while_the_last_closing_is_under_way(home: DirectoryHome) -> None:
    store = home.handle()
    await store.open()
    gate = Gate()
    held = asyncio.create_task(store._do(gate, None))
    await entered(gate)
    closing = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)
    await store.open()
    assert (await store.commit(some_record(), after=0)).kept
    gate.opened.set()
    await closing
    await held
    assert await read(store, some_key()) == some_record()
    await store.aclose()


async def test_closed_by_another_task_while_it_opens(home: DirectoryHome) -> None:
    store = home.handle()
    opening = asyncio.create_task(store.open())
    await asyncio.sleep(0)
    await store.aclose()
    await opening
    assert await read(store, some_key()) == Miss("unreadable", "the store is not open")
