"""One searcher from many threads and loops, and from callers without one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from algosearch import open_searcher
from algosearch.backends.simulated import SimulatedBackend, TraceEvent, searches
from algosearch.search.loop import EngineLoop
from algosearch.unyielding import AVAILABLE
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, scripted, some_op, some_ops


async def test_a_searcher_serves_many_threads_and_loops() -> None:
    """C02, C05."""
    trace: list[TraceEvent] = []
    ops = some_ops(30)
    async with open_searcher(store="memory:", backends=[SimulatedBackend(trace=trace)]) as searcher:
        answers: list[object] = []
        start = threading.Barrier(5)

        def blocking() -> None:
            start.wait()
            answers.append([c.algorithm for c in searcher.select_many_blocking(ops)])

        def looping() -> None:
            async def ask() -> None:
                answers.append([c.algorithm for c in await searcher.select_many(ops)])

            start.wait()
            asyncio.run(ask())

        threads = [threading.Thread(target=t) for t in (blocking, blocking, looping, looping)]
        for thread in threads:
            thread.start()
        start.wait()
        mine = [c.algorithm for c in await searcher.select_many(ops)]
        for thread in threads:
            await asyncio.to_thread(thread.join, 20)
    assert answers == [mine] * 4
    assert searches(trace) == 30


def test_one_searcher_after_another_in_loop_after_loop() -> None:
    """C05, C20."""

    async def once() -> str:
        async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
            return (await searcher.select(some_op())).algorithm

    assert [asyncio.run(once()) for _ in range(3)] == [FAST] * 3


def test_the_blocking_door() -> None:
    with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        assert searcher.select_blocking(some_op(), timeout_s=20).algorithm == FAST
        assert searcher.request(some_op()).choice_blocking(timeout_s=20).algorithm == FAST


def test_a_blocked_caller_gives_up_after_its_timeout_and_the_search_goes_on() -> None:
    backend = GatedBackend(scripted(some_op()))
    with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        with pytest.raises(TimeoutError):
            searcher.select_blocking(some_op(), timeout_s=0.01)
        backend.gates["launch"].open()
        assert searcher.select_blocking(some_op(), timeout_s=20).algorithm == FAST


@pytest.mark.skipif(not AVAILABLE, reason="asyncio's own loop is used")
def test_a_caller_who_is_interrupted_while_it_asks_takes_nothing_from_who_asks_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C comes between any two steps; here between noting that the engine is woken and waking it."""
    interrupted = threading.Event()
    post = EngineLoop.call_soon_threadsafe

    def interrupt(self: EngineLoop, *call: Any, **how: Any) -> asyncio.Handle:
        if threading.current_thread() is threading.main_thread() and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        return post(self, *call, **how)

    with open_searcher(store="memory:", backends=[scripted(*some_ops(2))]) as searcher:
        assert searcher.select_blocking(some_op(), timeout_s=20).algorithm == FAST
        monkeypatch.setattr(EngineLoop, "call_soon_threadsafe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            searcher.request(some_op(1))
        assert searcher.select_blocking(some_op(2), timeout_s=20).algorithm
        assert searcher.select_blocking(some_op(1), timeout_s=20).algorithm == FAST
