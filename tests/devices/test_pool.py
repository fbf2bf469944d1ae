"""The pool: who is opened, and whose turn it is."""

from __future__ import annotations

import itertools

import anyio
import pytest

from algosearch.backends import Device, Session
from algosearch.backends.simulated import DeviceScript, Script, SimulatedBackend, SimulatedSession, TraceEvent
from algosearch.devices import turn as turns
from algosearch.devices.places import IN_HAND, IN_HAND_OF_A_CHILD
from algosearch.devices.pool import MOST_LET_GO, Pool, Turn
from algosearch.devices.turn import Line, Sorting
from algosearch.devices.worker import Found, WorkerRules
from algosearch.errors import DeviceUnavailable
from algosearch.records import Burst, Failure, Policy
from tests.devices.helpers import LIMIT_S, some_op


class Who:
    """Somebody in the queue."""

    def __init__(self, name: str, awaited: int = 0, *, is_dear: bool = False, stands_back: bool = False) -> None:
        self.name = name
        self.awaited = awaited
        self.precedence = (0, b"")
        self.is_dear = is_dear or stands_back
        self.stands_back = stands_back


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
    """C18."""
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


class Broken(SimulatedBackend):
    """Some devices are broken for good: whatever runs there fails."""

    def __init__(self, *, devices: int, broken: set[int], trace: list[TraceEvent] | None = None) -> None:
        super().__init__(devices=devices, trace=trace)
        self._broken = broken

    def open(self, device: Device) -> SimulatedSession:
        session = super().open(device)
        if device.ordinal in self._broken:
            sick = Failure("launch_failed", "it fell off the bus", (("device", device.name),))

            def launch(plan: int, limit_us: float | None) -> Burst | Failure:
                return sick

            session.launch = launch  # type: ignore[method-assign]
            session.healthy = lambda: sick  # type: ignore[method-assign]
        assert isinstance(session, Session)
        return session


async def search_many(pool: Pool, keys: int) -> list[Found | DeviceUnavailable]:
    """As many searches at once; what each brought."""
    brought: list[Found | DeviceUnavailable] = []

    async def one(n: int) -> None:
        try:
            async with pool.turn(Who(str(n))) as turn:
                listing = await turn.enumerate(some_op(n), None)
                brought.append(await turn.search(some_op(n), listing, policies=(Policy(),), mode="race"))
        except DeviceUnavailable as error:
            brought.append(error)

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as askers:
            for n in range(keys):
                askers.start_soon(one, n)
    return brought


async def test_the_pool_goes_on_without_a_device_that_was_set_aside() -> None:
    trace: list[TraceEvent] = []
    backend = Broken(devices=2, broken={0}, trace=trace)
    rules = WorkerRules(most_breaks=3, wait_s=0.0)
    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks, rules=rules)
        try:
            brought = await search_many(pool, 12)
            assert all(isinstance(each, Found) for each in brought)
            assert len(brought) == 12
            for each in brought:
                assert isinstance(each, Found)
                assert all(trial.failure is None for trial in each.trials), "nobody is blamed for the device"
            opened = [event.device for event in trace if event.call == "open"]
            assert opened.count("simulated:0") == 3
            assert (await pool.enumerate(some_op(1), 1)).candidates
        finally:
            await pool.aclose()


async def test_when_the_last_device_is_set_aside_everybody_hears_why() -> None:
    backend = Broken(devices=2, broken={0, 1})
    rules = WorkerRules(most_breaks=3, wait_s=0.0)
    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks, rules=rules)
        try:
            brought = await search_many(pool, 12)
            assert len(brought) == 12
            for each in (*brought, *await search_many(pool, 1)):
                assert isinstance(each, DeviceUnavailable)
                assert "it fell off the bus" in each.reason
            with pytest.raises(DeviceUnavailable):
                await pool.enumerate(some_op(1), 1)
        finally:
            await pool.aclose()


