"""The table of the complaint: compiling ResNet-50's training step for more and more devices, four ways of asking.

Each cell is a compile in a process of its own: with an empty store (cold), and again from the store that the cold one
left (warm). Seconds are those of the compile alone: passes, reserves, task graph, memory plan, with the engine started
and its device open. `bench/results/seed_table.md` says what of the complaint's seconds this explains.

`naive` makes a handle for every query of a batch norm, in every pass and for every device: where it would take longer
than `--patience` seconds, it is ended and the cell says `unfinished` with what it had asked until then.

    python bench/seed_table.py --json bench/results/seed_table.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from report import arguments, report

import algosearch
from algosearch.cli.devices import find_device
from algosearch.compiler import ReadOptions
from algosearch.compiler.compile import Pipeline, compile_graph
from algosearch.compiler.handles import HandleProbe
from algosearch.compiler.passes import Placement
from algosearch.compiler.queries import Queries
from algosearch.compiler.read import read_graph
from algosearch.compiler.strategies import ASK_LIBRARY, STRATEGIES, StrategyName, strategy_of

PLACEMENTS = ((1, 1), (1, 4), (2, 8), (4, 8), (128, 8))


async def compile_once(
    workload: str,
    strategy: StrategyName,
    placement: Placement,
    *,
    batch: int,
    store: str,
    half: bool,
    patience_s: float,
) -> dict[str, Any]:
    """One cell."""
    graph, _ = read_graph(workload, ReadOptions(batch=batch))
    backend, device = find_device(None)
    pipeline = Pipeline(half=half, channels_last=half, placement=placement)
    async with AsyncExitStack() as stack:
        searcher = await stack.enter_async_context(algosearch.open_searcher(store=store))
        probe = await stack.enter_async_context(HandleProbe(backend, device))
        await searcher.select(algosearch.ConvOp(input_shape=(1, 1, 4, 4), filter_shape=(1, 1, 1, 1)), mode="heuristic")
        queries = Queries()
        asker = strategy_of(strategy, searcher, queries, probe if strategy in ASK_LIBRARY else None)
        began, finished = perf_counter(), True
        try:
            async with asyncio.timeout(patience_s):
                await compile_graph(graph, asker, queries, pipeline=pipeline)
        except TimeoutError:
            finished = False
        seconds = perf_counter() - began
        engine = searcher.statistics().engine
        conv_s, norm_s = queries.seconds_of("conv"), queries.seconds_of("batch_norm")
        return {
            "finished": finished,
            "total_s": seconds,
            "conv_query_s": conv_s,
            "batch_norm_query_s": norm_s,
            "share": (conv_s + norm_s) / seconds,
            "queries": queries.count,
            "us_per_query": (conv_s + norm_s) / max(1, queries.count) * 1e6,
            "listings": engine.listings + probe.handles,
            "searched": engine.searched,
            "trials": engine.trials,
        }


def cell(options: Any, strategy: str, nodes: int, devices: int, store: Path) -> dict[str, Any]:
    """One compile in a fresh process."""
    arguments = [sys.executable, __file__, "--one", strategy, str(nodes), str(devices), "--store", str(store)]
    arguments += ["--workload", options.workload, "--batch", str(options.batch), "--patience", str(options.patience)]
    done = subprocess.run(arguments + (["--half"] if options.half else []), check=True, stdout=subprocess.PIPE)
    decoded: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return decoded


def table(options: Any) -> None:
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for nodes, devices in PLACEMENTS[: options.placements]:
            for strategy in STRATEGIES:
                store = Path(directory) / f"{nodes}x{devices}-{strategy}"
                for state in ("cold", "warm"):
                    name = f"{nodes}x{devices} {strategy} {state}"
                    rows[name] = found = cell(options, strategy, nodes, devices, store)
                    print(
                        f"{name:<22} {found['total_s']:9.3f} s  conv {found['conv_query_s']:8.3f}  "
                        f"norm {found['batch_norm_query_s']:8.3f}  {found['share']:6.1%}  "
                        f"{found['queries']:>8} queries  {found['us_per_query']:9.2f} µs each  "
                        f"{found['trials']:>5} trials{'' if found['finished'] else '  UNFINISHED'}",
                        file=sys.stderr,
                        flush=True,
                    )
    warm = [rows[name] for name in rows if name.endswith("async warm")]
    cold = [rows[name] for name in rows if name.endswith("async cold")]
    figures = {
        "async_warm_us_per_query": max(each["us_per_query"] for each in warm),
        "async_trials_fewest": min(each["trials"] for each in cold),
        "async_trials_most": max(each["trials"] for each in cold),
        "async_searched_fewest": min(each["searched"] for each in cold),
        "async_searched_most": max(each["searched"] for each in cold),
    }
    limits = {"async_warm_us_per_query": "≤ 2", "async_searched_most": "as the fewest"}
    report(figures, limits, options.json, raw=rows)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--batch", type=int, default=1, help="of each device")
    parser.add_argument("--half", action="store_true", help="float16, channels last: for a GPU")
    parser.add_argument("--placements", type=int, default=len(PLACEMENTS), help="so many of the placements")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for one compile")
    parser.add_argument("--one", nargs=3, metavar=("STRATEGY", "NODES", "DEVICES"), help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is None:
        table(options)
        return
    strategy, nodes, devices = options.one
    placement = Placement(nodes=int(nodes), devices_per_node=int(devices))
    found = asyncio.run(
        compile_once(
            options.workload,
            strategy,
            placement,
            batch=options.batch,
            store=options.store,
            half=options.half,
            patience_s=options.patience,
        )
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
