"""`PinnedThread`: the seam between awaiting and blocking."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, BlockingError

from algosearch.pinned import BrokenContract, PinnedThread, is_pinned

LIMIT_S = 20.0


@pytest.fixture
def thread() -> Iterator[PinnedThread]:
    pinned = PinnedThread("test")
    yield pinned
    pinned.stop()
    assert pinned.join(LIMIT_S)


class Hold:
    """A job that says when it has begun, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.done = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.let_go.wait(LIMIT_S)
        self.done.set()
        return "held"


async def begun(hold: Hold) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, hold.begun.wait, LIMIT_S)


async def test_results_and_arguments(thread: PinnedThread, no_blocking: BlockBuster) -> None:
    assert await thread.run(divmod, 7, 3) == (2, 1)
    assert await thread.run(threading.get_ident) == thread.ident != threading.get_ident()


async def test_the_detector_sees_a_blocking_call(no_blocking: BlockBuster) -> None:
    """`join` waits without giving the loop up; so the fixture must object, and the tests that use it mean something."""
    pinned = PinnedThread("test")
    hold = Hold()

    def job() -> None:
        hold()

    try:
        pinned.post(job)
        pinned.stop()
        with pytest.raises(BlockingError):
            pinned.join(0.01)
    finally:
        hold.let_go.set()


async def test_one_at_a_time_in_the_order_posted(thread: PinnedThread) -> None:
    order: list[int] = []
    at_work = threading.Lock()

    def job(number: int) -> int:
        assert at_work.acquire(blocking=False), "two jobs at once"
        order.append(number)
        at_work.release()
        return number

    assert await asyncio.gather(*(thread.run(job, number) for number in range(50))) == list(range(50))
    assert order == list(range(50))


