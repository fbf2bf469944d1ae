"""One cell of `seed_table.py`, in a process of its own: a compile, or the searches of one alone. Prints one JSON line.

Seconds are those of the compile alone: passes, reserves, task graph, memory plan, with the engine started and its
device open.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import msgspec

import algosearch
from algosearch.backends import Backend, Device, discover
from algosearch.backends.simulated import Generated, Script, SimulatedBackend
from algosearch.cli.devices import find_device
from algosearch.compiler import ReadOptions
from algosearch.compiler.compile import Pipeline, compile_graph
from algosearch.compiler.graph import Graph, GraphBuilder
from algosearch.compiler.handles import HandleProbe
from algosearch.compiler.passes import Placement
from algosearch.compiler.queries import Queries
from algosearch.compiler.read import read_graph
from algosearch.compiler.strategies import ASK_LIBRARY, STRATEGIES, strategy_of
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import DEFAULT_POLICY
from algosearch.search.searcher import Searcher

BACKENDS = ("cpu", "cudnn", "simulated")
QUICK = {
    "cpu": algosearch.Policy(exclude=("*:fft*", "*:direct*")),
    "cudnn": algosearch.Policy(allow_runtime_compiled=False),
}
"""Policies that leave a search with less to do. All cells of a table ask under one."""
TINY = algosearch.ConvOp(input_shape=(1, 1, 4, 4), filter_shape=(1, 1, 1, 1))


def graphs_of(graph: Graph, pipeline: Pipeline) -> list[Graph]:
    """What the passes make, as a compile has them, the one that was read first. Nothing is asked."""
    graphs = [graph]
    for _, make in pipeline.passes:
        graphs.append(make(graphs[-1], GraphBuilder(graph.name)))
    return graphs


def questions(graphs: list[Graph], strategy: str, devices: int) -> dict[str, int]:
    """How many queries a compile that is synchronous comes to, by kind of op: as `AskSynchronously` asks them."""
    final = list(graphs[-1].ops)
    asked = Counter({"conv": 0, "batch_norm": 0})
    for ops in [each.ops for each in graphs] if strategy == "naive" else []:
        asked.update(_kind(op) for op in ops for _ in range(devices))  # in the passes, for every device
    for op in final:
        asked[_kind(op)] += devices  # the task graph
    asked.update(_kind(op) for op in set(final))  # the memory plan
    asked["batch_norm"] += sum(tensor.deferred for tensor in graphs[-1].tensors.values())  # the reserves
    return dict(asked)


def _kind(op: Op) -> str:
    return "conv" if isinstance(op, ConvOp) else "batch_norm"


def device_of(backend: str | None) -> tuple[Backend, Device]:
    if backend == "simulated":
        # A machine of its own: whoever simulates another one at the same time must not hold its device.
        simulated = SimulatedBackend(Script(generated=Generated(), machine="bench/seed_table"))
        return simulated, simulated.devices()[0]
    return find_device(backend)


@asynccontextmanager
async def searching(options: Any, backend: Backend, device: Device) -> AsyncIterator[Searcher]:
    """A searcher whose engine has started and whose device is open."""
    policy = algosearch.Policy() if options.full else QUICK.get(backend.name, algosearch.Policy())
    if backend.name not in {each.name for each in discover.default_backends()}:
        opening = algosearch.open_searcher(store=options.store, backends=[backend], policy=policy)
    else:
        opening = algosearch.open_searcher(store=options.store, devices=(device.name,), policy=policy)
    async with opening as searcher:
        await searcher.select(TINY, mode="heuristic")
        yield searcher


async def cell(options: Any) -> dict[str, Any]:
    """One compile."""
    strategy, devices = options.strategy, options.nodes * options.devices
    placement = Placement(nodes=options.nodes, devices_per_node=options.devices)
    pipeline = Pipeline(half=options.half, channels_last=options.half, placement=placement)
    graph, _ = read_graph(options.workload, ReadOptions(batch=options.batch))
    backend, device = device_of(options.backend)
    async with searching(options, backend, device) as searcher, HandleProbe(backend, device) as probe:
        if strategy in ASK_LIBRARY:
            await probe(BatchNormOp(shape=(1, 8, 4, 4)))  # loads the library, makes the context
        before, handles = searcher.statistics().engine, probe.handles
        queries = Queries()
        asker = strategy_of(strategy, searcher, queries, probe if strategy in ASK_LIBRARY else None)
        began, finished = perf_counter(), True
        try:
            async with asyncio.timeout(options.patience):
                await compile_graph(graph, asker, queries, pipeline=pipeline)
        except TimeoutError:
            finished = False
        seconds = perf_counter() - began
        engine = searcher.statistics().engine
        conv_s, norm_s = queries.seconds_of("conv"), queries.seconds_of("batch_norm")
        found = {
            "finished": finished,
            "total_s": seconds,
            "conv_query_s": conv_s,
            "batch_norm_query_s": norm_s,
            "share": (conv_s + norm_s) / seconds,
            "queries": queries.count,
            "us_per_query": (conv_s + norm_s) / max(1, queries.count) * 1e6,
            "probes": engine.listings - before.listings + probe.handles - handles,
            "handles": probe.handles - handles,
            "searched": engine.searched - before.searched,
            "trials": engine.trials - before.trials,
            "lane_wait_s": engine.lane_wait_seconds - before.lane_wait_seconds,
            "policy": {
                name: value
                for name, value in msgspec.structs.asdict(searcher.policy).items()
                if value != getattr(DEFAULT_POLICY, name)
            },
            "device": f"{device.name}, {device.kind}",
        }
        if finished and strategy == "async":
            found |= await again(searcher, graph, pipeline)
        if not finished:
            found |= await the_rest(options, searcher, graphs_of(graph, pipeline), queries, devices)
        return found


async def again(searcher: Searcher, graph: Graph, pipeline: Pipeline) -> dict[str, Any]:
    """The same compile in the same process: nothing is read from a store any more."""
    queries = Queries()
    began = perf_counter()
    await compile_graph(graph, strategy_of("async", searcher, queries, None), queries, pipeline=pipeline)
    seconds = queries.seconds_of("conv") + queries.seconds_of("batch_norm")
    return {"again_total_s": perf_counter() - began, "again_us_per_query": seconds / max(1, queries.count) * 1e6}


async def the_rest(
    options: Any, searcher: Searcher, graphs: list[Graph], queries: Queries, devices: int
) -> dict[str, Any]:
    """Of a compile that was ended: what it would have asked in all, and how long its batch norms would take at the pace
    that they had. What it would have stored is stored, so that a warm one is warm; if there is time for that."""
    asked = questions(graphs, options.strategy, devices)
    lines = [line for line in queries.statistics() if line.kind == "batch_norm"]
    answered = sum(line.queries for line in lines)
    each_s = queries.seconds_of("batch_norm") / answered if answered else None
    convolutions = list(dict.fromkeys(op for graph in graphs for op in graph.ops if isinstance(op, ConvOp)))
    began = perf_counter()
    if options.strategy in ASK_LIBRARY:
        missing: list[Op] = [*(convolutions if options.strategy == "naive" else _convs(graphs[-1]))]
    else:
        missing = list(dict.fromkeys(graphs[-1].ops))
    completed = True
    try:
        async with asyncio.timeout(options.complete):
            await searcher.select_many(missing)
    except TimeoutError:
        completed = False
    return {
        "completed": completed,
        "all_queries": sum(asked.values()),
        "all_batch_norm_queries": asked["batch_norm"],
        "estimated_batch_norm_query_s": None if each_s is None else each_s * asked["batch_norm"],
        "completed_s": perf_counter() - began,
    }


def _convs(graph: Graph) -> list[ConvOp]:
    return list(dict.fromkeys(op for op in graph.ops if isinstance(op, ConvOp)))


async def alone(options: Any) -> dict[str, Any]:
    """The searches of a compile and nothing else: all its problems asked at once, and waited for."""
    pipeline = Pipeline(half=options.half, channels_last=options.half, placement=Placement())
    graph, _ = read_graph(options.workload, ReadOptions(batch=options.batch))
    ops = list(dict.fromkeys(graphs_of(graph, pipeline)[-1].ops))
    backend, device = device_of(options.backend)
    async with searching(options, backend, device) as searcher:
        began = perf_counter()
        await searcher.select_many(ops)
        seconds = perf_counter() - began
        return {"total_s": seconds, "searched": searcher.statistics().engine.searched}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy", choices=(*STRATEGIES, "alone"), help="how it asks; or `alone`")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--store", required=True)
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--backend", choices=BACKENDS)
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--complete", type=float, default=60.0, help="seconds to store what is missing")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(alone(options) if options.strategy == "alone" else cell(options))))


if __name__ == "__main__":
    main()
