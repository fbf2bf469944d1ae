"""Many processes and one server: every key is searched once between them, and all of them choose alike.

Each process has a simulated device of its own, on which a key takes 100 ms (slept), and no directory: everything goes
through the server, a Valkey of this bench's own on a Unix socket.

- *processes*: 2, 4, 8 and 16 of them want the same 500 keys from a common start. Searches are counted from the
  backends' traces. Each process tells its `choices_digest`; another process recomputes it from the raw values on the
  server. `ratio` is the worst of (wall - 0.5 s) × N / (500 × 100 ms) over the four. `cpu_s_per_process` is what each of
  16 took of a core from that start to its last answer: where fewer cores than processes are free, it is the figure to
  compare, for then the wall is what they wait for each other.
- *ranks*: 16 processes of 64 ranks each, 1,024 in all, each with an engine, a device and connections of its own; the
  engines of a process run on one loop, and share neither a record nor an answer: each reads, decodes and picks for
  itself. `ops_per_rank_key` is the trips to the server over ranks and keys; `ops_16384` is what 16,384 ranks would ask
  of it in all, and `ops_per_rank_key_16384` for each, reckoned from what 512 and 1,024 ranks asked: a part for each
  rank, and one that is shared.

    python bench/fleet.py --json bench/results/fleet.json
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from report import arguments, report

import algosearch
from algosearch.backends.simulated import (
    CandidateScript,
    ProblemScript,
    Script,
    SimulatedBackend,
    read_trace,
    searched,
)
from algosearch.records import DEFAULT_POLICY, Key, wire
from algosearch.search import EngineStatistics, Searcher
from algosearch.search.claims import EXPIRY_S
from algosearch.search.engine import Engine
from algosearch.search.lineup import Lineup
from algosearch.stores import ServerStore, SharedStore

KEYS = 500
KEY_MS = 100.0
FLEETS = (2, 4, 8, 16)
RANKS_A_PROCESS = 64
SELDOM = (200_000, 100, 1_000)
"""For the garbage collector of a process of many ranks, which looks through what all of them have: a fifth of the time,
and none of it is what a rank in a process of its own has to pay."""
CROWDED_EXPIRY_S = 45.0
"""Of a claim, where ranks share a loop: on two cores sixty-four of them have an eighth of one, so that a holder may
not get to renew it within the usual time, before all others have asked for everything."""
CONNECTIONS = 3
"""Of a rank to the server, at most."""
OPS = [algosearch.ConvOp(input_shape=(1 + i, 16, 14, 14), filter_shape=(16, 16, 3, 3)) for i in range(KEYS)]


class Job(msgspec.Struct, kw_only=True):
    """What one process is to do."""

    number: int
    url: str
    directory: str
    ranks: int = 1


class Result(msgspec.Struct, kw_only=True):
    """What one process has to tell."""

    answers: int
    digests: list[str]
    began: float
    """Of the machine's monotonic clock, as all its processes read it."""
    ended: float
    cpu_s: float
    """Of a core, between the two."""
    calls: int
    """Trips to the server."""
    statistics: list[EngineStatistics]


def problem(op: algosearch.ConvOp) -> ProblemScript:
    """A key: three candidates, 100 ms of the device's time in all."""
    return ProblemScript(
        op=op,
        prepare_us=5_000.0,
        candidates=tuple(
            CandidateScript(
                algorithm=f"simulated/bench:c?n={n}",
                time_us=time_us,
                workspace_bytes=n << 20,
                noise=0.002,
                build_us=2_000.0,
                first_us=31_700.0,
            )
            for n, time_us in enumerate((250.0, 300.0, 420.0))
        ),
    )


