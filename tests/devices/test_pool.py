"""The pool: who is opened, and whose turn it is."""

from __future__ import annotations

import anyio
import pytest

from algosearch.backends.simulated import DeviceScript, Script, SimulatedBackend, TraceEvent
from algosearch.devices.pool import IN_HAND, Pool
from algosearch.errors import DeviceUnavailable


class Who:
    """Somebody in the queue."""

    def __init__(self, name: str, awaited: int = 0) -> None:
        self.name = name
        self.awaited = awaited


async def test_asked_by_many_at_once_each_device_is_opened_once() -> None:
    trace: list[TraceEvent] = []
    backend = SimulatedBackend(trace=trace)
    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks)

        done = anyio.Event()

        async def ask() -> None:
            async with pool.turn(Who("x")):
                await done.wait()

        async with anyio.create_task_group() as askers:
            for _ in range(4 * IN_HAND):
                askers.start_soon(ask)
            for _ in range(3):  # until the device is open and the first ones have their turn
                await pool.environment()
                await anyio.wait_all_tasks_blocked()
            done.set()
        await pool.aclose()
    assert [event.call for event in trace].count("open") == 1


async def test_more_devices_are_opened_only_when_there_is_work_for_them() -> None:
    trace: list[TraceEvent] = []
    backend = SimulatedBackend(devices=4, trace=trace)
    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks)
        await pool.environment()
        assert [event.call for event in trace].count("open") == 1
        async with anyio.create_task_group() as askers:
            done = anyio.Event()

            async def hold() -> None:
                async with pool.turn(Who("x")):
                    await done.wait()

            for _ in range(4 * IN_HAND):
                askers.start_soon(hold)
            with anyio.fail_after(20):
                while [event.call for event in trace].count("open") < 4:
                    await anyio.sleep(0.001)
            done.set()
        await pool.aclose()


async def test_a_pool_that_cannot_be_opened_is_tried_again() -> None:
    backend = SimulatedBackend(Script(devices=(DeviceScript(unavailable="asleep"),)))
    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks)
        for _ in range(2):
            with pytest.raises(DeviceUnavailable):
                await pool.environment()
        await pool.aclose()


async def test_turns_go_to_the_most_awaited_then_to_the_oldest_and_a_cancelled_one_passes_on() -> None:
    backend = SimulatedBackend()
    order: list[str] = []
    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks)
        await pool.environment()
        release = anyio.Event()

        async def hold() -> None:
            async with pool.turn(Who("holder")):
                await release.wait()

        async def go(who: Who, scope: anyio.CancelScope) -> None:
            with scope:
                async with pool.turn(who):
                    order.append(who.name)

        scopes = {name: anyio.CancelScope() for name in "abcdefg"}
        awaited = {"c": 2, "e": 5, "f": 5, "g": 9}
        async with anyio.create_task_group() as askers:
            for _ in range(IN_HAND):
                askers.start_soon(hold)
            await anyio.wait_all_tasks_blocked()
            for name, scope in scopes.items():
                askers.start_soon(go, Who(name, awaited.get(name, 0)), scope)
            await anyio.wait_all_tasks_blocked()
            scopes["g"].cancel()
            await anyio.wait_all_tasks_blocked()
            release.set()
        await pool.aclose()
    assert order == ["e", "f", "c", "a", "b", "d"]
