"""Several engines on one store, as several processes have them: each key is searched once between them."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest
from msgspec.structs import replace

from algosearch import Policy
from algosearch.backends.simulated import DeviceScript, Script, SimulatedBackend, problem_digest, searched, searches
from algosearch.errors import NotCached, SearchFailed
from algosearch.records import Record, Trials
from algosearch.stores import MemoryStore
from tests.search.helpers import FAST, SLOW, some_op, some_ops, states, until
from tests.search.rivals import EXPIRY_S, Home, reach, reached, rival


@pytest.fixture
def home() -> Home:
    return Home()


async def test_one_searches_and_the_other_waits(home: Home) -> None:
    """C25: and says whom it waits for."""
    backend = home.backend()
    async with rival(home.handle(), backend) as one, rival(home.handle(), home.backend(machine="there")) as two:
        backend.gates["launch"].close()
        first = asyncio.create_task(one.select(some_op()))
        await reached(backend.gates["launch"])
        request = two.request(some_op())
        await reach(two, "elsewhere")
        await until(lambda: two.flights()[0].trying == f"waiting for {socket.gethostname()}:{os.getpid()}")
        backend.gates["launch"].open()
        assert await request.choice() == await first
        assert request.source == "store"
        counts = [searcher.statistics().engine for searcher in (one, two)]
    assert searches(home.trace) == 1
    assert [(c.searched, c.claims_won, c.claims_waited, c.claims_lost) for c in counts] == [(1, 1, 0, 0), (0, 0, 1, 0)]


async def test_each_key_is_searched_once_between_all(home: Home) -> None:
    """C01, C08, D01: however many ask, one search a key, and one answer for all."""
    ops = some_ops(40)
    backends = [home.backend(*ops, machine=f"m{n}") for n in range(4)]
    async with (
        rival(home.handle(), backends[0]) as a,
        rival(home.handle(), backends[1]) as b,
        rival(home.handle(), backends[2]) as c,
        rival(home.handle(), backends[3]) as d,
    ):
        answers = await asyncio.gather(*(searcher.select_many(ops) for searcher in (a, b, c, d)))
        digests = {searcher.choices_digest() for searcher in (a, b, c, d)}
        won = sum(searcher.statistics().engine.searched for searcher in (a, b, c, d))
    assert all(answer == answers[0] for answer in answers)
    assert len(digests) == 1
    assert searched(home.trace) == {problem_digest(op): 1 for op in ops}
    assert won == 40


async def test_who_is_refused_gives_its_turn_up(home: Home) -> None:
    """What others search holds no place at a device: more keys are held elsewhere than a device has places."""
    ops = some_ops(8)
    backend = home.backend(*ops)
    for op in ops[:7]:
        await home.memory.claim(home.key(op, backend).digest, "ghost", expiry_s=1e9)
    async with rival(home.handle(), backend) as searcher:
        requests = [searcher.request(op) for op in ops]
        assert (await requests[7].choice()).algorithm == FAST
        await until(lambda: states(searcher) == {"elsewhere": 7})
        for request in requests:
            request.withdraw()
        await until(lambda: not searcher.flights())
        assert searcher.statistics().engine.dropped == 7
    assert await home.holder(home.key(ops[0], backend)) is not None, "the ghost's claim is the ghost's"


async def test_what_is_withdrawn_while_it_is_listed_is_given_back(home: Home) -> None:
    backend = home.backend()
    async with rival(home.handle(), backend) as one, rival(home.handle(), home.backend()) as two:
        backend.gates["enumerate"].close()
        request = one.request(some_op())
        await reached(backend.gates["enumerate"])
        assert await home.holder(home.key()) is not None
        request.withdraw()
        assert (await two.select(some_op())).algorithm == FAST
        backend.gates["enumerate"].open()
        assert two.statistics().engine.claims_taken_over == 0


async def test_who_closes_gives_back_what_it_was_searching(home: Home) -> None:
    backend = home.backend()
    async with rival(home.handle(), home.backend(machine="there"), expiry_s=1000.0) as two:
        async with rival(home.handle(), backend, expiry_s=1000.0) as one:
            backend.gates["launch"].close()
            one.request(some_op())
            await reached(backend.gates["launch"])
            request = two.request(some_op())
            await reach(two, "elsewhere")
        assert (await request.choice()).algorithm == FAST
        assert two.statistics().engine.claims_taken_over == 0
        backend.gates["launch"].open()


async def test_a_search_that_breaks_is_given_back(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    def breaks(call: str, subject: object) -> None:
        if call == "launch":
            raise ZeroDivisionError("a bug in the backend")

    backend = home.backend()
    backend.before = breaks
    async with rival(home.handle(), backend, expiry_s=1000.0) as one, rival(home.handle(), home.backend()) as two:
        with pytest.raises(SearchFailed):
            await one.select(some_op())
        assert (await two.select(some_op())).algorithm == FAST


async def test_what_an_incomplete_environment_finds_concerns_nobody_else(home: Home) -> None:
    store = home.handle()
    backend = SimulatedBackend(Script(devices=(DeviceScript(incomplete="a part is missing"),)))
    async with rival(store, backend) as searcher:
        await searcher.select(some_op())
    assert store.count("claim") == store.count("release") == 0


@pytest.mark.parametrize("mode", ["cached", "heuristic"])
async def test_who_needs_no_search_does_not_wait_for_one(home: Home, mode: Any) -> None:
    await home.memory.claim(home.key().digest, "ghost", expiry_s=1e9)
    async with rival(home.handle(), home.backend()) as searcher:
        searcher.request(some_op())
        await reach(searcher, "elsewhere")
        if mode == "cached":
            with pytest.raises(NotCached):
                await searcher.select(some_op(), mode=mode)
        else:
            assert (await searcher.select(some_op(), mode=mode)).precision == "heuristic"
        assert (await searcher.select(some_op(), deadline_s=0.0)).provisional


async def test_another_policy_of_a_key_that_is_searched_elsewhere(home: Home) -> None:
    """Who waits takes what is found; what that does not cover is searched further, under a claim of its own."""
    backend = home.backend()
    strict = Policy(exclude=("*fast", "*small"))
    async with rival(home.handle(), backend) as one, rival(home.handle(), home.backend(machine="there")) as two:
        backend.gates["launch"].close()
        first = one.request(some_op())
        await reached(backend.gates["launch"])
        second = two.request(some_op(), strict)
        await reach(two, "elsewhere")
        backend.gates["launch"].open()
        assert (await first.choice()).algorithm == FAST
        assert (await second.choice()).algorithm == SLOW
    record = await home.record(home.key())
    assert record.revision == two.statistics().engine.searched + 1


class TestLost:
    async def test_who_was_held_up_overwrites_nothing(self, home: Home, caplog: pytest.LogCaptureFixture) -> None:
        """C04: the lease ended before the search did. Both get one answer, and the late one adopts the other's."""
        slow = home.backend()
        async with rival(home.handle(), slow) as one, rival(home.handle(), home.backend(machine="there")) as two:
            slow.gates["launch"].close()
            late = one.request(some_op())
            await reached(slow.gates["launch"])
            request = two.request(some_op())
            await reach(two, "elsewhere")
            while request.source is None:  # until it is taken over: our own heart beats, and has it again if it can
                home.clock.lapse()
                await asyncio.sleep(0.003)
            kept = await home.record(home.key())
            slow.gates["launch"].open()
            assert await late.choice() == await request.choice()
            assert await home.record(home.key()) == kept
            assert one.statistics().engine.searched == 1
        assert searches(home.trace) == 2

    async def test_what_the_winner_did_not_look_at_is_appended(self, home: Home) -> None:
        """Both find something, for different policies: nothing of it is lost, and nobody is told that it failed."""
        slow = home.backend()
        strict = Policy(exclude=("*fast", "*small"))
        async with rival(home.handle(), slow) as one:
            slow.gates["time"].close()
            late = one.request(some_op(), strict)
            await reached(slow.gates["time"])
            async with rival(MemoryStore(), home.backend(machine="there")) as apart:
                await apart.select(some_op())
                winner = _stripped(apart._engine._tiers.recall(home.key().digest))
            assert (await home.memory.commit(winner, after=0)).won
            slow.gates["time"].open()
            assert (await late.choice()).algorithm == SLOW
        record = await home.record(home.key())
        assert record.revision == 2
        assert record.searches[0] == winner.searches[0]


def _stripped(record: Record | None) -> Record:
    """Of a search that knew of one candidate only."""
    assert record is not None
    (search,) = record.searches
    trials = Trials.of(trial for trial in search.trials if trial.algorithm == FAST)
    return replace(record, searches=(replace(search, trials=trials, complete=False),))


async def test_a_live_owner_is_waited_for_as_long_as_it_takes(home: Home) -> None:
    """The heart beats in the engine's thread, whatever the lane is at."""
    backend, store = home.backend(), home.handle()
    async with rival(store, backend) as one, rival(home.handle(), home.backend(machine="there")) as two:
        backend.gates["launch"].close()
        first = one.request(some_op())
        await reached(backend.gates["launch"])
        second = two.request(some_op())
        await reach(two, "elsewhere")
        for _ in range(3):
            home.clock.now_s += 0.9 * EXPIRY_S
            beats = store.count("renew")
            while store.count("renew") < beats + 2:
                await asyncio.sleep(0.001)
        assert [flight.state for flight in two.flights()] == ["elsewhere"]
        backend.gates["launch"].open()
        assert await first.choice() == await second.choice()
        assert [searcher.statistics().engine.claims_taken_over for searcher in (one, two)] == [0, 0]
    assert searches(home.trace) == 1
