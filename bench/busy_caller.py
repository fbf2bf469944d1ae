"""A caller that computes nine tenths of the time on its loop's thread: what does it cost the search, and the picks?

Every sample is a fresh process, quiet and busy callers in turn. The search begins with an empty store when the device,
in a child process, is open, and ends when the caller has the last answer. A busy caller computes in plain Python for
nine times as long as its loop was free, at most 12 ms at a time. The ticker (`ticker.py`) is a task on the caller's
loop: beside a quiet caller it shows what a search does to a loop; beside a busy one it waits for the caller's own
computing as well, of which `busy_slice_ms` is the longest stretch.

A candidate's price is the median of its times in all samples. The regret is how much more the busy caller's picks cost
than the quiet one's, in sum.

    python bench/busy_caller.py --backend cudnn --json bench/results/busy_caller.json
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

import apart
import machine
from report import arguments, report, some
from ticker import tick

import algosearch
from algosearch.backends import Backend
from algosearch.backends.cpu import CpuBackend
from algosearch.backends.simulated import Generated, Script, SimulatedBackend
from algosearch.compiler import ReadOptions, read_model
from algosearch.ops import ConvOp, Op
from algosearch.records import Trial

PAUSE_S: Final = 0.001
SHARE: Final = 0.9
"""Of the time that a busy caller computes."""
SLICE_S: Final = 0.012
"""At most: what is owed then is made up for later."""
OTHER: Final = ConvOp(input_shape=(2, 16, 8, 8), filter_shape=(16, 16, 3, 3))
"""Asked first, without a run, so that the device is open."""
KEYS: Final = {"cudnn": 1_000, "cpu": 12, "simulated": 100}
"""At most, unless another number is asked for."""
LIMITS: Final = {
    "busy_ratio": "≤ 1.2",
    "quiet_ticker_worst_ms": "≤ 20",
    "busy_ticker_worst_ms": "≤ 20",
    "busy_share": "≥ 0.9",
    "regret": "≤ 0.003 on a GPU",
}


def stage(name: str, case: str, batch: int) -> tuple[Backend, list[Op]]:
    """A backend, and what is asked of it."""
    if name == "cudnn":
        from networks import training_convs

        from algosearch.backends.cudnn import CudnnBackend

        return CudnnBackend(), list(training_convs("resnet50", case, batch))
    if name == "cpu":
        return CpuBackend(), list(dict.fromkeys(node.op for node in read_model("resnet50", ReadOptions()).nodes))
    # A machine of its own: simulated devices of one name on one machine exclude each other, whoever runs them.
    script = Script(
        machine=f"busy caller {os.getpid()}",
        generated=Generated(prepare_us=500.0, build_us=100.0, time_us=130.0, candidates=4),
    )
    ops: list[Op] = [ConvOp(input_shape=(1 + n, 16, 14, 14), filter_shape=(16, 16, 3, 3)) for n in range(KEYS[name])]
    return SimulatedBackend(script, pace="real"), ops


class Caller:
    """Computes, as long as it is wanted."""

    def __init__(self) -> None:
        self.computed_s = 0.0
        self.longest_s = 0.0

    async def compute(self, done: asyncio.Event) -> None:
        """In slices; between them the loop is free for a moment."""
        began = perf_counter()
        while not done.is_set():
            await asyncio.sleep(PAUSE_S)
            start = perf_counter()
            free_s = start - began - self.computed_s
            due_s = min(SLICE_S, SHARE / (1 - SHARE) * free_s - self.computed_s)
            x = 0
            while (now := perf_counter()) - start < due_s:
                for i in range(100):
                    x ^= i
            self.computed_s += now - start
            self.longest_s = max(self.longest_s, now - start)


async def sample(who: str, name: str, case: str, batch: int, keys: int) -> dict[str, Any]:
    """One search beside a quiet or a busy caller."""
    backend, ops = stage(name, case, batch)
    ops = ops[:keys]
    late_ms: list[float] = []
    done = asyncio.Event()
    caller = Caller()
    with tempfile.TemporaryDirectory() as directory:
        async with algosearch.open_searcher(
            store=directory, backends=[backend], devices=[f"{name}:0"], isolation="process"
        ) as searcher:
            await searcher.select(OTHER, mode="heuristic")
            tasks = [asyncio.create_task(tick(late_ms, done))]
            if who == "busy":
                tasks.append(asyncio.create_task(caller.compute(done)))
            start = perf_counter()
            requests = [searcher.request(op) for op in ops]
            choices = [await request.choice() for request in requests]
            seconds = perf_counter() - start
            done.set()
            await asyncio.gather(*tasks)
    late_ms.sort()
    return {
        "seconds": seconds,
        "share": caller.computed_s / seconds,
        "slice_ms": caller.longest_s * 1e3,
        "ticker_p99_ms": late_ms[int(len(late_ms) * 0.99)],
        "ticker_worst_ms": late_ms[-1],
        "final": sum(choice.precision == "final" for choice in choices),
        "picks": [choice.algorithm for choice in choices],
        "times_us": [
            {each.algorithm: each.time_us for each in choice.candidates if isinstance(each, Trial) and each.time_us}
            for choice in choices
        ],
    }


def picked_us(samples: Sequence[dict[str, Any]], everybody: Sequence[dict[str, Any]]) -> list[float]:
    """What the picks of each sample cost in sum."""
    sums = [0.0] * len(samples)
    for op in range(len(samples[0]["picks"])):
        times: defaultdict[str, list[float]] = defaultdict(list)
        for each in everybody:
            for algorithm, time_us in each["times_us"][op].items():
                times[algorithm].append(time_us)
        for number, each in enumerate(samples):
            sums[number] += statistics.median(times[each["picks"][op]])
    return sums


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sample", nargs=5, metavar=("WHO", "BACKEND", "CASE", "BATCH", "KEYS"))
    parser.add_argument("--backend", choices=tuple(KEYS), default="cudnn")
    parser.add_argument("--case", choices=("fp16_nhwc", "fp32_nchw"), default="fp16_nhwc")
    parser.add_argument("--batch", type=some, default=64)
    parser.add_argument("--keys", type=some, help="search only so many")
    parser.add_argument("--times", type=some, default=5)
    options = parser.parse_args()
    if options.sample:
        who, name, case, batch, keys = options.sample
        print(json.dumps(asyncio.run(sample(who, name, case, int(batch), int(keys)))))
        return
    if options.backend == "cudnn":
        machine.needs(parser, gpus=1)
    keys = KEYS[options.backend] if options.keys is None else options.keys
    raw: dict[str, list[dict[str, Any]]] = {"quiet": [], "busy": []}
    for _ in range(options.times):
        for who, found in raw.items():
            found.append(apart.sample(__file__, who, options.backend, options.case, options.batch, keys))
    everybody = [*raw["quiet"], *raw["busy"]]
    seconds = {who: statistics.median(each["seconds"] for each in found) for who, found in raw.items()}
    cost_us = {who: statistics.median(picked_us(found, everybody)) for who, found in raw.items()}
    figures: dict[str, Any] = {"backend": options.backend, "keys": len(raw["quiet"][0]["picks"])}
    for who, found in raw.items():
        figures |= {
            f"{who}_s": seconds[who],
            f"{who}_ticker_p99_ms": statistics.median(each["ticker_p99_ms"] for each in found),
            f"{who}_ticker_worst_ms": max(each["ticker_worst_ms"] for each in found),
            f"{who}_final": min(each["final"] for each in found),
            f"{who}_picks_ms": cost_us[who] / 1e3,
        }
    figures |= {
        "busy_ratio": seconds["busy"] / seconds["quiet"],
        "busy_share": min(each["share"] for each in raw["busy"]),
        "busy_slice_ms": max(each["slice_ms"] for each in raw["busy"]),
        "regret": cost_us["busy"] / cost_us["quiet"] - 1,
    }
    report(figures, LIMITS, options.json, raw)


if __name__ == "__main__":
    main()
