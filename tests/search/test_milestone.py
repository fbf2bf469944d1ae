"""`Milestone`: once, for many waiters in many loops and threads."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
import traceback
from typing import Any

import pytest

from algosearch import Policy
from algosearch.errors import NotCached
from algosearch.search.answers import Answers
from algosearch.search.milestone import Milestone, gathering, happens_within, wait_for_all
from tests.cancelling import cancel_at_every_suspension
from tests.search.helpers import some_op


async def test_a_value_reaches_every_waiter() -> None:
    milestone: Milestone[int] = Milestone()
    waiters = [asyncio.create_task(milestone.wait()) for _ in range(10)]
    await asyncio.sleep(0)
    assert milestone.waiting == 10
    assert milestone.set(7)
    assert await asyncio.gather(*waiters) == [7] * 10
    assert milestone.waiting == 0


async def test_it_happens_once() -> None:
    milestone: Milestone[int] = Milestone()
    assert milestone.set(1)
    assert not milestone.set(2)
    assert not milestone.fail(NotCached("it", "why"))
    assert await milestone.wait() == 1


async def test_waiting_for_what_has_happened_is_no_checkpoint() -> None:
    milestone: Milestone[int] = Milestone()
    milestone.set(3)
    with pytest.raises(StopIteration) as end:
        milestone.wait().send(None)
    assert end.value.value == 3


async def test_each_waiter_gets_an_error_of_its_own() -> None:
    milestone: Milestone[int] = Milestone()
    waiters = [asyncio.create_task(milestone.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    milestone.fail(NotCached("it", "why"))
    errors = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(error) for error in errors] == [NotCached] * 3
    assert len({id(error) for error in errors}) == 3


async def test_tracebacks_do_not_grow_with_repeats() -> None:
    milestone: Milestone[int] = Milestone()
    milestone.fail(NotCached("it", "why"))
    depths = []
    for _ in range(5):
        with pytest.raises(NotCached) as caught:
            await milestone.wait()
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(set(depths)) == 1


async def test_an_error_that_nobody_awaits_is_silent() -> None:
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    milestone: Milestone[int] = Milestone()
    waiter = asyncio.create_task(milestone.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait([waiter])
    milestone.fail(NotCached("it", "why"))
    del milestone, waiter
    gc.collect()
    await asyncio.sleep(0)
    assert heard == []


async def test_a_cancelled_waiter_disturbs_nobody() -> None:
    milestone: Milestone[int] = Milestone()
    stays, leaves = asyncio.create_task(milestone.wait()), asyncio.create_task(milestone.wait())
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait([leaves])
    assert milestone.waiting == 1
    milestone.set(1)
    assert await stays == 1


async def test_cancelled_at_every_suspension() -> None:
    milestone: Milestone[int] = Milestone()

    async def scenario() -> None:
        asyncio.get_running_loop().call_soon(milestone.set, 1)
        await milestone.wait()

    async def check(cancelled: bool) -> None:
        nonlocal milestone
        await asyncio.sleep(0)
        assert milestone.waiting == 0
        milestone = Milestone()

    assert await cancel_at_every_suspension(scenario, check) == 1


def test_waiters_of_several_loops_and_a_blocked_thread() -> None:
    milestone: Milestone[int] = Milestone()
    ready = threading.Barrier(4)
    got: list[int] = []

    async def in_a_loop() -> None:
        tasks = [asyncio.create_task(milestone.wait()) for _ in range(5)]
        await asyncio.sleep(0)
        ready.wait()
        got.extend(await asyncio.gather(*tasks))

    def blocked() -> None:
        ready.wait()
        if milestone.wait_blocking(10):
            got.append(milestone.result())

    threads = [threading.Thread(target=lambda: asyncio.run(in_a_loop())) for _ in range(2)]
    threads.append(threading.Thread(target=blocked))
    for thread in threads:
        thread.start()
    ready.wait()
    milestone.set(4)
    for thread in threads:
        thread.join(10)
    assert got == [4] * 11


async def test_a_callback_is_called_once_however_often_it_is_given_and_not_once_it_is_taken_back() -> None:
    loop = asyncio.get_running_loop()
    for others in range(3):
        milestone: Milestone[int] = Milestone()
        called: list[str] = []
        callbacks = [functools.partial(called.append, name) for name in ("kept", "taken back", "a", "b")[: 2 + others]]
        for callback in (*callbacks, *callbacks):
            milestone.call_when_happened(loop, callback)
        assert milestone.waiting == len(callbacks)
        for _ in range(2):
            milestone.forget(callbacks[1])
        assert milestone.waiting == len(callbacks) - 1
        milestone.set(1)
        assert milestone.waiting == 0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert called == ["kept", "a", "b"][: 1 + others]


async def test_one_callback_that_was_taken_back_makes_way_for_another() -> None:
    loop = asyncio.get_running_loop()
    milestone: Milestone[int] = Milestone()
    called: list[str] = []
    first, second = functools.partial(called.append, "first"), functools.partial(called.append, "second")
    milestone.call_when_happened(loop, first)
    milestone.forget(second)
    assert milestone.waiting == 1
    milestone.forget(first)
    assert milestone.waiting == 0
    milestone.call_when_happened(loop, second)
    milestone.set(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert called == ["second"]


def test_a_loop_that_was_closed_with_its_waiters_is_no_trouble() -> None:
    milestone: Milestone[int] = Milestone()
    loop = asyncio.new_event_loop()
    milestone.call_when_happened(loop, lambda: None)
    loop.close()
    assert milestone.set(1)


def test_waiting_in_a_thread_gives_up_after_the_timeout() -> None:
    milestone: Milestone[int] = Milestone()
    assert not milestone.wait_blocking(0.001)
    assert milestone.waiting == 0


async def test_waiting_for_all_ends_with_the_last() -> None:
    milestones: list[Milestone[int]] = [Milestone() for _ in range(5)]
    waiter = asyncio.create_task(wait_for_all(milestones))
    for milestone in milestones:
        await asyncio.sleep(0)
        assert not waiter.done()
        milestone.set(1)
    await waiter


async def test_waiting_for_all_cancelled_forgets_them_all() -> None:
    milestones: list[Milestone[int]] = [Milestone() for _ in range(5)]
    waiter = asyncio.create_task(wait_for_all(milestones))
    await asyncio.sleep(0)
    assert [milestone.waiting for milestone in milestones] == [1] * 5
    waiter.cancel()
    await asyncio.wait([waiter])
    assert [milestone.waiting for milestone in milestones] == [0] * 5


async def test_happens_within() -> None:
    milestone: Milestone[int] = Milestone()
    assert not await happens_within(milestone, 0)
    assert milestone.waiting == 0
    milestone.fail(NotCached("it", "why"))
    assert await happens_within(milestone, 0)


def leave_a_waiter_behind(closed: threading.Event) -> threading.RLock:
    """Its loop is closed without it, so that whoever collects it closes it; the lock that it takes then."""
    (inquiry,), _ = Answers("race", Policy()).join([some_op()], (None, None, None))
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        try:
            await inquiry.answered.wait()
        finally:
            closed.set()

    async def begin() -> None:
        waiting.append(asyncio.ensure_future(wait()))
        await asyncio.sleep(0)

    waiting: list[asyncio.Task[None]] = []
    loop.run_until_complete(begin())
    loop.close()
    waiting[0]._log_destroy_pending = False  # type: ignore[attr-defined]
    return inquiry._lock


def test_a_waiter_may_be_collected_while_the_lock_is_held_that_it_shares() -> None:
    """As by a collection that begins while another milestone is given a waiter."""
    closed = threading.Event()

    def collect() -> None:
        lock = leave_a_waiter_behind(closed)
        assert not closed.is_set()
        with lock:
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    gc.disable()
    try:
        thread.start()
        thread.join(10.0)
    finally:
        gc.enable()
    assert not thread.is_alive(), "it waits for what it holds itself"
    assert closed.is_set()


def test_what_happens_once_a_gathering_loop_was_closed_in_mid_turn_wakes_at_once() -> None:
    milestone: Milestone[int] = Milestone()

    async def waits() -> int:
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, milestone.set, 7)  # when it is waited for
        return await asyncio.wait_for(milestone.wait(), 20)

    with contextlib.ExitStack() as stack:
        broken = asyncio.new_event_loop()
        broken.call_soon(lambda: stack.enter_context(gathering()))
        broken.run_until_complete(asyncio.sleep(0))
        broken.close()
        assert asyncio.run(waits()) == 7
