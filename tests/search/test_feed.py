"""`Feed`: who waits for what another process searches hears of it, whatever the store does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from time import monotonic
from typing import Any

import pytest

from algosearch.records import Record
from algosearch.search.claims import PATIENCE_S, Claims
from algosearch.stores import Claim
from tests.cancelling import cancel_at_every_suspension
from tests.search.claiming import DIGEST, Home
from tests.search.helpers import until
from tests.search.rivals import EXPIRY_S, Watched
from tests.stores.nouns import some_key, some_record


@pytest.fixture
def home() -> Home:
    return Home()


class TestWaiting:
    async def waiting(self, home: Home, claims: Claims, n: int = 0, known: Record | None = None) -> asyncio.Task[Any]:
        holder = await home.ghost(digest=some_key(n).digest)
        task = asyncio.create_task(claims.wait(some_key(n), holder, known))
        await until(lambda: some_key(n).digest in claims._feed._waits)
        return task

    async def test_for_a_record(self, home: Home) -> None:
        async with home.claims(expiry_s=1000.0) as claims:
            task = await self.waiting(home, claims)
            await home.ghosts.commit(some_record(), after=0)
            assert await task == some_record()
            assert claims.counts.waited == 1
            assert not claims._feed._waits

    async def test_for_a_newer_record_than_what_is_known(self, home: Home) -> None:
        await home.ghosts.commit(some_record(), after=0)
        async with home.claims(expiry_s=1000.0) as claims:
            task = await self.waiting(home, claims, known=some_record())
            home.store.calls.clear()
            await until(lambda: home.store.count("get_many") >= 1)
            assert not task.done()
            await home.ghosts.commit(some_record(searches=2), after=1)
            assert await task == some_record(searches=2)

    async def test_for_a_repaired_record(self, home: Home) -> None:
        await home.ghosts.commit(some_record(searches=2), after=0)
        async with home.claims(expiry_s=1000.0) as claims:
            task = await self.waiting(home, claims, known=some_record(searches=2))
            await home.ghosts.commit(some_record(generation=1), after=0)
            assert await task == some_record(generation=1)

    async def test_for_a_claim_that_is_given_back(self, home: Home) -> None:
        async with home.claims(expiry_s=1000.0) as claims:
            task = await self.waiting(home, claims)
            await home.ghosts.release(Claim(digest=DIGEST, owner="ghost"))
            assert await task == "free"

    async def test_for_a_claim_that_lapses(self, home: Home) -> None:
        """Nobody writes anything, so nothing has changed; it is noticed all the same."""
        async with home.claims() as claims:
            task = await self.waiting(home, claims)
            home.clock.lapse()
            assert await task == "free"

    async def test_for_whoever_takes_over(self, home: Home) -> None:
        async with home.claims(expiry_s=1000.0) as claims:
            task = await self.waiting(home, claims)
            home.clock.lapse()
            await home.ghost("another")
            assert await task == "free", "to be asked again, for it may be hopeless now"

    async def test_not_for_ever(self, home: Home, caplog: pytest.LogCaptureFixture) -> None:
        async with home.claims(patience_s=0.0) as claims:
            assert await (await self.waiting(home, claims)) == "stuck"
        assert "no progress" in caplog.text

    async def test_progress_is_what_changes_in_the_claim(self, home: Home) -> None:
        async with home.claims(patience_s=PATIENCE_S, expiry_s=0.1) as claims:
            task = await self.waiting(home, claims)
            wait = claims._feed._waits[DIGEST]
            wait.since -= 2 * PATIENCE_S
            await home.ghosts.renew(Claim(digest=DIGEST, owner="ghost", trying="y"), expiry_s=EXPIRY_S)
            await until(lambda: wait.holder.trying == "y")
            assert not task.done()
            wait.since -= 2 * PATIENCE_S
            assert await task == "stuck"

    async def test_without_a_store_nobody_waits(self, home: Home) -> None:
        async with home.claims() as claims:
            task = await self.waiting(home, claims)
            await claims._tiers.aclose()
            assert await task == "stuck"

    async def test_one_feed_for_all_and_none_for_nobody(self, home: Home) -> None:
        async with home.claims(expiry_s=1000.0) as claims:
            tasks = [await self.waiting(home, claims, n) for n in range(50)]
            await until(lambda: any(len(keys) == 50 for call, keys in home.store.calls if call == "get_many"))
            home.store.calls.clear()
            await until(lambda: home.store.count("changes") >= 3)
            assert home.store.count("get_many") == home.store.count("holders") == 0, "nothing has changed"
            for n in range(50):
                await home.ghosts.commit(some_record(n), after=0)
            assert await asyncio.gather(*tasks) == [some_record(n) for n in range(50)]
            assert home.store.count("get_many") <= 2
            assert len(claims._tasks._tasks) <= 1  # type: ignore[attr-defined]
            await until(lambda: not claims._tasks._tasks)  # type: ignore[attr-defined]

    async def test_cancelled_anywhere_nothing_is_left(self, home: Home) -> None:
        async with home.claims() as claims:
            holder = await home.ghost()

            def scenario() -> Coroutine[None, None, None]:
                async def wait() -> None:
                    asyncio.get_running_loop().call_soon(home.clock.lapse)
                    assert await claims.wait(some_key(), holder, None) == "free"

                return wait()

            async def check(cancelled: bool) -> None:
                assert not claims._feed._waits

            assert await cancel_at_every_suspension(scenario, check) >= 1

    async def test_what_is_free_and_taken_by_turns_is_asked_for_less_and_less_often(self, home: Home) -> None:
        async with home.claims(expiry_s=0.1) as claims:
            began = monotonic()
            for refusals in (1, 2, 3, 4):
                assert await claims.wait(some_key(), Claim(digest=DIGEST, owner="x"), None, refusals=refusals) == "free"
            assert monotonic() - began >= 0.02 * (2 + 4 + 8)
            assert claims.counts.waited == 1


class TestTrouble:
    @pytest.mark.parametrize("what", ["changes", "holders", "get_many"])
    async def test_a_store_that_breaks_while_it_is_watched(
        self, home: Home, what: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def breaks(name: str) -> None:
            if name == what:
                raise ZeroDivisionError("a bug in the store")

        home.store.before = breaks
        holder = await home.ghost()
        with caplog.at_level(logging.CRITICAL):
            async with home.claims() as claims:
                task = asyncio.create_task(claims.wait(some_key(), holder, None))
                await until(lambda: home.store.count("get_many") >= 2)
                home.clock.lapse()
                assert await task == "free"

    @pytest.mark.parametrize("lie", [[], ["x"], None, [None, None]])
    async def test_a_store_that_answers_nonsense_while_it_is_watched(
        self, home: Home, lie: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Liar(Watched):
            async def holders(self, digests: Any) -> Any:
                return lie

        holder = await home.ghost()
        with caplog.at_level(logging.CRITICAL):
            async with home.claims(Liar(beside=home.ghosts, clock=home.clock)) as claims:
                assert await claims.wait(some_key(), holder, None) == "free"
