"""Eight processes that want the same 200 keys, on one directory: each key is searched once between them.

Each process has a simulated device of its own, on which a key takes 20 ms (slept). Three parts, each on a fresh
directory:

- *cold*: all ask for everything at once. Searches are counted from the backends' trace. Each process tells its
  `choices_digest`; another process recomputes it from the raw values in the store's file.
- *killed*: one process gets stuck in a trial, and is killed (SIGKILL) with its claims. The others must have 200
  answers, and the trace must show that one of them has searched the key that it was at.
- *stopped*: the same, but stopped (SIGSTOP) until the others have finished, its claims long lapsed, and then continued.
  It finishes its search, and must find that it may not overwrite: the bytes of every record stay what they were, and
  its answers are those of the others.

`ratio` is the wall of the cold part, from the first question to the last answer, over the least that it can take: 200
keys × 20 ms / 8 devices that sleep side by side = 0.5 s. What is above 1 is the Python of eight processes on the cores
that there are.

    python bench/processes.py --json bench/results/processes.json
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from report import arguments, report

import algosearch
from algosearch.backends.simulated import (
    CandidateScript,
    Fault,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    problem_digest,
    read_trace,
    searched,
    spent_us,
)
from algosearch.records import DEFAULT_POLICY, Key, wire
from algosearch.search import EngineStatistics, Searcher
from algosearch.search.engine import Engine
from algosearch.search.lineup import Lineup
from algosearch.stores import DirectoryStore

PROCESSES = 8
KEYS = 200
KEY_MS = 20.0
EXPIRY_S = 1.0
"""Of a claim, where somebody dies of it or is stopped; else the default."""
OPS = [algosearch.ConvOp(input_shape=(1 + i, 16, 14, 14), filter_shape=(16, 16, 3, 3)) for i in range(KEYS)]
BAIT = OPS[KEYS // 2]
"""The op in whose search the victim gets stuck."""


class Job(msgspec.Struct, kw_only=True):
    """What one process is to do."""

    number: int
    directory: str
    expiry_s: float
    hang_s: float | None = None
    """How long it gets stuck in the first launch of `BAIT`; None for not at all."""


class Result(msgspec.Struct, kw_only=True):
    """What one process has to tell."""

    pid: int
    answers: int
    digest: str
    began: float
    """Of the machine's monotonic clock, as all its processes read it."""
    ended: float
    statistics: EngineStatistics


def script(job: Job) -> Script:
    """Every key: three candidates, 20 ms of the device's time in all."""

    def problem(op: algosearch.ConvOp) -> ProblemScript:
        stuck = op == BAIT and job.hang_s is not None
        faults = (Fault(at="launch", does="hangs", times=1),) if stuck else ()
        times_us = (250.0, 300.0, 420.0)
        return ProblemScript(
            op=op,
            prepare_us=2_000.0,
            candidates=tuple(
                CandidateScript(
                    algorithm=f"simulated/bench:c?n={n}",
                    time_us=time_us,
                    workspace_bytes=n << 20,
                    noise=0.002,
                    build_us=2_000.0,
                    first_us=5_050.0,
                    faults=faults if n == 0 else (),
                )
                for n, time_us in enumerate(times_us)
            ),
        )

    return Script(
        problems=tuple(map(problem, OPS)),
        facts={"script": "bench"},  # who gets stuck is no part of what the library is
        hang_s=job.hang_s or 0.0,
        machine=f"machine {job.number}",
    )


async def one_process(job: Job) -> Result:
    """Ask for everything at once, and say what came of it. Begins when a line is read."""
    backend = SimulatedBackend(script(job), trace=Path(job.directory, "trace.jsonl"), pace="real")
    store = DirectoryStore(Path(job.directory, "store"))
    engine = Engine(Lineup([backend], None), lambda: store, expiry_s=job.expiry_s)
    engine.start()
    await engine.ready.wait()
    searcher = Searcher(engine, mode="race")
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    choices = await searcher.select_many(OPS)
    result = Result(
        pid=os.getpid(),
        answers=sum(choice.precision != "heuristic" for choice in choices),
        digest=searcher.choices_digest().digest,
        began=began,
        ended=time.monotonic(),
        statistics=searcher.statistics().engine,
    )
    searcher.close()
    engine.stop()
    await engine.ended.wait()
    return result


