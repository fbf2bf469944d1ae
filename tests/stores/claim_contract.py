"""The part of the contract suite that is about claims."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest

from algosearch.stores import Claim, Miss
from tests.stores.homes import EXPIRY_S, Home, read
from tests.stores.nouns import some_key, some_record


class ClaimContract(ABC):
    """The rules of leases, on homes that a subclass makes."""

    @pytest.fixture
    @abstractmethod
    def new_home(self) -> Callable[[], Home]:
        """Makes a home that nothing else uses, as often as it is called."""

    @pytest.fixture
    def home(self, new_home: Callable[[], Home]) -> Home:
        return new_home()

    async def test_a_claim_is_one_owners(self, home: Home) -> None:
        digest = some_key().digest
        async with home.opened() as ours, home.opened() as theirs:
            mine = await ours.claim(digest, "a", expiry_s=EXPIRY_S, trying="x")
            assert mine == Claim(digest=digest, owner="a", lapses=0, trying="x")
            assert await theirs.claim(digest, "b", expiry_s=EXPIRY_S) == mine
            assert (await theirs.claim(some_key(1).digest, "b", expiry_s=EXPIRY_S)).owner == "b"
            assert (await ours.claim(digest, "a", expiry_s=EXPIRY_S)).owner == "a"

    async def test_a_claim_lapses_and_the_lapse_is_counted(self, home: Home) -> None:
        digest = some_key().digest
        async with home.opened() as ours, home.opened() as theirs:
            await ours.claim(digest, "a", expiry_s=EXPIRY_S, trying="x")
            home.clock.now_s += EXPIRY_S - 0.5
            assert (await theirs.claim(digest, "b", expiry_s=EXPIRY_S)).owner == "a"
            home.clock.now_s += 1.0
            taken = await theirs.claim(digest, "b", expiry_s=EXPIRY_S)
            assert (taken.owner, taken.lapses) == ("b", 1)
            assert taken.trying == "x", "who takes over sees what killed the owner"
            home.clock.now_s += EXPIRY_S + 0.5
            again = await ours.claim(digest, "c", expiry_s=EXPIRY_S, trying="y")
            assert (again.owner, again.lapses, again.trying) == ("c", 2, "y")

    async def test_an_owner_that_comes_back_has_not_died(self, home: Home) -> None:
        digest = some_key().digest
        async with home.opened() as store:
            await store.claim(digest, "a", expiry_s=EXPIRY_S)
            home.clock.now_s += 3 * EXPIRY_S
            assert (await store.claim(digest, "a", expiry_s=EXPIRY_S)).lapses == 0

    async def test_renewing(self, home: Home) -> None:
        digest = some_key().digest
        async with home.opened() as ours, home.opened() as theirs:
            claim = await ours.claim(digest, "a", expiry_s=EXPIRY_S)
            for candidate in ("x", "y", "z"):
                home.clock.now_s += EXPIRY_S - 0.5
                claim = Claim(digest=digest, owner="a", trying=candidate)
                assert await ours.renew(claim, expiry_s=EXPIRY_S)
            assert (await theirs.claim(digest, "b", expiry_s=EXPIRY_S)) == claim
            assert not await theirs.renew(Claim(digest=digest, owner="b"), expiry_s=EXPIRY_S)
            home.clock.now_s += EXPIRY_S + 0.5
            assert not await ours.renew(claim, expiry_s=EXPIRY_S), "lapsed is lapsed"
            assert (await theirs.claim(digest, "b", expiry_s=EXPIRY_S)).owner == "b"
            assert not await ours.renew(claim, expiry_s=EXPIRY_S)
            assert not await ours.renew(Claim(digest=some_key(3).digest, owner="a"), expiry_s=EXPIRY_S)

    async def test_renewing_keeps_the_lapses(self, home: Home) -> None:
        digest = some_key().digest
        async with home.opened() as store:
            await store.claim(digest, "a", expiry_s=EXPIRY_S)
            home.clock.now_s += EXPIRY_S + 0.5
            claim = await store.claim(digest, "b", expiry_s=EXPIRY_S)
            assert await store.renew(claim, expiry_s=EXPIRY_S)
            assert (await store.claim(digest, "z", expiry_s=EXPIRY_S)).lapses == 1

    async def test_releasing(self, home: Home) -> None:
        digest = some_key().digest
        async with home.opened() as ours, home.opened() as theirs:
            claim = await ours.claim(digest, "a", expiry_s=EXPIRY_S, trying="x")
            assert await theirs.release(Claim(digest=digest, owner="b"))
            assert (await theirs.claim(digest, "b", expiry_s=EXPIRY_S)).owner == "a"
            assert await ours.release(claim)
            assert await ours.release(claim)
            taken = await theirs.claim(digest, "b", expiry_s=EXPIRY_S)
            assert taken == Claim(digest=digest, owner="b", lapses=0, trying=""), "released is not lapsed"
            await ours.release(claim)
            assert (await ours.claim(digest, "a", expiry_s=EXPIRY_S)).owner == "b"

    async def test_a_claim_that_was_given_up_half_way_and_is_given_back_is_not_held(self, home: Home) -> None:
        async with home.opened() as store, home.opened() as theirs:
            for turns in range(20):
                digest = some_key(turns).digest
                claiming = asyncio.create_task(store.claim(digest, "a", expiry_s=EXPIRY_S))
                for _ in range(turns):
                    await asyncio.sleep(0)
                claiming.cancel()
                await asyncio.gather(claiming, return_exceptions=True)
                assert await store.release(Claim(digest=digest, owner="a"))
                assert (await theirs.claim(digest, "b", expiry_s=EXPIRY_S)).owner == "b"

    async def test_a_lapse_after_a_commit_is_not_counted(self, home: Home) -> None:
        digest = some_key().digest
        async with home.opened() as store:
            await store.claim(digest, "a", expiry_s=EXPIRY_S, trying="x")
            await store.commit(some_record(), after=0)
            assert (await store.claim(digest, "b", expiry_s=EXPIRY_S)).owner == "a", "a commit releases nobody's claim"
            home.clock.now_s += EXPIRY_S + 0.5
            taken = await store.claim(digest, "b", expiry_s=EXPIRY_S)
            assert taken == Claim(digest=digest, owner="b", lapses=0, trying="")

    async def test_who_holds_what(self, home: Home) -> None:
        digests = [some_key(n).digest for n in range(150)]
        async with home.opened() as ours, home.opened() as theirs:
            assert await ours.holders([]) == []
            mine = await ours.claim(digests[3], "a", expiry_s=EXPIRY_S, trying="x")
            his = await theirs.claim(digests[140], "b", expiry_s=3 * EXPIRY_S)
            expected: list[Claim | None] = [None] * 150
            expected[3], expected[140] = mine, his
            assert await ours.holders(digests) == await theirs.holders(digests) == expected
            home.clock.now_s += EXPIRY_S + 0.5
            expected[3] = None
            assert await ours.holders(digests) == expected, "lapsed is free"
            await theirs.release(his)
            assert await ours.holders(digests) == [None] * 150

    async def test_a_lapse_is_forgotten_after_a_day(self, home: Home) -> None:
        digest = some_key().digest
        async with home.opened() as store:
            for owner, lapses in (("a", 0), ("b", 1), ("c", 2)):
                claim = await store.claim(digest, owner, expiry_s=EXPIRY_S, trying="x")
                assert claim.lapses == lapses
                home.clock.now_s += 80_000.0
            home.clock.now_s += 10_000.0
            claim = await store.claim(digest, "d", expiry_s=EXPIRY_S)
            assert claim == Claim(digest=digest, owner="d", lapses=0, trying="")

    async def test_a_clock_set_back_does_not_prolong_a_claim(self, home: Home) -> None:
        digest = some_key().digest
        async with home.opened() as store:
            await store.claim(digest, "a", expiry_s=EXPIRY_S)
            home.clock.now_s -= 3600.0
            assert (await store.claim(digest, "b", expiry_s=EXPIRY_S)).owner == "b"

    async def test_one_of_many_who_claim_at_once_gets_it(self, home: Home) -> None:
        stores = [home.handle() for _ in range(4)]
        for store in stores:
            await store.open()
        for n in range(10):
            claims = await asyncio.gather(
                *(store.claim(some_key(n).digest, f"owner {i}", expiry_s=EXPIRY_S) for i, store in enumerate(stores))
            )
            assert len(set(claims)) == 1
        for store in stores:
            await store.aclose()

    async def test_claims_and_records_of_one_key_do_not_meet(self, home: Home) -> None:
        async with home.opened() as store:
            claim = await store.claim(some_key().digest, "a", expiry_s=EXPIRY_S)
            assert isinstance(await read(store, some_key()), Miss)
            assert await store.delete([some_key().digest]) == 0
            await store.commit(some_record(), after=0)
            await store.release(claim)
            assert await read(store, some_key()) == some_record()

    async def test_what_there_is_of_a_key_comes_with_its_claim(self, home: Home) -> None:
        key, record = some_key(), some_record()
        async with home.opened() as ours, home.opened() as theirs:
            first = await ours.claim(key.digest, "a", expiry_s=EXPIRY_S, reading=key)
            assert isinstance(first.found, Miss)
            assert first.found.kind == "absent"
            await ours.commit(record, after=0)
            refused = await theirs.claim(key.digest, "b", expiry_s=EXPIRY_S, reading=key)
            assert refused == Claim(digest=key.digest, owner="a")
            await ours.release(first)
            assert (await theirs.claim(key.digest, "b", expiry_s=EXPIRY_S, reading=key)).found == record
            assert (await theirs.claim(key.digest, "b", expiry_s=EXPIRY_S)).found is None
