"""Compiling on simulated devices, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from algosearch import open_searcher
from algosearch.backends.simulated import Script, SimulatedBackend, TraceEvent
from algosearch.compiler.compile import Compiled, Pipeline, compile_graph
from algosearch.compiler.graph import Graph
from algosearch.compiler.handles import HandleProbe
from algosearch.compiler.layers import Layers
from algosearch.compiler.queries import Queries
from algosearch.compiler.strategies import Strategy, StrategyName, strategy_of
from algosearch.search.searcher import Searcher


@asynccontextmanager
async def compiling(
    name: StrategyName, trace: list[TraceEvent] | None = None, *, script: Script | None = None, store: str = "memory:"
) -> AsyncIterator[tuple[Searcher, Strategy, Queries, HandleProbe]]:
    """A searcher on simulated devices, and a strategy that asks it."""
    backend = SimulatedBackend(script or Script(), trace=trace)
    queries = Queries()
    probe = HandleProbe(backend, backend.devices()[0])
    async with probe, open_searcher(store=store, backends=[backend]) as searcher:
        yield searcher, strategy_of(name, searcher, queries, probe), queries, probe


async def compiled_by(
    name: StrategyName, graph: Graph, pipeline: Pipeline, trace: list[TraceEvent] | None = None
) -> tuple[Compiled, Queries, HandleProbe]:
    async with compiling(name, trace) as (_, strategy, queries, probe):
        return await compile_graph(graph, strategy, queries, pipeline=pipeline), queries, probe


def a_block() -> Graph:
    """Two convolutions, their norms and rectifiers, and a sum."""
    net = Layers("block", data_type="float32", layout="channels_first")
    x = net.conv_norm("first", net.enter("input", (4, 8, 12, 12)), 8, 3)
    y = net.conv_norm("second", x, 8, 3, relu=False)
    return net.finish(net.relu("out", net.add("sum", y, x)))