def raw_values(directory: Path) -> dict[str, bytes]:
    """The bytes of every record in the store's file, by digest, read past the store."""
    with closing(sqlite3.connect(f"file:{directory / 'store' / 'cache.db'}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT key, value FROM Cache WHERE key LIKE 'record:%'").fetchall()
    return {name.removeprefix("record:"): value for name, value in rows}


def recomputed(directory: Path) -> str:
    """What `choices_digest` says of everything in the store, if every record lies under the digest of its own key."""
    lines = set()
    for digest, raw in raw_values(directory).items():
        record = wire.decode(raw, digest=digest)
        assert hashlib.sha256(record.key.text.encode()).hexdigest() == digest == Key.from_text(record.key.text).digest
        algorithm = DEFAULT_POLICY.pick(record).algorithm
        policy = msgspec.json.encode(DEFAULT_POLICY, order="sorted")
        lines.add(b"\n".join((digest.encode(), policy, algorithm.encode())))
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()


class Host:
    """Eight processes on one directory, each ready and waiting for its line."""

    def __init__(self, directory: Path, *, expiry_s: float, victim_hangs_s: float | None = None) -> None:
        self.directory = directory
        self.trace = directory / "trace.jsonl"
        self.processes = [
            self._start(
                Job(
                    number=number,
                    directory=str(directory),
                    expiry_s=expiry_s,
                    hang_s=victim_hangs_s if number == 0 else None,
                )
            )
            for number in range(PROCESSES)
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "a process did not come up"

    def _start(self, job: Job) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__, "--job", msgspec.json.encode(job).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, *numbers: int) -> None:
        """Let these begin; all if none is named."""
        for number in numbers or range(PROCESSES):
            stdin = self.processes[number].stdin
            assert stdin is not None
            stdin.write("begin\n")
            stdin.flush()

    def results(self, *numbers: int) -> list[Result]:
        """What these say in the end; all if none is named."""
        results = []
        for number in numbers or range(PROCESSES):
            out, _ = self.processes[number].communicate(timeout=120)
            assert self.processes[number].returncode == 0, f"process {number} broke"
            results.append(msgspec.json.decode(out, type=Result))
        return results

    def events(self) -> tuple[TraceEvent, ...]:
        return read_trace(self.trace)

    def wait_until_stuck(self) -> None:
        """Until the victim is in the middle of a trial."""
        deadline = time.monotonic() + 60
        while not any(event.outcome == "hangs" for event in self.events()):
            assert time.monotonic() < deadline, "the victim never came to its bait"
            time.sleep(0.01)

    def recomputed_elsewhere(self) -> str:
        """`recomputed`, by a process of its own."""
        command = [sys.executable, __file__, "--recompute", str(self.directory)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def agree(self, results: Sequence[Result]) -> bool:
        """Whether all of these, and the store, say the same of all keys."""
        complete = len(raw_values(self.directory)) == KEYS and all(result.answers == KEYS for result in results)
        return complete and {result.digest for result in results} == {self.recomputed_elsewhere()}

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def cold(directory: Path) -> dict[str, Any]:
    host = Host(directory, expiry_s=10.0)
    try:
        host.begin()
        results = host.results()
        counts = searched(host.events())
        wall_s = max(result.ended for result in results) - min(result.began for result in results)
        return {
            "searches": sum(counts.values()),
            "digests_equal": host.agree(results) and set(counts) == set(map(problem_digest, OPS)),
            "ratio": wall_s / (KEYS * KEY_MS / 1000 / PROCESSES),
            "wall_s": wall_s,
            "device_ms_a_key": spent_us(host.events(), ("launch", "time", "check")) / 1000 / KEYS,
            "waited": sum(result.statistics.claims_waited for result in results),
            "lost": sum(result.statistics.claims_lost for result in results),
        }
    finally:
        host.close()


def killed(directory: Path) -> bool:
    """Whether the others get every answer when one is killed in the middle of a trial."""
    host = Host(directory, expiry_s=EXPIRY_S, victim_hangs_s=600.0)
    try:
        _let_the_victim_get_stuck(host)
        host.processes[0].send_signal(signal.SIGKILL)
        results = host.results(*range(1, PROCESSES))
        return host.agree(results) and _taken_over(host)
    finally:
        host.close()


def stopped(directory: Path) -> bool:
    """Whether who was stopped beyond its claims adopts what the others found meanwhile."""
    host = Host(directory, expiry_s=EXPIRY_S, victim_hangs_s=2 * EXPIRY_S)
    try:
        _let_the_victim_get_stuck(host)
        host.processes[0].send_signal(signal.SIGSTOP)
        others = host.results(*range(1, PROCESSES))
        before = raw_values(directory)
        host.processes[0].send_signal(signal.SIGCONT)
        victims = host.results(0)
        unchanged = raw_values(directory) == before
        return unchanged and host.agree([*others, *victims]) and _taken_over(host)
    finally:
        host.close()


def _let_the_victim_get_stuck(host: Host) -> None:
    """It begins alone, so that the bait is its own; the others come when it holds the claim."""
    host.begin(0)
    host.wait_until_stuck()
    host.begin(*range(1, PROCESSES))


def _taken_over(host: Host) -> bool:
    """Whether the trace shows that another process has searched what the victim was at."""
    bait, victim = problem_digest(BAIT), host.processes[0].pid
    began = {event.pid for event in host.events() if event.problem == bait and event.call == "launch"}
    return victim in began and len(began) == 2


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--job", help="be one of the processes: what it is to do, as JSON")
    parser.add_argument("--recompute", type=Path, help="print the digest of what is in this directory's store")
    options = parser.parse_args()
    if options.job is not None:
        print(msgspec.json.encode(asyncio.run(one_process(msgspec.json.decode(options.job, type=Job)))).decode())
        return
    if options.recompute is not None:
        print(recomputed(options.recompute))
        return
    figures: dict[str, Any] = {"processes": PROCESSES, "keys": KEYS}
    with tempfile.TemporaryDirectory() as directory:
        figures |= cold(Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        figures["killed_ok"] = killed(Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        figures["stopped_ok"] = stopped(Path(directory))
    limits = {
        "searches": f"= {KEYS}",
        "digests_equal": "= True",
        "killed_ok": "= True",
        "stopped_ok": "= True",
        "ratio": "the wall over 0.5 s",
        "device_ms_a_key": "≈ 20",
    }
    report(figures, limits, options.json)
    if figures["searches"] != KEYS or not all(figures[name] for name in ("digests_equal", "killed_ok", "stopped_ok")):
        sys.exit(1)


if __name__ == "__main__":
    main()
