"""Compiling: what is asked, when, how often, and what is waited for; counted by the simulated backend's own trace."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import onnx
import pytest

from algosearch import open_searcher
from algosearch.backends.simulated import (
    CandidateScript,
    Generated,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    problem_digest,
    searches,
)
from algosearch.compiler import WORKLOADS, ReadOptions
from algosearch.compiler.compile import Compiled, Pipeline, compile_graph
from algosearch.compiler.graph import Graph
from algosearch.compiler.layers import Layers
from algosearch.compiler.passes import Placement
from algosearch.compiler.queries import Again, Queries, QueryStatistics
from algosearch.compiler.read import read_graph
from algosearch.compiler.strategies import ASK_LIBRARY, STRATEGIES, AskAsync, StrategyName
from algosearch.errors import DoesNotFit, SearcherClosed
from algosearch.ops import BatchNormOp, Op, canonical, searched_as
from tests.cancelling import cancel_at_every_suspension
from tests.compiler.compiling import a_block, compiled_by, compiling
from tests.compiler.verifier import check_plan
from tests.search.gated import GatedBackend

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def listings_of(trace: list[TraceEvent]) -> Counter[str]:
    return Counter(event.problem for event in trace if event.call == "enumerate")


@pytest.mark.parametrize("name", list(WORKLOADS))
async def test_every_workload_compiles_to_a_sound_plan_near_the_bound(name: str) -> None:
    graph, _ = read_graph(name, ReadOptions(batch=2))
    compiled, queries, _ = await compiled_by("async", graph, Pipeline(placement=Placement(nodes=2, devices_per_node=8)))
    check_plan(compiled.plan.encoded())
    assert compiled.plan.arena_bytes <= 1.1 * compiled.plan.lower_bound_bytes
    assert len(compiled.plan.devices) == 16
    assert compiled.tasks == 16 * len(compiled.plan.tasks)
    searched = [task for task in compiled.plan.tasks if task.kind in ("conv", "batch_norm")]
    assert all(task.algorithm is not None for task in searched)
    assert queries.count >= 16 * len(searched)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
@pytest.mark.parametrize("training", [False, True])
async def test_the_nine_real_graphs_compile(path: Path, training: bool) -> None:
    graph, model = read_graph(path)
    assert Counter(graph.ops) == Counter(node.op for node in model.nodes)
    compiled, _, _ = await compiled_by("async", graph, Pipeline(training=training))
    check_plan(compiled.plan.encoded())
    directions = Counter(task.kind for task in compiled.plan.tasks if task.algorithm is not None)
    assert sum(directions.values()) == len(model.nodes) if not training else sum(directions.values()) > len(model.nodes)
    assert any(task.kind == "update" for task in compiled.plan.tasks) is training


@pytest.mark.parametrize("name", STRATEGIES)
async def test_all_four_ways_search_each_convolution_once_and_agree(name: StrategyName) -> None:
    trace: list[TraceEvent] = []
    compiled, queries, probe = await compiled_by(
        name, a_block(), Pipeline(placement=Placement(devices_per_node=4)), trace
    )
    check_plan(compiled.plan.encoded())
    kinds = Counter(line.kind for line in queries.statistics())
    assert (
        kinds["conv"] >= 3
    )  # the two forward ones are one problem, and so are their gradients; naive asks earlier too
    assert (probe.handles > 0) is (name in ASK_LIBRARY)
    reference, _, _ = await compiled_by("async", a_block(), Pipeline(placement=Placement(devices_per_node=4)))
    convolutions = [task.algorithm for task in compiled.plan.tasks if task.kind == "conv"]
    assert convolutions == [task.algorithm for task in reference.plan.tasks if task.kind == "conv"]


async def test_what_each_way_asks_is_what_the_complaint_counted() -> None:
    counts: dict[str, tuple[int, int]] = {}
    for name in STRATEGIES:
        _, queries, probe = await compiled_by(name, a_block(), Pipeline(placement=Placement(devices_per_node=4)))
        counts[name] = queries.count, probe.handles
    assert counts["naive"][0] > counts["fixed"][0]  # the passes' own queries
    assert counts["naive"][1] > counts["fixed"][1] > 0  # a handle for each query of a batch norm
    assert counts["cached"] == (counts["fixed"][0], 0)
    assert counts["async"][1] == 0


async def test_no_pass_asks_a_device_and_each_wait_names_its_stage() -> None:
    _, queries, _ = await compiled_by("async", a_block(), Pipeline())
    assert {wait.stage for wait in queries.waits} == {"reserve", "task graph", "memory plan"}
    assert queries.seconds.get("passes") is None
    assert {wait.awaited for wait in queries.waits if wait.stage == "reserve"} == {"reserve"}
    assert {wait.awaited for wait in queries.waits if wait.stage == "task graph"} == {"workspace"}
    assert {wait.awaited for wait in queries.waits if wait.stage == "memory plan"} == {"choice"}


async def test_the_naive_way_waits_in_the_passes() -> None:
    _, queries, _ = await compiled_by("naive", a_block(), Pipeline())
    assert {wait.stage for wait in queries.waits} == {"passes", "reserve", "task graph", "memory plan"}


async def test_an_op_that_a_pass_replaces_before_its_search_began_is_never_searched() -> None:
    """The device is held at its door until all passes are done, so that no search has begun before."""
    trace: list[TraceEvent] = []
    inner = SimulatedBackend(Script(), trace=trace)
    backend = GatedBackend(inner)
    backend.gates["open"].close()
    graph = a_block()
    queries = Queries()
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        strategy = AskAsync(searcher, queries)
        passed = strategy.passed
        left = len(Pipeline().passes) + 1
        asked: set[Op] = set()

        async def opening_after_the_last(askers: dict) -> None:  # type: ignore[type-arg]
            nonlocal left, asked
            asked = {*askers}
            await passed(askers)
            left -= 1
            if not left:
                backend.gates["open"].open()

        strategy.passed = opening_after_the_last  # type: ignore[method-assign,assignment]
        compiled = await compile_graph(graph, strategy, queries, pipeline=Pipeline())
    assert strategy.withdrawn > 0
    planned = [task for task in compiled.plan.tasks if task.algorithm is not None]
    assert planned
    final = {searched_as(op) for op in asked}
    assert len(listings_of(trace)) == len(final) < len(asked)  # both passes of a fused batch norm are one search
    replaced = {problem_digest(canonical(op)) for op in graph.ops}
    assert replaced.isdisjoint(listings_of(trace))


async def test_trials_are_the_same_for_one_device_and_a_thousand() -> None:
    counts = []
    for placement in (Placement(), Placement(nodes=128, devices_per_node=8)):
        # All else equal: with one device no gradient is reduced, but reductions are not searched.
        trace: list[TraceEvent] = []
        await compiled_by("cached", a_block(), Pipeline(placement=placement), trace)
        counts.append((searches(trace), Counter(event.call for event in trace)["enumerate"]))
    assert counts[0] == counts[1]


def workspace_script(graph: Graph, *sizes: int) -> Script:
    """Each op of a graph may take more workspace to be faster, one candidate a size."""
    return Script(
        problems=tuple(
            ProblemScript(
                op=op,
                candidates=tuple(
                    CandidateScript(
                        algorithm=f"simulated/t:ws{size}", time_us=100.0 * (len(sizes) - place), workspace_bytes=size
                    )
                    for place, size in enumerate(sizes)
                ),
            )
            for op in dict.fromkeys(map(canonical, graph.ops))
        )
    )


async def memory_plan(memory_bytes: int | None, *sizes: int) -> Compiled:
    graph = a_block()
    pipeline = Pipeline(training=False, half=False, channels_last=False)
    async with compiling("async", script=workspace_script(graph, *sizes)) as (_, strategy, queries, _):
        return await compile_graph(graph, strategy, queries, pipeline=pipeline, memory_bytes=memory_bytes)


async def test_a_budget_lowers_workspaces_until_the_arena_fits_and_says_what_that_costs() -> None:
    sizes = (0, 1 << 16, 1 << 20, 1 << 24)
    free = await memory_plan(None, *sizes)
    assert free.plan.workspace_limit_bytes is None
    assert free.plan.slower == 0.0
    assert free.plan.arena_bytes > 1 << 24
    for budget, limit in ((1 << 24, 1 << 20), (1 << 20, 1 << 16), (150_000, 1 << 16), (100_000, 0)):
        held = (await memory_plan(budget, *sizes)).plan
        check_plan(held.encoded())
        assert held.arena_bytes <= budget
        assert held.workspace_limit_bytes == limit
        assert held.unlimited_arena_bytes == free.plan.arena_bytes
        assert held.slower is not None
        assert held.slower > 0.5
        assert max(task.workspace_bytes for task in held.tasks) <= limit


async def test_a_tensor_may_be_called_as_a_workspace_is() -> None:
    net = Layers("names", data_type="float32", layout="channels_first")
    x = net.conv("c", net.enter("input", (1, 8, 8, 8)), 8, 3)
    graph = net.finish(net.conv("d", net.relu("workspace of c", x), 8, 3))
    pipeline = Pipeline(training=False, half=False, channels_last=False)
    async with compiling("async", script=workspace_script(graph, 1 << 16)) as (_, strategy, queries, _):
        plan = (await compile_graph(graph, strategy, queries, pipeline=pipeline)).plan
    check_plan(plan.encoded())
    assert {buffer.tensor for buffer in plan.buffers} == {"c", "workspace of c", "d"}


async def test_a_task_that_cannot_do_without_keeps_the_least_that_it_can_do_with() -> None:
    held = (await memory_plan(1 << 20, 1 << 18, 1 << 24)).plan
    assert {task.workspace_bytes for task in held.tasks if task.algorithm is not None} == {1 << 18}


async def test_what_cannot_fit_names_what_fills_the_arena() -> None:
    with pytest.raises(DoesNotFit) as caught:
        await memory_plan(10_000, 1 << 18, 1 << 20)
    error = caught.value
    assert error.memory_bytes == 10_000
    assert error.needed_bytes > 1 << 18
    assert ("workspace of " + error.filling[0][0], 1 << 18) in error.filling
    assert "give more memory or a smaller batch" in str(error)


@pytest.mark.parametrize("name", ["async", "cached"])
async def test_two_compiles_from_one_store_give_the_same_bytes(name: StrategyName, tmp_path: Path) -> None:
    plans = []
    for _ in range(2):
        script = Script(generated=Generated(noise=0.01))
        async with compiling(name, script=script, store=str(tmp_path / "store")) as (searcher, strategy, queries, _):
            compiled = await compile_graph(a_block(), strategy, queries, pipeline=Pipeline())
            plans.append(compiled.plan.encoded())
            engine = searcher.statistics().engine
    assert plans[0] == plans[1]
    if name == "cached":  # `async` may have begun with an op that a pass then replaced
        assert engine.searched == 0


async def test_a_batch_norm_of_training_is_known_to_be_uncached_where_it_is() -> None:
    _, queries, _ = await compiled_by("fixed", a_block(), Pipeline(placement=Placement(nodes=4, devices_per_node=8)))
    for line in queries.statistics():
        assert line.queries > 1
        if line.kind == "conv":
            assert line.cached


@pytest.mark.parametrize(
    ("first_us", "later_us", "cached"),
    [(1000.0, 100.0, True), (1000.0, 101.0, False), (6.0, 5.0, True), (6.0, 5.5, False), (6.0, None, None)],
)
def test_a_cache_worked_where_later_answers_are_quick_or_at_once(
    first_us: float, later_us: float | None, cached: bool | None
) -> None:
    line = QueryStatistics(
        kind="conv", problem="p", queries=2, first_us=first_us, later_us=later_us, least_later_us=later_us
    )
    assert line.cached is cached


async def test_a_pause_of_the_machine_is_no_cache_that_failed() -> None:
    queries, again = Queries(), Again()
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        if asked == 5:
            time.sleep(0.05)

    await again.ask(ask, 7)
    assert (again.count, asked) == (7, 7)
    (op,) = {op for op in a_block().ops if isinstance(op, BatchNormOp)}
    queries.note("memory plan", "choice", op, 1.0, 1.001, again)
    (line,) = queries.statistics()
    assert line.later_us is not None
    assert line.later_us >= 0.05 / 7 * 1e6
    assert line.cached


async def test_what_was_asked_until_a_compile_was_ended_counts() -> None:
    again = Again()

    async def ask() -> None:
        if again.count == 9:
            raise SearcherClosed

    with pytest.raises(SearcherClosed):
        await again.ask(ask, 100)
    assert again.count == 9
    assert 0 < again.least_s <= again.seconds


@pytest.mark.parametrize("name", ["async", "cached", "fixed"])
async def test_cancelled_at_every_await_a_compile_leaves_nothing_behind(name: StrategyName) -> None:
    async def scenario() -> None:
        async with compiling(name) as (_, strategy, queries, _):
            await compile_graph(a_block(), strategy, queries, pipeline=Pipeline())

    async def check(was_cancelled: bool) -> None:
        for thread in threading.enumerate():
            if thread.name.startswith("algosearch"):
                thread.join(20.0)  # closing goes on unattended where it was cancelled
                assert not thread.is_alive(), thread.name

    assert await cancel_at_every_suspension(scenario, check) > 3


async def test_a_searcher_that_closes_ends_the_compile() -> None:
    async with compiling("async") as (searcher, strategy, queries, _):
        searcher.close()
        with pytest.raises(SearcherClosed):
            await compile_graph(a_block(), strategy, queries, pipeline=Pipeline())


async def test_progress_is_told_stage_by_stage() -> None:
    shown: list[tuple[str, int, int]] = []
    async with compiling("async") as (_, strategy, queries, _):
        await compile_graph(
            a_block(), strategy, queries, pipeline=Pipeline(), show=lambda *moment: shown.append(moment)
        )
    stages = list(dict.fromkeys(stage for stage, _, _ in shown))
    assert stages[0] == "pass: read"
    assert stages[-3:] == ["reserve", "task graph", "memory plan"]
    assert [(done, of) for stage, done, of in shown if stage == "reserve"] == [(0, 2), (1, 2)]
    assert all(done < of for _, done, of in shown)
