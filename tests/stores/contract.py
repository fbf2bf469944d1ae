"""The one contract test suite of all stores: `algosearch.stores.base`, rule by rule.

A store's test module subclasses `StoreContract` (as a class whose name begins with `Test`) and gives it `Home`s: places
on which several handles can be opened, as several processes open one directory, with a clock that only the test moves,
and, for `BytesStoreContract`, a way to put wrong bytes there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algosearch.records import Record, wire
from algosearch.stores import Committed, Miss, Store
from tests.cancelling import cancel_at_every_suspension
from tests.stores.claim_contract import ClaimContract
from tests.stores.homes import EXPIRY_S, BytesHome, Home, read, scanned
from tests.stores.model import compare_with_model
from tests.stores.nouns import some_key, some_record


class StoreContract(ClaimContract):
    """Every rule, on homes that a subclass makes."""

    # -- being one ---------------------------------------------------------------------------------------------------

    def test_is_a_store(self, home: Home) -> None:
        store = home.handle()
        assert isinstance(store, Store)
        assert store.location
        assert "Store" in repr(store)

    async def test_opening_and_closing_twice_are_harmless(self, home: Home) -> None:
        store = home.handle()
        await store.aclose()
        await store.open()
        await store.open()
        await store.commit(some_record(), after=0)
        await store.aclose()
        await store.aclose()

    async def test_what_was_kept_is_there_for_the_next_handle(self, home: Home) -> None:
        first = home.handle()
        await first.open()
        await first.commit(some_record(), after=0)
        async with home.opened() as second:
            await first.aclose()
            assert await read(second, some_key()) == some_record()

    async def test_no_method_raises_before_opening_and_after_closing(self, home: Home) -> None:
        store = home.handle()
        for _ in range(2):
            assert len(await store.get_many([some_key(0), some_key(1)])) == 2
            committed = await store.commit(some_record(), after=0)
            assert committed.record == some_record()
            claim = await store.claim(some_key().digest, "a", expiry_s=EXPIRY_S)
            assert claim.owner == "a"
            assert await store.renew(claim, expiry_s=EXPIRY_S)
            assert len(await store.holders([claim.digest])) == 1
            await store.release(claim)
            await store.changes()
            await scanned(store)
            await store.delete([some_key().digest])
            assert (await store.statistics()).location == store.location
            await store.open()
            await store.aclose()

    # -- reading and committing --------------------------------------------------------------------------------------

    async def test_a_record_comes_back_equal(self, home: Home) -> None:
        async with home.opened() as store:
            assert await read(store, some_key()) == Miss("absent", "not in the store")
            assert await store.commit(some_record(), after=0) == Committed(some_record(), won=True, kept=True)
            assert await read(store, some_key()) == some_record()

    async def test_one_answer_a_key_in_order(self, home: Home) -> None:
        async with home.opened() as store:
            for n in (0, 2):
                await store.commit(some_record(n), after=0)
            asked = [some_key(n) for n in (2, 1, 0, 2)]
            answers = await store.get_many(asked)
            assert [isinstance(answer, Record) and answer.key for answer in answers] == [asked[0], False, *asked[2:]]
            assert await store.get_many([]) == []

    async def test_many_keys_at_once(self, home: Home) -> None:
        async with home.opened() as store:
            for n in range(0, 240, 2):
                await store.commit(some_record(n, trials=1), after=0)
            answers = await store.get_many([some_key(n) for n in range(240)])
            assert [isinstance(answer, Record) for answer in answers] == [n % 2 == 0 for n in range(240)]

    async def test_the_first_wins_and_the_loser_adopts(self, home: Home) -> None:
        mine, theirs = some_record(seed=1), some_record(seed=2)
        assert mine != theirs
        async with home.opened() as store:
            await store.commit(theirs, after=0)
            assert await store.commit(mine, after=0) == Committed(theirs, won=False, kept=True)
            assert await read(store, mine.key) == theirs

    async def test_a_further_search_replaces_the_revision_that_it_was_found_after(self, home: Home) -> None:
        one, two, other_two = some_record(searches=1), some_record(searches=2), some_record(searches=2, seed=9)
        async with home.opened() as store:
            await store.commit(one, after=0)
            assert (await store.commit(two, after=1)).won
            lost = await store.commit(other_two, after=1)
            assert lost == Committed(two, won=False)
            assert await read(store, one.key) == two

    async def test_a_further_search_wins_where_nothing_is_stored(self, home: Home) -> None:
        async with home.opened() as store:
            assert (await store.commit(some_record(searches=2), after=1)).won
            assert await read(store, some_key()) == some_record(searches=2)

    async def test_a_higher_generation_replaces_any_revision_and_a_lower_one_none(self, home: Home) -> None:
        old, repaired = some_record(searches=3), some_record(searches=1, generation=1)
        async with home.opened() as store:
            await store.commit(old, after=0)
            assert (await store.commit(repaired, after=0)).won
            assert await read(store, old.key) == repaired
            assert await store.commit(old, after=1) == Committed(repaired, won=False)
            assert await store.commit(some_record(seed=4, generation=1), after=0) == Committed(repaired, won=False)

    async def test_a_record_that_no_reader_would_take_is_not_kept(self, home: Home) -> None:
        async with home.opened() as store:
            absurd = some_record(time_us=float("nan"))
            committed = await store.commit(absurd, after=0)
            assert committed.record is absurd
            assert committed.won
            assert not committed.kept
            assert isinstance(await read(store, absurd.key), Miss)
            assert "undecodable" in "".join((await store.statistics()).trouble)

    async def test_deleting(self, home: Home) -> None:
        async with home.opened() as store:
            for n in range(3):
                await store.commit(some_record(n), after=0)
            digests = [some_key(n).digest for n in (0, 1, 7)]
            assert await store.delete(digests) == 2
            assert await store.delete(digests) == 0
            assert await store.delete([]) == 0
            assert await store.delete(["no digest", "\udcff"]) == 0
            assert [digest for digest, _ in await scanned(store)] == [some_key(2).digest]

    async def test_a_scan_is_in_the_order_of_digests_and_knows_no_claims(self, home: Home) -> None:
        async with home.opened() as store:
            for n in range(150):
                await store.commit(some_record(n, trials=1), after=0)
                await store.claim(some_key(n).digest, "a", expiry_s=EXPIRY_S)
            found = await scanned(store)
            assert [digest for digest, _ in found] == sorted(some_key(n).digest for n in range(150))
            assert all(isinstance(record, Record) and record.key.digest == digest for digest, record in found)

    async def test_a_scan_goes_on_beside_writes(self, home: Home) -> None:
        async with home.opened() as store:
            for n in range(150):
                await store.commit(some_record(n, trials=1), after=0)
            digests = sorted(some_key(n).digest for n in range(150))
            seen = []
            async for digest, _ in store.scan():
                seen.append(digest)
                if digest == digests[0]:
                    assert await store.delete([digests[-1]]) == 1
            assert seen == digests[:-1]

    async def test_statistics(self, home: Home) -> None:
        async with home.opened() as store:
            for n in range(3):
                await store.commit(some_record(n), after=0)
            await store.claim(some_key(0).digest, "a", expiry_s=EXPIRY_S)
            await store.delete([some_key(2).digest])
            statistics = await store.statistics()
            assert statistics.location == store.location
            assert (statistics.records, statistics.claims, statistics.writable) == (2, 1, True)
            assert statistics.claims_in_force == 1
            assert statistics.bytes == sum(len(wire.encode(some_record(n))) for n in range(2))
            assert statistics.trouble == ()
            home.clock.now_s += EXPIRY_S + 1
            lapsed = await store.statistics()
            assert (lapsed.claims, lapsed.claims_in_force) == (1, 0)

    # -- several handles ---------------------------------------------------------------------------------------------

    async def test_changes_tells_of_others_only(self, home: Home) -> None:
        async with home.opened() as ours, home.opened() as theirs:
            await ours.changes()  # the other's opening may have been a change
            assert not await theirs.changes()
            await theirs.commit(some_record(), after=0)
            assert await ours.changes()
            assert not await ours.changes()
            await ours.commit(some_record(1), after=0)
            assert not await ours.changes()
            assert await theirs.changes()
            assert not await theirs.changes()
            await theirs.release(await theirs.claim(some_key(3).digest, "b", expiry_s=EXPIRY_S))
            assert await ours.changes()

    async def test_of_concurrent_commits_one_wins_and_all_go_on_with_it(self, home: Home) -> None:
        stores = [home.handle() for _ in range(4)]
        for store in stores:
            await store.open()
        for n in range(10):
            settled = await asyncio.gather(
                *(store.commit(some_record(n, seed=i), after=0) for i, store in enumerate(stores))
            )
            assert [one.won for one in settled].count(True) == 1
            assert len({wire.encode(one.record) for one in settled}) == 1
            assert all(one.kept for one in settled)
            assert await read(stores[n % 4], some_key(n)) == settled[0].record
        for store in stores:
            await store.aclose()

    # -- anything in any order ---------------------------------------------------------------------------------------

    def test_behaves_as_the_model(self, new_home: Callable[[], Home]) -> None:
        @settings(max_examples=25, deadline=None)
        @given(data=st.data())
        def compare(data: st.DataObject) -> None:
            asyncio.run(compare_with_model(new_home(), data))

        compare()

    # -- cancellation ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("method", ["open", "get_many", "commit", "claim", "renew", "release", "delete", "scan"])
    async def test_cancelled_anywhere_it_stays_whole(self, new_home: Callable[[], Home], method: str) -> None:
        home, store = new_home(), new_home().handle()

        async def scenario() -> None:
            nonlocal home, store
            home = new_home()
            store = home.handle()
            await _SCENARIOS[method](store)

        async def check(was_cancelled: bool) -> None:
            await store.aclose()  # what was begun is finished before
            async with home.opened() as after:
                answer = await read(after, some_key())
                assert answer in (some_record(), Miss("absent", "not in the store"))
                assert was_cancelled or method != "commit" or answer == some_record()
                owner = (await after.claim(some_key().digest, "b", expiry_s=EXPIRY_S)).owner
                assert owner in ("a", "b")
                assert (await after.commit(some_record(7), after=0)).kept
                assert (await after.statistics()).trouble == ()

        assert await cancel_at_every_suspension(scenario, check) < 40

    async def test_cancelled_while_closing_it_closes(self, new_home: Callable[[], Home]) -> None:
        home = new_home()

        async def scenario() -> None:
            store = home.handle()
            await store.open()
            await store.aclose()

        async def check(_: bool) -> None:
            async with home.opened() as after:
                await after.commit(some_record(), after=0)
                assert await read(after, some_key()) == some_record()

        await cancel_at_every_suspension(scenario, check)


class BytesStoreContract(StoreContract):
    """The rules of stores whose bytes others can touch."""

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"\x80\x04.",  # a pickle
            wire.encode(some_record(5)),  # another key's
            wire.encode(some_record())[:-3],
            b"\x94\x7f" + wire.encode(some_record())[2:],  # format 127
            b"\x91" * 100_000,  # nested without end
        ],
        ids=["empty", "pickle", "another key", "cut", "newer", "nested"],
    )
    async def test_bytes_that_are_no_record_are_a_miss_with_the_reason_and_are_replaced(
        self, new_home: Callable[[], BytesHome], raw: bytes
    ) -> None:
        home = new_home()
        async with home.opened() as store:
            await store.commit(some_record(1), after=0)
            home.plant(some_key().digest, raw)
            good, bad = await store.get_many([some_key(1), some_key()])
            assert isinstance(good, Record)
            assert isinstance(bad, Miss)
            assert bad.kind == "undecodable"
            assert bad.reason
            assert {digest: type(item) for digest, item in await scanned(store)} == {
                some_key().digest: Miss,
                some_key(1).digest: Record,
            }
            trouble = (await store.statistics()).trouble
            assert len(trouble) == 1
            assert some_key().digest in trouble[0]
            assert (await store.commit(some_record(searches=2), after=1)).won
            assert await read(store, some_key()) == some_record(searches=2)


async def _opened_and_committed(store: Store) -> None:
    await store.open()
    await store.commit(some_record(), after=0)


async def _get_many(store: Store) -> None:
    await _opened_and_committed(store)
    assert await read(store, some_key()) == some_record()


async def _claim(store: Store) -> None:
    await store.open()
    await store.claim(some_key().digest, "a", expiry_s=EXPIRY_S)


async def _renew(store: Store) -> None:
    await store.open()
    claim = await store.claim(some_key().digest, "a", expiry_s=EXPIRY_S)
    assert await store.renew(claim, expiry_s=EXPIRY_S)


async def _holders(store: Store) -> None:
    await store.open()
    claim = await store.claim(some_key().digest, "a", expiry_s=EXPIRY_S)
    assert await store.holders([some_key().digest]) == [claim]


async def _release(store: Store) -> None:
    await store.open()
    await store.release(await store.claim(some_key().digest, "a", expiry_s=EXPIRY_S))


async def _delete(store: Store) -> None:
    await _opened_and_committed(store)
    await store.delete([some_key().digest])


async def _scan(store: Store) -> None:
    await _opened_and_committed(store)
    assert len(await scanned(store)) == 1


_SCENARIOS: Final[dict[str, Callable[[Store], Coroutine[Any, Any, None]]]] = {
    "open": lambda store: store.open(),
    "get_many": _get_many,
    "commit": _opened_and_committed,
    "claim": _claim,
    "renew": _renew,
    "holders": _holders,
    "release": _release,
    "delete": _delete,
    "scan": _scan,
}
