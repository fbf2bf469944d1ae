"""Fitting into a memory: which limits are tried, and when it is given up."""

from __future__ import annotations

import pytest

from algosearch.backends.simulated import CandidateScript, Generated, ProblemScript, Script
from algosearch.compiler.compile import Pipeline, compile_graph
from algosearch.compiler.graph import GraphBuilder
from algosearch.compiler.plan import Plan
from algosearch.compiler.read import read_graph
from algosearch.errors import DoesNotFit
from algosearch.ops import BatchNormOp, searched_as
from tests.compiler.compiling import a_block, compiling
from tests.compiler.verifier import check_plan

KIB = 1 << 10
PAIRS = ((512 * KIB, 0), (256 * KIB, 0), (128 * KIB, 512 * KIB), (64 * KIB, 640 * KIB), (0, 768 * KIB))
"""Workspace and reserve of each way to compute a fused batch norm, the fastest first."""


def script() -> Script:
    """Less workspace for a batch norm is paid for with a larger reserve, which lives far longer."""
    graph, problems = a_block(), []
    for _, make in Pipeline().passes:
        graph = make(graph, GraphBuilder(graph.name))
    for op in dict.fromkeys(searched_as(op) for op in graph.ops):
        sizes = PAIRS if isinstance(op, BatchNormOp) else ((0, 0),)
        candidates = [
            CandidateScript(
                algorithm=f"simulated/t:{place}",
                time_us=100.0 * (place + 1),
                workspace_bytes=workspace_bytes,
                reserve_bytes=reserve_bytes,
            )
            for place, (workspace_bytes, reserve_bytes) in enumerate(sizes)
        ]
        problems.append(ProblemScript(op=op, candidates=tuple(candidates)))
    return Script(problems=tuple(problems))


async def plan_within(memory_bytes: int | None) -> Plan:
    async with compiling("async", script=script()) as (_, strategy, queries, _):
        compiled = await compile_graph(a_block(), strategy, queries, pipeline=Pipeline(), memory_bytes=memory_bytes)
    check_plan(compiled.plan.encoded())
    return compiled.plan


async def test_a_limit_is_found_where_less_workspace_needs_a_larger_arena() -> None:
    free = await plan_within(None)
    plan = await plan_within(free.arena_bytes - 1)
    assert plan.workspace_limit_bytes == 256 * KIB
    assert plan.arena_bytes < free.arena_bytes


async def test_what_fits_under_no_limit_is_told_with_the_smallest_arena() -> None:
    smallest = (await plan_within((await plan_within(None)).arena_bytes - 1)).arena_bytes
    with pytest.raises(DoesNotFit) as caught:
        await plan_within(smallest - 1)
    assert caught.value.needed_bytes == smallest
    assert f"whatever its workspaces are held to, it needs {smallest}" in str(caught.value)


async def test_what_is_told_to_be_needed_is_the_least_that_fits() -> None:
    """Without a limit this step's arena is within what is good enough, and above the least."""
    graph, _ = read_graph("vit_b16")

    async def compiled(memory_bytes: int | None) -> Plan:
        async with compiling("cached", script=Script(generated=Generated())) as (_, strategy, queries, _):
            inference = Pipeline(training=False)
            return (await compile_graph(graph, strategy, queries, pipeline=inference, memory_bytes=memory_bytes)).plan

    with pytest.raises(DoesNotFit) as caught:
        await compiled(1)
    needed = caught.value.needed_bytes
    assert needed < (await compiled(None)).arena_bytes
    assert (await compiled(needed)).arena_bytes == needed
    with pytest.raises(DoesNotFit) as caught:
        await compiled(needed - 1)
    assert caught.value.needed_bytes == needed
