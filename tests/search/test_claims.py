"""`Claims`: taken, kept alive, written into, given back and waited for; on a test's own loop, over a shared memory."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from time import monotonic
from typing import Any

import anyio
import pytest

from algosearch.search import hold as holds
from algosearch.search.claims import Claims, shown
from algosearch.search.tiers import Tiers
from algosearch.stores import Claim, MemoryStore
from tests.cancelling import cancel_at_every_suspension
from tests.search.claiming import DIGEST, Home
from tests.search.helpers import until
from tests.search.rivals import EXPIRY_S, Watched
from tests.stores.nouns import some_key

DIGESTS = {some_key(n).digest for n in range(5)}


@pytest.fixture
def home() -> Home:
    return Home()


class TestTaking:
    async def test_it_is_taken_and_given_back(self, home: Home) -> None:
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                assert "in force" in repr(hold)
                assert await home.holder() == Claim(digest=DIGEST, owner=claims.owner)
            assert "not held" in repr(hold)
            await until(lambda: home.store.count("release") == 1)
            assert await home.holder() is None
            assert claims.counts.won == 1

    async def test_what_another_holds_is_refused_and_never_given_back(self, home: Home) -> None:
        ghost = await home.ghost(trying="x")
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert not await hold.take()
                assert hold.holder == ghost
                assert not hold.in_force
        assert home.store.count("release") == 0
        assert await home.holder() == ghost

    async def test_alone_nobody_is_asked(self, home: Home) -> None:
        await home.ghost()
        async with home.claims() as claims:
            with claims.on(some_key(), alone=True) as hold:
                assert await hold.take()
                hold.about_to_launch("x")
        assert home.store.calls == []

    async def test_without_a_store_there_is_nothing_to_ask(self) -> None:
        async with anyio.create_task_group() as tasks:
            claims = Claims(Tiers(None), tasks)
            with claims.on(some_key()) as hold:
                assert await hold.take()
                hold.about_to_launch("x")
            await claims.aclose()

    async def test_an_end_in_an_error_gives_it_back_too(self, home: Home) -> None:
        async with home.claims() as claims:
            with pytest.raises(ZeroDivisionError), claims.on(some_key()) as hold:  # noqa: PT012
                assert await hold.take()
                raise ZeroDivisionError
            await until(lambda: home.store.count("release") == 1)
        assert await home.holder() is None

    async def test_the_end_gives_everything_back(self, home: Home) -> None:
        async with home.claims() as claims:
            holds = [claims.on(some_key(n)) for n in range(5)]
            for hold in holds:
                assert await hold.take()
        assert [await home.holder(hold.digest) for hold in holds] == [None] * 5
        for hold in holds:
            hold.__exit__(None, None, None)

    async def test_one_that_is_taken_while_it_is_being_given_back(self, home: Home) -> None:
        """Two flights of one key after each other: the end of the first must not cost the second its claim."""
        async with home.claims() as claims:
            for _ in range(20):
                with claims.on(some_key()) as hold:
                    assert await hold.take()
                    assert (await home.holder()) is not None
            with claims.on(some_key()) as first, claims.on(some_key()) as second:
                assert await first.take()
                assert await second.take()
                first.__exit__(None, None, None)
                with claims.on(some_key(1)) as other:
                    assert await other.take()
                await until(lambda: ("release", _released(claims, some_key(1).digest)) in home.store.calls)
                assert (await home.holder()) is not None
        assert await home.holder() is None

    async def test_cancelled_anywhere_nothing_is_left(self, home: Home) -> None:
        async with home.claims() as claims:

            def scenario() -> Coroutine[None, None, None]:
                async def take_twice() -> None:
                    for _ in range(2):
                        with claims.on(some_key()) as hold:
                            assert await hold.take()
                            await asyncio.sleep(0)

                return take_twice()

            async def check(cancelled: bool) -> None:
                async def is_free() -> bool:
                    return await home.holder() is None

                await until(is_free)
                assert not claims._held

            assert await cancel_at_every_suspension(scenario, check) >= 2


def _released(claims: Claims, digest: str) -> Claim:
    return Claim(digest=digest, owner=claims.owner)


class TestKeepingItAlive:
    async def test_one_task_renews_everything_that_is_held(self, home: Home) -> None:
        async with home.claims() as claims:
            holds = [claims.on(some_key(n)) for n in range(5)]
            for hold in holds:
                assert await hold.take()
            for _ in range(3):
                home.clock.now_s += EXPIRY_S * 0.9
                home.store.calls.clear()
                await until(lambda: {claim.digest for call, claim in home.store.calls if call == "renew"} >= DIGESTS)
            assert all(holder is not None for holder in await home.ghosts.holders(sorted(DIGESTS)))
            assert len(claims._tasks._tasks) == 1  # type: ignore[attr-defined]
            for hold in holds:
                hold.__exit__(None, None, None)
            await until(lambda: not claims._tasks._tasks)  # type: ignore[attr-defined]

    async def test_a_claim_that_another_took_over_is_lost_and_left_alone(
        self, home: Home, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                home.clock.lapse()
                ghost = await home.ghost()
                await until(lambda: claims.counts.lost == 1)
                assert not hold.in_force
                hold.about_to_launch("x")
        assert await home.holder() == ghost
        assert home.store.count("release") == 0
        assert "taken it over" in caplog.text

    async def test_a_claim_that_nobody_took_over_is_had_again(self, home: Home) -> None:
        """The machine slept: the claim has lapsed, but nobody has died."""
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                home.clock.lapse()
                await until(lambda: home.store.count("claim") == 2)
                assert await home.holder() == Claim(digest=DIGEST, owner=claims.owner)
                assert hold.in_force
        assert claims.counts.lost == 0
        assert await home.holder() is None


class TestWritingDown:
    async def test_it_is_in_the_store_before_the_launch(self, home: Home) -> None:
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                for name in ("x", "y"):
                    await asyncio.to_thread(hold.about_to_launch, name)
                    holder = await home.holder()
                    assert holder is not None
                    assert holder.trying == name
                home.store.calls.clear()
                await until(lambda: home.store.count("renew") >= 1)
                assert home.store.calls[0][1].trying == "y", "a sign of life keeps what was written"

    async def test_a_store_that_does_not_answer_holds_up_one_launch_only(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(holds, "WRITE_S", 0.25)
        stuck, entered = asyncio.Event(), asyncio.Event()

        class Stuck(Watched):
            async def renew(self, claim: Claim, **how: Any) -> bool:
                entered.set()
                await stuck.wait()
                return True

        async with home.claims(Stuck(beside=home.ghosts, clock=home.clock), expiry_s=1000.0) as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                began = monotonic()
                await asyncio.to_thread(hold.about_to_launch, "x")
                assert entered.is_set()
                assert monotonic() - began >= holds.WRITE_S
                assert not hold._patient
                hold.about_to_launch("y")  # would never return if it waited for the loop
                stuck.set()

    async def test_nothing_is_written_after_the_end(self, home: Home) -> None:
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
            hold.about_to_launch("x")
            await until(lambda: home.store.count("release") == 1)
            assert home.store.count("renew") == 0

    async def test_whoever_waits_when_it_ends_is_let_go(self, home: Home) -> None:
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                written = threading.Event()
                assert hold.note("x", written)
            assert written.is_set()
            assert not hold.note("y", written := threading.Event())
            assert written.is_set()


class TestTakingOver:
    async def test_who_takes_over_sees_what_was_tried(self, home: Home) -> None:
        await home.ghost(trying="x")
        home.clock.lapse()
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                assert (hold.lapses, hold.suspect) == (1, "x")
                assert hold.verdict() == {}
                assert not hold.is_hopeless
                home.store.calls.clear()
                await until(lambda: home.store.count("renew") >= 1)
                holder = await home.holder()
                assert holder is not None
                assert holder.trying == "", "who dies before it launches anything accuses nobody"
        assert claims.counts.taken_over == 1

    async def test_the_second_lapse_is_a_verdict(self, home: Home) -> None:
        for name in ("one", "two"):
            await home.ghost(name, trying="x")
            home.clock.lapse()
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                ((algorithm, failure),) = hold.verdict().items()
                assert algorithm == "x"
                assert failure.kind == "crashed"
                assert dict(failure.circumstances) == {"processes": "2"}
                assert not hold.is_hopeless

    async def test_a_second_lapse_of_nothing_in_particular_is_none(self, home: Home) -> None:
        for name in ("one", "two"):
            await home.ghost(name)
            home.clock.lapse()
        async with home.claims() as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                assert hold.lapses == 2
                assert hold.verdict() == {}

    async def test_the_third_lapse_is_the_end_for_everybody(self, home: Home) -> None:
        for name in ("one", "two", "three"):
            await home.ghost(name, trying="x")
            home.clock.lapse()
        async with home.claims() as claims, home.claims(MemoryStore(beside=home.ghosts, clock=home.clock)) as others:
            with claims.on(some_key()) as hold, others.on(some_key()) as theirs:
                assert await hold.take()
                assert hold.is_hopeless
                hold.leave()
                assert not await theirs.take()
                assert theirs.is_hopeless, "nothing to wait for"
        holder = await home.holder()
        assert holder is not None
        assert holder.lapses == 3, "left to lapse, so that who comes next sees it too"


class Refusing(Watched):
    """Does not give back what it is told to, so many times."""

    def __init__(self, home: Home, *, refusals: int) -> None:
        super().__init__(beside=home.ghosts, clock=home.clock)
        self.refusals = refusals

    async def release(self, claim: Claim) -> bool:
        if self.count("release") < self.refusals:
            self._note("release", claim)
            return False
        return await super().release(claim)


class TestTrouble:
    @pytest.mark.parametrize("call", ["claim", "renew", "release"])
    async def test_a_store_that_breaks(self, home: Home, call: str, caplog: pytest.LogCaptureFixture) -> None:
        def breaks(name: str) -> None:
            if name == call:
                raise ZeroDivisionError("a bug in the store")

        home.store.before = breaks
        async with home.claims() as claims:
            for n in range(2):
                with claims.on(some_key(n)) as hold:
                    assert await hold.take()
                    await asyncio.to_thread(hold.about_to_launch, "x")
            await until(lambda: not claims._leaving)
        assert len(caplog.records) == 1
        assert "a bug in the store" in caplog.text

    @pytest.mark.parametrize("lie", [None, Claim(digest="another", owner="x"), "x", Claim(digest=DIGEST, owner=5)])  # type: ignore[arg-type]
    async def test_a_store_that_answers_nonsense(self, home: Home, lie: Any, caplog: pytest.LogCaptureFixture) -> None:
        class Liar(Watched):
            async def claim(self, digest: str, owner: str, **how: Any) -> Any:
                return lie

        with caplog.at_level(logging.CRITICAL):
            async with home.claims(Liar(beside=home.ghosts, clock=home.clock)) as claims:
                with claims.on(some_key()) as hold:
                    assert await hold.take()
                    assert not hold.in_force

    async def test_what_could_not_be_given_back_is_given_back_later(self, home: Home) -> None:
        """Lapsed, it would say that its owner died; and three times so, that the key is not to be searched."""
        store = Refusing(home, refusals=3)
        async with home.claims(store, expiry_s=0.08) as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
            await until(lambda: store.count("release") == 4)
            assert await home.holder() is None
            await until(lambda: not claims._paying)

    async def test_in_the_end_it_is_tried_more_than_once(self, home: Home) -> None:
        store = Refusing(home, refusals=2)
        async with home.claims(store) as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
            await until(lambda: store.count("release") == 1)
            assert await home.holder() is not None
        assert await home.holder() is None

    async def test_what_is_held_again_is_owed_no_more(self, home: Home) -> None:
        store = Refusing(home, refusals=1)
        async with home.claims(store, expiry_s=0.8) as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
            await until(lambda: bool(claims._owed))
            with claims.on(some_key()) as hold:
                assert await hold.take()
                await until(lambda: not claims._paying)
                assert await home.holder() == Claim(digest=DIGEST, owner=claims.owner)
            await until(lambda: store.count("release") == 2)
            assert await home.holder() is None

    async def test_a_store_that_says_everything_is_lost(self, home: Home) -> None:
        class Liar(Watched):
            async def renew(self, claim: Claim, **how: Any) -> bool:
                return False

        async with home.claims(Liar(beside=home.ghosts, clock=home.clock)) as claims:
            with claims.on(some_key()) as hold:
                assert await hold.take()
                await asyncio.to_thread(hold.about_to_launch, "x")
        assert await home.holder() is None


def test_an_owners_name_is_harmless() -> None:
    assert shown("host:123:abcdef") == "host:123"
    assert shown("\x1b[31m:1:a") == "\\x1b[31m:1"
    assert shown("") == ""
    assert shown("x") == "x"
    assert len(shown("x" * 10_000 + ":1:a")) <= 80
