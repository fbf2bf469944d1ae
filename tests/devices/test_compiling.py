"""What is dear to build: a thread of its own, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from algosearch.backends.simulated import (
    CandidateScript,
    Fault,
    Generated,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    read_trace,
)
from algosearch.devices import places
from algosearch.devices.blame import Blame, whose_fault
from algosearch.devices.job import Deed, Limits, MustCompile, SearchStopped, Side, Step
from algosearch.devices.places import IN_HAND_OF_A_CHILD, MOST_IN_HAND
from algosearch.devices.quiet import Quiet
from algosearch.devices.worker import Worker, WorkerRules
from algosearch.records import Failure, Policy
from algosearch.settings import Isolation
from tests.devices.children import no_child_is_left
from tests.devices.helpers import LIMIT_S, by_name, candidate, counted, kinds, opened, search, some_op, traced, until
from tests.search.gated import Gate, GatedBackend

HANGS, KILLED = Fault(at="build", does="hangs"), Fault(at="launch", does="killed")
BOTH: list[Isolation] = ["thread", "process"]
CHEAP, DEAR, OTHER_DEAR = some_op(0), some_op(1), some_op(2)


def dear(name: str, time_us: float, *faults: Fault, **more: Any) -> CandidateScript:
    return candidate(name, time_us, *faults, notes=("runtime_compiled",), **more)


def script(*of_dear: CandidateScript, **more: Any) -> Script:
    """Two ops that have something dear beside something cheap, and others that have not."""
    candidates = of_dear or (candidate("cheap", 50.0), dear("dear", 20.0))
    problems = (
        ProblemScript(op=CHEAP, candidates=(candidate("cheap", 50.0), candidate("better", 20.0))),
        ProblemScript(op=DEAR, candidates=candidates),
        ProblemScript(op=OTHER_DEAR, candidates=(candidate("cheap", 50.0), dear("other", 20.0))),
    )
    return Script(problems=problems, machine="tests/devices/compiling", generated=Generated(candidates=0), **more)


async def reached(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.reached.wait, LIMIT_S)


def compilers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("algosearch-compile")]


async def test_the_thread_is_made_when_it_is_needed_and_ends_with_the_device() -> None:
    trace: list[TraceEvent] = []
    await until(lambda: not compilers())  # of other tests
    async with opened(SimulatedBackend(script(), trace=trace), "thread") as worker:
        await search(worker, CHEAP)
        assert not compilers()
        assert kinds(await search(worker, DEAR)) == {"cheap": None, "dear": None}
        await search(worker, OTHER_DEAR)
        assert len(compilers()) == 1
    await until(lambda: not compilers())
    built = {event.algorithm.rpartition(":")[2]: event.thread.split("-")[1] for event in trace if event.call == "build"}
    assert built == {"cheap": "prepare", "better": "prepare", "dear": "compile", "other": "compile"}


async def test_others_are_listed_built_and_timed_while_something_is_compiled() -> None:
    backend = GatedBackend(SimulatedBackend(script()))
    async with opened(backend, "thread") as worker:
        backend.gates["compile"].close()
        waits = [asyncio.create_task(search(worker, op)) for op in (DEAR, OTHER_DEAR)]
        await reached(backend.gates["compile"])
        assert kinds(await search(worker, CHEAP)) == {"cheap": None, "better": None}
        assert (await worker.enumerate(OTHER_DEAR, None)).candidates
        assert not any(wait.done() for wait in waits)
        backend.gates["compile"].open()
        assert [by_name(found).keys() for found in await asyncio.gather(*waits)] == [
            {"cheap", "dear"},
            {"cheap", "other"},
        ]


@pytest.mark.parametrize("isolation", BOTH)
async def test_one_after_the_other(isolation: Isolation, tmp_path: Path) -> None:
    slow = script(candidate("cheap", 50.0), *(dear(f"dear{n}", 20.0 + n, build_us=30_000.0) for n in range(3)))
    async with opened(traced(slow, tmp_path / "trace", pace="real"), isolation) as worker:
        founds = await asyncio.gather(*(search(worker, op) for op in (DEAR, OTHER_DEAR, CHEAP)))
    assert [{*kinds(found).values()} for found in founds] == [{None}] * 3
    calls = counted(tmp_path / "trace")
    assert calls["build"] == calls["destroy"] == 8


@pytest.mark.parametrize("isolation", BOTH)
async def test_who_is_not_to_build_what_is_dear_hears_of_it_at_once(isolation: Isolation, tmp_path: Path) -> None:
    """Nothing was built in vain then, and the device is as good as before."""
    listed: list[object] = []
    async with opened(traced(script(), tmp_path / "trace"), isolation) as worker:
        with anyio.fail_after(LIMIT_S), pytest.raises(MustCompile):
            await worker.search(DEAR, None, policies=(Policy(),), mode="race", compiles=False, on_listed=listed.append)
        assert len(listed) == 1
        assert counted(tmp_path / "trace")["build"] == 0
        assert kinds(await search(worker, CHEAP, compiles=False)) == {"cheap": None, "better": None}
        assert kinds(await search(worker, DEAR)) == {"cheap": None, "dear": None}
    assert counted(tmp_path / "trace")["open"] == 1


@pytest.mark.parametrize("isolation", BOTH)
async def test_who_has_lost_a_device_keeps_what_it_learned(isolation: Isolation, tmp_path: Path) -> None:
    """It comes to what is dear by looking further, when somebody has spoilt the device; sent away then, it would begin
    from nothing, and spoil it once more."""
    spoils = candidate("bad", 20.0, Fault(at="launch", does="poisons"))
    better = (dear(f"better{n}", 9.0 - n) for n in range(2))
    problem = ProblemScript(op=DEAR, candidates=(candidate("a", 40.0), spoils, *better), look_at=2)
    backend = traced(Script(problems=(problem,), machine="tests/devices/compiling"), tmp_path / "trace")
    async with opened(backend, isolation) as worker:
        found = await search(worker, DEAR, compiles=False)
    assert kinds(found) == {"a": None, "bad": "launch_failed", "better0": None, "better1": None}
    assert counted(tmp_path / "trace")["open"] == 2


async def test_what_it_cannot_build_costs_itself_alone() -> None:
    bad = dear("dear", 20.0, Fault(at="build", does="build_failed"))
    async with opened(SimulatedBackend(script(candidate("cheap", 50.0), bad)), "thread") as worker:
        assert kinds(await search(worker, DEAR)) == {"cheap": None, "dear": "build_failed"}


async def test_who_finds_no_memory_there_is_tried_again_at_the_end() -> None:
    short = dear("dear", 20.0, Fault(at="build", does="out_of_memory", times=1))
    async with opened(SimulatedBackend(script(candidate("cheap", 50.0), short)), "thread") as worker:
        assert kinds(await search(worker, DEAR)) == {"cheap": None, "dear": None}


async def test_a_broken_contract_there_raises_and_costs_nobody_else() -> None:
    broken = dear("dear", 20.0, Fault(at="build", does="raises", message="as told", times=1))
    async with opened(SimulatedBackend(script(candidate("cheap", 50.0), broken)), "thread") as worker:
        with pytest.raises(RuntimeError, match="as told"):
            await search(worker, DEAR)
        assert kinds(await search(worker, DEAR)) == {"cheap": None, "dear": None}


async def test_what_was_compiled_says_nothing_of_how_long_other_keys_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "COVERED_S", 5.0)  # then a short one may take 0.4 s on a busy machine
    slow = script(candidate("cheap", 50.0), dear("dear", 20.0, build_us=300_000.0))
    async with opened(SimulatedBackend(slow, pace="real"), "process") as worker:
        found = await search(worker, DEAR)
        assert found.is_dear
        assert worker.in_hand == IN_HAND_OF_A_CHILD
        assert not (await search(worker, CHEAP)).is_dear
        assert worker.in_hand == MOST_IN_HAND


# -- stopping, closing, resting --------------------------------------------------------------------------------------


async def test_who_waits_to_be_compiled_can_be_cancelled(tmp_path: Path) -> None:
    backend = GatedBackend(traced(script(), tmp_path / "trace"))
    async with opened(backend, "thread") as worker:
        backend.gates["compile"].close()
        first, second = (asyncio.create_task(search(worker, op)) for op in (DEAR, OTHER_DEAR))
        await reached(backend.gates["compile"])
        await until(lambda: counted(tmp_path / "trace")["build"] == 2)  # what is cheap of both
        second.cancel()
        with anyio.fail_after(LIMIT_S), pytest.raises(asyncio.CancelledError):
            await second
        backend.gates["compile"].open()
        assert kinds(await first) == {"cheap": None, "dear": None}
    calls = counted(tmp_path / "trace")
    assert calls["build"] == calls["destroy"] == 3, "what nobody wants is not compiled"


@pytest.mark.usefixtures("impatient")
async def test_closing_does_not_wait_for_a_compile_and_leaves_nothing_behind() -> None:
    inner = SimulatedBackend(script())
    before = inner.statistics()
    backend = GatedBackend(inner)
    worker = Worker(backend, backend.devices()[0], isolation="thread")
    await worker.open()
    backend.gates["compile"].close()
    tasks = [asyncio.create_task(search(worker, op)) for op in (DEAR, OTHER_DEAR)]
    await reached(backend.gates["compile"])
    with anyio.fail_after(LIMIT_S):
        await worker.aclose()
        assert inner.statistics() != before, "it is still compiling"
        backend.gates["compile"].open()
        for task in tasks:
            with pytest.raises(SearchStopped):
                await task
    await until(lambda: inner.statistics() == before)
    await until(lambda: not compilers())


async def test_nothing_is_compiled_while_it_rests() -> None:
    quiet = Quiet()
    inner = SimulatedBackend(script())
    backend = GatedBackend(inner)
    begun: list[object] = []
    backend.before = lambda call, subject: begun.append(subject) if call == "compile" else None
    async with opened(backend, "thread", quiet=quiet) as worker:
        backend.gates["compile"].close()
        tasks = [asyncio.create_task(search(worker, op)) for op in (DEAR, OTHER_DEAR)]
        await reached(backend.gates["compile"])
        quiet.begin()
        resting = asyncio.create_task(worker.rest())
        with anyio.move_on_after(0.05):  # so long it must not come to rest: something is being compiled
            await asyncio.shield(resting)
        assert not resting.done()
        backend.gates["compile"].open()
        with anyio.fail_after(LIMIT_S):
            await resting
        assert begun == [DEAR]
        assert not any(task.done() for task in tasks)
        quiet.end()
        worker.resume()
        with anyio.fail_after(LIMIT_S):
            await asyncio.gather(*tasks)
    assert begun == [DEAR, OTHER_DEAR]


async def test_it_can_be_closed_while_it_rests_in_the_midst_of_compiling() -> None:
    quiet = Quiet()
    backend = GatedBackend(SimulatedBackend(script()))
    worker = Worker(backend, backend.devices()[0], isolation="thread", quiet=quiet)
    await worker.open()
    backend.gates["compile"].close()
    tasks = [asyncio.create_task(search(worker, op)) for op in (DEAR, OTHER_DEAR)]
    await reached(backend.gates["compile"])
    quiet.begin()
    resting = asyncio.create_task(worker.rest())
    await anyio.wait_all_tasks_blocked()  # from now on nothing begins
    backend.gates["compile"].open()
    with anyio.fail_after(LIMIT_S):
        await resting
        await worker.aclose()
        for task in tasks:
            with pytest.raises(SearchStopped):
                await task
    await until(lambda: not compilers())


# -- in a child process, what does not come back ---------------------------------------------------------------------

# What hangs hangs for a minute; what does not takes a moment, but on a machine that is busy with other tests.
SHORT = WorkerRules(limits=Limits(build_s=3.0), wait_s=0.001)


@pytest.fixture
def nobody_is_left() -> Iterator[None]:
    yield
    no_child_is_left()


@pytest.mark.usefixtures("nobody_is_left")
@pytest.mark.parametrize(("does", "becomes"), [("hangs", "timed_out"), ("killed", "crashed"), ("crashes", "crashed")])
async def test_what_does_not_come_back_costs_itself_and_others_go_on(does: Any, becomes: str, tmp_path: Path) -> None:
    bad = dear("bad", 20.0, Fault(at="build", does=does))
    backend = traced(script(candidate("cheap", 50.0), bad), tmp_path / "trace")
    async with opened(backend, "process", SHORT) as worker:
        first = asyncio.create_task(search(worker, DEAR))
        if does == "hangs":
            await until(lambda: any(event.outcome == "hangs" for event in read_trace(tmp_path / "trace")))
        beside = await asyncio.gather(*(search(worker, op) for op in (CHEAP, OTHER_DEAR)))
        found = await first
    assert kinds(found) == {"cheap": None, "bad": becomes}
    failure = by_name(found)["bad"].failure
    assert failure is not None
    circumstances = dict(failure.circumstances)
    assert circumstances["limit_s"] == "3" if does == "hangs" else circumstances["during"] == "build"
    assert [kinds(each) for each in beside] == [{"cheap": None, "better": None}, {"cheap": None, "other": None}]


@pytest.mark.usefixtures("nobody_is_left")
async def test_of_one_that_is_compiled_and_one_that_runs_the_guilty_one_is_found(tmp_path: Path) -> None:
    """The process dies while something is compiled, or by what runs: each is searched again alone."""
    problems = (
        ProblemScript(op=CHEAP, candidates=(candidate("good", 50.0), candidate("bad", 20.0, KILLED))),
        ProblemScript(op=DEAR, candidates=(candidate("cheap", 50.0), dear("slow", 20.0, build_us=300_000.0))),
    )
    backend = traced(Script(problems=problems, machine="tests/devices/compiling"), tmp_path / "trace", pace="real")
    async with opened(backend, "process", SHORT) as worker:
        compiled = asyncio.create_task(search(worker, DEAR))
        await until(lambda: counted(tmp_path / "trace")["build"])
        found = await search(worker, CHEAP)
        assert kinds(found) == {"good": None, "bad": "crashed"}
        assert kinds(await compiled) == {"cheap": None, "slow": None}


@pytest.mark.usefixtures("nobody_is_left", "impatient")
async def test_a_child_that_compiles_is_closed_in_time(tmp_path: Path) -> None:
    backend = traced(script(candidate("cheap", 50.0), dear("bad", 20.0, HANGS)), tmp_path / "trace")
    worker = Worker(backend, backend.devices()[0], isolation="process")
    await worker.open()
    tasks = [asyncio.create_task(search(worker, op)) for op in (DEAR, OTHER_DEAR)]
    await until(lambda: any(event.outcome == "hangs" for event in read_trace(tmp_path / "trace")))
    with anyio.fail_after(LIMIT_S):  # half as long as it hangs
        await worker.aclose()
        for task in tasks:
            with pytest.raises(SearchStopped):
                await task


# -- whose fault it is -----------------------------------------------------------------------------------------------

SICK = Failure("launch_failed", "nothing runs any more", (("device", "d"),))


@pytest.mark.parametrize("side", ["prepare", "compile", "lane"])
@pytest.mark.parametrize("deed", ["launch", "time", "check", "load", "wait", None])
def test_what_fails_to_be_built_while_something_runs_fails_for_that(side: Side, deed: Deed | None) -> None:
    mine = Blame(job=1, algorithms=("simulated/t:a",), failure=Failure("build_failed", "so", (("why", "not"),)))
    running = None if deed is None else Step(side="lane", deed=deed, job=2, limit_s=1.0, algorithms=("simulated/t:b",))
    blame = whose_fault(mine, side, SICK, running=running)
    if side != "lane" and deed in ("launch", "time", "check"):
        assert blame == Blame(job=2, algorithms=("simulated/t:b",), failure=SICK)
    else:
        assert (blame.job, blame.algorithms, blame.failure.kind) == (1, mine.algorithms, "build_failed")
        assert dict(blame.failure.circumstances) == {"why": "not", "device_spoilt": SICK.message}
