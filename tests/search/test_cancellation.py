"""Cancelled at every await point in turn: nothing is left over, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine

import pytest

from algosearch import Policy, open_searcher
from algosearch.backends.simulated import SimulatedBackend, TraceEvent, searches
from algosearch.search import Request, Searcher, current_searcher
from tests.cancelling import cancel_at_every_suspension
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, scripted, some_op, some_ops


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
    trace: list[TraceEvent] = []
    async with open_searcher(store="memory:", backends=[scripted(*some_ops(50), trace=trace)]) as searcher:
        n = iter(range(1, 50))

        def scenario() -> Coroutine[None, None, None]:
            async def select_something_new() -> None:
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
            assert current_searcher() is searcher
            await searcher.select(some_op())

    async def check(cancelled: bool) -> None:
        for _ in range(2000):
            if engine_threads() <= before:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"left over: {engine_threads() - before}")

    assert await cancel_at_every_suspension(scenario, check) >= 3
