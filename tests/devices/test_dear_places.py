"""What is dear to build queues by itself: in which line, and how much of it a device has in hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from algosearch.backends.simulated import SimulatedBackend
from algosearch.devices.places import DEAR_IN_HAND, IN_HAND
from algosearch.devices.pool import Pool, Turn
from tests.devices.helpers import until
from tests.devices.test_compiling import script
from tests.devices.test_pool import Who


class Waits:
    """Turns that are lined up and hold what they were given."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.called: list[str] = []
        self.turns: dict[str, Turn] = {}

    def line_up(self, name: str, *, awaited: int = 0, is_dear: bool = False, stands_back: bool = False) -> None:
        def call(turn: Turn) -> bool:
            self.called.append(name)
            return True

        self.turns[name] = self._pool.line_up(Who(name, awaited, is_dear=is_dear, stands_back=stands_back), call)

    def give_back(self, *names: str) -> list[str]:
        """Who was called by that."""
        before = len(self.called)
        for name in names:
            self._pool.give_back(self.turns[name])
        return self.called[before:]

    def withdraw(self, name: str) -> None:
        """It waits no more."""
        self._pool.give_back(self.turns[name])


@asynccontextmanager
async def waiting(*, devices: int = 1, rivals: bool = False) -> AsyncIterator[Waits]:
    """At a pool whose first device is open."""
    backend = SimulatedBackend(script(), devices=devices)
    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks, rivals=lambda: rivals)
        await pool.environment()
        yield Waits(pool)
        await pool.aclose()


async def test_dear_keys_have_places_of_their_own_at_once() -> None:
    async with waiting() as waits:
        for n in range(IN_HAND + 2):
            waits.line_up(f"{n}", awaited=1)
        for n in range(DEAR_IN_HAND + 1):
            waits.line_up(f"dear{n}", is_dear=True)
        waits.line_up("patient", stands_back=True)
        assert waits.called[IN_HAND:] == [f"dear{n}" for n in range(DEAR_IN_HAND)], "whoever else queues"
        assert waits.give_back("dear0") == [f"dear{DEAR_IN_HAND}"]
        assert waits.give_back("dear1") == [], "the others queue who are awaited more"
        assert waits.give_back("0", "1") == [f"{IN_HAND}", f"{IN_HAND + 1}", "patient"]


async def test_who_stands_back_comes_last_of_those_awaited_as_much() -> None:
    async with waiting() as waits:
        for n in range(DEAR_IN_HAND + 2):
            waits.line_up(f"dear{n}", stands_back=True)
        assert waits.called == [f"dear{n}" for n in range(DEAR_IN_HAND)]
        for n in range(IN_HAND + 2):
            waits.line_up(f"{n}")
        assert waits.called[DEAR_IN_HAND:] == [f"{n}" for n in range(IN_HAND)], "nobody is in their way"
        assert waits.give_back("dear0") == [], "others queue who are awaited as much, and the device is full"
        waits.line_up("urgent", stands_back=True, awaited=1)
        assert waits.called[-1] == "urgent"
        assert waits.give_back("0") == [f"{IN_HAND}"]
        assert waits.give_back("urgent") == []
        assert waits.give_back("1") == [f"{IN_HAND + 1}", f"dear{DEAR_IN_HAND}"], "when nobody else queues any more"
        assert waits.give_back("2") == []
        waits.withdraw(f"dear{DEAR_IN_HAND + 1}")
        assert waits.give_back("dear1") == []


async def test_who_stands_back_for_others_lets_nobody_go_first_that_is_awaited_less() -> None:
    async with waiting() as waits:
        for n in range(IN_HAND + 1):
            waits.line_up(f"{n}", awaited=2)
        for n in range(DEAR_IN_HAND + 1):
            waits.line_up(f"dear{n}", is_dear=True)
        waits.line_up("patient", stands_back=True, awaited=1)
        assert waits.give_back("dear0") == ["patient"], "one of the dear has that place in any case"
        assert waits.give_back("dear1") == [f"dear{DEAR_IN_HAND}"]


@pytest.mark.parametrize("is_dear", [False, True])
async def test_when_the_others_withdraw_who_stood_back_is_next_at_once(is_dear: bool) -> None:
    async with waiting() as waits:
        for n in range(IN_HAND + 1):
            waits.line_up(f"{n}")
        waits.line_up("patient", stands_back=True)
        if is_dear:
            waits.line_up("dear", is_dear=True)
        assert "patient" not in waits.called
        assert waits.give_back(f"{IN_HAND}") == ["patient"], "it waited for that one"


async def test_each_device_compiles_for_itself() -> None:
    async with waiting(devices=2) as waits:
        for n in range(12):
            waits.line_up(f"{n}", is_dear=True)
        await until(lambda: len(waits.called) == 2 * DEAR_IN_HAND)
        names = [waits.turns[name].device.name for name in waits.called]
        assert names.count("simulated:0") == names.count("simulated:1") == DEAR_IN_HAND


async def test_of_the_last_ones_nobody_has_two_that_others_could_have() -> None:
    async with waiting(rivals=True) as waits:
        for n in range(12):
            waits.line_up(f"{n}", is_dear=True)
        assert waits.called == ["0", "1"]
        assert waits.give_back("0", "1", "2") == ["2", "3", "4"]
        assert waits.give_back("3") == [], "seven are left, of which others take half"
        assert waits.give_back("4") == ["5"]
        for n in range(5, 11):
            assert waits.give_back(f"{n}") == [f"{n + 1}"]