async def test_errors_are_delivered(thread: PinnedThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.run(divmod, 1, 0)
    with pytest.raises(KeyError, match="missing"):
        await thread.run({}.__getitem__, "missing")
    assert await thread.run(divmod, 1, 1) == (1, 0)


async def test_stop_iteration_reaches_the_caller(thread: PinnedThread) -> None:
    """No future can carry one; a caller must not wait for it for ever."""
    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        await asyncio.wait_for(thread.run(next, iter(())), LIMIT_S)
    assert isinstance(caught.value.__cause__, StopIteration)


async def test_cancelled_before_it_begins_it_is_skipped(thread: PinnedThread) -> None:
    hold = Hold()
    ran: list[str] = []
    first = asyncio.create_task(thread.run(hold))
    await begun(hold)
    queued = asyncio.create_task(thread.run(ran.append, "queued"))
    last = asyncio.create_task(thread.run(ran.append, "last"))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    hold.let_go.set()
    assert await first == "held"
    await last
    assert ran == ["last"]


async def test_cancelled_after_it_began_it_finishes(thread: PinnedThread) -> None:
    hold = Hold()
    task = asyncio.create_task(thread.run(hold))
    await begun(hold)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not hold.done.is_set()
    hold.let_go.set()
    assert await thread.run(hold.done.is_set)


async def test_an_error_that_nobody_awaits_any_more_is_dropped(
    thread: PinnedThread, caplog: pytest.LogCaptureFixture
) -> None:
    """The result and the cancellation arrive in one turn of the loop: the cancellation wins, and nothing is logged."""
    done = threading.Event()
    task = asyncio.create_task(thread.run(divmod, 1, 0))
    await asyncio.sleep(0)
    thread.post(done.set)
    assert done.wait(LIMIT_S)  # on purpose without giving the loop up: the error is queued in it by now
    asyncio.get_running_loop().call_soon(task.cancel)
    with caplog.at_level(logging.ERROR, "asyncio"):
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
    assert not caplog.records


async def test_stop_runs_what_was_queued_and_refuses_the_rest() -> None:
    pinned = PinnedThread("stopping")
    hold = Hold()
    ran: list[str] = []
    first = asyncio.create_task(pinned.run(hold))
    await begun(hold)
    queued = asyncio.create_task(pinned.run(ran.append, "queued"))
    await asyncio.sleep(0)
    pinned.stop()
    pinned.stop()
    assert not pinned.post(lambda: ran.append("late"))
    with pytest.raises(RuntimeError, match="the thread stopping was stopped"):
        await pinned.run(ran.append, "late")
    assert not pinned.join(0.0)
    hold.let_go.set()
    await asyncio.gather(first, queued)
    assert pinned.join(LIMIT_S)
    assert ran == ["queued"]


async def test_repr(thread: PinnedThread) -> None:
    hold = Hold()
    task = asyncio.create_task(thread.run(hold))
    await begun(hold)
    thread.post(lambda: None)
    assert repr(thread) == "<PinnedThread test running, 1 queued>"
    hold.let_go.set()
    await task
    thread.stop()
    assert "stopped" in repr(thread)


def test_a_loop_that_closed_is_not_told(thread: PinnedThread) -> None:
    hold = Hold()

    async def leave() -> None:
        task = asyncio.create_task(thread.run(hold))
        await begun(hold)
        task.cancel()

    asyncio.run(leave())
    hold.let_go.set()
    alive: list[bool] = []
    asyncio.run(thread.run(alive.append, True))
    assert alive == [True]


def test_answers_to_several_loops(thread: PinnedThread) -> None:
    answers: dict[int, int] = {}

    async def ask(number: int) -> None:
        for step in range(20):
            assert await thread.run(divmod, number * 100 + step, 100) == (number, step)
        answers[number] = number

    askers = [threading.Thread(target=lambda number=number: asyncio.run(ask(number))) for number in range(3)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(LIMIT_S)
    assert sorted(answers) == [0, 1, 2]


def test_a_job_that_raises_is_reported_and_the_next_one_begins(
    thread: PinnedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    done = threading.Event()

    def broken() -> None:
        raise KeyError("broken")

    assert thread.post(broken)
    assert thread.post(done.set)
    assert done.wait(LIMIT_S)
    (report,) = reported
    assert report.exc_type is KeyError
    assert report.thread is not None
    assert report.thread.ident == thread.ident


async def test_what_a_job_held_is_let_go_of(thread: PinnedThread) -> None:
    class Big:
        def use(self) -> None:
            pass

    big = Big()
    gone = weakref.ref(big)
    await thread.run(big.use)
    await thread.run(lambda: None)  # the thread has taken its next job, and let go of the first
    del big
    assert gone() is None


_HUNG = """
import asyncio, threading
from algosearch.pinned import BrokenContract, PinnedThread, is_pinned

async def main():
    begun = threading.Event()
    task = asyncio.create_task(PinnedThread("hung").run(lambda: (begun.set(), threading.Event().wait())))
    await asyncio.sleep(0)
    begun.wait()
    task.cancel()

asyncio.run(main())
print("left")
"""


def test_a_hung_job_does_not_hold_the_interpreter() -> None:
    # The job never ends: whoever waits for it is not back in time.
    ended = subprocess.run([sys.executable, "-c", _HUNG], capture_output=True, text=True, timeout=50, check=True)
    assert (ended.stdout, ended.stderr) == ("left\n", "")


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_what_ends_a_task_or_a_program_ends_nothing(thread: PinnedThread, error: type[BaseException]) -> None:
    def call() -> None:
        raise error("from a library")

    with pytest.raises(BrokenContract, match=f"it raised {error.__name__}: from a library") as caught:
        await asyncio.wait_for(thread.run(call), LIMIT_S)
    assert type(caught.value.__cause__) is error
    assert await thread.run(divmod, 7, 3) == (2, 1)


async def test_a_pinned_thread_knows_that_it_is_one(thread: PinnedThread) -> None:
    assert await thread.run(is_pinned)
    assert not is_pinned()


def test_an_urgent_job_goes_before_those_that_are_not(thread: PinnedThread) -> None:
    hold, order, done = Hold(), list[str](), threading.Event()

    def held() -> None:
        hold()

    thread.post(held)
    assert hold.begun.wait(LIMIT_S)
    thread.post(lambda: order.append("first"))
    thread.post(lambda: order.append("urgent"), urgent=True)
    thread.post(lambda: order.append("second"))
    thread.post(lambda: order.append("urgent too"), urgent=True)
    thread.post(done.set)
    hold.let_go.set()
    assert done.wait(LIMIT_S)
    assert order == ["urgent", "urgent too", "first", "second"]
