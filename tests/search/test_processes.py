"""Real processes on one directory: each key once between them, whoever is killed or stopped meanwhile.

Their claims lapse when a test says so: by the host's clock they would as well when a process is kept waiting for a
processor, and then it would be counted among the dead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from algosearch.backends.simulated import (
    CandidateScript,
    Fault,
    ProblemScript,
    Script,
    TraceEvent,
    problem_digest,
    read_trace,
    searched,
    searches,
)
from algosearch.stores.shelf import RECORD
from tests.search.helpers import FAST, SMALL, some_op, some_ops, three_candidates
from tests.search.process import FileClock, Job, Report
from tests.stores.directories import database

EXPIRY_S = 0.6
"""Of a claim, by a clock that stands still; and the measure of how often whoever waits looks whether it has lapsed."""


class Host:
    """A directory, a trace, and the processes that share them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trace = directory / "trace.jsonl"
        self._clock = FileClock(directory / "clock")
        self._clock.set(1e6)
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *faults: Fault, ops: int = 1, only: int | None = None) -> int:
        """One more process, on a device of its own, where `faults` befall FAST (of one op `only`); ready to begin."""
        script = Script(
            problems=tuple(
                _with_faults(three_candidates(op), faults if only in (None, n) else ())
                for n, op in enumerate(some_ops(ops))
            ),
            facts={"script": "what goes wrong is no part of what a library is"},
            machine=f"m{len(self.processes)}",
        )
        job = Job(
            store=str(self.directory / "s"),
            clock=str(self.directory / "clock"),
            trace=str(self.trace),
            script=script,
            ops=ops,
            expiry_s=EXPIRY_S,
        )
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.search.process", msgspec.json.encode(job).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return len(self.processes) - 1

    def lapse(self) -> None:
        """Every claim lapses."""
        self._clock.set(self._clock() + 10 * EXPIRY_S)

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def begin(self, number: int) -> None:
        self._tell(number, "begin")

    def release(self, number: int) -> None:
        """Let it go on with what hangs."""
        self._tell(number, "release")

    def _tell(self, number: int, word: str) -> None:
        stdin = self.processes[number].stdin
        assert stdin is not None
        stdin.write(f"{word}\n")
        stdin.flush()

    def report(self, number: int) -> Report:
        """What a process says in the end."""
        out, _ = self.processes[number].communicate(timeout=40)
        assert self.processes[number].returncode == 0
        return msgspec.json.decode(out, type=Report)

    def died_of(self, number: int) -> int:
        """The signal; and what it had claimed lapses."""
        self.processes[number].communicate(timeout=40)
        self.lapse()
        return -self.processes[number].returncode

    def events(self) -> tuple[TraceEvent, ...]:
        return read_trace(self.trace)

    def wait_for(self, number: int, outcome: str) -> None:
        """Until the trace has this of a process."""
        deadline = time.monotonic() + 20
        pid = self.processes[number].pid
        while not any(event.pid == pid and event.outcome == outcome for event in self.events()):
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def stored(self) -> dict[str, bytes]:
        """The bytes of every record, by digest."""
        with database(self.directory / "s") as connection:
            rows = connection.execute("SELECT key, value FROM Cache").fetchall()
        return {name.removeprefix(RECORD): raw for name, raw in rows if name.startswith(RECORD)}


def _with_faults(problem: ProblemScript, faults: tuple[Fault, ...]) -> ProblemScript:
    def changed(candidate: CandidateScript) -> CandidateScript:
        return msgspec.structs.replace(candidate, faults=faults) if candidate.algorithm == FAST else candidate

    return msgspec.structs.replace(problem, candidates=tuple(map(changed, problem.candidates)))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for process in host.processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def test_each_key_is_searched_once_between_all(host: Host) -> None:
    """C08, D01: four processes, cold."""
    numbers = [host.start(ops=50) for _ in range(4)]
    for number in numbers:
        host.begin(number)
    reports = [host.report(number) for number in numbers]
    assert all(report.algorithms == [FAST] * 50 for report in reports)
    assert searched(host.events()) == {problem_digest(op): 1 for op in some_ops(50)}
    assert sum(report.statistics.searched for report in reports) == 50
    assert len(host.stored()) == 50


def test_a_process_that_is_killed_in_mid_search_is_taken_over(host: Host) -> None:
    """C08, C25: another takes over within the lease, without anybody's help."""
    first, second = host.start(Fault(at="launch", does="hangs")), host.start()
    host.begin(first)
    host.wait_for(first, "hangs")
    host.begin(second)
    host.kill(first)
    host.lapse()
    report = host.report(second)
    assert report.algorithms == [FAST]
    assert report.statistics.claims_taken_over == 1
    assert searches(host.events()) == 2
    assert {event.pid for event in host.events() if event.call == "launch"} == {host.processes[n].pid for n in (0, 1)}


def test_a_process_that_is_stopped_beyond_its_claim_overwrites_nothing(host: Host) -> None:
    """C04: it wakes up, finds its claim gone, finishes, and takes the answer of who took over."""
    first, second = host.start(Fault(at="launch", does="hangs")), host.start()
    host.begin(first)
    host.wait_for(first, "hangs")
    host.processes[first].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, host.processes[first].pid, os.WSTOPPED | os.WNOWAIT)
    host.lapse()
    host.begin(second)
    assert host.report(second).algorithms == [FAST]
    kept = host.stored()
    host.processes[first].send_signal(signal.SIGCONT)
    host.release(first)
    report = host.report(first)
    assert report.algorithms == [FAST]
    assert report.statistics.searched == 1
    assert host.stored() == kept
    assert searches(host.events()) == 2


def test_what_was_found_before_a_kill_is_kept(host: Host) -> None:
    """F11, F12: every result is there for others as soon as it is known, and who comes next goes on from there."""
    first = host.start(Fault(at="launch", does="hangs"), ops=10, only=6)
    host.begin(first)
    host.wait_for(first, "hangs")
    deadline = time.monotonic() + 20
    while len(host.stored()) < 6:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    host.kill(first)
    host.lapse()
    second = host.start(ops=10)
    host.begin(second)
    report = host.report(second)
    assert report.algorithms == [FAST] * 10
    assert report.statistics.searched == 4


def test_a_candidate_that_kills_its_process_costs_two_of_them(host: Host) -> None:
    """E05: the third process knows which one it was, from the claim of the second, and does not run it."""
    poison = Fault(at="launch", does="killed")
    for number in range(2):
        assert host.start(poison) == number
        host.begin(number)
        assert host.died_of(number) == signal.SIGKILL
    for number in (2, 3):
        host.start(poison)
        host.begin(number)
        assert host.report(number).algorithms == [SMALL]
    launches = [event.pid for event in host.events() if event.call == "launch" and event.algorithm == FAST]
    assert launches == [host.processes[0].pid, host.processes[1].pid]
    assert searched(host.events())[problem_digest(some_op())] == 3


def test_a_key_that_kills_three_processes_is_guessed(host: Host) -> None:
    """It kills before anything is launched, so there is nobody to accuse."""
    poison = Fault(at="build", does="killed")
    for number in range(3):
        host.start(poison)
        host.begin(number)
        assert host.died_of(number) == signal.SIGKILL
    for number in (3, 4):
        host.start(poison)
        host.begin(number)
        report = host.report(number)
        assert report.provisional == [True]
        assert report.statistics.searched == 0
    assert host.stored() == {}