class Rank:
    """One searcher with an engine, a device and connections of its own, on the loop that is running."""

    def __init__(self, job: Job, number: int, problems: tuple[ProblemScript, ...]) -> None:
        script = Script(problems=problems, facts={"script": "bench"}, machine=f"machine {job.number} {number}")
        trace = Path(job.directory, f"trace-{job.number}.jsonl")
        backend = SimulatedBackend(script, trace=trace, pace="real")
        self.store = SharedStore(ServerStore(job.url), None)
        expiry_s = EXPIRY_S if job.ranks == 1 else CROWDED_EXPIRY_S
        self.engine = Engine(Lineup([backend], None), lambda: self.store, expiry_s=expiry_s)
        self.searcher = Searcher(self.engine, mode="race")

    async def ask(self) -> int:
        """Ask for everything at once; how many answers were found."""
        choices = await self.searcher.select_many(OPS)
        return sum(choice.precision != "heuristic" for choice in choices)


async def one_process(job: Job) -> Result:
    """Some ranks on one loop. They begin when a line is read."""
    problems = tuple(map(problem, OPS))
    if job.ranks > 1:
        gc.set_threshold(*SELDOM)
    ranks = [Rank(job, number, problems) for number in range(job.ranks)]
    serving = [asyncio.create_task(rank.engine.serve()) for rank in ranks]
    for rank in ranks:
        await rank.engine.ready.wait()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began, cpu_before_s = time.monotonic(), time.process_time()
    answers = await asyncio.gather(*(rank.ask() for rank in ranks))
    result = Result(
        answers=sum(answers),
        digests=sorted({rank.searcher.choices_digest().digest for rank in ranks}),
        began=began,
        ended=time.monotonic(),
        cpu_s=time.process_time() - cpu_before_s,
        calls=sum(rank.store.server.calls for rank in ranks),
        statistics=[rank.searcher.statistics().engine for rank in ranks],
    )
    for rank in ranks:
        rank.searcher.close()
        rank.engine.stop()
    await asyncio.gather(*serving)
    return result