@pytest.mark.parametrize("rivals", [True, False])
async def test_where_others_may_take_what_queues_a_device_holds_less_in_the_end(rivals: bool) -> None:
    backend = SimulatedBackend()
    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks, isolation="process", rivals=lambda: rivals)
        await pool.environment()
        held: list[Turn] = []

        def call(turn: Turn) -> bool:
            held.append(turn)
            return True

        most = []
        for n in range(30):
            pool.line_up(Who(str(n)), call)
        for _ in range(30):
            most.append(len(held))
            pool.give_back(held.pop(0))
        await pool.aclose()
    full, low = (IN_HAND_OF_A_CHILD, IN_HAND) if rivals else (IN_HAND_OF_A_CHILD, IN_HAND_OF_A_CHILD)
    assert most[:3] == [full] * 3
    assert most[15:27] == [low] * 12 if rivals else most[15:25] == [low] * 10
    assert most[-1] == 1, "all of it was done"


@pytest.mark.parametrize("awaited", [0, 1])
async def test_who_stands_back_has_a_turn_however_many_others_come(awaited: int) -> None:
    """Somebody asks for the next one whenever one is done, and each tenth of those is dear: there is always one before
    them."""
    backend = SimulatedBackend()
    order: list[str] = []
    held: list[Turn] = []

    def call(turn: Turn) -> bool:
        assert isinstance(turn.who, Who)
        order.append(turn.who.name)
        held.append(turn)
        return True

    async with anyio.create_task_group() as tasks:
        pool = Pool(backend, backend.devices(), tasks)
        await pool.environment()
        for n in range(4 * IN_HAND):
            pool.line_up(Who("other", awaited, is_dear=n % 10 == 9), call)
        for n in range(3):
            pool.line_up(Who(f"patient {n}", stands_back=True), call)
        for n in itertools.count():
            if len(order) >= 3 * MOST_LET_GO:
                break
            pool.line_up(Who("other", awaited, is_dear=n % 10 == 9), call)
            pool.give_back(held.pop(0))
        await pool.aclose()
    turns = [turn for turn, name in enumerate(order) if name != "other"]
    assert [order[turn] for turn in turns] == ["patient 0", "patient 1"]
    assert all(later - turn >= MOST_LET_GO for turn, later in itertools.pairwise([0, *turns]))


class Nobodys:
    """Places that nobody is given."""

    async def take(self, turn: Turn) -> None:
        raise AssertionError

    def give_back(self, turn: Turn) -> None:
        raise AssertionError


def _line(monkeypatch: pytest.MonkeyPatch, length: int) -> tuple[Line, list[Who]]:
    """One that was just sorted, by a clock that goes on by a second whenever somebody looks."""
    seconds = itertools.count()
    monkeypatch.setattr(turns, "perf_counter", lambda: float(next(seconds)))
    line, everybody = Line(Sorting()), [Who(str(n)) for n in range(length)]
    for who in everybody:
        line.append(Turn(Nobodys(), who))
    assert line.first() is not None
    return line, everybody


def test_who_is_awaited_comes_soon_although_thousands_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when so many have gone that the line is sorted anyway."""
    line, everybody = _line(monkeypatch, 4000)
    everybody[-1].awaited = 1
    before = 0
    while (turn := line.first()) is not None and turn.who is not everybody[-1]:
        line.remove(turn)
        before += 1
    assert before <= 21


def test_hundreds_of_lines_are_sorted_no_more_often_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one process: short ones too, which are sorted for each turn."""
    now_s = 0.0
    sorting = Sorting()
    monkeypatch.setattr(turns, "perf_counter", lambda: now_s)
    with sorting.timed():
        now_s = 1.0
    with sorting.timed():
        now_s = 1.001
    assert not sorting.is_due
    now_s = 20.9
    assert not sorting.is_due
    now_s = 21.1
    assert sorting.is_due


def test_a_line_keeps_its_order_whoever_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    line, everybody = _line(monkeypatch, 500)
    left = line.emptied()
    assert [turn.who for turn in left] == everybody
    assert line.first() is None
    for turn in left:
        line.append(turn)
    for turn in left[::3]:
        line.remove(turn)
        line.remove(turn)  # harmless
    for expected in [turn for n, turn in enumerate(left) if n % 3]:
        assert line.first() is expected
        line.remove(expected)
    assert not len(line)
