"""What every worker does, wherever its device lives: subclass `WorkerContract` and say where."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import anyio
import pytest

from algosearch.backends.simulated import DeviceScript, Fault, Generated, ProblemScript, Script, SimulatedBackend
from algosearch.devices.job import Worked
from algosearch.devices.quiet import Quiet
from algosearch.devices.worker import SearchStopped, Worker, WorkerRules
from algosearch.errors import DeviceUnavailable
from algosearch.records import Failure, Listing, Policy
from algosearch.settings import Isolation
from tests.devices.helpers import (
    LIMIT_S,
    OP,
    algorithm,
    by_name,
    candidate,
    counted,
    kinds,
    opened,
    script_of,
    search,
    some_op,
    traced,
    under_way,
    until,
)

SLOW = Generated(candidates=2, noise=0.0, time_us=20_000.0)
"""With a pace of `real`, every step takes a while."""
LONG = Script(
    problems=(ProblemScript(op=OP, candidates=tuple(candidate(name, 150_000.0, noise=0.3) for name in "abcd")),),
    generated=SLOW,
)
"""A search of `OP` takes some seconds, and most of them are left when it begins to time: so it is still under way when
it comes to be stopped on a busy machine."""


class WorkerContract(ABC):
    """Subclass as `class Test…(WorkerContract)`. Not collected by itself."""

    isolation: ClassVar[Isolation]

    # -- what a search brings ----------------------------------------------------------------------------------------

    async def test_a_search_leaves_nothing_behind(self, tmp_path: Path) -> None:
        script = script_of(candidate("a", 100.0), candidate("b", 90.0, workspace_bytes=1 << 20))
        async with opened(traced(script, tmp_path / "trace"), self.isolation) as worker:
            found = await search(worker)
        assert by_name(found)["b"].stage == "final"
        assert found.complete
        assert found.seconds > 0
        calls = counted(tmp_path / "trace")
        assert calls["build"] == calls["destroy"] == 2
        assert calls["load"] == calls["unload"] >= 1
        assert calls["open"] == calls["close"] == 1

    async def test_every_turn_of_a_thread_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        """Who draws them needs no more than the log: which device and thread, what it searched, from when to when. Of
        these ops the second has a candidate that is dear to build."""
        ops = [some_op(n) for n in range(3)]
        began = perf_counter()
        with caplog.at_level(logging.DEBUG, "algosearch.workers"):
            async with opened(SimulatedBackend(Script(generated=SLOW), pace="real"), self.isolation) as worker:
                await asyncio.gather(*(search(worker, op) for op in ops))
        ended = perf_counter()
        told = [(record.__dict__["device"], record.__dict__["turn"]) for record in caplog.records]
        assert {device for device, _ in told} == {worker.device}
        turns: list[Worked] = [turn for _, turn in told]
        for op in ops:
            mine = [turn for turn in turns if turn.problem == op.describe()]
            compiled = ["compile"] if op == ops[1] else []
            sides = [turn.side for turn in mine[: 3 + len(compiled)]]
            assert sides == ["prepare", "prepare", *compiled, "lane"]  # listed, built, run
        # Of all together: a run that took too long, as on a busy machine, shortens the next ones.
        assert sum(turn.ended_s - turn.began_s for turn in turns if turn.side == "lane") >= len(ops) * 0.02
        for side in ("prepare", "compile", "lane"):
            of_side = [turn for turn in turns if turn.side == side]
            assert all(began <= turn.began_s <= turn.ended_s <= ended for turn in of_side)
            # One after the other: what a thread waits for is in no turn of it.
            assert all(one.ended_s <= other.began_s for one, other in pairwise(of_side))

    async def test_a_listener_that_raises_does_no_harm(self) -> None:
        class Raising(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                heard.append(record)
                raise RuntimeError("as told")

        heard: list[logging.LogRecord] = []
        handler, logger = Raising(), logging.getLogger("algosearch.workers")
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        try:
            async with opened(SimulatedBackend(Script(generated=Generated())), self.isolation) as worker:
                assert (await search(worker)).complete
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
        assert len(heard) >= 3

    async def test_what_is_found_does_not_depend_on_where(self) -> None:
        script = script_of(candidate("a", 100.0, noise=0.01), candidate("b", 101.0, noise=0.01))
        async with opened(SimulatedBackend(script), self.isolation) as worker:
            found = await search(worker)
            async with opened(SimulatedBackend(script), "thread") as other:
                again = await search(other)
                assert await worker.open() == await other.open()
        assert found.trials == again.trials

    async def test_out_of_memory_means_fewer_candidates(self) -> None:
        script = script_of(
            candidate("huge", 10.0, workspace_bytes=1 << 40),
            candidate("large", 20.0, workspace_bytes=1 << 35),
            candidate("small", 50.0, workspace_bytes=1 << 10),
            memory_bytes=1 << 30,
        )
        async with opened(SimulatedBackend(script), self.isolation) as worker:
            trials = by_name(await search(worker))
        for name in ("huge", "large"):
            failure = trials[name].failure
            assert failure is not None
            assert failure.kind == "out_of_memory"
            assert "free_bytes" in dict(failure.circumstances)
        assert trials["small"].stage == "final"

    async def test_not_even_the_tensors_fit(self) -> None:
        async with opened(SimulatedBackend(script_of(candidate("a", 10.0), memory_bytes=16)), self.isolation) as worker:
            assert kinds(await search(worker)) == {"a": "out_of_memory"}

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
    async def test_a_failed_candidate_is_data(self, at: Any, does: Any, tmp_path: Path) -> None:
        script = script_of(candidate("bad", 10.0, Fault(at=at, does=does)), candidate("good", 50.0))
        async with opened(traced(script, tmp_path / "trace"), self.isolation) as worker:
            assert kinds(await search(worker)) == {"bad": does, "good": None}
        assert counted(tmp_path / "trace")["open"] == 1, "a healthy device is kept"

    async def test_who_is_known_to_fail_is_not_tried(self, tmp_path: Path) -> None:
        script = script_of(candidate("bad", 10.0), candidate("good", 50.0))
        known = Failure("crashed", "elsewhere", (("by", "somebody"),))
        async with opened(traced(script, tmp_path / "trace"), self.isolation) as worker:
            found = await search(worker, failed={algorithm("bad"): known, algorithm("unheard_of"): known})
        assert by_name(found)["bad"].failure == known
        assert by_name(found)["good"].stage == "final"
        assert counted(tmp_path / "trace")["build"] == 1

    @pytest.mark.parametrize("home", ["process", "thread"])
    async def test_it_survives_what_runs_elsewhere_and_what_kills_nobody(self, home: Isolation) -> None:
        backend = SimulatedBackend()
        backend.isolation = home
        worker = Worker(backend, backend.devices()[0], isolation=self.isolation)
        assert worker.survives_crashes == (self.isolation == "process" or home == "thread")

    async def test_it_tells_what_it_does_and_whom_it_is_about_to_launch(self) -> None:
        doing: list[str] = []
        launched: list[str] = []
        script = script_of(candidate("a", 10.0), candidate("b", 50.0))
        async with opened(SimulatedBackend(script), self.isolation) as worker:
            await search(worker, on_trying=doing.append, on_launch=launched.append)
        assert launched == [algorithm("a"), algorithm("b")]
        assert doing[:2] == [f"building {algorithm('a')}", f"building {algorithm('b')}"]
        for what in (f"first run of {algorithm('a')}", "timing 2 candidates", f"checking {algorithm('a')}"):
            assert what in doing

    @pytest.mark.parametrize("at", ["build", "launch", "time"])
    async def test_who_found_no_memory_is_tried_again_at_the_end(self, at: Any, tmp_path: Path) -> None:
        script = script_of(
            candidate("short", 10.0, Fault(at=at, does="out_of_memory", times=1)), candidate("other", 50.0)
        )
        async with opened(traced(script, tmp_path / "trace"), self.isolation) as worker:
            trials = by_name(await search(worker))
        assert trials["short"].failure is None
        assert trials["short"].stage == "final"
        calls = counted(tmp_path / "trace")
        assert calls["build"] == calls["destroy"]

    async def test_who_finds_no_memory_twice_says_so(self) -> None:
        script = script_of(candidate("short", 10.0, Fault(at="launch", does="out_of_memory")), candidate("other", 50.0))
        async with opened(SimulatedBackend(script), self.isolation) as worker:
            trials = by_name(await search(worker))
        failure = trials["short"].failure
        assert failure is not None
        assert dict(failure.circumstances)["attempts"] == "2"
        assert trials["other"].failure is None

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    async def test_a_device_that_cannot_be_opened_says_why(self) -> None:
        backend = SimulatedBackend(Script(devices=(DeviceScript(unavailable="asleep"),)))
        worker = Worker(backend, backend.devices()[0], isolation=self.isolation)
        with pytest.raises(DeviceUnavailable) as caught:
            await worker.open()
        assert caught.value.reason == "asleep"
        await worker.aclose()

    @pytest.mark.parametrize("at", ["enumerate", "load", "build", "launch", "time", "check"])
    async def test_a_broken_contract_raises_and_costs_nobody_else(self, at: Any) -> None:
        fault = Fault(at=at, does="raises", message="as told", times=1)
        for_problem = at in ("enumerate", "load")
        script = Script(
            problems=(
                ProblemScript(
                    op=OP,
                    candidates=(candidate("a", 9.0, *(() if for_problem else (fault,))),),
                    faults=(fault,) if for_problem else (),
                ),
            ),
        )
        async with opened(SimulatedBackend(script), self.isolation) as worker:
            with pytest.raises(RuntimeError, match="as told"):
                await search(worker)
            assert (await search(worker, some_op(1))).trials
            assert kinds(await search(worker)) == {"a": None}

    @pytest.mark.parametrize("at", ["launch", "time", "check"])
    async def test_who_spoils_the_device_costs_itself_alone(self, at: Any, tmp_path: Path) -> None:
        script = script_of(
            candidate("good", 50.0), candidate("bad", 10.0, Fault(at=at, does="poisons")), candidate("better", 20.0)
        )
        async with opened(traced(script, tmp_path / "trace"), self.isolation) as worker:
            found = await search(worker)
            assert kinds(found) == {"good": None, "bad": "launch_failed", "better": None}
            failure = by_name(found)["bad"].failure
            assert failure is not None
            assert "unusable" in dict(failure.circumstances)["device_spoilt"]
            assert (await search(worker, some_op(1))).trials
        # A check runs two candidates: whose fault it was, shows when it is made with one.
        assert counted(tmp_path / "trace")["open"] == (3 if at == "check" else 2)

    async def test_who_is_at_work_beside_it_begins_again(self, tmp_path: Path) -> None:
        script = script_of(candidate("good", 50.0), candidate("bad", 10.0, Fault(at="launch", does="poisons")))
        async with opened(traced(script, tmp_path / "trace", pace="real"), self.isolation) as worker:
            founds = await asyncio.gather(*(search(worker, some_op(n)) for n in range(4)))
        assert kinds(founds[0]) == {"good": None, "bad": "launch_failed"}
        for found in founds[1:]:
            assert set(kinds(found).values()) == {None}

    async def test_what_breaks_again_and_again_is_set_aside(self) -> None:
        names = [f"bad{n}" for n in range(5)]
        script = script_of(*(candidate(name, 10.0, Fault(at="launch", does="poisons")) for name in names))
        rules = WorkerRules(most_breaks=4, wait_s=0.001)
        async with opened(SimulatedBackend(script), self.isolation, rules) as worker:
            assert (await search(worker, some_op(1))).trials
            with pytest.raises(DeviceUnavailable, match="broke 4 times") as caught:
                await search(worker)
            assert worker.set_aside is not None
            assert caught.value.device == "simulated:0"
            with pytest.raises(DeviceUnavailable):
                await search(worker, some_op(2))

    async def test_a_search_that_comes_to_an_end_is_a_new_beginning(self) -> None:
        bad = (candidate(f"bad{n}", 10.0, Fault(at="launch", does="poisons")) for n in range(3))
        script = script_of(*bad, candidate("good", 10.0))
        rules = WorkerRules(most_breaks=4, wait_s=0.001)
        async with opened(SimulatedBackend(script), self.isolation, rules) as worker:
            for _ in range(3):
                assert kinds(await search(worker))["good"] is None

    # -- cancelling, closing, resting --------------------------------------------------------------------------------

    async def test_a_cancelled_search_stops_and_gives_its_plans_back(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        async with opened(traced(LONG, trace, pace="real"), self.isolation) as worker:
            task = asyncio.create_task(search(worker))
            await until(under_way(trace, "time"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: (calls := counted(trace))["destroy"] == calls["build"])
            assert (await search(worker, some_op(1))).trials
        calls = counted(trace)
        assert calls["load"] == calls["unload"]
        assert calls["build"] == calls["destroy"]

    async def test_closing_stops_a_search_between_two_steps(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        backend = traced(LONG, trace, pace="real")
        worker = Worker(backend, backend.devices()[0], isolation=self.isolation)
        await worker.open()
        task = asyncio.create_task(search(worker))
        await until(under_way(trace, "time"))
        await worker.aclose()
        await worker.aclose()
        with pytest.raises(SearchStopped):
            await task
        with pytest.raises(SearchStopped):
            await worker.enumerate(OP, None)
        assert counted(trace)["close"] == 1

    async def test_nothing_happens_while_it_rests(self, tmp_path: Path) -> None:
        trace, quiet = tmp_path / "trace", Quiet()
        backend = traced(Script(generated=SLOW), trace, pace="real")
        async with opened(backend, self.isolation, quiet=quiet) as worker:
            tasks = [asyncio.create_task(search(worker, some_op(n))) for n in range(3)]
            await until(under_way(trace, "time"))
            quiet.begin()
            with anyio.fail_after(20):
                await worker.rest()
                await worker.rest()
            before = counted(trace)
            late = asyncio.create_task(search(worker, some_op(3)))
            await asyncio.sleep(0.15)  # several steps long: this is how long nothing must happen
            assert counted(trace) == before
            quiet.end()
            worker.resume()
            founds = await asyncio.gather(*tasks, late)
        assert all(found.trials for found in founds)

    async def test_it_can_be_closed_while_it_rests(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        backend, quiet = traced(LONG, trace, pace="real"), Quiet()
        worker = Worker(backend, backend.devices()[0], isolation=self.isolation, quiet=quiet)
        await worker.open()
        task = asyncio.create_task(search(worker))
        await until(under_way(trace, "time"))
        quiet.begin()
        await worker.rest()
        with anyio.fail_after(20):
            await worker.aclose()
            with pytest.raises(SearchStopped):
                await task
        assert counted(trace)["close"] == 1

    async def test_policies_and_modes_reach_the_race(self) -> None:
        script = script_of(
            candidate("fast", 10.0, notes=("nondeterministic",)), candidate("slow", 30.0), candidate("slower", 90.0)
        )
        async with opened(SimulatedBackend(script), self.isolation) as worker:
            listing = await worker.enumerate(OP, None)
            found = await worker.search(OP, listing, policies=(Policy(deterministic=True),), mode="exhaustive")
        assert by_name(found)["slow"].stage == "final"
        assert by_name(found)["slower"].stage == "coarse"

    async def test_a_search_lists_by_itself(self, tmp_path: Path) -> None:
        """And tells the candidates before it goes on."""
        trace = tmp_path / "trace"
        listed: list[Listing] = []
        script = script_of(candidate("slow", 30.0), candidate("fast", 10.0))
        async with opened(traced(script, trace), self.isolation) as worker:
            with anyio.fail_after(LIMIT_S):
                found = await worker.search(
                    OP, None, width=2, policies=(Policy(),), mode="race", on_listed=listed.append
                )
                known = await worker.enumerate(OP, 2)
        assert by_name(found)["fast"].stage == "final"
        assert listed == [known]
        assert counted(trace)["enumerate"] == 2

    async def test_a_search_whose_listing_breaks(self) -> None:
        broken = ProblemScript(op=OP, faults=(Fault(at="enumerate", does="raises", message="as told", times=1),))
        async with opened(SimulatedBackend(Script(problems=(broken,))), self.isolation) as worker:
            with anyio.fail_after(LIMIT_S):
                with pytest.raises(RuntimeError, match="as told"):
                    await worker.search(OP, None, policies=(Policy(),), mode="race")
                assert (await search(worker, some_op(1))).trials

    async def test_after_a_break_it_is_not_listed_again(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        listed: list[Listing] = []
        bad = candidate("bad", 10.0, Fault(at="launch", does="poisons"))
        async with opened(traced(script_of(bad, candidate("good", 50.0)), trace), self.isolation) as worker:
            with anyio.fail_after(LIMIT_S):
                found = await worker.search(OP, None, policies=(Policy(),), mode="race", on_listed=listed.append)
        assert kinds(found) == {"bad": "launch_failed", "good": None}
        assert len(listed) == 1
        assert counted(trace)["enumerate"] == 1
