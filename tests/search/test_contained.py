"""What would end a task, a loop or a program ends nothing when a backend or a store raises it: it is a broken contract,
and everybody who waits hears of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from algosearch import open_searcher
from algosearch.errors import DeviceUnavailable, SearcherClosed, SearchFailed
from algosearch.pinned import BrokenContract
from algosearch.records import Key, Record
from algosearch.search.contained import ContainedStore
from algosearch.search.flight import Flight
from algosearch.search.tower import Tower
from algosearch.stores import MemoryStore
from algosearch.stores.base import Committed, Miss
from tests.search.gated import GatedBackend, RaisesOnce
from tests.search.helpers import FAST, not_before_it_waits, scripted, some_op, some_ops


class _Own(BaseException):
    """Of somebody's own, and no Exception."""


ENDS = [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, _Own]
STOPS = [*ENDS, StopIteration, StopAsyncIteration]


def causes(error: BaseException) -> list[type[BaseException]]:
    """What lies behind an error, nearest first."""
    behind = error.__cause__
    return [] if behind is None else [type(behind), *causes(behind)]


@pytest.mark.parametrize("error", STOPS)
@pytest.mark.parametrize("call", ["open", "enumerate", "build", "load", "launch", "time", "check", "unload"])
async def test_in_a_search(call: str, error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    backend = GatedBackend(scripted(some_op()))
    backend.before = raising = RaisesOnce(call, error("from the backend"))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        asking = [asyncio.create_task(searcher.select(some_op())) for _ in range(5)]
        await asyncio.sleep(0)
        raising.may.set()
        failures = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(failure) for failure in failures] == [SearchFailed] * 5
        for failure in failures:
            assert isinstance(failure, SearchFailed)
            assert causes(failure)[-1] is error
            assert error.__name__ in str(failure)
            assert issubclass(error, Exception) or causes(failure) == [BrokenContract, error]
        if call != "unload":  # else the buffers are still loaded
            assert (await searcher.select(some_op())).algorithm == FAST


