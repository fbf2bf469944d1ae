"""A worker whose device is in a child process: the contract, and what a thread does not survive."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from algosearch.backends.cpu import CpuBackend
from algosearch.backends.simulated import Fault, ProblemScript, Script, SimulatedBackend, TraceEvent, read_trace
from algosearch.devices.job import Limits
from algosearch.devices.lane import lane_of
from algosearch.devices.remote.host import ChildHost
from algosearch.devices.worker import Worker, WorkerRules
from algosearch.errors import DeviceUnavailable, SearchFailed
from tests.devices.children import children, no_child_is_left
from tests.devices.contract import SLOW, WorkerContract
from tests.devices.helpers import (
    OP,
    by_name,
    candidate,
    kinds,
    opened,
    script_of,
    search,
    some_op,
    traced,
    under_way,
    until,
)


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    no_child_is_left()


class TestChildWorker(WorkerContract):
    isolation = "process"


def pid_of(worker: Worker) -> int:
    assert isinstance(worker._host, ChildHost)
    assert worker._host.pid is not None
    return worker._host.pid


# What must hang hangs for a minute; what must not takes a millisecond, but on a machine that is busy with other tests.
SHORT = WorkerRules(limits=Limits(first_run_s=1.0, build_s=1.0, list_s=1.0, other_s=1.0), wait_s=0.001)


class TestHangsAndCrashes:
    """A candidate that does not come back costs itself, and nobody else."""

    @pytest.mark.parametrize("at", ["build", "launch", "check"])
    async def test_what_hangs_is_killed(self, at: Any) -> None:
        """F14."""
        script = script_of(candidate("good", 50.0), candidate("bad", 10.0, Fault(at=at, does="hangs")))
        async with opened(SimulatedBackend(script), "process", SHORT) as worker:
            first = pid_of(worker)
            found = await search(worker)
            assert pid_of(worker) != first
        assert kinds(found) == {"good": None, "bad": "timed_out"}
        failure = by_name(found)["bad"].failure
        assert failure is not None
        assert float(dict(failure.circumstances)["limit_s"]) > 0

    async def test_the_first_run_of_all_may_hang(self) -> None:
        script = script_of(candidate("bad", 10.0, Fault(at="launch", does="hangs")), candidate("good", 50.0))
        async with opened(SimulatedBackend(script), "process", SHORT) as worker:
            assert kinds(await search(worker)) == {"bad": "timed_out", "good": None}

    async def test_what_one_child_has_seen_of_the_device_the_next_one_knows(self) -> None:
        """Else the first run of all after a crash, if it hangs, would take a minute instead of a second."""
        bad = {1: Fault(at="launch", does="killed"), 2: Fault(at="launch", does="hangs")}
        problems = tuple(
            ProblemScript(op=some_op(n), candidates=(candidate("bad", 10.0, fault), candidate("good", 50.0)))
            for n, fault in bad.items()
        )
        rules = WorkerRules(limits=Limits(run_s=0.5))
        async with opened(SimulatedBackend(Script(problems=problems)), "process", rules) as worker:
            await search(worker)
            assert kinds(await search(worker, some_op(1))) == {"bad": "crashed", "good": None}
            found = await search(worker, some_op(2))
        assert kinds(found) == {"bad": "timed_out", "good": None}
        failure = by_name(found)["bad"].failure
        assert failure is not None
        assert float(dict(failure.circumstances)["limit_s"]) < 60

    async def test_what_is_merely_slow_is_a_sample(self) -> None:
        """A run of 0.2 s after one of 1 ms: that is two hundred times the best, and no reason to kill."""
        script = script_of(candidate("fast", 1_000.0), candidate("slow", 200_000.0))
        async with opened(SimulatedBackend(script, pace="real"), "process", SHORT) as worker:
            first = pid_of(worker)
            found = await search(worker)
            assert pid_of(worker) == first
        assert by_name(found)["slow"].time_us == pytest.approx(200_000.0)

    @pytest.mark.parametrize(("does", "name"), [("crashes", "SIGSEGV"), ("killed", "SIGKILL")])
    @pytest.mark.parametrize("at", ["build", "launch", "check"])
    async def test_what_crashes_is_recorded_with_its_circumstances(self, at: Any, does: Any, name: str) -> None:
        script = script_of(candidate("good", 50.0), candidate("bad", 10.0, Fault(at=at, does=does)))
        async with opened(SimulatedBackend(script), "process", SHORT) as worker:
            found = await search(worker)
        assert kinds(found) == {"good": None, "bad": "crashed"}
        failure = by_name(found)["bad"].failure
        assert failure is not None
        assert name in failure.message
        assert dict(failure.circumstances)["during"] == at
        if does == "crashes":
            assert "Segmentation fault" in dict(failure.circumstances)["wrote"]

    @pytest.mark.parametrize("does", ["hangs", "killed"])
    async def test_of_a_round_of_several_the_guilty_one_is_found(self, does: Any, tmp_path: Path) -> None:
        script = script_of(
            candidate("good", 50.0), candidate("bad", 40.0, Fault(at="time", does=does)), candidate("better", 30.0)
        )
        async with opened(traced(script, tmp_path / "trace"), "process", SHORT) as worker:
            assert kinds(await search(worker)) == {
                "good": None,
                "bad": "timed_out" if does == "hangs" else "crashed",
                "better": None,
            }
        opens = [event for event in read_trace(tmp_path / "trace") if event.call == "open"]
        assert len(opens) == 3, "the first time it could have been each of three"

    async def test_of_two_keys_at_work_the_guilty_one_is_found(self, tmp_path: Path) -> None:
        """One is built while another runs: when the process dies, it might have been either."""
        bad = candidate("bad", 10.0, Fault(at="build", does="killed"), build_us=100_000.0)
        problems = (
            ProblemScript(op=OP, candidates=(candidate("good", 50.0), bad)),
            ProblemScript(op=some_op(1), candidates=(candidate("a", 30_000.0), candidate("b", 30_000.0))),
        )
        backend = traced(Script(problems=problems), tmp_path / "trace", pace="real")
        async with opened(backend, "process", SHORT) as worker:
            other = asyncio.create_task(search(worker, some_op(1)))
            await until(under_way(tmp_path / "trace", "time"))
            assert kinds(await search(worker)) == {"good": None, "bad": "crashed"}
            assert kinds(await other) == {"a": None, "b": None}

    async def test_many_keys_with_trouble_among_them(self) -> None:
        """Every key gets its answer, and no good candidate is blamed."""
        deeds: list[Any] = ["killed", "crashes", "poisons", "hangs"]
        problems = tuple(
            ProblemScript(
                op=some_op(n),
                candidates=(
                    candidate("a", 50.0),
                    candidate("bad", 10.0, *([Fault(at="launch", does=deeds[n // 5])] if n % 5 == 0 else [])),
                    candidate("c", 30.0),
                ),
            )
            for n in range(20)
        )
        async with opened(SimulatedBackend(Script(problems=problems)), "process", SHORT) as worker:
            limiter = anyio.CapacityLimiter(3)

            async def one(n: int) -> dict[str, str | None]:
                async with limiter:
                    return kinds(await search(worker, some_op(n)))

            founds = await asyncio.gather(*map(one, range(20)))
        expected = {"killed": "crashed", "crashes": "crashed", "poisons": "launch_failed", "hangs": "timed_out"}
        for n, found in enumerate(founds):
            assert found == {"a": None, "bad": expected[deeds[n // 5]] if n % 5 == 0 else None, "c": None}

    @pytest.mark.parametrize("at", ["enumerate", "load"])
    @pytest.mark.parametrize("does", ["hangs", "killed"])
    async def test_a_key_that_brings_it_down_with_nobody_to_blame_fails(self, at: Any, does: Any) -> None:
        """F14."""
        problem = ProblemScript(op=OP, candidates=(candidate("a", 9.0),), faults=(Fault(at=at, does=does),))
        async with opened(SimulatedBackend(Script(problems=(problem,))), "process", SHORT) as worker:
            with pytest.raises(SearchFailed, match="brings simulated:0 down"):
                await search(worker)
            assert (await search(worker, some_op(1))).trials

    async def test_killed_by_somebody_else_it_begins_again(self, tmp_path: Path) -> None:
        """At a moment when a candidate was running: it is tried once more, alone, and found innocent."""
        trace = tmp_path / "trace"
        async with opened(traced(Script(generated=SLOW), trace, pace="real"), "process", SHORT) as worker:
            task = asyncio.create_task(search(worker))
            await until(under_way(trace, "time"))
            os.kill(pid_of(worker), signal.SIGKILL)
            assert set(kinds(await task).values()) == {None}

    async def test_killed_while_nothing_is_done_nobody_notices(self) -> None:
        async with opened(SimulatedBackend(), "process") as worker:
            os.kill(pid_of(worker), signal.SIGKILL)
            assert (await search(worker)).trials

    async def test_a_stopped_child_is_killed_for_what_it_does_not_do(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        script = script_of(*(candidate(name, 2_000.0) for name in "abcd"))
        async with opened(traced(script, trace, pace="real"), "process", SHORT) as worker:
            task = asyncio.create_task(search(worker))
            await until(under_way(trace, "launch"))
            os.kill(pid_of(worker), signal.SIGSTOP)
            assert (await task).trials

    @pytest.mark.parametrize("call", ["search", "enumerate"])
    async def test_a_child_that_says_nothing_is_killed(self, call: str) -> None:
        """It was stopped while it had nothing to do, so that nothing was announced."""
        async with opened(SimulatedBackend(), "process", SHORT) as worker:
            listing = await worker.enumerate(OP, None)
            first = pid_of(worker)
            os.kill(first, signal.SIGSTOP)
            if call == "search":
                assert (await worker.search(OP, listing, policies=(), mode="race")).trials
            else:
                assert await worker.enumerate(OP, None) == listing
            assert pid_of(worker) != first

    async def test_who_waits_for_the_lane_is_not_killed(self, tmp_path: Path) -> None:
        """However long somebody else has it."""
        backend = traced(Script(generated=SLOW), tmp_path / "trace")
        lane = lane_of(backend.devices()[0].identity)
        rules = WorkerRules(limits=Limits(other_s=1.0, first_run_s=1.0))
        doing: list[str] = []
        async with opened(backend, "process", rules) as worker:
            first = pid_of(worker)
            with lane:
                task = asyncio.create_task(search(worker, on_trying=doing.append))
                await until(lambda: "waiting for the device" in doing)
                await asyncio.sleep(1.5)  # so long nothing else may take
                assert not under_way(tmp_path / "trace", "load")()
            assert (await task).lane_wait_s >= 1.4
            assert pid_of(worker) == first


class TestStartAndEnd:
    """A child comes when there is work, and goes when there is none."""

    async def test_idle_it_is_ended_and_comes_back_for_work(self) -> None:
        rules = WorkerRules(idle_s=0.01)
        async with opened(SimulatedBackend(), "process", rules) as worker:
            first = pid_of(worker)
            await search(worker)
            await until(lambda: not children())
            assert (await search(worker, some_op(1))).trials
            await until(lambda: not children())
            assert not worker.set_aside
        assert first not in children()

    async def test_at_work_it_is_not_idle(self, tmp_path: Path) -> None:
        rules = WorkerRules(idle_s=0.001)
        async with opened(traced(Script(generated=SLOW), tmp_path / "trace", pace="real"), "process", rules) as worker:
            await asyncio.gather(*(search(worker, some_op(n)) for n in range(3)))
        events = read_trace(tmp_path / "trace")
        last = max(event.t for event in events if event.call == "check")
        assert len({event.pid for event in events if event.call == "time" and event.t <= last}) == 1

    async def test_a_backend_that_cannot_be_written_down_says_so(self) -> None:
        trace: list[TraceEvent] = []
        backend = SimulatedBackend(trace=trace)
        worker = Worker(backend, backend.devices()[0], isolation="process")
        with pytest.raises(DeviceUnavailable, match="isolation='thread'"):
            await worker.open()
        await worker.aclose()

    async def test_a_program_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        backend = SimulatedBackend()
        worker = Worker(backend, backend.devices()[0], isolation="process")
        with pytest.raises(DeviceUnavailable, match=r"could not be started.*No such file"):
            await worker.open()
        await worker.aclose()

    async def test_a_program_that_is_no_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        backend = SimulatedBackend()
        worker = Worker(backend, backend.devices()[0], isolation="process")
        with pytest.raises(DeviceUnavailable, match="exited with status 1"):
            await worker.open()
        await worker.aclose()

    async def test_it_does_not_open_in_time(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        sleeper = tmp_path / "sleeper"
        sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
        sleeper.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(sleeper))
        backend = SimulatedBackend()
        rules = WorkerRules(limits=Limits(open_s=0.05))
        worker = Worker(backend, backend.devices()[0], isolation="process", rules=rules)
        with pytest.raises(DeviceUnavailable, match=r"within 0\.05 s"):
            await worker.open()
        await worker.aclose()

    async def test_what_a_child_writes_is_logged_and_the_output_is_the_parents_alone(
        self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        script = script_of(candidate("good", 50.0), candidate("bad", 10.0, Fault(at="launch", does="crashes")))
        async with opened(SimulatedBackend(script), "process") as worker:
            await search(worker)
        said = [record for record in caplog.records if record.name == "algosearch.devices"]
        assert any(record.getMessage().startswith("simulated:0: Fatal Python error: Segmentation") for record in said)
        assert all(record.levelno >= logging.WARNING for record in said)
        assert capfd.readouterr() == ("", "")

    async def test_nothing_is_left_open(self) -> None:
        script = script_of(candidate("good", 50.0), candidate("bad", 10.0, Fault(at="launch", does="killed")))

        def open_now() -> tuple[int, list[str]]:
            names = [thread.name for thread in threading.enumerate() if thread.name.startswith("algosearch")]
            return len(os.listdir("/proc/self/fd")), names

        await until(lambda: not open_now()[1])  # of other tests
        before = open_now()
        for _ in range(3):
            async with opened(SimulatedBackend(script), "process") as worker:
                await search(worker)
                assert open_now() > before
            await until(lambda: open_now() == before)

    async def test_cpu_candidates_cross(self) -> None:
        async with opened(CpuBackend(), "process") as worker:
            assert set(kinds(await search(worker)).values()) == {None}
