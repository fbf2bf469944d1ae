"""The real cuDNN by ctypes: what is listed can be built again from its name, and needs what was said without building.

Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from algosearch.backends.cudnn.candidates import engine_of, listing, norm_listing
from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.legacy_norm import LegacyNorm
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.norm_graph import NormGraph
from algosearch.backends.cudnn.plan import Plan
from algosearch.compiler import ReadOptions, read_model
from algosearch.ops import BatchNormOp, ConvOp, canonical

R50: Final = ReadOptions(batch=64, training=True, data_type="float16", layout="channels_last")


@pytest.fixture(scope="module")
def handle() -> Iterator[Handle]:
    handle = Handle(Library.load())
    yield handle
    handle.destroy()


@pytest.fixture(scope="module")
def norms() -> list[BatchNormOp]:
    nodes = read_model("resnet50", R50).nodes
    return list(dict.fromkeys(canonical(node.op) for node in nodes if isinstance(node.op, BatchNormOp)))


@pytest.fixture(scope="module")
def ops() -> list[ConvOp]:
    nodes = read_model("resnet50", R50).nodes
    return list(dict.fromkeys(canonical(node.op) for node in nodes if isinstance(node.op, ConvOp)))


def test_every_op_has_candidates_and_a_wider_list_begins_with_the_narrower(handle: Handle, ops: list[ConvOp]) -> None:
    for op in ops:
        graph = ConvolutionGraph(handle, op)
        narrow, whole = listing(graph, op, 1), listing(graph, op, None)
        assert narrow.candidates, op.describe()
        assert whole.candidates[: len(narrow.candidates)] == narrow.candidates, op.describe()
        assert whole.complete
        graph.destroy()


def test_a_name_is_built_again_and_needs_the_workspace_that_was_listed(handle: Handle, ops: list[ConvOp]) -> None:
    built = 0
    for op in ops:
        graph = ConvolutionGraph(handle, op)
        for candidate in listing(graph, op, 1).candidates[:10]:
            plan = graph.build(*engine_of(candidate.algorithm))
            assert isinstance(plan, Plan), f"{op.describe()}: {candidate.algorithm}: {plan}"
            assert plan.workspace_bytes == candidate.workspace_bytes, f"{op.describe()}: {candidate.algorithm}"
            plan.destroy()
            built += 1

        graph.destroy()

    assert built >= 4 * len(ops)


def test_every_batch_norm_has_both_ways_and_engines(handle: Handle, norms: list[BatchNormOp]) -> None:
    assert norms
    for op in norms:
        graph = NormGraph(handle, op)
        names = [candidate.algorithm for candidate in norm_listing(LegacyNorm(handle, op), graph, 1).candidates]
        graph.destroy()
        assert {"cudnn/legacy:spatial_persistent", "cudnn/legacy:spatial"} <= set(names), f"{op.describe()}: {names}"
        assert len(names) > 2, f"{op.describe()}: no engine of the graph API"


def test_an_engine_for_batch_norm_is_built_again_from_its_name(handle: Handle, norms: list[BatchNormOp]) -> None:
    for phase in ("training_forward", "backward"):
        op = next(op for op in norms if op.phase == phase)
        graph = NormGraph(handle, op)
        config = graph.heuristics("a", 1)[0]
        plan = graph.build(config.engine, config.knobs)
        assert isinstance(plan, Plan), plan
        assert plan.workspace_bytes == config.workspace_bytes
        plan.destroy()
        graph.destroy()
