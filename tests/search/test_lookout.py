"""What queues: it has no task, lands when another process has found it, and asks for no claim that another has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from algosearch.backends.simulated import DeviceScript, Script, SimulatedBackend
from algosearch.devices.places import IN_HAND
from algosearch.devices.pool import Pool, Turn
from algosearch.records import Key, Record
from algosearch.search import feed as feeds
from algosearch.search.lookout import SEEN_S
from algosearch.stores import Claim, MemoryStore, Miss
from tests.devices.helpers import LIMIT_S
from tests.devices.test_pool import Who
from tests.search.gated import GatedBackend
from tests.search.helpers import some_op, some_ops, states, three_candidates, until
from tests.search.rivals import EXPIRY_S, Clock, Watched, rival
from tests.stores.nouns import some_record

OPS = 24
FULL = {"racing": IN_HAND, "queued": OPS - IN_HAND}
"""What becomes of so many while the lane stands still."""


class Shared(Watched):
    """Passes for one that other hosts go by as well."""

    shared = True


class Home:
    """A memory, a ghost in it, and a device behind a gate."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ghosts = MemoryStore(clock=self.clock)
        self.store = Shared(beside=self.ghosts, clock=self.clock)
        script = Script(problems=tuple(map(three_candidates, some_ops(OPS))))
        self.backend = GatedBackend(SimulatedBackend(script))
        session = self.backend.open(self.backend.devices()[0])
        self.keys = [Key.of(op, session.environment) for op in some_ops(OPS)]
        session.close()

    def record(self, n: int) -> Record:
        """What a ghost has found for the n-th key."""
        return replace(some_record(n), key=self.keys[n])

    async def hold(self, numbers: Sequence[int], *, expiry_s: float = EXPIRY_S) -> None:
        """A ghost claims these."""
        for n in numbers:
            await self.ghosts.claim(self.keys[n].digest, "ghost", expiry_s=expiry_s)


@pytest.fixture
def home() -> Home:
    return Home()


async def test_what_another_has_found_lands_from_the_queue(home: Home) -> None:
    home.backend.gates["load"].close()
    async with rival(home.store, home.backend) as searcher:
        requests = asyncio.gather(*(searcher.select(op) for op in some_ops(OPS)))
        await until(lambda: states(searcher) == FULL)
        claimed = {digest for call, digest in home.store.calls if call == "claim"}
        queued = [n for n in range(OPS) if home.keys[n].digest not in claimed]
        for n in queued:
            await home.ghosts.commit(home.record(n), after=0)
        await until(lambda: len(searcher.flights()) == IN_HAND)
        assert home.store.count("claim") == IN_HAND
        home.backend.gates["load"].open()
        await requests
        assert searcher.statistics().engine.searched == IN_HAND


async def test_claims_of_others_are_seen_in_one_trip_and_waited_for(home: Home) -> None:
    await home.hold(range(OPS))
    async with rival(home.store, home.backend) as searcher:
        requests = asyncio.create_task(searcher.select_many(some_ops(OPS)))  # in one message
        await until(lambda: states(searcher) == {"elsewhere": OPS})
        assert home.store.count("claim") <= 4 * IN_HAND < OPS
        for n in range(OPS):
            await home.ghosts.commit(home.record(n), after=0)
        choices = await requests
        assert [choice.digest for choice in choices] == [key.digest for key in home.keys]
        assert searcher.statistics().engine.searched == 0


async def test_what_another_lets_go_of_is_searched_here(home: Home) -> None:
    await home.hold(range(OPS))
    async with rival(home.store, home.backend) as searcher:
        requests = asyncio.gather(*(searcher.select(op) for op in some_ops(OPS)))
        await until(lambda: states(searcher) == {"elsewhere": OPS})
        home.clock.lapse()
        await requests
        engine = searcher.statistics().engine
        assert (engine.searched, engine.claims_taken_over) == (OPS, OPS)
        assert engine.claims_longest_wait_s > 0.0


