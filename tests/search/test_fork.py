"""A child has one thread and a copy of the memory: it asks as if nothing had happened, and hangs on nothing."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from algosearch import Policy, forks, open_searcher, select_algo
from algosearch.backends import Device
from algosearch.backends.simulated import SimulatedBackend, TraceEvent, searches
from algosearch.devices import lane
from algosearch.search import Searcher, ambient
from algosearch.search.engines import ENGINES
from algosearch.stores import DirectoryStore, MemoryStore
from algosearch.stores import directory as directories
from tests.forking import in_child
from tests.search.gated import Gate, GatedBackend
from tests.search.helpers import FAST, SMALL, scripted, some_op, some_ops
from tests.search.processes import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture(autouse=True)
def forks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork waits for what is under way, however busy the machine is with other tests."""
    monkeypatch.setattr(forks, "WAIT_S", 20.0)


def asked(n: int) -> str:
    """What a program in a child does that knows nothing of forks."""
    return asyncio.run(select_algo(some_op(n))).algorithm


def blocking(searcher: Searcher, n: int) -> str:
    return searcher.select_blocking(some_op(n), timeout_s=15).algorithm


async def test_select_algo_in_a_child() -> None:
    async with open_searcher(store="memory:", backends=[scripted(*some_ops(4))]) as searcher:
        await select_algo(some_op(0))
        assert in_child(lambda: asked(0)) == FAST
        assert in_child(lambda: asked(1)) == FAST
        assert in_child(lambda: blocking(searcher, 1)) == FAST
        assert (await select_algo(some_op(1))).algorithm == FAST
        assert searcher.statistics().engine.searched == 2


async def test_what_the_parent_saw_the_child_has_seen() -> None:
    async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        await searcher.select(some_op())

        def ask() -> str:
            choice = searcher.select_blocking(some_op(), Policy(deterministic=True), timeout_s=15)
            engine = searcher.statistics().engine
            return f"{choice.algorithm} {engine.memory_hits} {engine.searched}"

        assert in_child(ask) == f"{SMALL} 1 0"


async def test_the_child_of_a_child() -> None:
    async with open_searcher(store="memory:", backends=[scripted(*some_ops(4))]):
        await select_algo(some_op(0))
        assert in_child(lambda: asked(1) + in_child(lambda: asked(2))) == FAST + FAST


