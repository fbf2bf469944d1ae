"""Cancelled at every await point in turn: nothing is left over, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from algosearch import Policy, open_searcher
from algosearch.backends.simulated import SimulatedBackend, TraceEvent, searches
from algosearch.devices.pool import Pool
from algosearch.errors import SearcherClosed
from algosearch.ops import canonical
from algosearch.records import Key
from algosearch.search import Request, Searcher, current_searcher
from algosearch.search.claims import Claims
from algosearch.search.feed import Waited
from algosearch.search.inquiry import Inquiry, Question
from algosearch.search.tiers import Tiers
from algosearch.search.tower import Tower
from algosearch.stores import DirectoryStore, MemoryStore, Store
from tests.cancelling import cancel_at_every_suspension
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, not_before_it_waits, scripted, some_op, some_ops
from tests.search.rivals import EXPIRY_S, Clock


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("algosearch")}


async def settle(searcher: Searcher) -> None:
    """Until the engine has nothing under way: asked in mode cached, it answers behind everything posted before."""
    while searcher.flights():
        await asyncio.sleep(0.001)


async def check_invariants(searcher: Searcher) -> None:
    await settle(searcher)
    assert searcher.statistics().open == 0
    assert not searcher._answers.pending
    # The searcher still answers, and what was being searched is either whole or not begun.
    assert (await searcher.select(some_op())).algorithm == FAST


async def test_select() -> None:
    async with open_searcher(store="memory:", backends=[scripted(*some_ops(50))]) as searcher:
        n = iter(range(1, 50))

        def scenario() -> Coroutine[None, None, None]:
            async def select_something_new() -> None:
                not_before_it_waits(searcher)
                await searcher.select(some_op(next(n)))

            return select_something_new()

        async def check(cancelled: bool) -> None:
            await check_invariants(searcher)

        assert await cancel_at_every_suspension(scenario, check) >= 1


async def test_select_with_a_deadline() -> None:
    backend = GatedBackend(SimulatedBackend())
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        n = iter(range(100))

        def scenario() -> Coroutine[None, None, None]:
            async def late() -> None:
                not_before_it_waits(searcher)
                assert (await searcher.select(some_op(next(n)), deadline_s=0.0)).provisional

            return late()

        async def check(cancelled: bool) -> None:
            backend.gates["launch"].open()
            await settle(searcher)
            assert searcher.statistics().open == 0
            backend.gates["launch"].close()

        backend.gates["launch"].close()
        assert await cancel_at_every_suspension(scenario, check) >= 1
        backend.gates["launch"].open()


async def test_select_many() -> None:
    async with open_searcher(store="memory:", backends=[SimulatedBackend()]) as searcher:
        n = iter(range(100))

        def scenario() -> Coroutine[None, None, None]:
            async def many() -> None:
                start = 10 * next(n)
                not_before_it_waits(searcher)
                await searcher.select_many([some_op(start + i) for i in range(10)])

            return many()

        async def check(cancelled: bool) -> None:
            await settle(searcher)
            assert searcher.statistics().open == 0

        assert await cancel_at_every_suspension(scenario, check) >= 1


@pytest.mark.parametrize("what", ["choice", "workspace", "choice under another policy"])
async def test_a_request_survives_the_cancellation_of_who_awaits_it(what: str) -> None:
    trace: list[TraceEvent] = []
    async with open_searcher(store="memory:", backends=[scripted(*some_ops(50), trace=trace)]) as searcher:
        n = iter(range(1, 50))
        made: list[Request] = []

        def scenario() -> Coroutine[None, None, None]:
            async def wait() -> None:
                not_before_it_waits(searcher)
                made.append(searcher.request(some_op(next(n))))
                if what == "workspace":
                    await made[-1].workspace()
                elif what == "choice":
                    await made[-1].choice()
                else:
                    await made[-1].choice(Policy(deterministic=True))

            return wait()

        async def check(cancelled: bool) -> None:
            assert (await made[-1].choice()).algorithm == FAST
            await check_invariants(searcher)

        assert await cancel_at_every_suspension(scenario, check) >= 1
        assert searches(trace) == len(made) + 1


async def test_the_others_get_their_answer_when_the_first_is_cancelled() -> None:
    """C06: a search belongs to the engine; callers only wait for it."""
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        callers = [asyncio.create_task(searcher.select(some_op())) for _ in range(5)]
        await asyncio.sleep(0)
        callers[0].cancel()
        await asyncio.wait([callers[0]])
        backend.gates["launch"].open()
        answers = await asyncio.gather(*callers[1:])
    assert [answer.algorithm for answer in answers] == [FAST] * 4


async def test_opening() -> None:
    before = engine_threads()

    async def scenario() -> None:
        async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
            assert await current_searcher() is searcher
            not_before_it_waits(searcher)
            await searcher.select(some_op())

    async def check(cancelled: bool) -> None:
        for _ in range(2000):
            if engine_threads() <= before:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"left over: {engine_threads() - before}")

    assert await cancel_at_every_suspension(scenario, check) >= 3


class Lapsing(Claims):
    """Whatever is waited for lapses as soon as it is, and not before, however long that takes."""

    async def wait(self, *what: Any, **how: Any) -> Waited:
        self.clock.lapse()
        return await super().wait(*what, **how)

    def __init__(self, clock: Clock, *what: Any, **how: Any) -> None:
        super().__init__(*what, **how)
        self.clock = clock


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("kind", ["memory", "directory"])
async def test_a_flight(elsewhere: bool, kind: str, tmp_path: Path) -> None:
    """Wherever it is cancelled, it gives back its claim and its turn, and waits for nobody."""
    clock = Clock()
    ghosts: Store
    if kind == "memory":
        ghosts = memory = MemoryStore(clock=clock)
        tiers = Tiers(MemoryStore(beside=memory, clock=clock))
    else:
        ghosts = DirectoryStore(tmp_path / "s", clock=clock)
        tiers = Tiers(DirectoryStore(tmp_path / "s", clock=clock))
    await ghosts.open()
    await tiers.open()
    async with anyio.create_task_group() as tasks:
        backend = scripted(*some_ops(60))
        pool = Pool(backend, backend.devices(), tasks)
        claims = Lapsing(clock, tiers, tasks, expiry_s=EXPIRY_S)
        tower = Tower(tiers, tasks, claims)
        environment = await pool.environment()
        n = iter(range(60))
        inquiries: list[Inquiry] = []

        def scenario() -> Coroutine[None, None, None]:
            op = some_op(next(n))
            question = Question(op, Policy(), None, "race")
            inquiries.append(Inquiry(question, lambda inquiry, choice: None, threading.RLock()))
            inquiries[-1].open_requests = 1
            flight = tower._new_flight(Key.of(op, environment), canonical(op), pool, storable=True)
            flight.join(inquiries[-1])

            async def fly() -> None:
                if elsewhere:
                    await ghosts.claim(flight.key.digest, "ghost", expiry_s=EXPIRY_S)
                await tower._fly(flight)

            return fly()

        async def check(cancelled: bool) -> None:
            while claims._leaving or claims._keeping_house:
                await asyncio.sleep(0.001)
            assert not claims._held
            assert not claims._feed._waits
            assert set(pool._workers.values()) == {0}
            assert not pool._queue
            assert cancelled or inquiries[-1].answered.result().algorithm == FAST
            (holder,) = await ghosts.holders([Key.of(inquiries[-1].question.op, environment).digest])
            assert holder is None or holder.owner == "ghost", "nothing of ours is left"
            tower.fail_all(SearcherClosed())

        assert await cancel_at_every_suspension(scenario, check) >= (5 if elsewhere else 3)
        await claims.aclose()
        await pool.aclose()
        tasks.cancel_scope.cancel()
    await tiers.aclose()
    await ghosts.aclose()
