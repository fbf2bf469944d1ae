"""Open requests: deadlines, withdrawal, and who comes first."""

from __future__ import annotations

import asyncio

import pytest

from algosearch import open_searcher
from algosearch.backends.simulated import SimulatedBackend, TraceEvent, searches
from algosearch.devices.places import IN_HAND
from algosearch.errors import RequestWithdrawn
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, SLOW, scripted, some_op, some_ops, states, until


async def test_a_late_answer_becomes_a_provisional_one_while_the_search_goes_on() -> None:
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        late = await searcher.select(some_op(), deadline_s=0.01)
        assert (late.algorithm, late.provisional) == (SLOW, True)
        backend.gates["launch"].open()
        assert (await searcher.select(some_op(), deadline_s=20.0)).algorithm == FAST


async def test_a_key_far_back_in_the_queue_meets_its_deadline_too() -> None:
    backend = GatedBackend(SimulatedBackend())
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        requests = [searcher.request(op) for op in some_ops(20)]
        late = await searcher.select(some_op(19), deadline_s=0.01)
        assert late.provisional
        backend.gates["launch"].open()
        for request in requests:
            assert not (await request.choice()).provisional


async def test_a_deadline_that_passes_before_the_device_is_open_is_met_once_it_is() -> None:
    backend = GatedBackend(SimulatedBackend())
    backend.gates["open"].close()
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        late = asyncio.create_task(searcher.select(some_op(), deadline_s=0.001))
        assert await asyncio.to_thread(backend.gates["open"].reached.wait, 20)
        await until(lambda: all(inquiry.lacks_guess for inquiry in searcher._answers.pending))
        backend.gates["launch"].close()
        backend.gates["open"].open()
        assert (await late).provisional
        backend.gates["launch"].open()


async def test_a_request_withdrawn_before_its_turn_is_never_searched() -> None:
    trace: list[TraceEvent] = []
    backend = GatedBackend(SimulatedBackend(trace=trace))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        requests = [searcher.request(op) for op in some_ops(20)]
        assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
        for request in requests[10:]:
            request.withdraw()
            request.withdraw()
        backend.gates["launch"].open()
        for request in requests[:10]:
            await request.choice()
        with pytest.raises(RequestWithdrawn):
            await requests[10].choice()
        with pytest.raises(RequestWithdrawn):
            await requests[10].workspace()
        statistics = searcher.statistics()
    assert searches(trace) == 10
    assert (statistics.open, statistics.engine.dropped) == (0, 10)


async def test_a_search_that_has_begun_is_finished_for_the_next_one() -> None:
    trace: list[TraceEvent] = []
    backend = GatedBackend(scripted(some_op(), trace=trace))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        request = searcher.request(some_op())
        assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
        request.withdraw()
        backend.gates["launch"].open()
        assert (await searcher.select(some_op())).algorithm == FAST
    assert searches(trace) == 1


async def test_one_of_two_requests_withdrawn_leaves_the_other() -> None:
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["enumerate"].close()
        stays, leaves = searcher.request(some_op()), searcher.request(some_op())
        leaves.withdraw()
        backend.gates["enumerate"].open()
        assert (await stays.choice()).algorithm == FAST


async def test_who_awaits_a_request_that_is_withdrawn_hears_of_it() -> None:
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        request = searcher.request(some_op())
        await request.workspace()
        waiter = asyncio.create_task(request.choice())
        await asyncio.sleep(0)
        request.withdraw()
        with pytest.raises(RequestWithdrawn):
            await waiter
        backend.gates["launch"].open()
        assert (await searcher.select(some_op())).algorithm == FAST


async def test_most_awaited_first() -> None:
    order: list[object] = []
    backend = GatedBackend(scripted(*some_ops(12)))
    backend.before = lambda call, subject: order.append(subject) if call == "enumerate" else None
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        requests = [searcher.request(op) for op in some_ops(12)]
        await until(lambda: states(searcher) == {"racing": IN_HAND, "queued": 12 - IN_HAND})
        waiters = [asyncio.create_task(requests[9].choice()) for _ in range(3)]
        waiters += [asyncio.create_task(requests[11].choice()) for _ in range(2)]
        await until(lambda: sum(flight.awaited for flight in searcher.flights()) == 5)
        backend.gates["launch"].open()
        for request in requests:
            await request.choice()
        await asyncio.gather(*waiters)
    assert order == [some_op(n) for n in (0, 1, 2, 9, 11, 3, 4, 5, 6, 7, 8, 10)]