def test_the_default_searcher_in_a_child() -> None:
    """Before it was ever used, and after."""
    done = run_python(
        """
        import asyncio
        from algosearch import ConvOp, select_algo
        from tests.forking import in_child

        def ask(n):
            op = ConvOp(input_shape=(n, 2, 4, 4), filter_shape=(2, 2, 1, 1))
            return asyncio.run(select_algo(op)).algorithm.partition("/")[0]

        print(in_child(lambda: ask(1)), ask(1), in_child(lambda: ask(1)), in_child(lambda: ask(2)), ask(2))
        """,
        ALGOSEARCH_MODE="heuristic",  # to search on a busy machine takes seconds
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["cpu"] * 5


async def test_a_fork_in_the_middle_of_a_search() -> None:
    """C24: three threads are at work, and somebody waits. (Not in the lane: for the device a child has to wait.)"""
    backend = GatedBackend(scripted(*some_ops(2)))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["build"].close()
        request = searcher.request(some_op())
        assert await asyncio.to_thread(backend.gates["build"].reached.wait, 20)

        def ask() -> str:
            backend.gates["build"].open()
            return asked(0) + asked(1)

        assert in_child(ask) == FAST + FAST
        backend.gates["build"].open()
        assert (await request.choice()).algorithm == FAST


@contextlib.contextmanager
def held_by_another(lock: threading.RLock) -> Iterator[None]:
    """A thread, which a child has not."""
    let_go, has_it = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            has_it.set()
            let_go.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert has_it.wait(20)
        yield
    finally:
        let_go.set()
        holder.join()


async def test_a_waiter_of_the_parent_is_let_go_in_the_child_whoever_held_its_lock() -> None:
    """Milestones share locks, and any of the parent's threads may have been inside one when it forked."""
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["build"].close()
        request = searcher.request(some_op())
        waiter = request.choice()
        with contextlib.suppress(StopIteration):
            waiter.send(None)
        (inquiry,) = searcher._answers.pending
        with held_by_another(inquiry._lock):
            assert in_child(waiter.close) == "None"
        waiter.close()
        assert not inquiry.awaited
        backend.gates["build"].open()
        assert (await request.choice()).algorithm == FAST


async def test_a_child_is_told_what_the_parent_knew_whoever_held_its_lock() -> None:
    """Sizes are known when it forks, and nobody has asked for them before: the child does, and so does its child."""
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["build"].close()
        request = searcher.request(some_op())
        lock = request._inquiry._lock
        # Told to every question on the flight, the first one first.
        known = str(await searcher.request(some_op(), Policy(deterministic=True)).workspace())

        def sizes() -> dict[str, int]:
            return asyncio.run(request.workspace())

        def child() -> str:
            with held_by_another(lock):
                return in_child(sizes)

        with held_by_another(lock):
            assert (in_child(sizes), in_child(child)) == (known, known)
        assert str(await request.workspace()) == known
        backend.gates["build"].open()
        assert (await request.choice()).algorithm == FAST


async def test_what_was_open_at_the_fork_says_so_at_once() -> None:
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["enumerate"].close()
        request = searcher.request(some_op())
        assert await asyncio.to_thread(backend.gates["enumerate"].reached.wait, 20)
        for wait in (request.choice_blocking, lambda: asyncio.run(request.choice())):
            text = in_child(wait)
            assert text.startswith("SearcherClosed: ")
            assert "forked" in text
            assert "ask again" in text
        assert in_child(lambda: asyncio.run(request.workspace())).startswith("SearcherClosed: ")
        assert in_child(request.withdraw) == "None"
        backend.gates["enumerate"].open()
        assert (await request.choice()).algorithm == FAST
        assert in_child(lambda: request.choice_blocking().algorithm) == FAST


async def test_a_searcher_that_was_closed_is_closed_in_the_child() -> None:
    async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        await searcher.select(some_op())
    assert in_child(lambda: blocking(searcher, 0)).startswith("SearcherClosed: ")


async def test_a_child_that_asks_nothing_starts_nothing() -> None:
    async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        await searcher.select(some_op())
        assert in_child(lambda: blocking(searcher, 0) + str(threading.active_count())) == FAST + "1"


async def test_a_block_in_a_child_is_opened_and_closed_there(tmp_path: Path) -> None:
    """It means what a block of the parent means, whose engine it therefore shares; the parent's is none of its."""
    trace: list[TraceEvent] = []
    backends = [scripted(*some_ops(3), trace=trace)]
    async with open_searcher(store=tmp_path, backends=backends) as outer:
        await outer.select(some_op(0))

        def ask() -> str:
            with open_searcher(store=tmp_path, backends=backends) as inner:
                found = blocking(inner, 0) + blocking(inner, 1) + blocking(outer, 1)
            return f"{found} {searches(trace)} {blocking(outer, 2) == FAST}"

        assert in_child(ask) == f"{FAST * 3} 2 True"
        assert (await outer.select(some_op(1))).algorithm == FAST


async def test_a_block_that_a_child_leaves_ends_there(tmp_path: Path) -> None:
    opening = open_searcher(store=tmp_path, backends=[scripted(some_op())])
    searcher = await opening.__aenter__()
    await searcher.select(some_op())
    assert in_child(lambda: asyncio.run(opening.__aexit__(None, None, None))) == "None"
    assert not searcher.closed
    await opening.__aexit__(None, None, None)


@contextlib.contextmanager
def held(*locks: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    """As if other threads had them at the moment of the fork."""
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


async def test_no_lock_of_the_parent_binds_the_child() -> None:
    store = MemoryStore()
    backend = scripted(*some_ops(3))
    async with open_searcher(store=store, backends=[backend]) as searcher:
        await searcher.select(some_op(0))
        engine = searcher._engine
        (device,) = backend.devices()
        locks: tuple[contextlib.AbstractContextManager[object], ...] = (
            *(searcher._answers._lock, engine._inbox_lock, engine.ready._lock, ENGINES._lock, ambient._DEFAULT._lock),
            *(lane._LANES._guard, lane.lane_of(device.identity)._lock, store._memory.lock),
            *(backend._lock, *(memory._lock for memory in backend._memories)),
        )

        def ask() -> str:
            with open_searcher(store=store, backends=[backend]) as another:
                return asked(1) + blocking(searcher, 2) + blocking(another, 1)

        with held(*locks):
            assert in_child(ask) == FAST * 3


async def test_a_directory_serves_parent_and_child(tmp_path: Path) -> None:
    """The connection is not copied: SQLite in the child would take the parent's locks for its own."""
    backends = [scripted(*some_ops(4))]
    async with open_searcher(store=tmp_path, backends=backends) as searcher:
        await searcher.select(some_op(0))

        def ask() -> str:
            with open_searcher(store=DirectoryStore(tmp_path), backends=backends) as another:
                another.select_many_blocking(some_ops(2), timeout_s=15)
                blocking(searcher, 2)
                engine = another.statistics().engine
            return f"{engine.store_hits} {engine.searched} {engine.not_kept} {len(directories._LEFT_BEHIND)}"

        assert in_child(ask) == "1 1 0 0"
        await searcher.select_many(some_ops(4))
        engine = searcher.statistics().engine
        assert (engine.store_hits, engine.searched, engine.not_kept, engine.store_trouble) == (2, 2, 0, None)
    with contextlib.closing(sqlite3.connect(tmp_path / "cache.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_store_that_is_busy_at_the_fork_is_left_to_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "WAIT_S", 0.05)
    store = DirectoryStore(tmp_path)
    gate = Gate()
    async with open_searcher(store=store, backends=[scripted(*some_ops(2))]) as searcher:
        await searcher.select(some_op(0))
        gate.close()
        assert store._room is not None
        store._room.thread.post(gate.pass_through)
        assert await asyncio.to_thread(gate.reached.wait, 20)

        def ask() -> str:
            return blocking(searcher, 1) + " " + str(searcher.statistics().engine.store_trouble)

        text = in_child(ask)
        assert text.startswith(FAST)
        assert "forked" in text
        gate.open()
        assert (await searcher.select(some_op(1))).algorithm == FAST
        assert searcher.statistics().engine.not_kept == 0


class _SlowToFind(SimulatedBackend):
    """Its devices are found when the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def devices(self) -> tuple[Device, ...]:
        self.gate.pass_through()
        return super().devices()


async def test_a_fork_waits_for_what_is_being_opened() -> None:
    """A module that is half imported in the parent would never be whole in the child."""
    backend = _SlowToFind()
    backend.gate.close()
    order: list[str] = []

    def release() -> None:
        order.append("opened")
        backend.gate.open()

    opening = open_searcher(store="memory:", backends=[backend])
    entering = asyncio.create_task(opening.__aenter__())
    assert await asyncio.to_thread(backend.gate.reached.wait, 20)
    threading.Timer(0.05, release).start()
    assert in_child(lambda: len(order)) == "1"
    assert (await (await entering).select(some_op())).algorithm
    await opening.__aexit__(None, None, None)


async def test_a_fork_waits_for_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "WAIT_S", 0.05)
    backend = _SlowToFind()
    backend.gate.close()
    opening = open_searcher(store="memory:", backends=[backend])
    entering = asyncio.create_task(opening.__aenter__())
    assert await asyncio.to_thread(backend.gate.reached.wait, 20)

    def ask() -> str:
        with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
            return blocking(searcher, 0)

    assert in_child(ask) == FAST
    backend.gate.open()
    await entering
    await opening.__aexit__(None, None, None)


def _work(pipe: Connection) -> None:
    pipe.send(asked(1))
    pipe.close()


async def test_multiprocessing_with_the_fork_method() -> None:
    context = multiprocessing.get_context("fork")
    async with open_searcher(store="memory:", backends=[scripted(*some_ops(2))]):
        await select_algo(some_op(0))
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(there,))
        process.start()
        there.close()
        assert await asyncio.to_thread(here.poll, 20)
        assert here.recv() == FAST
        await asyncio.to_thread(process.join, 20)
        assert process.exitcode == 0
