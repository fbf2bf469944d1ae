"""A million requests over 5,000 keys, with withdrawals, cancellations, store faults and worker deaths: is every answer
right, and does anything grow?

Rounds. In each, a fresh searcher on one directory, whose device is in a child process, and one that lives through all
rounds, with its records in memory and its device in two threads. Before a round some records are deleted, so that every
round searches; in some keys the fastest candidate kills its process or poisons its device, each time that it is tried.
The directory's SQLite fails at random (busy, "locking protocol", full, read-only, input or output), the store raises,
keeps nothing or hides what it has, and in every fifth round pages of its file are overwritten. Requests are selected,
withdrawn, cancelled at a random turn, asked for their workspace first, or asked many at once, under several policies.

After each tenth of the rounds, with the fresh searcher closed, the memory (RSS, and Python's blocks), tasks, threads
and descriptors of this process are taken; the slopes are those of a line through the second half, for each 100,000
requests.

    python bench/soak.py --json bench/results/soak.json
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import random
import sys
import tempfile
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import linear_regression
from time import perf_counter, time
from typing import Any, Final

import msgspec
from report import arguments, report

import algosearch
from algosearch.backends.simulated import CandidateScript, Fault, ProblemScript, Script, SimulatedBackend
from algosearch.stores import DirectoryStore

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.stores.faulty import Ailment, FaultySqlite, FaultyStore
from tests.stores.faulty import Fault as StoreFault

REQUESTS: Final = 1_000_000
KEYS: Final = 5_000
ROUNDS: Final = 20
SAMPLES: Final = 10
TASKS: Final = 100
SEED: Final = 11
DEADLY: Final = 0.003
"""Of the keys have a candidate that kills its process, and as many one that poisons the device."""
DELETED: Final = 0.01
"""Of the keys are deleted before a round."""
AILING: Final = 0.002
"""Of SQLite's statements fail, and ten times as many of the store's calls."""
FLAT_MIB: Final = 1.0
"""Memory may grow by so much for each 100,000 requests: what the allocator does not give back."""
_LIBC: Final = ctypes.CDLL(None)
POLICIES: Final = (None, algosearch.Policy(workspace_limit_bytes=0), algosearch.Policy(deterministic=True))


class Sample(msgspec.Struct, kw_only=True):
    """What this process has at one moment."""

    requests: int
    rss_mib: float
    blocks: int
    """That Python has allocated."""
    tasks: int
    threads: int
    descriptors: int

    @classmethod
    def now(cls, requests: int) -> Sample:
        gc.collect()
        if hasattr(_LIBC, "malloc_trim"):  # what the C library holds back is no leak
            _LIBC.malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            requests=requests,
            blocks=sys.getallocatedblocks(),
            rss_mib=pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20),
            tasks=len(asyncio.all_tasks()),
            threads=threading.active_count(),
            descriptors=len(os.listdir("/proc/self/fd")),
        )


def problem(number: int, op: algosearch.ConvOp, *, deadly: bool) -> ProblemScript:
    """Four candidates, so far apart that there is one right answer under each policy."""
    does: Any = "poisons" if number % 2 else "killed"
    faults = (Fault(at="launch", does=does),) if deadly else ()
    names = ("deadly", "fast", "small", "slow")
    times_us = (50.0, 100.0 + number % 7, 130.0, 170.0)
    notes: tuple[tuple[str, ...], ...] = ((), ("nondeterministic",), (), ())
    bytes_ = (1 << 20, 1 << 20, 1 << 10, 0)
    return ProblemScript(
        op=op,
        prepare_us=0.0,
        candidates=tuple(
            CandidateScript(
                algorithm=f"simulated/soak:{name}",
                time_us=times_us[n],
                workspace_bytes=bytes_[n],
                notes=notes[n],
                noise=0.003,
                faults=faults if name == "deadly" else (),
            )
            for n, name in enumerate(names)
            if deadly or name != "deadly"
        ),
    )


RIGHT: Final = ("fast", "slow", "small")
"""Under each policy."""


class Soak:
    """All of it."""

    def __init__(self, *, requests: int, keys: int, rounds: int, deadly: float = DEADLY) -> None:
        self.rounds, self.each = rounds, requests // rounds
        self.ops = [
            algosearch.ConvOp(input_shape=(1 + n, 16, 14, 14), filter_shape=(16, 16, 3, 3)) for n in range(keys)
        ]
        self.dice = random.Random(SEED)
        doomed = set(self.dice.sample(range(keys), round(2 * deadly * keys)))
        problems = tuple(problem(n, op, deadly=n in doomed) for n, op in enumerate(self.ops))
        calm = tuple(problem(n, op, deadly=False) for n, op in enumerate(self.ops))
        self.script, self.calm = Script(problems=problems), Script(problems=calm, machine="another")
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.samples: list[Sample] = []
        self.ailing = False

    # -- faults ------------------------------------------------------------------------------------------------------

    def ailment(self, statement: str, number: int) -> Ailment | None:
        """Of a statement of SQLite's."""
        ailments: tuple[Ailment, ...] = ("busy", "protocol", "full", "read_only", "io")
        dice = random.Random(f"{SEED} {number}")
        return dice.choice(ailments) if self.ailing and dice.random() < AILING else None

    def fault(self, call: str) -> StoreFault | None:
        """Of a call of the store's."""
        possible: dict[str, tuple[StoreFault, ...]] = {
            "get_many": ("raises", "hidden", "torn", "late"),
            "commit": ("raises", "not_kept", "late"),
        }
        if not self.ailing or self.dice.random() >= 10 * AILING:
            return None
        return self.dice.choice(possible.get(call, ("raises", "late")))

    async def neglect(self, directory: Path, number: int) -> None:
        """Before a round: delete some records, and every fifth time spoil pages of the file."""
        store = DirectoryStore(directory)
        await store.open()
        digests = [digest async for digest, _ in store.scan()]
        doomed = self.dice.sample(digests, min(len(digests), round(DELETED * len(self.ops))))
        self.counts["deleted"] += await store.delete(doomed)
        await store.aclose()
        file = directory / "cache.db"
        if number % 5 == 4 and file.exists() and (pages := file.stat().st_size // 8192) > 20:
            with file.open("r+b") as handle:
                for page in self.dice.sample(range(10, pages), 3):
                    handle.seek(page * 8192)
                    handle.write(b"\xa5" * 8192)
            self.counts["spoilt"] += 1

    # -- requests ----------------------------------------------------------------------------------------------------

    def check(self, choice: algosearch.Choice, op: algosearch.ConvOp, kind: int) -> None:
        """Count an answer, and remember it if it is wrong."""
        self.counts["answers"] += 1
        if choice.algorithm != f"simulated/soak:{RIGHT[kind]}" or choice.precision == "heuristic":
            self.wrong.append(f"{op.input_shape[0]} under {POLICIES[kind]}: {choice.algorithm} ({choice.precision})")

    async def one(self, searcher: algosearch.Searcher, dice: random.Random) -> int:
        """One thing that a caller may do; how many requests it was."""
        op, kind, what = dice.choice(self.ops), dice.randrange(3), dice.random()
        policy = POLICIES[kind]
        if what < 0.60:
            self.check(await searcher.select(op, policy), op, kind)
            return 1
        if what < 0.75:
            request = searcher.request(op, policy)
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            request.withdraw()
            self.counts["withdrawn"] += 1
            return 1
        if what < 0.85:
            task = asyncio.create_task(searcher.select(op, policy))
            for _ in range(dice.randrange(6)):
                await asyncio.sleep(0)
            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(outcome, algosearch.Choice):
                self.check(outcome, op, kind)
            else:
                assert isinstance(outcome, asyncio.CancelledError), outcome
                self.counts["cancelled"] += 1
            return 1
        if what < 0.95:
            request = searcher.request(op, policy)
            if dice.random() < 0.2:
                assert await request.workspace()
            self.check(await request.choice(), op, kind)
            return 1
        some = dice.sample(self.ops, 10)
        for each, choice in zip(some, await searcher.select_many(some, policy), strict=True):
            self.check(choice, each, kind)
        return 10

    async def caller(self, searcher: algosearch.Searcher, requests: int, seed: str) -> None:
        """One of many tasks."""
        dice, made = random.Random(seed), 0
        while made < requests:
            made += await self.one(searcher, dice)
            await asyncio.sleep(0)
        self.counts["requests"] += made

    async def ask(self, searcher: algosearch.Searcher, requests: int, seed: str) -> None:
        async with asyncio.TaskGroup() as group:
            for n in range(TASKS):
                group.create_task(self.caller(searcher, requests // TASKS, f"{seed} {n}"))

    async def run(self, directory: Path) -> None:
        """All rounds, with a sample after each tenth of them."""
        with FaultySqlite(self.ailment).in_force() as sqlite:
            async with algosearch.open_searcher(
                store="memory:", backends=[SimulatedBackend(self.calm)], isolation="thread"
            ) as lasting:
                for number in range(self.rounds):
                    await self.neglect(directory, number)
                    self.ailing = True
                    # A claim that could not be given back has lapsed when the next round begins.
                    clock = partial(_minutes_later, number)
                    store = FaultyStore(DirectoryStore(directory, clock=clock, retry_s=0.1), self.fault)
                    async with algosearch.open_searcher(
                        store=store, backends=[SimulatedBackend(self.script)], isolation="process"
                    ) as fresh:
                        async with asyncio.TaskGroup() as group:
                            group.create_task(self.ask(fresh, self.each // 2, f"{SEED} {number} fresh"))
                            group.create_task(self.ask(lasting, self.each // 2, f"{SEED} {number} lasting"))
                        self.counts["searched"] += fresh.statistics().engine.searched
                        self.counts["store_hits"] += fresh.statistics().engine.store_hits
                    self.ailing = False
                    self.counts["store_faults"] += sum(store.met.values())
                    if (number + 1) % max(1, self.rounds // SAMPLES) == 0:
                        await asyncio.sleep(1.0)  # the threads of the last child may be on their way out
                        self.samples.append(Sample.now(self.counts["requests"]))
                        print(self.samples[-1], file=sys.stderr, flush=True)
            self.counts["sqlite_faults"] = sum(sqlite.raised.values())

    def slope(self, name: str) -> float:
        """Of the second half of the samples, for each 100,000 requests."""
        late = self.samples[len(self.samples) // 2 :]
        requests = [sample.requests / 100_000 for sample in late]
        return linear_regression(requests, [float(getattr(sample, name)) for sample in late]).slope


def _minutes_later(minutes: int) -> float:
    return time() + 60.0 * minutes


class Deaths(logging.Handler):
    """Counts the devices that broke, and swallows what is logged of expected trouble."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += " broke: " in record.getMessage()


def with_one_arena() -> None:
    """Begin again with one arena of the C library's for all threads: it keeps one for each thread that there was at
    once, and what they hold differs from round to round by more than a leak would be."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "MALLOC_ARENA_MAX": "1"})


def main() -> None:
    with_one_arena()
    parser = arguments(__doc__ or "")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--deadly", type=float, default=DEADLY, metavar="SHARE")
    options = parser.parse_args()
    deaths = Deaths()
    logging.getLogger("algosearch").addHandler(deaths)
    soak = Soak(requests=options.requests, keys=options.keys, rounds=options.rounds, deadly=options.deadly)
    begin = perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(soak.run(Path(directory) / "store"))
    figures: dict[str, Any] = {
        "requests": soak.counts["requests"],
        "keys": options.keys,
        "seconds": perf_counter() - begin,
        "answers": soak.counts["answers"],
        "wrong": len(soak.wrong),
        "withdrawn": soak.counts["withdrawn"],
        "cancelled": soak.counts["cancelled"],
        "searched": soak.counts["searched"],
        "store_hits": soak.counts["store_hits"],
        "store_faults": soak.counts["store_faults"],
        "sqlite_faults": soak.counts["sqlite_faults"],
        "files_spoilt": soak.counts["spoilt"],
        "deaths": deaths.count,
        "rss_mib_slope": soak.slope("rss_mib"),
        "blocks_slope": soak.slope("blocks"),
        "tasks_slope": soak.slope("tasks"),
        "threads_slope": soak.slope("threads"),
        "descriptors_slope": soak.slope("descriptors"),
    }
    limits = {
        "wrong": "= 0",
        "rss_mib_slope": f"≤ {FLAT_MIB} for each 100,000 requests",
        "tasks_slope": "= 0",
        "threads_slope": "= 0",
        "descriptors_slope": "= 0",
    }
    for wrong in soak.wrong[:20]:
        print(wrong, file=sys.stderr)
    samples = {name: [getattr(sample, name) for sample in soak.samples] for name in Sample.__struct_fields__}
    report(figures, limits, options.json, raw=samples)
    # A thread or descriptor that is on its way out at one sample makes a slope, and none of them grows.
    grown = [name for name in ("tasks", "threads", "descriptors") if samples[name][-1] > max(samples[name][:-1])]
    if soak.wrong or grown or figures["rss_mib_slope"] > FLAT_MIB:
        sys.exit(1)


if __name__ == "__main__":
    main()
