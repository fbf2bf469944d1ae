"""A worker whose device is in this process: the contract, and which thread does what."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from algosearch.backends.simulated import Fault, SimulatedBackend, TraceEvent
from algosearch.backends.simulated.session import SimulatedSession
from algosearch.devices import places
from algosearch.devices.places import IN_HAND, IN_HAND_OF_A_CHILD, MOST_IN_HAND
from algosearch.devices.trip import Trip
from algosearch.devices.worker import SearchStopped, Worker
from algosearch.devices.yardstick import Yardstick
from algosearch.records import Burst, Failure
from tests.devices.contract import WorkerContract
from tests.devices.helpers import OP, algorithm, by_name, candidate, opened, script_of, search
from tests.search.gated import GatedBackend


class TestThreadWorker(WorkerContract):
    isolation = "thread"


async def test_preparing_and_timing_each_keep_to_a_thread_of_their_own() -> None:
    """C23."""
    trace: list[TraceEvent] = []
    backend = SimulatedBackend(script_of(candidate("a", 10.0), candidate("b", 20.0)), trace=trace)
    async with opened(backend, "thread") as worker:
        await search(worker)
    prepare = {event.thread for event in trace if event.call in ("open", "enumerate", "build")}
    lane = {event.thread for event in trace if event.call in ("load", "launch", "time", "check", "unload", "close")}
    assert (prepare, lane) == ({"algosearch-prepare-simulated:0"}, {"algosearch-lane-simulated:0"})


async def test_the_lane_says_what_it_is_about_to_launch_and_waits() -> None:
    trace: list[TraceEvent] = []
    said: list[tuple[str, str, list[str]]] = []

    def on_launch(name: str) -> None:
        launched = [event.algorithm for event in trace if event.call == "launch"]
        said.append((name, threading.current_thread().name, launched))

    backend = SimulatedBackend(script_of(candidate("a", 10.0), candidate("b", 50.0)), trace=trace)
    async with opened(backend, "thread") as worker:
        await search(worker, on_launch=on_launch)
    lane = "algosearch-lane-simulated:0"
    assert said == [(algorithm("a"), lane, []), (algorithm("b"), lane, [algorithm("a")])]


async def test_a_workspace_that_somebody_else_had() -> None:
    """E14: the memory was gone at that moment only, and the candidate is not lost for it."""
    inner = SimulatedBackend(
        script_of(candidate("large", 20.0, workspace_bytes=1 << 29), candidate("small", 50.0), memory_bytes=1 << 30)
    )
    other = inner.open(inner.devices()[0])
    backend = GatedBackend(inner)
    calls: list[str] = []

    def before(call: str, subject: object) -> None:
        if call == "load" and "load" not in calls:
            assert other.load(OP, 1 << 29) is None
        if call == "unload" and "unload" not in calls:
            other.unload()
        calls.append(call)

    backend.before = before
    async with opened(backend, "thread") as worker:
        trials = by_name(await search(worker))
    assert calls.count("load") == 3, "in vain, without it, and once more with it"
    assert trials["large"].failure is None
    assert trials["large"].time_us == pytest.approx(20.0)
    assert trials["small"].failure is None


async def test_nobody_is_blamed_for_a_round_of_which_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose runs are queued one behind the other: then it is not known whose run it was."""
    time = SimulatedSession.time

    def all_or_none(
        session: SimulatedSession, bursts: Sequence[tuple[int, int]], limit_us: float | None
    ) -> tuple[Burst | Failure, ...]:
        outcomes = time(session, bursts, limit_us)
        sick = session.healthy()
        return outcomes if sick is None else (sick,) * len(bursts)

    monkeypatch.setattr(SimulatedSession, "time", all_or_none)
    trace: list[TraceEvent] = []
    bad = candidate("bad", 20.0, Fault(at="time", does="poisons"))
    script = script_of(candidate("good", 19.0), bad, candidate("better", 10.0))
    async with opened(SimulatedBackend(script, trace=trace), "thread") as worker:
        trials = by_name(await search(worker))
    assert trials["bad"].failure is not None
    assert trials["bad"].failure.kind == "launch_failed"
    assert trials["good"].failure is trials["better"].failure is None
    assert [event.call for event in trace].count("open") == 3, "for it, and for it alone"