@contextmanager
def server(directory: Path) -> Iterator[Any]:
    """A Valkey of our own."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.servers import running

    with running(directory) as started:
        yield started


def raw_values(url: str) -> dict[str, bytes]:
    """The bytes of every record on the server, by digest, read past the store."""
    import redis

    client: Any = redis.Redis(unix_socket_path=url.removeprefix("unix://").partition("?")[0])
    names = list(client.scan_iter(match=b"*:record:*", count=1000))
    return {
        name.rpartition(b":")[2].decode(): value[16:] for name, value in zip(names, client.mget(names), strict=True)
    }


def recomputed(url: str) -> str:
    """What `choices_digest` says of everything on the server, if every record lies under the digest of its own key."""
    lines = set()
    for digest, raw in raw_values(url).items():
        record = wire.decode(raw, digest=digest)
        assert hashlib.sha256(record.key.text.encode()).hexdigest() == digest == Key.from_text(record.key.text).digest
        policy = msgspec.json.encode(DEFAULT_POLICY, order="sorted")
        lines.add(b"\n".join((digest.encode(), policy, DEFAULT_POLICY.pick(record).algorithm.encode())))
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()


def commands(started: Any) -> int:
    """How many the server has carried out."""
    import redis

    client: Any = redis.Redis(unix_socket_path=str(started.socket))
    return int(client.info("stats")["total_commands_processed"])


def fleet(processes: int, ranks: int) -> dict[str, Any]:
    """So many processes of so many ranks, on a fresh server."""
    with tempfile.TemporaryDirectory() as directory, server(Path(directory)) as started:
        url = f"{started.unix}?timeout_s=30"
        jobs = [Job(number=number, url=url, directory=directory, ranks=ranks) for number in range(processes)]
        started_here = [_start(job) for job in jobs]
        try:
            for process in started_here:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n", "a process did not come up"
            before = commands(started)
            for process in started_here:
                assert process.stdin is not None
                process.stdin.write("begin\n")
                process.stdin.flush()
            results = [_result(process) for process in started_here]
            asked = commands(started) - before
        finally:
            for process in started_here:
                process.kill()
                process.communicate()
        counts = searched([event for trace in Path(directory).glob("trace-*") for event in read_trace(trace)])
        command = [sys.executable, str(Path(__file__).resolve()), "--recompute", url]
        agreed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        engines = [engine for result in results for engine in result.statistics]
        return {
            "searches": sum(counts.values()),
            "wall_s": max(result.ended for result in results) - min(result.began for result in results),
            "digests_equal": {digest for result in results for digest in result.digests} == {agreed}
            and all(result.answers == KEYS * ranks for result in results),
            "cpu_s": sum(result.cpu_s for result in results),
            "commands": asked,
            "calls": sum(result.calls for result in results),
            "waited": sum(engine.claims_waited for engine in engines),
            "alone": sum(engine.found_alone for engine in engines),
            "lapsed": sum(engine.claims_taken_over for engine in engines),
            "longest_wait_s": max(engine.claims_longest_wait_s for engine in engines),
        }


def _start(job: Job) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--job", msgspec.json.encode(job).decode()]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> Result:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, "a process broke"
    return msgspec.json.decode(out, type=Result)


def allow_files(ranks: int) -> None:
    """Let every process that is started from here have as many files open as the server needs for so many ranks: the
    usual limit of 1,024 is one for half as many, and beyond it connections are cut without a word."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS * ranks + 256
    if hard != resource.RLIM_INFINITY and hard < needed:
        sys.exit(f"{ranks} ranks need {needed} open files of the server, and this system allows {hard}")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def main(args: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--job", help="be one of the processes: what it is to do, as JSON")
    parser.add_argument("--recompute", help="print the digest of what is on this server")
    parser.add_argument("--only", choices=("processes", "ranks"), help="one of the two parts")
    parser.add_argument("--ranks", type=int, default=RANKS_A_PROCESS, help="in each of the 16 processes")
    options = parser.parse_args(args)
    if options.job is not None:
        print(msgspec.json.encode(asyncio.run(one_process(msgspec.json.decode(options.job, type=Job)))).decode())
        return
    if options.recompute is not None:
        print(recomputed(options.recompute))
        return
    allow_files(FLEETS[-1] * options.ranks)
    figures: dict[str, Any] = {"processes": list(FLEETS), "keys": KEYS}
    raw: dict[str, Any] = {}
    if options.only != "ranks":
        runs = raw["processes"] = {processes: fleet(processes, 1) for processes in FLEETS}
        sequential_s = KEYS * KEY_MS / 1000
        figures |= {
            "searches": max((run["searches"] for run in runs.values()), key=lambda count: abs(count - KEYS)),
            "digests_equal": all(run["digests_equal"] for run in runs.values()),
            "ratio": max((run["wall_s"] - 0.5) * processes / sequential_s for processes, run in runs.items()),
            "cpu_s_per_process": runs[FLEETS[-1]]["cpu_s"] / FLEETS[-1],
        }
    if options.only != "processes":
        half, full = (fleet(FLEETS[-1], ranks) for ranks in (options.ranks // 2, options.ranks))
        raw["ranks"] = {"half": half, "full": full}
        ranks = FLEETS[-1] * options.ranks
        each = max(0.0, (full["calls"] - half["calls"]) / (ranks / 2))
        figures |= {
            "ranks": ranks,
            "rank_searches": full["searches"],
            "rank_digests_equal": full["digests_equal"],
            "rank_seconds": full["wall_s"],
            "ops_per_rank_key": full["calls"] / ranks / KEYS,
            "cpu_s_per_rank": full["cpu_s"] / ranks,
            "ops_16384": round(full["calls"] + each * (16_384 - ranks)),
            "ops_per_rank_key_16384": (full["calls"] + each * (16_384 - ranks)) / 16_384 / KEYS,
        }
    limits = {"searches": f"= {KEYS}", "rank_searches": f"= {KEYS}", "ratio": "≤ 1.15", "rank_seconds": "≤ 60"}
    report(figures, limits, options.json, raw)
    if {figures.get(name, KEYS) for name in ("searches", "rank_searches")} != {KEYS} or not all(
        figures.get(name, True) for name in ("digests_equal", "rank_digests_equal")
    ):
        sys.exit(1)


if __name__ == "__main__":
    main()
