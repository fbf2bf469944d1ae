"""`compile_graph`: passes, task graph, memory plan; and where in them an answer is waited for.

Logical inference waits for nothing. One thing of it cannot be inferred, the reserve of a fused batch norm, and is
waited for when the passes are done. The task graph waits for workspace sizes, the memory plan for choices under its
limit, and nothing else waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from time import perf_counter
from typing import Final

import msgspec
from msgspec.structs import replace

from algosearch.compiler.gradients import with_gradients
from algosearch.compiler.graph import Graph, GraphBuilder
from algosearch.compiler.memory import Choices, fit, planned
from algosearch.compiler.passes import (
    Pass,
    Placement,
    channels_last,
    drop_dead,
    fuse_batch_norms,
    mixed_precision,
    place,
    with_batch_statistics,
)
from algosearch.compiler.plan import Plan
from algosearch.compiler.queries import Queries
from algosearch.compiler.strategies import Strategy
from algosearch.compiler.timeline import Timeline
from algosearch.errors import InvalidGraph, InvalidSetting, NoAlgorithm
from algosearch.ops import BatchNormOp, Op
from algosearch.records import Choice

__all__ = ("Compiled", "Pipeline", "compile_graph")


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Which passes a compile makes."""

    training: bool = True
    half: bool = True
    """Compute in float16."""
    channels_last: bool = True
    placement: Placement = Placement()

    @property
    def passes(self) -> tuple[tuple[str, Pass], ...]:
        """Their names, in their order."""
        chosen: list[tuple[str, Pass]] = []
        if self.training:
            chosen += [("batch statistics", with_batch_statistics), ("fuse batch norms", fuse_batch_norms)]
        if self.half:
            chosen.append(("mixed precision", mixed_precision))
        if self.channels_last:
            chosen.append(("channels last", channels_last))
        if self.training:
            chosen.append(("gradients", with_gradients))
        chosen.append(("dead code", drop_dead))
        chosen.append(("placement", partial(place, placement=self.placement)))
        return tuple(chosen)


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and what it took."""

    plan: Plan
    seconds: dict[str, float]
    """By stage: `passes`, `reserve`, `task graph`, `memory plan`."""
    waited_s: dict[str, float]
    """Of them, spent waiting for answers."""
    tasks: int
    """Of all devices."""


async def compile_graph(
    graph: Graph,
    strategy: Strategy,
    queries: Queries,
    *,
    pipeline: Pipeline,
    memory_bytes: int | None = None,
    timeline: Timeline | None = None,
    show: Callable[[str, int, int], None] = lambda stage, done, of: None,
) -> Compiled:
    """Compile an inference graph.

    Args:
        strategy: how it asks, and under which policy. What it asks, it writes into `queries`.
        memory_bytes: of each device's arena; None: as much as it takes. The workspace limit of the policy holds beside
            that to which this leads.
        show: told of progress: the stage, how much of it is done, and how much there is.

    Raises:
        InvalidSetting: `memory_bytes` is no number of bytes.
        InvalidGraph: a pass makes no valid graph of it.
        DoesNotFit: the arena does not fit into `memory_bytes`, whatever is chosen.
        NoAlgorithm, SearchFailed, DeviceUnavailable, SearcherClosed: as `Searcher.select`.

    Cancellation: nothing is left behind; what was asked and not answered yet is withdrawn, as it is after an error.
    """
    if memory_bytes is not None and (type(memory_bytes) is not int or memory_bytes < 1):
        raise InvalidSetting("memory_bytes", memory_bytes, "must be at least 1, and an integer")
    try:
        return await _Compilation(strategy, queries, pipeline, timeline, show).run(graph, memory_bytes)
    finally:
        strategy.ended()


_BREATH_S: Final = 0.05
_STAGES: Final = ("passes", "reserve", "task graph", "memory plan")


class _Compilation:
    """One compile under way."""

    def __init__(
        self,
        strategy: Strategy,
        queries: Queries,
        pipeline: Pipeline,
        timeline: Timeline | None,
        show: Callable[[str, int, int], None],
    ) -> None:
        self._strategy = strategy
        self._queries = queries
        self._pipeline = pipeline
        self._timeline = timeline
        self._show = show
        self._seconds: dict[str, float] = {}
        self._breathed = perf_counter()

    async def run(self, graph: Graph, memory_bytes: int | None) -> Compiled:
        try:
            plan, tasks = await self._stages(graph, memory_bytes)
        finally:
            if self._timeline is not None:
                self._timeline.waits(self._queries.waits, self._queries.began)
        waited = {stage: self._queries.seconds.get(stage, 0.0) for stage in _STAGES}
        return Compiled(plan=plan, seconds=self._seconds, waited_s=waited, tasks=tasks)

    async def _stages(self, graph: Graph, memory_bytes: int | None) -> tuple[Plan, int]:
        for stage in _STAGES:
            began = perf_counter()
            with nullcontext() if self._timeline is None else self._timeline.span(stage):
                match stage:
                    case "passes":
                        graph = await self._passes(graph)
                    case "reserve":
                        graph = await self._reserves(graph)
                    case "task graph":
                        tasks = await self._task_graph(graph)
                    case "memory plan":
                        plan = await self._memory_plan(graph, memory_bytes)
            self._seconds[stage] = perf_counter() - began
        return plan, tasks

    async def _passes(self, graph: Graph) -> Graph:
        """The graph as it was read, and then each pass; each of them infers everything anew."""
        passes: Sequence[tuple[str, Pass]] = (("read", _as_read), *self._pipeline.passes)
        for done, (name, make) in enumerate(passes):
            self._show(f"pass: {name}", done, len(passes))
            with nullcontext() if self._timeline is None else self._timeline.span(name, "pass"):
                graph = make(graph, GraphBuilder(graph.name, inferred=self._strategy.inferred))
            await self._strategy.passed(self._askers(graph))
            # A checkpoint that waits for nothing: whoever shows progress or cancels gets a turn.
            await asyncio.sleep(0)

        return graph

    async def _reserves(self, graph: Graph) -> Graph:
        """Give every reserve its size."""
        sized = dict(graph.tensors)
        deferred = [tensor for tensor in graph.tensors.values() if tensor.deferred]
        for done, tensor in enumerate(deferred):
            op = graph.producers[tensor.name].op
            if not isinstance(op, BatchNormOp):
                raise InvalidGraph(graph.name, tensor.name, "only a batch norm has a reserve")
            self._show("reserve", done, len(deferred))
            size = await self._strategy.reserve_bytes(op)
            sized[tensor.name] = replace(tensor, shape=(size,), deferred=False)
        return Graph(name=graph.name, tensors=sized, nodes=graph.nodes, outputs=graph.outputs)

    async def _task_graph(self, graph: Graph) -> int:
        """Ask for the size of every task's workspace; how many tasks there are, on all devices."""
        askers = self._askers(graph)
        for done, (op, count) in enumerate(askers.items()):
            self._show("task graph", done, len(askers))
            await self._breathe()
            await self._strategy.workspace_bytes(op, askers=count)
        return len(graph.nodes) * self._pipeline.placement.count

    async def _memory_plan(self, graph: Graph, memory_bytes: int | None) -> Plan:
        askers = self._askers(graph)
        free: dict[Op, Choice] = {}

        async def choose(limit_bytes: int | None) -> Choices:
            choices = {}
            for done, (op, count) in enumerate(askers.items()):
                self._show("memory plan", done, len(askers))
                await self._breathe()
                if limit_bytes is None:
                    choices[op] = free[op] = await self._strategy.choice(op, self._strategy.policy, askers=count)
                else:
                    choices[op] = await self._within(op, free[op], limit_bytes)
            return choices

        fitting, unlimited = await fit(graph, choose, memory_bytes)
        return planned(graph, self._pipeline.placement.devices, fitting, unlimited)

    async def _within(self, op: Op, free: Choice, limit_bytes: int) -> Choice:
        """The choice under a limit; under the least one above it that leaves anything, where it leaves nothing."""
        if free.workspace_bytes <= limit_bytes:
            return free
        larger = {each.workspace_bytes for each in free.candidates if limit_bytes < each.workspace_bytes}
        for limit in (limit_bytes, *sorted(larger)):
            try:
                policy = replace(self._strategy.policy, workspace_limit_bytes=limit)
                return await self._strategy.choice(op, policy, askers=1)
            except NoAlgorithm:
                continue
        return free

    async def _breathe(self) -> None:
        """A checkpoint now and then: answers that are there are no checkpoints, and a million devices ask for each."""
        if perf_counter() - self._breathed > _BREATH_S:
            await asyncio.sleep(0)
            self._breathed = perf_counter()

    def _askers(self, graph: Graph) -> Mapping[Op, int]:
        """How many tasks of all devices ask about each problem, in the order in which they first come."""
        devices = self._pipeline.placement.count
        return {op: count * devices for op, count in Counter(graph.ops).items()}


def _as_read(graph: Graph, builder: GraphBuilder) -> Graph:
    """The graph itself, inferred once more: the first graph that a compiler makes is the one that was read."""
    for tensor in graph.tensors.values():
        if tensor.outlives_step:
            builder.enter(tensor)
    for node in graph.nodes:
        builder.add(node.name, node.attributes, node.inputs, node.outputs)
    return builder.finish(graph.outputs)
