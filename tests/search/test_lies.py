"""What a store says of claims and commits, and is not so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from algosearch.backends.simulated import searches
from algosearch.records import Key, Record, Trials, wire
from algosearch.stores import Claim, Committed
from tests.search.helpers import FAST, some_op, some_ops
from tests.search.rivals import Home, Watched, rival
from tests.stores.nouns import some_record


@pytest.fixture
def home() -> Home:
    return Home()


class TestLies:
    """What a store does wrong with claims costs a search twice, and nothing else."""

    @pytest.mark.parametrize("call", ["claim", "renew", "release", "holders", "changes"])
    async def test_it_breaks(self, home: Home, call: str, caplog: pytest.LogCaptureFixture) -> None:
        def breaks(name: str) -> None:
            if name == call:
                raise ZeroDivisionError("a bug in the store")

        ops = some_ops(6)
        stores = [home.handle() for _ in range(2)]
        for store in stores:
            store.before = breaks
        with caplog.at_level(logging.CRITICAL):
            async with (
                rival(stores[0], home.backend(*ops), expiry_s=0.2) as one,
                rival(stores[1], home.backend(*ops, machine="there"), expiry_s=0.2) as two,
            ):
                answers = await asyncio.gather(one.select_many(ops), two.select_many(ops))
        assert answers[0] == answers[1]
        assert searches(home.trace) <= 12

    async def test_everything_is_always_somebody_elses(self, home: Home, caplog: pytest.LogCaptureFixture) -> None:
        class Liar(Watched):
            async def claim(self, digest: str, owner: str, **how: Any) -> Claim:
                return Claim(digest=digest, owner="nobody:0:0")

            async def holders(self, digests: Sequence[str]) -> list[Claim | None]:
                return [Claim(digest=digest, owner="nobody:0:0") for digest in digests]

        store = Liar(beside=home.memory, clock=home.clock)
        async with rival(store, home.backend(), expiry_s=0.1, patience_s=0.05) as searcher:
            assert (await searcher.select(some_op())).algorithm == FAST
        assert "no progress" in caplog.text

    async def test_everything_is_always_free_and_always_taken(self, home: Home) -> None:
        class Liar(Watched):
            refusals = 5

            async def claim(self, digest: str, owner: str, **how: Any) -> Claim:
                self.refusals -= 1
                return Claim(digest=digest, owner="nobody:0:0" if self.refusals >= 0 else owner)

        store = Liar(beside=home.memory, clock=home.clock)
        async with rival(store, home.backend()) as searcher:
            assert (await searcher.select(some_op())).algorithm == FAST
            assert searcher.statistics().engine.claims_waited == 1

    async def test_what_was_committed_comes_back_as_a_copy(self, home: Home) -> None:
        class Copying(Watched):
            async def commit(self, record: Record, **how: Any) -> Committed:
                committed: Committed = await super().commit(record, **how)
                return replace(committed, record=wire.decode(wire.encode(committed.record), key=record.key))

        store = Copying(beside=home.memory, clock=home.clock)
        async with rival(store, home.backend()) as searcher:
            request = searcher.request(some_op())
            assert (await request.choice()).algorithm == FAST
            assert request.source == "search"
        assert store.count("commit") == 1

    @pytest.mark.parametrize("what", ["another key's record", "another record each time"])
    async def test_a_commit_that_keeps_something_else(
        self, home: Home, what: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Liar(Watched):
            async def commit(self, record: Record, **how: Any) -> Committed:
                self._note("commit", record)
                if what == "another key's record":
                    return Committed(some_record(), won=False)
                search = replace(record.searches[0], trials=Trials.of(()), complete=False)
                return Committed(replace(record, searches=(search,) * self.count("commit")), won=False)

        store = Liar(beside=home.memory, clock=home.clock)
        with caplog.at_level(logging.CRITICAL):
            async with rival(store, home.backend()) as searcher:
                assert (await searcher.select(some_op())).algorithm == FAST

    async def test_too_few_answers(self, home: Home, caplog: pytest.LogCaptureFixture) -> None:
        class Liar(Watched):
            async def get_many(self, keys: Sequence[Key]) -> list[Any]:
                return []

        store = Liar(beside=home.memory, clock=home.clock)
        with caplog.at_level(logging.CRITICAL):
            async with rival(store, home.backend()) as searcher:
                assert (await searcher.select(some_op())).algorithm == FAST
