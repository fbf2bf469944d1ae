"""How late a 1 ms ticker on the caller's loop is while the CPU backend searches ResNet-50's convolutions.

The search runs numpy in two threads of the same process; the caller's loop must stay responsive beside them.

    python bench/ticker.py --json bench/results/ticker.json
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from report import arguments, report

import algosearch
from algosearch.backends.cpu import CpuBackend
from algosearch.compiler import ReadOptions, read_model

TICK_S = 0.001
LONGEST_S = 60.0


async def tick(lateness_ms: list[float], done: asyncio.Event) -> None:
    """Note how much later than 1 ms each wake-up comes."""
    while not done.is_set():
        due = perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        lateness_ms.append(max(0.0, perf_counter() - due) * 1e3)


async def measure() -> dict[str, float]:
    ops = list(dict.fromkeys(node.op for node in read_model("resnet50", ReadOptions()).nodes))
    lateness_ms: list[float] = []
    done = asyncio.Event()
    async with algosearch.open_searcher(store="memory:", backends=[CpuBackend()]) as searcher:
        ticker = asyncio.create_task(tick(lateness_ms, done))
        start = perf_counter()
        requests = [searcher.request(op) for op in ops]
        for request in requests:
            left = LONGEST_S - (perf_counter() - start)
            if left <= 0:
                break
            await request.choice(deadline_s=left)
        seconds = perf_counter() - start
        done.set()
        await ticker
    lateness_ms.sort()
    return {
        "ticks": len(lateness_ms),
        "seconds": seconds,
        "p50_ms": lateness_ms[len(lateness_ms) // 2],
        "p99_ms": lateness_ms[int(len(lateness_ms) * 0.99)],
        "worst_ms": lateness_ms[-1],
    }


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    report(asyncio.run(measure()), {"p99_ms": "≤ 20"}, options.json)


if __name__ == "__main__":
    main()