async def test_who_is_checked_is_not_blamed_for_whom_it_is_held_against(monkeypatch: pytest.MonkeyPatch) -> None:
    check = SimulatedSession.check

    def both(session: SimulatedSession, plan: int, against: int | None) -> Failure | None:
        """As on a GPU, where the other one is run first."""
        if against is not None and (failure := check(session, against, None)) is not None:
            return failure
        return check(session, plan, None)

    monkeypatch.setattr(SimulatedSession, "check", both)
    trace: list[TraceEvent] = []
    bad = candidate("bad", 20.0, Fault(at="check", does="poisons"))
    script = script_of(bad, candidate("better", 10.0))
    async with opened(SimulatedBackend(script, trace=trace), "thread") as worker:
        trials = by_name(await search(worker))
    checked = [event.algorithm for event in trace if event.call == "check"]
    assert [name.rpartition(":")[2] for name in checked] == ["bad", "better"]
    assert trials["better"].failure is None
    assert [event.call for event in trace].count("open") == 2


async def test_a_child_holds_more_keys_the_shorter_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "COVERED_S", 3.0)  # then a short one may take 0.25 s, on a busy machine
    for build_us, in_hand in ((1.0, MOST_IN_HAND), (1e6, IN_HAND_OF_A_CHILD)):
        script = script_of(candidate("a", 10.0, build_us=build_us))
        async with opened(SimulatedBackend(script, pace="real"), "process") as worker:
            assert worker.in_hand == IN_HAND_OF_A_CHILD
            await search(worker)
            assert worker.in_hand == in_hand
    async with opened(SimulatedBackend(script_of(candidate("a", 10.0))), "thread") as worker:
        await search(worker)
        assert worker.in_hand == IN_HAND


async def test_two_workers_of_one_device_never_time_at_once() -> None:
    """Whatever engine owns them: the lane belongs to the physical device."""
    backend = GatedBackend(SimulatedBackend(script_of(candidate("a", 100.0), candidate("b", 101.0))))
    inside, most = 0, 0
    lock = threading.Lock()

    def before(call: str, subject: object) -> None:
        nonlocal inside, most
        if call == "load":
            with lock:
                inside += 1
                most = max(most, inside)
        elif call == "unload":
            with lock:
                inside -= 1

    backend.before = before

    async def work() -> None:
        async with opened(backend, "thread") as worker:
            await search(worker)

    await asyncio.gather(*(work() for _ in range(4)))
    assert most == 1


async def test_a_cancelled_search_is_given_up_though_its_call_goes_on() -> None:
    inner = SimulatedBackend(script_of(candidate("a", 100.0), candidate("b", 101.0)))
    before = inner.statistics()
    backend = GatedBackend(inner)
    async with opened(backend, "thread") as worker:
        backend.gates["launch"].close()
        task = asyncio.create_task(search(worker))
        assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        backend.gates["launch"].open()
    assert inner.statistics() == before


@pytest.mark.usefixtures("impatient")
async def test_a_call_that_outlives_its_worker_is_left_to_end_by_itself() -> None:
    """Then its session is closed all the same."""
    inner = SimulatedBackend(script_of(candidate("a", 100.0)))
    before = inner.statistics()
    backend = GatedBackend(inner)
    worker = Worker(backend, backend.devices()[0])
    await worker.open()
    backend.gates["launch"].close()
    task = asyncio.create_task(search(worker))
    assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
    await worker.aclose()
    backend.gates["launch"].open()
    with pytest.raises(SearchStopped):
        await task
    for _ in range(2000):
        if inner.statistics() == before:
            break
        await asyncio.sleep(0.005)
    assert inner.statistics() == before


@pytest.mark.parametrize("broken", [(Trip, "_tries_again"), (Yardstick, "note")])
async def test_a_search_that_breaks_behind_its_race_fails(
    broken: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks between the two threads, whoever waits for it is told."""

    def breaks(*of: object) -> None:
        raise ZeroDivisionError

    async with opened(SimulatedBackend(script_of(candidate("a", 10.0))), "thread") as worker:
        with monkeypatch.context() as patched:
            patched.setattr(*broken, breaks)
            with pytest.raises(ZeroDivisionError):
                await search(worker)
        assert (await search(worker)).best_us == pytest.approx(10.0)