@pytest.mark.parametrize("error", STOPS)
@pytest.mark.parametrize("call", ["destroy", "close"])
async def test_when_nobody_waits(call: str, error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    backend = GatedBackend(scripted(*some_ops(2)))
    backend.before = raising = RaisesOnce(call, error("from the backend"))
    raising.may.set()
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        assert (await searcher.select(some_op(0))).algorithm == FAST
        assert (await searcher.select(some_op(1))).algorithm == FAST
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("error", STOPS)
async def test_when_devices_are_looked_for(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    backend = GatedBackend(scripted(some_op()))
    backend.before = raising = RaisesOnce("devices", error("from the backend"))
    raising.may.set()
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        failures = await asyncio.gather(*(searcher.select(some_op()) for _ in range(3)), return_exceptions=True)
        assert [type(failure) for failure in failures] == [DeviceUnavailable] * 3
        assert all(f"looking for its devices broke: {error.__name__}" in str(failure) for failure in failures)
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        assert (await searcher.select(some_op())).algorithm == FAST


class _Raising(MemoryStore):
    """Raises in one of its calls, as often as it is called."""

    def __init__(self, call: str, error: type[BaseException]) -> None:
        super().__init__()
        self._call = call
        self._error = error

    def _come(self, call: str) -> None:
        if call == self._call:
            raise self._error("from the store")

    async def open(self) -> None:
        self._come("open")

    async def aclose(self) -> None:
        self._come("aclose")

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        self._come("get_many")
        return await super().get_many(keys)

    async def commit(self, record: Record, *, after: int) -> Committed:
        self._come("commit")
        return await super().commit(record, after=after)


@pytest.mark.parametrize("error", [each for each in ENDS if each is not GeneratorExit])
@pytest.mark.parametrize("call", ["open", "get_many", "commit", "aclose"])
async def test_in_a_store(call: str, error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """It costs the cached answers, and nobody an answer."""
    store = _Raising(call, error)
    async with open_searcher(store=store, backends=[scripted(*some_ops(3))]) as searcher:
        choices = await searcher.select_many(some_ops(3))
        assert [choice.algorithm for choice in choices] == [FAST] * 3
        engine = searcher.statistics().engine
        assert engine.not_kept == (3 if call == "commit" else 0)
        assert (engine.store_trouble is None) == (call != "open")
        if call == "open":
            assert error.__name__ in str(engine.store_trouble)
    assert any(record.exc_info is not None for record in caplog.records)


class _Misanswering(MemoryStore):
    """Answers what it was not asked."""

    def __init__(self, answers: Any = None, committed: Any = None) -> None:
        super().__init__()
        self._answers = answers
        self._committed = committed

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        return await super().get_many(keys) if self._answers is None else self._answers

    async def commit(self, record: Record, *, after: int) -> Committed:
        return await super().commit(record, after=after) if self._committed is None else self._committed


@pytest.mark.parametrize(
    "store",
    [
        _Misanswering(answers=[]),
        _Misanswering(answers=[None]),
        _Misanswering(answers=5),
        _Misanswering(answers=[Miss("absent", "")] * 2),
        _Misanswering(committed=5),
        _Misanswering(committed=Committed(None, won=True)),  # type: ignore[arg-type]
    ],
)
async def test_a_store_that_answers_something_else(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    async with open_searcher(store=store, backends=[scripted(some_op())]) as searcher:
        assert (await searcher.select(some_op())).algorithm == FAST
    assert any(record.exc_info is not None for record in caplog.records)


class _Detaching(MemoryStore):
    """A task of its own, on the engine's loop, ends the loop."""

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        async def end() -> None:
            raise SystemExit(3)

        self.task = asyncio.create_task(end())
        await asyncio.sleep(60)
        return []


async def test_a_task_of_a_store_that_ends_the_engines_loop(caplog: pytest.LogCaptureFixture) -> None:
    before = set(threading.enumerate())
    store = _Detaching()
    async with open_searcher(store=store, backends=[scripted(some_op())]) as searcher:
        (engine,) = (each for each in {*threading.enumerate()} - before if each.name == "algosearch-engine")
        asking = [asyncio.create_task(searcher.select(some_op())) for _ in range(3)]
        not_before_it_waits(searcher)
        failures = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(failure) for failure in failures] == [SearcherClosed] * 3
        assert all("its engine broke" in str(failure) for failure in failures)
        with pytest.raises(SearcherClosed):
            await searcher.select(some_op())
    await asyncio.to_thread(engine.join, 20)
    assert isinstance(store.task.exception(), SystemExit)
    assert "the engine broke" in caplog.text
    async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        assert (await searcher.select(some_op())).algorithm == FAST


class _DetachingAgain(_Detaching):
    """Another one ends it once more, when it is cancelled; and a third one while the store is closed."""

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        async def end() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                raise SystemExit(4)

        self.again = asyncio.create_task(end())
        await asyncio.sleep(0)
        return await super().get_many(keys)

    async def aclose(self) -> None:
        self.again.cancel()
        await asyncio.wait([self.again])
        await super().aclose()
        self.closed = True


async def test_tasks_of_a_store_that_end_the_engines_loop_again_and_again() -> None:
    store = _DetachingAgain()
    async with open_searcher(store=store, backends=[scripted(some_op())]) as searcher, asyncio.timeout(20):
        failures = await asyncio.gather(*(searcher.select(some_op()) for _ in range(3)), return_exceptions=True)
    assert [type(failure) for failure in failures] == [SearcherClosed] * 3
    assert [type(task.exception()) for task in (store.task, store.again)] == [SystemExit] * 2
    assert store.closed, "what the engine owns is closed all the same"


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_bug_where_questions_are_admitted_fails_them_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_open: bool
) -> None:
    """The device may have to be opened first, and others may have been admitted in the same turn."""
    ops = some_ops(3)
    made: list[Flight] = []

    def flight(*of: Any, **named: Any) -> Flight:
        if len(made) == 1:
            raise AttributeError("a bug")
        made.append(Flight(*of, **named))
        return made[-1]

    async with open_searcher(store="memory:", backends=[scripted(*ops)]) as searcher:
        if is_open:
            await searcher.select(ops[2])
        with monkeypatch.context() as patched:
            patched.setattr("algosearch.search.tower.Flight", flight)
            with pytest.raises(SearchFailed, match="a bug"):
                await searcher.select_many(ops[:2])
            requests = [searcher.request(op) for op in ops[:2]]
            waiting = [wait() for request in requests for wait in (request.choice, request.workspace)]
            failures = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(failure) for failure in failures] == [SearchFailed] * 4
        assert len(made) == 1, "one did not take off, and is not there to be joined"
        assert [choice.algorithm for choice in await searcher.select_many(ops)] == [FAST] * 3
    assert "admitting questions broke" in caplog.text


@pytest.mark.parametrize("broken", ["tower.Tower.admit", "tower.Tower.withdraw", "stillness.Stillness.begin"])
async def test_a_bug_where_what_was_posted_is_taken_leaves_nobody_waiting(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*of: object) -> None:
        raise AttributeError("a bug")

    backend = GatedBackend(scripted(*some_ops(3)))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        await searcher.select(some_op(2))
        engine, go = searcher._engine, threading.Event()
        backend.gates["launch"].close()
        searched = searcher.request(some_op(0))
        assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
        assert engine._loop is not None
        engine._loop.call_soon_threadsafe(go.wait, 20)  # so that all that follows is taken at once
        with monkeypatch.context() as patched:
            patched.setattr(f"algosearch.search.{broken}", breaks)
            searched.withdraw()
            hush, asked = engine.hush(), searcher.request(some_op(1))
            go.set()
            outcomes = await asyncio.gather(asked.choice(), hush.held.wait(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SearcherClosed] * 2
        assert all("as the log says" in str(outcome) for outcome in outcomes)
        engine.resume(hush)
        backend.gates["launch"].open()
        assert (await searcher.select(some_op(1))).algorithm == FAST
    assert "taking what was posted broke" in caplog.text


async def test_a_bug_where_the_next_flight_of_a_key_is_boarded_fails_who_was_to_board_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        first = searcher.request(some_op())
        assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
        later = searcher.request(some_op(), mode="exhaustive")

        def breaks(self: Tower, flights: Sequence[Flight]) -> None:
            raise AttributeError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(Tower, "_take_off", breaks)
            backend.gates["launch"].open()
            assert (await first.choice()).algorithm == FAST
            with pytest.raises(SearchFailed, match="a bug"):
                await later.choice()
        assert (await searcher.select(some_op(), mode="exhaustive")).algorithm == FAST
    assert f"{some_op().describe()} broke" in caplog.text


class _Waiting(MemoryStore):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()
        self.cancelled = False

    async def changes(self) -> bool:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return True


async def test_a_cancellation_that_was_asked_for_passes() -> None:
    store = _Waiting()
    task = asyncio.create_task(ContainedStore(store).changes())
    await store.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.cancelled


async def test_what_was_found_while_a_store_is_full_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Full(MemoryStore):
        async def commit(self, record: Record, *, after: int) -> Committed:
            return Committed(record, won=True, kept=False)

    with caplog.at_level(logging.CRITICAL):
        async with open_searcher(store=Full(), backends=[scripted(*some_ops(2))]) as searcher:
            assert searcher.statistics().engine.not_kept == 0
            await searcher.select_many(some_ops(2))
            assert searcher.statistics().engine.not_kept == 2
