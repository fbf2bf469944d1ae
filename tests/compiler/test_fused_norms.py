"""Fused batch norms in a compile: one choice for both passes, and where they come from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

from algosearch.backends.simulated import CandidateScript, ProblemScript, Script
from algosearch.compiler.compile import Compiled, Pipeline, compile_graph
from algosearch.compiler.graph import GraphBuilder
from algosearch.compiler.plan import PlannedTask
from algosearch.compiler.read import read_graph
from algosearch.compiler.strategies import ASK_LIBRARY, STRATEGIES, StrategyName
from algosearch.ops import BatchNormOp, searched_as
from tests.compiler.compiling import a_block, compiled_by, compiling
from tests.compiler.verifier import check_plan

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.mark.parametrize("name", STRATEGIES)
async def test_the_passes_of_a_fused_batch_norm_get_one_algorithm_and_its_time_counts_once(name: StrategyName) -> None:
    compiled, _, _ = await compiled_by(name, a_block(), Pipeline())
    pairs = pairs_of(compiled)
    assert len(pairs) == 2
    for forward, backward in pairs:
        assert forward.algorithm == backward.algorithm is not None
        assert forward.workspace_bytes == backward.workspace_bytes
        assert backward.time_us is None
        assert (forward.time_us is None) is (name in ASK_LIBRARY)


async def test_a_reserve_is_as_large_as_what_the_final_limit_leaves() -> None:
    """Its size is asked before the limit is known: of the fast candidate, which then needs too much workspace."""
    graph, problems = a_block(), []
    for _, make in Pipeline().passes:
        graph = make(graph, GraphBuilder(graph.name))
    for op in dict.fromkeys(searched_as(op) for op in graph.ops):
        pair = isinstance(op, BatchNormOp)
        fast = CandidateScript(
            algorithm="simulated/t:fast", time_us=10.0, workspace_bytes=1 << 20, reserve_bytes=512 if pair else 0
        )
        slow = CandidateScript(algorithm="simulated/t:slow", time_us=30.0, reserve_bytes=40_000 if pair else 0)
        problems.append(ProblemScript(op=op, candidates=(fast, slow)))
    script = Script(problems=tuple(problems))
    plans = []
    for memory_bytes in (None, 1 << 20):
        async with compiling("async", script=script) as (_, strategy, queries, _):
            compiled = await compile_graph(a_block(), strategy, queries, pipeline=Pipeline(), memory_bytes=memory_bytes)
        check_plan(compiled.plan.encoded())
        plans.append(compiled)
    for compiled, algorithm, reserve_bytes in zip(
        plans, ("simulated/t:fast", "simulated/t:slow"), (512, 40_000), strict=True
    ):
        pairs = pairs_of(compiled)
        assert {task.algorithm for pair in pairs for task in pair} == {algorithm}
        sizes = {buffer.tensor: buffer.bytes for buffer in compiled.plan.buffers}
        assert pairs
        for forward, backward in pairs:
            (reserve,) = (name for name in backward.reads if name in forward.writes and name.endswith("reserve"))
            assert sizes[reserve] == reserve_bytes
    assert plans[1].plan.slower == pytest.approx(2.0)


def pairs_of(compiled: Compiled) -> list[tuple[PlannedTask, PlannedTask]]:
    """The tasks that read a reserve, each behind the one that wrote it."""
    writer = {name: task for task in compiled.plan.tasks for name in task.writes}
    return [(writer[name], task) for task in compiled.plan.tasks for name in task.reads if name.endswith("reserve")]


def test_fused_batch_norms_are_asked_with_their_fusion() -> None:
    graph = a_block()
    for _, make in Pipeline().passes:
        graph = make(graph, GraphBuilder(graph.name))
    fusions = {(op.phase, op.fusion) for op in graph.ops if isinstance(op, BatchNormOp)}
    assert fusions == {
        (phase, fusion) for phase in ("training_forward", "backward") for fusion in ("activation", "add_activation")
    }


@pytest.mark.parametrize(("name", "fused"), [("light_resnet50", 16), ("light_vgg19", 0)])
def test_the_sums_of_a_real_graph_are_fused_as_additions_are(name: str, fused: int) -> None:
    graph, _ = read_graph(LIGHT / f"{name}.onnx")
    for _, make in Pipeline().passes:
        graph = make(graph, GraphBuilder(graph.name))
    forward = [op for op in graph.ops if isinstance(op, BatchNormOp) and op.phase == "training_forward"]
    assert Counter(op.fusion for op in forward)["add_activation"] == fused
    assert not any(node.kind in ("relu", "Sum") for node in graph.nodes if fused)
