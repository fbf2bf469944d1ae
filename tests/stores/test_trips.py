"""What is asked of a directory while its thread is busy: done together, in the order that matters, answered at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from algosearch.records import Record
from algosearch.stores import Claim, Committed, DirectoryStore, Miss
from algosearch.stores.shelf import Shelf
from algosearch.stores.trips import MOST_WRITES, Ask, Kind, in_order
from algosearch.stores.trouble import Hindrance
from tests.stores.directories import DirectoryHome, warnings
from tests.stores.homes import EXPIRY_S, read
from tests.stores.nouns import some_key, some_record


def ask(kind: Kind, *digests: str) -> Ask:
    return Ask(lambda shelf: None, None, kind=kind, digests=digests)


async def test_claims_and_what_is_read_come_first() -> None:
    commit, look, claim, release = ask("write", "a"), ask("read", "b"), ask("claim", "c"), ask("write", "d")
    other = ask("other")
    after = ask("write", "e")
    assert list(in_order([commit, look, claim, release, other, after])) == [
        [claim],
        [look],
        [commit, release],
        [other],
        [after],
    ]


async def test_calls_about_one_key_keep_their_order() -> None:
    commit, look, claim, another = ask("write", "a"), ask("read", "a", "b"), ask("claim", "a"), ask("claim", "b")
    assert list(in_order([commit, look, claim, another])) == [[another], [commit], [look], [claim]]


async def test_nobody_keeps_others_from_writing_for_long() -> None:
    assert [len(some) for some in in_order([ask("claim", str(n)) for n in range(2 * MOST_WRITES + 1)])] == [
        MOST_WRITES,
        MOST_WRITES,
        1,
    ]


@asynccontextmanager
async def held(store: DirectoryStore) -> AsyncIterator[Callable[[], None]]:
    """The store's thread is busy until the function is called."""
    entered, over = threading.Event(), threading.Event()

    def hold(shelf: Shelf) -> None:
        entered.set()
        assert over.wait(10.0)

    holding = asyncio.create_task(store._do(hold, None))
    assert await asyncio.to_thread(entered.wait, 10.0)
    try:
        yield over.set
    finally:
        over.set()
        await holding


async def statements(store: DirectoryStore) -> list[str]:
    """What its connection carries out from now on."""
    done: list[str] = []

    def trace(shelf: Shelf) -> None:
        shelf._access.reader().set_trace_callback(done.append)

    await store._do(trace, None)
    return done


async def test_one_transaction_and_one_wake_up_for_all(home: DirectoryHome) -> None:
    async with home.opened() as store:
        assert isinstance(store, DirectoryStore)
        done = await statements(store)
        wakeups = 0
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counting(*args: Any, **how: Any) -> Any:
            nonlocal wakeups
            wakeups += threading.current_thread() is not threading.main_thread()
            return wake(*args, **how)

        async with held(store) as go:
            loop.call_soon_threadsafe = counting  # type: ignore[method-assign,assignment]
            try:
                commits = [asyncio.create_task(store.commit(some_record(n), after=0)) for n in range(8)]
                claims = [
                    asyncio.create_task(store.claim(some_key(n).digest, "a", expiry_s=EXPIRY_S, reading=some_key(n)))
                    for n in range(8, 16)
                ]
                reads = [asyncio.create_task(store.get_many([some_key(n)])) for n in range(16, 24)]
                await asyncio.sleep(0)
                go()
                assert await asyncio.gather(*commits) == [Committed(some_record(n), won=True) for n in range(8)]
                for claim in await asyncio.gather(*claims):
                    assert claim.owner == "a"
                    assert isinstance(claim.found, Miss)
                assert all(isinstance(answer, Miss) for (answer,) in await asyncio.gather(*reads))
            finally:
                loop.call_soon_threadsafe = wake  # type: ignore[method-assign]
        assert wakeups == 4, "who held it, the claims, what was read, what was committed"
        assert sum(each.startswith("BEGIN") for each in done) == 2
        assert sum(each.startswith("COMMIT") for each in done) == 2
        for n in range(8):
            assert await read(store, some_key(n)) == some_record(n)


async def test_what_meets_trouble_takes_nothing_else_with_it(
    home: DirectoryHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit = Shelf._commit

    def full(self: Shelf, record: Record, raw: bytes, after: int) -> Committed:
        if record == some_record(2):
            raise Hindrance("full", "not this one")
        return commit(self, record, raw, after)

    monkeypatch.setattr(Shelf, "_commit", full)
    async with home.opened() as store:
        assert isinstance(store, DirectoryStore)
        async with held(store) as go:
            commits = [asyncio.create_task(store.commit(some_record(n), after=0)) for n in range(4)]
            await asyncio.sleep(0)
            go()
            committed = await asyncio.gather(*commits)
        assert [each.kept for each in committed] == [True, True, False, True]
        assert [isinstance(await read(store, some_key(n)), Record) for n in range(4)] == [True, True, False, True]
        assert "not this one" in warnings(caplog)[0]


async def test_a_call_that_breaks_is_undone_and_the_others_are_done(home: DirectoryHome) -> None:
    async with home.opened() as store:
        assert isinstance(store, DirectoryStore)

        def breaks(shelf: Shelf) -> None:
            shelf.commit(some_record(1), 0)
            raise ZeroDivisionError

        async with held(store) as go:
            first = asyncio.create_task(store.commit(some_record(0), after=0))
            broken = asyncio.create_task(store._do(breaks, None, kind="write", digests=["x"]))
            last = asyncio.create_task(store.claim(some_key(0).digest, "a", expiry_s=EXPIRY_S))
            await asyncio.sleep(0)
            go()
            assert (await first).kept
            with pytest.raises(ZeroDivisionError):
                await broken
            assert await last == Claim(digest=some_key(0).digest, owner="a")
        assert await read(store, some_key(0)) == some_record(0)


async def test_a_trip_that_breaks_fails_who_made_it_and_nobody_else(
    home: DirectoryHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Shelf, call: Callable[[], None]) -> bool:
        raise ZeroDivisionError

    async with home.opened() as store:
        assert isinstance(store, DirectoryStore)
        monkeypatch.setattr(Shelf, "together", broken)
        async with held(store) as go:
            commits = [asyncio.create_task(store.commit(some_record(n), after=0)) for n in range(2)]
            look = asyncio.create_task(store.holders([some_key(0).digest]))
            await asyncio.sleep(0)
            go()
            outcomes = await asyncio.gather(*commits, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError] * 2
            assert await look == [None]