async def test_who_shows_no_progress_is_searched_beside(home: Home) -> None:
    await home.hold(range(OPS))
    async with rival(home.store, home.backend, patience_s=0.05) as searcher:
        await asyncio.gather(*(searcher.select(op) for op in some_ops(OPS)))
        assert searcher.statistics().engine.searched == OPS


async def test_what_is_withdrawn_leaves_the_queue_and_what_is_waited_for(home: Home) -> None:
    await home.hold(range(OPS // 2))
    home.backend.gates["load"].close()
    async with rival(home.store, home.backend) as searcher:
        requests = [asyncio.create_task(searcher.select(op)) for op in some_ops(OPS)]
        await until(lambda: len(searcher.flights()) == OPS and states(searcher).get("racing") == IN_HAND)
        for request in requests:
            request.cancel()
        await asyncio.wait(requests)
        await until(lambda: len(searcher.flights()) <= IN_HAND)
        home.backend.gates["load"].open()
        await until(lambda: not searcher.flights())
        assert (await searcher.select(some_op(OPS - 1))).digest == home.keys[OPS - 1].digest


async def test_a_turn_that_is_not_used_passes_to_the_next() -> None:
    backend = SimulatedBackend(Script(devices=(DeviceScript(),)))
    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks)
        await pool.environment()
        called: list[str] = []

        def call(who: Who, *, uses: bool) -> bool:
            called.append(who.name)
            return uses

        def lined_up(name: str, *, uses: bool) -> Turn:
            who = Who(name)
            return pool.line_up(who, lambda turn: call(who, uses=uses))

        turns = [lined_up(name, uses=name.isupper()) for name in "aBcDEfGH"]
        assert called == ["a", "B", "c", "D", "E"]
        pool.give_back(turns[6])  # it waits no more
        pool.give_back(turns[1])
        assert called == ["a", "B", "c", "D", "E", "f", "H"]
        async with pool.turn(turns[7].who, turns[7]) as turn:
            assert turn.worker is not None
        await pool.aclose()


async def test_a_record_that_is_read_while_its_key_comes_to_be_waited_for_is_heard(home: Home) -> None:
    """The turn of a key may come between the moment that its record is asked for and the answer."""
    late = OPS - 1
    home.backend.gates["load"].close()
    read = asyncio.Event()
    news: list[str] = []

    class Slow(Shared):
        async def changes(self) -> Any:
            return frozenset({news.pop()} if news else ())

        async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
            answers = await super().get_many(keys)
            if any(isinstance(answer, Record) for answer in answers):
                home.backend.gates["load"].open()  # so that all turns come while this is on its way
                await until(lambda: not len(lookout) and home.keys[late].digest in feed._waits)
                read.set()
            return answers

    async with rival(Slow(beside=home.ghosts, clock=home.clock), home.backend) as searcher:
        tower = searcher._engine._tower
        assert tower is not None
        lookout, feed = tower._lookout, tower.claims._feed
        requests = asyncio.gather(*(searcher.select(op) for op in some_ops(OPS)))
        await until(lambda: states(searcher) == FULL)
        late = next(n for n in range(OPS) if home.keys[n].digest in lookout._flights)
        await home.hold([late])
        lookout._elsewhere = {home.keys[late].digest: Claim(digest=home.keys[late].digest, owner="ghost")}
        lookout._seen_at = monotonic()
        await home.ghosts.commit(home.record(late), after=0)
        feed._look_at = monotonic() + 3600.0  # so that it is not found by looking at everything
        news.append(home.keys[late].digest)
        await requests
        assert read.is_set()
        assert searcher.statistics().engine.searched == OPS - 1


@pytest.mark.parametrize("told", ["which", "that something has changed"])
async def test_what_is_let_go_of_while_claims_are_looked_at_is_not_waited_for(
    home: Home, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """The news of it may be heard before the answer to the look, in which it is still held."""
    monkeypatch.setattr(feeds, "BUSY_S", 0.01)
    await home.hold(range(OPS), expiry_s=3600.0)
    news: list[bool | frozenset[str]] = []
    brought = asyncio.Event()

    class Late(Shared):
        async def changes(self) -> Any:
            return news.pop() if news else frozenset()

        async def holders(self, digests: Sequence[str]) -> Any:
            answer = await super().holders(digests)
            if len(digests) > IN_HAND and all(answer):
                for claim in await home.ghosts.holders([key.digest for key in home.keys]):
                    assert claim is not None
                    await home.ghosts.release(claim)
                feed._look_s = 3600.0  # so that it is not found by looking at everything
                feed._look_at = monotonic() + feed._look_s
                news.append(frozenset(digests) if told == "which" else True)
                await brought.wait()
            return answer

    async with rival(Late(beside=home.ghosts, clock=home.clock), home.backend) as searcher:
        tower = searcher._engine._tower
        assert tower is not None
        lookout, feed = tower._lookout, tower.claims._feed
        among = lookout.among

        def bring(digests: frozenset[str] | None) -> list[Key]:
            if digests != frozenset():
                brought.set()
            return among(digests)

        monkeypatch.setattr(lookout, "among", bring)
        with anyio.fail_after(LIMIT_S):
            await searcher.select_many(some_ops(OPS))  # in one message, so that all of them queue at once
        assert searcher.statistics().engine.searched == OPS


@pytest.mark.parametrize("latest_look", ["under way", "given up"])
async def test_what_was_seen_long_ago_is_not_believed(home: Home, latest_look: str) -> None:
    """Whatever has become of the look that would have told."""
    home.backend.gates["load"].close()
    async with rival(home.store, home.backend) as searcher:
        tower = searcher._engine._tower
        assert tower is not None
        lookout = tower._lookout
        requests = asyncio.gather(*(searcher.select(op) for op in some_ops(OPS)))
        await until(lambda: states(searcher) == {"racing": IN_HAND, "queued": OPS - IN_HAND})
        lookout._elsewhere = {key.digest: Claim(digest=key.digest, owner="ghost") for key in home.keys}
        lookout._seen_at = monotonic() - SEEN_S
        lookout._looked_at = float("inf") if latest_look == "under way" else monotonic()
        home.backend.gates["load"].open()
        await requests
        engine = searcher.statistics().engine
        assert (engine.searched, engine.claims_waited) == (OPS, 0)


async def test_as_soon_as_nothing_queues_others_are_listened_to(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has work of its own is in no hurry to hear of others'; who has none left does not wait until it would be."""
    monkeypatch.setattr(feeds, "BUSY_S", 3600.0)
    await home.hold([0], expiry_s=3600.0)
    async with rival(home.store, home.backend) as searcher:
        requests = asyncio.gather(*(searcher.select(op) for op in some_ops(OPS)))
        await until(lambda: states(searcher) == {"elsewhere": 1} and searcher.statistics().engine.searched == OPS - 1)
        await home.ghosts.commit(home.record(0), after=0)
        with anyio.fail_after(LIMIT_S):
            await requests
        assert searcher.statistics().engine.searched == OPS - 1


async def test_candidates_that_come_with_a_search_are_not_asked_for_as_well(home: Home) -> None:
    gate = home.backend.gates["enumerate"]
    gate.close()
    async with rival(home.store, home.backend) as searcher:
        raced = asyncio.create_task(searcher.select(some_op(0)))
        await until(gate.reached.is_set)
        assert states(searcher) == {"listing": 1}
        guessed = asyncio.create_task(searcher.select(some_op(0), mode="heuristic"))
        await until(lambda: sum(flight.awaited for flight in searcher.flights()) == 2)
        gate.open()
        assert (await guessed).precision == "heuristic"
        assert (await raced).precision == "final"
        assert searcher.statistics().engine.listings == 1
