"""What an answer costs once it is known: from memory, from the directory, beside the usual caches.

Through the public method in a plain loop, nothing subtracted, statistics on, a record of 40 trials behind each answer;
the median of 7 rounds of 100,000. A *bare await* is that of a coroutine that reads a dictionary. *equal* means an op
built afresh for each look-up by the public constructor, from values that vary, validation included.

The directory's figure is that of a fresh process that asks 1,000 keys at once, devices and store open. Fresh processes
find bytecode, as they do where a package was installed, whatever PYTHONDONTWRITEBYTECODE says in the environment of the
bench: a first one writes it into a folder of the bench's own, and does not count.

    python bench/lookup.py --json bench/results/lookup.json
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import aiocache
from async_lru import alru_cache
from report import arguments, report

import algosearch
from algosearch import ConvOp
from algosearch.backends.simulated import Generated, Script, SimulatedBackend

ROUNDS = 7
LOOKUPS = 100_000
KEYS = 1_000
TRIALS = 40
BATCHES = 64

LIMITS = {
    "hit_same_us": "≤ 0.6, ≤ 3 bare awaits, < async_lru_us",
    "hit_equal_us": "≤ 1.5, ≤ 10 bare awaits, < async_lru_equal_us",
    "disk_hit_us": "≤ 100",
    "import_ms": "< 60",
}


def backend() -> SimulatedBackend:
    """Forty candidates for every op, no time spent on anything."""
    return SimulatedBackend(Script(generated=Generated(candidates=TRIALS, least_width=TRIALS)))


def built(batch: int) -> ConvOp:
    """One of the ops."""
    return ConvOp(
        input_shape=(batch, 64, 56, 56),
        filter_shape=(64, 64, 3, 3),
        stride=(1, 1),
        dilation=(1, 1),
        padding_low=(1, 1),
        padding_high=(1, 1),
        groups=1,
    )


async def median_us(one_round: Callable[[], Awaitable[float]], rounds: int = ROUNDS, lookups: int = LOOKUPS) -> float:
    """Of some rounds, in µs a look-up; one more goes before them and does not count."""
    await one_round()
    return statistics.median([await one_round() for _ in range(rounds)]) / lookups * 1e6


async def same(ask: Callable[[Any], Awaitable[Any]], op: ConvOp) -> float:
    start = perf_counter()
    for _ in range(LOOKUPS):
        await ask(op)
    return perf_counter() - start


async def equal(ask: Callable[[Any], Awaitable[Any]]) -> float:
    start = perf_counter()
    for i in range(LOOKUPS):
        await ask(
            ConvOp(
                input_shape=(1 + i % BATCHES, 64, 56, 56),
                filter_shape=(64, 64, 3, 3),
                stride=(1, 1),
                dilation=(1, 1),
                padding_low=(1, 1),
                padding_high=(1, 1),
                groups=1,
            )
        )
    return perf_counter() - start


async def memory_figures() -> dict[str, float]:
    """Everything that is looked up in memory, in one process and one run."""
    ops = [built(1 + i) for i in range(BATCHES)]
    async with algosearch.open_searcher(store="memory:", backends=[backend()]) as searcher:
        answers = dict(zip(ops, await searcher.select_many(ops), strict=True))
        assert all(len(choice.rejections) == TRIALS - 1 for choice in answers.values())
        op = ops[0]

        async def bare(op: ConvOp) -> object:
            return answers[op]

        lru = alru_cache(maxsize=None)(bare)
        plain_lru = functools.lru_cache(maxsize=None)(answers.__getitem__)
        peer = aiocache.Cache(aiocache.Cache.MEMORY)
        for i, known in enumerate(ops):
            await lru(known)
            await peer.set(known, i)

        async def plain() -> float:
            start = perf_counter()
            for _ in range(LOOKUPS):
                plain_lru(op)
            return perf_counter() - start

        async def from_peer() -> float:
            start = perf_counter()
            for _ in range(LOOKUPS // 10):
                await peer.get(op)
            return perf_counter() - start

        before = searcher.statistics().hits
        figures = {
            "hit_same_us": await median_us(lambda: same(searcher.select, op)),
            "hit_equal_us": await median_us(lambda: equal(searcher.select)),
        }
        assert searcher.statistics().hits - before == 2 * (ROUNDS + 1) * LOOKUPS, "every look-up must be a counted hit"
        return figures | {
            "bare_await_us": await median_us(lambda: same(bare, op)),
            "async_lru_us": await median_us(lambda: same(lru, op)),
            "async_lru_equal_us": await median_us(lambda: equal(lru)),
            "aiocache_us": await median_us(from_peer, lookups=LOOKUPS // 10),
            "lru_cache_us": await median_us(plain),
        }


def directory_ops() -> list[ConvOp]:
    """A thousand problems."""
    return [built(1 + i) for i in range(KEYS)]


async def fill(directory: str) -> None:
    """Search them all into a directory."""
    async with algosearch.open_searcher(store=directory, backends=[backend()]) as searcher:
        await searcher.select_many(directory_ops())


async def ask_directory(directory: str) -> dict[str, float]:
    """In a fresh process: open, then ask a thousand keys at once."""
    start = perf_counter()
    async with algosearch.open_searcher(store=directory, backends=[backend()]) as searcher:
        opened = perf_counter()
        # One key that is not among them opens the device, so that the keys do not pay for that.
        await searcher.select(built(KEYS + 1), mode="heuristic")
        ops = directory_ops()
        asked = perf_counter()
        await searcher.select_many(ops)
        answered = perf_counter()
        counts = searcher.statistics().engine
        assert (counts.store_hits, counts.searched) == (KEYS, 0), counts
    return {"disk_hit_us": (answered - asked) / KEYS * 1e6, "open_ms": (opened - start) * 1e3}


def fresh(bytecode: str, code: str, *arguments: str) -> Any:
    """What a fresh interpreter prints, as JSON; `bytecode` is the folder where it finds what was compiled before."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    here = Path(__file__).parent
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def nine_of(bytecode: str, code: str, *arguments: str) -> list[Any]:
    """What nine fresh interpreters print, after one that compiles what they import."""
    fresh(bytecode, code, *arguments)
    return [fresh(bytecode, code, *arguments) for _ in range(9)]


def fresh_figures() -> tuple[dict[str, float], dict[str, Any]]:
    """What fresh processes say, medians of nine."""
    with tempfile.TemporaryDirectory() as parent:
        directory, bytecode = f"{parent}/store", f"{parent}/bytecode"
        asyncio.run(fill(directory))
        code = "import asyncio, json, sys, lookup; print(json.dumps(asyncio.run(lookup.ask_directory(sys.argv[1]))))"
        asked = nine_of(bytecode, code, directory)
        code = "from time import perf_counter as t; a = t(); import algosearch; print((t() - a) * 1e3)"
        imports = nine_of(bytecode, code)
    figures = {name: statistics.median(run[name] for run in asked) for name in ("disk_hit_us", "open_ms")}
    return figures | {"import_ms": statistics.median(imports)}, {"directory": asked, "import_ms": imports}


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    of_fresh, raw = fresh_figures()
    figures = asyncio.run(memory_figures())
    report(figures | of_fresh, LIMITS, options.json, raw)


if __name__ == "__main__":
    main()
