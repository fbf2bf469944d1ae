"""One worker over the simulated device: what a search leaves behind, and what stops it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Fault,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    searches,
)
from algosearch.devices.worker import Found, SearchStopped, Worker
from algosearch.ops import ConvOp, canonical
from algosearch.records import Environment, Failure, Key, Policy, Provenance, Record, Search, Trial, Trials
from tests.search.gated import GatedBackend

OP = canonical(ConvOp(input_shape=(1, 8, 12, 12), filter_shape=(8, 8, 3, 3)))


def candidate(name: str, time_us: float, **more: Any) -> CandidateScript:
    return CandidateScript(algorithm=f"simulated/t:{name}", time_us=time_us, **more)


def backend_with(
    *candidates: CandidateScript, trace: list[TraceEvent] | None = None, **device: Any
) -> SimulatedBackend:
    script = Script(problems=(ProblemScript(op=OP, candidates=candidates),), devices=(DeviceScript(**device),))
    return SimulatedBackend(script, trace=trace)


async def search(backend: SimulatedBackend | GatedBackend) -> Found:
    worker = Worker(backend, backend.devices()[0])
    try:
        await worker.open()
        listing = await worker.enumerate(OP, None)
        return await worker.search(OP, listing, policies=(Policy(),), mode="race")
    finally:
        await worker.aclose()


def record_of(trials: dict[str, Trial]) -> Record:
    origin = Provenance(version="0", found_at_s=0, seconds=0.0)
    found = Search(mode="race", complete=True, trials=Trials.of(trials.values()), provenance=origin)
    return Record(key=Key.of(OP, Environment(backend="simulated", device="d")), searches=(found,))


def by_name(found: Found) -> dict[str, Trial]:
    return {trial.algorithm.rpartition(":")[2]: trial for trial in found.trials}


async def test_a_search_leaves_nothing_behind() -> None:
    backend = backend_with(candidate("a", 100.0), candidate("b", 90.0, workspace_bytes=1 << 20))
    before = backend.statistics()
    found = await search(backend)
    assert by_name(found)["b"].stage == "final"
    assert found.complete
    assert found.seconds > 0
    assert backend.statistics() == before


async def test_out_of_memory_means_fewer_candidates() -> None:
    backend = backend_with(
        candidate("huge", 10.0, workspace_bytes=1 << 40),
        candidate("large", 20.0, workspace_bytes=1 << 35),
        candidate("small", 50.0, workspace_bytes=1 << 10),
        memory_bytes=1 << 30,
    )
    trials = by_name(await search(backend))
    for name in ("huge", "large"):
        failure = trials[name].failure
        assert failure is not None
        assert failure.kind == "out_of_memory"
        assert "free_bytes" in dict(failure.circumstances)
    assert trials["small"].stage == "final"


async def test_not_even_the_tensors_fit() -> None:
    trials = by_name(await search(backend_with(candidate("a", 10.0), memory_bytes=16)))
    assert trials["a"].failure is not None
    assert trials["a"].failure.kind == "out_of_memory"


@pytest.mark.parametrize("at", ["build", "launch", "time"])
async def test_who_found_no_memory_is_tried_again_at_the_end(at: Any) -> None:
    trace: list[TraceEvent] = []
    short = Fault(at=at, does="out_of_memory", times=1)
    backend = backend_with(candidate("short", 10.0, faults=(short,)), candidate("other", 50.0), trace=trace)
    before = backend.statistics()
    trials = by_name(await search(backend))
    assert trials["short"].failure is None
    assert trials["short"].stage == "final"
    assert Policy().pick(record_of(trials)).algorithm == "simulated/t:short"
    assert backend.statistics() == before
    assert searches(trace) == 1


async def test_a_workspace_that_somebody_else_had() -> None:
    """E14: the memory was gone at that moment only, and the candidate is not lost for it."""
    inner = backend_with(
        candidate("large", 20.0, workspace_bytes=1 << 29), candidate("small", 50.0), memory_bytes=1 << 30
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
    trials = by_name(await search(backend))
    assert calls.count("load") == 3, "in vain, without it, and once more with it"
    assert trials["large"].failure is None
    assert trials["large"].time_us == pytest.approx(20.0)
    assert trials["small"].failure is None


async def test_who_finds_no_memory_twice_says_so() -> None:
    short = Fault(at="launch", does="out_of_memory")
    trials = by_name(await search(backend_with(candidate("short", 10.0, faults=(short,)), candidate("other", 50.0))))
    failure = trials["short"].failure
    assert failure is not None
    assert dict(failure.circumstances)["attempts"] == "2"
    assert trials["other"].failure is None


async def test_what_is_known_to_fail_is_not_tried() -> None:
    trace: list[TraceEvent] = []
    backend = backend_with(candidate("a", 10.0), candidate("b", 50.0), trace=trace)
    known = Failure("crashed", "it did", (("processes", "2"),))
    worker = Worker(backend, backend.devices()[0])
    try:
        await worker.open()
        listing = await worker.enumerate(OP, None)
        failed = {"simulated/t:a": known, "simulated/t:unheard_of": known}
        found = await worker.search(OP, listing, policies=(Policy(),), mode="race", failed=failed)
    finally:
        await worker.aclose()
    assert by_name(found)["a"].failure == known
    assert by_name(found)["b"].failure is None
    assert {event.algorithm for event in trace} == {"", "simulated/t:b"}


async def test_the_lane_says_what_it_is_about_to_launch_and_waits() -> None:
    trace: list[TraceEvent] = []
    backend = backend_with(candidate("a", 10.0), candidate("b", 50.0), trace=trace)
    said: list[tuple[str, str, list[str]]] = []

    def on_launch(algorithm: str) -> None:
        launched = [event.algorithm for event in trace if event.call == "launch"]
        said.append((algorithm, threading.current_thread().name, launched))

    worker = Worker(backend, backend.devices()[0])
    assert not worker.survives_crashes
    try:
        await worker.open()
        listing = await worker.enumerate(OP, None)
        await worker.search(OP, listing, policies=(Policy(),), mode="race", on_launch=on_launch)
    finally:
        await worker.aclose()
    lane = "algosearch-lane-simulated:0"
    assert said == [("simulated/t:a", lane, []), ("simulated/t:b", lane, ["simulated/t:a"])]


@pytest.mark.parametrize(
    ("at", "does"),
    [
        ("build", "not_supported"),
        ("build", "build_failed"),
        ("launch", "launch_failed"),
        ("launch", "timed_out"),
        ("time", "launch_failed"),
        ("check", "wrong_result"),
        ("check", "out_of_bounds"),
    ],
)
async def test_a_failed_candidate_is_data(at: Any, does: Any) -> None:
    backend = backend_with(candidate("bad", 10.0, faults=(Fault(at=at, does=does),)), candidate("good", 50.0))
    before = backend.statistics()
    trials = by_name(await search(backend))
    assert trials["bad"].failure is not None
    assert trials["bad"].failure.kind == does
    assert trials["good"].failure is None
    assert backend.statistics() == before


async def test_preparing_and_timing_each_keep_to_a_thread_of_their_own() -> None:
    trace: list[TraceEvent] = []
    await search(backend_with(candidate("a", 10.0), candidate("b", 20.0), trace=trace))
    prepare = {event.thread for event in trace if event.call in ("open", "enumerate", "build")}
    lane = {event.thread for event in trace if event.call in ("load", "launch", "time", "check", "unload", "close")}
    assert (prepare, lane) == ({"algosearch-prepare-simulated:0"}, {"algosearch-lane-simulated:0"})


async def test_two_workers_of_one_device_never_time_at_once() -> None:
    """Whatever engine owns them: the lane belongs to the physical device."""
    inner = backend_with(candidate("a", 100.0), candidate("b", 101.0))
    backend = GatedBackend(inner)
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
    found = await asyncio.gather(*(search(backend) for _ in range(4)))
    assert len(found) == 4
    assert most == 1


async def test_a_cancelled_search_stops_and_gives_its_plans_back() -> None:
    inner = backend_with(candidate("a", 100.0), candidate("b", 101.0))
    before = inner.statistics()
    backend = GatedBackend(inner)
    backend.gates["launch"].close()
    task = asyncio.create_task(search(backend))
    assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
    task.cancel()
    backend.gates["launch"].open()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(2000):
        if inner.statistics() == before:
            break
        await asyncio.sleep(0.005)
    assert inner.statistics() == before


async def test_closing_stops_a_search_between_two_instructions() -> None:
    backend = GatedBackend(backend_with(candidate("a", 100.0), candidate("b", 101.0)))
    worker = Worker(backend, backend.devices()[0])
    await worker.open()
    listing = await worker.enumerate(OP, None)
    backend.gates["launch"].close()
    task = asyncio.create_task(worker.search(OP, listing, policies=(Policy(),), mode="race"))
    assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
    closing = asyncio.create_task(worker.aclose())
    await asyncio.sleep(0)
    backend.gates["launch"].open()
    await closing
    await worker.aclose()
    with pytest.raises(SearchStopped):
        await task
