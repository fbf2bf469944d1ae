"""A thousand askers of a thousand keys: each key is searched once, and everybody gets an answer.

The tasks are spread over two event loops in two threads, with one blocking caller beside them. Half of the tasks ask
for all keys at once (`select_many`), half for one after the other (`select`), each in an order of its own. In the
second part a quarter of the tasks are cancelled at random moments. Searches are counted from the simulated backend's
own trace.

    python bench/dedup.py --json bench/results/dedup.json
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

from report import arguments, report

import algosearch
from algosearch.backends.simulated import SimulatedBackend, read_trace, searches

KEYS = 1_000
ASKERS = 1_000
LOOPS = 2
SEED = 20


OPS = [algosearch.ConvOp(input_shape=(1 + i, 16, 14, 14), filter_shape=(16, 16, 3, 3)) for i in range(KEYS)]


async def one_asker(searcher: algosearch.Searcher, number: int) -> int:
    """How many answers it got."""
    ops = random.Random(SEED + number).sample(OPS, KEYS)
    if number % 2:
        return len(await searcher.select_many(ops))
    answers = 0
    for op in ops:
        answers += (await searcher.select(op)).algorithm != ""
    return answers


async def one_loop(searcher: algosearch.Searcher, numbers: range, cancelled_share: float) -> tuple[int, int]:
    """(tasks cancelled, answers that others lack)."""
    dice = random.Random(SEED + numbers.start)
    tasks = [asyncio.create_task(one_asker(searcher, number)) for number in numbers]
    doomed = dice.sample(tasks, int(len(tasks) * cancelled_share))

    async def cancel() -> None:
        for task in doomed:
            await asyncio.sleep(0)  # a turn of the loop, in which whoever can goes on
            task.cancel()

    await cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    cancelled = sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome
    return cancelled, sum(KEYS - outcome for outcome in outcomes if isinstance(outcome, int))


def run(cancelled_share: float) -> dict[str, Any]:
    """All askers at once, on a fresh searcher."""
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.jsonl"
        lacking: list[tuple[int, int]] = []
        with algosearch.open_searcher(store="memory:", backends=[SimulatedBackend(trace=trace)]) as searcher:

            def loop(numbers: range) -> None:
                lacking.append(asyncio.run(one_loop(searcher, numbers, cancelled_share)))

            def block() -> None:
                lacking.append((0, KEYS - len(searcher.select_many_blocking(OPS))))

            share = ASKERS // LOOPS
            threads = [threading.Thread(target=loop, args=(range(i * share, (i + 1) * share),)) for i in range(LOOPS)]
            threads.append(threading.Thread(target=block))
            start = perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = perf_counter() - start
        assert len(lacking) == LOOPS + 1, "an asking thread broke"
        return {
            "searches": searches(read_trace(trace)),
            "seconds": seconds,
            "cancelled": sum(cancelled for cancelled, _ in lacking),
            "unanswered": sum(missing for _, missing in lacking),
        }


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    calm, wild = run(0.0), run(0.25)
    figures = {
        "keys": KEYS,
        "askers": ASKERS,
        "searches": calm["searches"],
        "seconds": calm["seconds"],
        "unanswered": calm["unanswered"],
        "searches_cancelling": wild["searches"],
        "seconds_cancelling": wild["seconds"],
        "cancelled": wild["cancelled"],
        "unanswered_cancelling": wild["unanswered"],
    }
    limits = {
        "searches": f"= {KEYS}",
        "seconds": "≤ 10",
        "unanswered": "= 0",
        "searches_cancelling": f"= {KEYS}",
        "unanswered_cancelling": "= 0",
    }
    report(figures, limits, options.json)


if __name__ == "__main__":
    main()
