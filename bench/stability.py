"""Do cold searches agree? The same few small ops searched again and again, each time in a fresh process.

Where picks differ they should be ties: timed against each other here, at length and interleaved, none should be slower
than the fastest by more than the tie window that its own search claimed for it. On the CPU backend the same two
candidates differ by two per cent more or less from one process to the next, for as long as the process lives, and no
search can know that: read the gaps with it in mind.

    python bench/stability.py --json bench/results/stability.json
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from math import exp, log
from statistics import median
from time import perf_counter
from typing import Any

from report import arguments, report

import algosearch
from algosearch.backends.cpu import CpuBackend
from algosearch.ops import canonical
from algosearch.records import Built, Burst

OPS = {
    "resnet_56": algosearch.ConvOp(input_shape=(1, 64, 56, 56), filter_shape=(64, 64, 3, 3), padding_low=(1, 1)),
    "resnet_14": algosearch.ConvOp(input_shape=(1, 256, 14, 14), filter_shape=(256, 256, 3, 3), padding_low=(1, 1)),
    "small": algosearch.ConvOp(input_shape=(1, 16, 28, 28), filter_shape=(16, 16, 3, 3), padding_low=(1, 1)),
    "batch_8": algosearch.ConvOp(input_shape=(8, 32, 14, 14), filter_shape=(32, 32, 3, 3), padding_low=(1, 1)),
    "depthwise": algosearch.ConvOp(
        input_shape=(1, 32, 28, 28), filter_shape=(32, 1, 3, 3), groups=32, padding_low=(1, 1)
    ),
}
BURST_US = 200.0
RETIMED_S = 2.0
LEAST_ROUNDS = 20


async def search_once(turn: int) -> dict[str, dict[str, Any]]:
    """Every op once, beginning with another one each time."""
    names = [*OPS][turn % len(OPS) :] + [*OPS][: turn % len(OPS)]
    found = {}
    async with algosearch.open_searcher(store="memory:", backends=[CpuBackend()]) as searcher:
        for name in names:
            start = perf_counter()
            choice = await searcher.select(OPS[name])
            found[name] = {
                "algorithm": choice.algorithm,
                "tie_window": choice.tie_window,
                "precision": choice.precision,
                "seconds": perf_counter() - start,
            }
    return found


def true_lags(op: algosearch.ConvOp, algorithms: Sequence[str]) -> dict[str, float]:
    """How much slower than the fastest each of these is, from undisturbed rounds, there and back."""
    problem, backend = canonical(op), CpuBackend()
    session = backend.open(backend.devices()[0])
    chosen = [each for each in session.enumerate(problem, None).candidates if each.algorithm in algorithms]
    plans = []
    for candidate in chosen:
        built = session.build(problem, candidate)
        assert isinstance(built, Built), built
        plans.append(built.plan)
    failure = session.load(problem, max(candidate.workspace_bytes for candidate in chosen))
    assert failure is None, failure
    bursts = []
    for plan in plans:
        session.launch(plan, None)
        burst = session.launch(plan, None)
        assert isinstance(burst, Burst), burst
        bursts.append((plan, max(1, round(BURST_US / burst.time_us))))
    lags: list[list[float]] = []
    start = perf_counter()
    while perf_counter() - start < RETIMED_S or len(lags) < LEAST_ROUNDS:
        turn = len(lags) % len(bursts)
        order = bursts[turn:] + bursts[:turn]
        outcomes = session.time(order + order[::-1], None)
        times = dict.fromkeys(plans, 0.0)
        for (plan, _), outcome in zip(order + order[::-1], outcomes, strict=True):
            assert isinstance(outcome, Burst), outcome
            times[plan] += outcome.time_us
        if not any(outcome.disturbed for outcome in outcomes if isinstance(outcome, Burst)):
            lags.append([log(times[plan] / times[plans[0]]) for plan in plans])
    session.close()
    middle = [median(column) for column in zip(*lags, strict=True)]
    return {each.algorithm: exp(lag - min(middle)) - 1 for each, lag in zip(chosen, middle, strict=True)}


def cold_search(turn: int) -> dict[str, dict[str, Any]]:
    command = [sys.executable, __file__, "--once", str(turn)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--searches", type=int, default=20, metavar="N", help="cold searches of each op")
    parser.add_argument("--once", type=int, metavar="TURN", help="one process's part: search each op, print the picks")
    options = parser.parse_args()
    if options.once is not None:
        print(json.dumps(asyncio.run(search_once(options.once))))
        return
    searches = [cold_search(turn) for turn in range(options.searches)]
    figures: dict[str, Any] = {"searches": len(searches)}
    worst_excess = -1.0
    for name, op in OPS.items():
        found = [search[name] for search in searches]
        picks = Counter(each["algorithm"] for each in found)
        lags = true_lags(op, [*picks]) if len(picks) > 1 else dict.fromkeys(picks, 0.0)
        worst_excess = max(worst_excess, *(lags[each["algorithm"]] - each["tie_window"] for each in found))
        figures |= {
            f"{name}_picks": ", ".join(f"{pick.partition(':')[2]} {count}" for pick, count in picks.most_common()),
            f"{name}_gap": max(lags.values()),
            f"{name}_window": median(each["tie_window"] for each in found),
            f"{name}_final": sum(each["precision"] == "final" for each in found),
            f"{name}_ms": median(each["seconds"] for each in found) * 1e3,
        }
    figures["worst_gap_beyond_window"] = worst_excess
    report(figures, {"worst_gap_beyond_window": "≤ 0"}, options.json, {"searches": searches})


if __name__ == "__main__":
    main()
