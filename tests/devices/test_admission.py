"""Who waits for a lock gets it, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

from algosearch.devices.admission import Admission
from tests.devices.helpers import LIMIT_S

Enter = Callable[[], AbstractAsyncContextManager[Any]]


def of_admission() -> Enter:
    admission = Admission()
    return lambda: admission.admitted(alone=True)


def of_lock() -> Enter:
    lock = anyio.Lock()
    return lambda: lock


LOCKS = pytest.mark.parametrize("make", [of_admission, of_lock])


@LOCKS
async def test_a_waiter_cancelled_in_the_turn_of_the_release_holds_nobody_up(make: Callable[[], Enter]) -> None:
    """C17, C18: the owner lets go in the turn in which the only waiter is cancelled, and a newcomer queues."""
    enter = make()
    got: list[str] = []

    async def wait(name: str) -> None:
        async with enter():
            got.append(name)

    async with asyncio.timeout(LIMIT_S):
        async with enter():
            first = asyncio.create_task(wait("first"))
            await asyncio.sleep(0)
            second = asyncio.create_task(wait("second"))
            first.cancel()
        await second
        await asyncio.gather(first, return_exceptions=True)
        async with enter():
            assert got[-1] == "second"


@LOCKS
@pytest.mark.parametrize("seed", range(20))
async def test_cancelled_at_random_nobody_waits_for_nobody(make: Callable[[], Enter], seed: int) -> None:
    """C17, C18: one at a time, and whoever is not cancelled gets in."""
    enter, dice = make(), random.Random(seed)
    inside = 0

    async def work(turns: int) -> None:
        nonlocal inside
        async with enter():
            inside += 1
            assert inside == 1
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
            finally:
                inside -= 1

    tasks: list[asyncio.Task[None]] = []
    doomed: set[asyncio.Task[None]] = set()
    async with asyncio.timeout(LIMIT_S):
        for _ in range(300):
            tasks.append(asyncio.create_task(work(dice.randrange(3))))
            for _ in range(dice.randrange(3)):
                await asyncio.sleep(0)
            if dice.random() < 0.5:
                doomed.add(task := dice.choice(tasks))
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for task, outcome in zip(tasks, outcomes, strict=True):
        assert outcome is None or (task in doomed and isinstance(outcome, asyncio.CancelledError))
    assert inside == 0
