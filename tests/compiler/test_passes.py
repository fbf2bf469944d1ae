"""Passes: what each of them changes, and what it leaves alone."""

from __future__ import annotations

from collections import Counter

import pytest

from algosearch.compiler import WORKLOADS, ReadOptions
from algosearch.compiler.compile import Pipeline
from algosearch.compiler.graph import Graph, GraphBuilder
from algosearch.compiler.inference import Norm, Other
from algosearch.compiler.layers import Layers
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
from algosearch.compiler.workloads import build_graph
from algosearch.errors import InvalidSetting
from algosearch.ops import BatchNormOp, ConvOp


def run(graph: Graph, *passes: Pass) -> Graph:
    for make in passes:
        graph = make(graph, GraphBuilder(graph.name))
    return graph


def block(*, shortcut_first: bool = False) -> Graph:
    """One residual block: two convolutions with their norms, and a shortcut with its own."""
    net = Layers("block", data_type="float32", layout="channels_first")
    x = net.enter("input", (2, 8, 6, 6))
    shortcut = net.conv_norm("shortcut", x, 8, 1, relu=False) if shortcut_first else None
    y = net.conv_norm("second", net.conv_norm("first", x, 8, 3), 8, 3, relu=False)
    if shortcut is None:
        shortcut = net.conv_norm("shortcut", x, 8, 1, relu=False)
    return net.finish(net.relu("out", net.add("sum", y, shortcut)))


def norms(graph: Graph) -> dict[str, str]:
    return {node.name: node.attributes.fusion for node in graph.nodes if isinstance(node.attributes, Norm)}


@pytest.mark.parametrize("shortcut_first", [False, True])
def test_batch_norms_are_fused_with_a_rectifier_and_with_the_sum_before_it(shortcut_first: bool) -> None:
    fused = run(block(shortcut_first=shortcut_first), with_batch_statistics, fuse_batch_norms)
    added, plain = ("shortcut.norm", "second.norm") if shortcut_first else ("second.norm", "shortcut.norm")
    assert norms(fused) == {"first.norm": "activation", added: "add_activation", plain: "none"}
    assert not {"relu", "add"} & {node.kind for node in fused.nodes}
    assert fused.producers[fused.outputs[0]].inputs[-1] == plain


def test_a_sum_that_somebody_else_reads_is_not_fused() -> None:
    net = Layers("block", data_type="float32", layout="channels_first")
    x = net.enter("input", (2, 8, 6, 6))
    total = net.add("sum", net.conv_norm("a", x, 8, 3, relu=False), x)
    graph = net.finish(net.add("out", net.relu("relu", total), total))
    assert norms(run(graph, with_batch_statistics, fuse_batch_norms)) == {"a.norm": "none"}


def test_batch_norms_of_inference_are_left_alone() -> None:
    assert set(norms(run(block(), fuse_batch_norms)).values()) == {"none"}


def test_mixed_precision_casts_each_parameter_once_and_gives_back_what_was_asked() -> None:
    half = run(block(), mixed_precision)
    convolutions = [node.op for node in half.nodes if isinstance(node.op, ConvOp)]
    assert {(op.input_type, op.filter_type, op.output_type, op.accumulate_type) for op in convolutions} == {
        ("float16", "float16", "float16", "float32")
    }
    batch_norms = [node.op for node in half.nodes if isinstance(node.op, BatchNormOp)]
    assert {(op.data_type, op.parameter_type) for op in batch_norms} == {("float16", "float32")}
    casts = Counter(node.inputs[0] for node in half.nodes if node.kind == "cast")
    assert casts == Counter(["input", "first.filter", "second.filter", "shortcut.filter", "out"])
    assert [half.tensors[name].element_type for name in half.outputs] == ["float32"]
    assert all(tensor.element_type == "float32" for tensor in half.tensors.values() if tensor.outlives_step)


@pytest.mark.parametrize("before", [(), (mixed_precision,)])
def test_channels_last_lays_out_everything_a_convolution_touches(before: tuple[Pass, ...]) -> None:
    graph = run(block(), *before, channels_last)
    for node in graph.nodes:
        if isinstance(node.op, ConvOp):
            assert {node.op.input_layout, node.op.filter_layout, node.op.output_layout} == {"channels_last"}
        if isinstance(node.op, BatchNormOp):
            assert node.op.layout == "channels_last"
    assert [node.inputs[0] for node in graph.nodes if node.kind == "relayout"] == [
        "input",
        *run(block(), *before).outputs,
    ]
    assert [graph.tensors[each].layout for each in graph.outputs] == ["channels_first"]


def test_channels_last_leaves_alone_what_no_convolution_touches() -> None:
    net = Layers("two", data_type="float32", layout="channels_first")
    tokens = net.linear("linear", net.enter("tokens", (2, 5, 6)), 6)
    image, beside = net.enter("image", (2, 8, 6, 6)), net.enter("beside", (2, 8, 6, 6))
    summed = net.add("sum", net.conv("conv", image, 8, 3), beside)
    both = net.other("both", "join", [net.other("pool", "mean_pool", [summed], (2, 8)), tokens], (2, 5, 14))
    graph = run(net.finish(both), channels_last)
    assert [node.inputs for node in graph.nodes if node.kind == "relayout"] == [("image",), ("beside",)]
    assert {graph.tensors[name].layout for name in ("tokens", "linear", "both")} == {"channels_first"}
    assert {graph.tensors[name].layout for name in ("conv", "sum")} == {"channels_last"}


def test_dead_code_goes_with_its_parameters_and_effects_stay() -> None:
    net = Layers("dead", data_type="float32", layout="channels_first")
    x = net.enter("input", (2, 8, 6, 6))
    net.conv("dead", net.conv("dead too", x, 8, 1), 8, 1)
    graph = net.finish(net.conv("alive", x, 8, 1))
    assert [node.name for node in run(graph, drop_dead).nodes] == ["alive"]
    assert set(run(graph, drop_dead).tensors) == {"input", "alive.filter", "alive"}

    builder = GraphBuilder("effect")
    for tensor in graph.tensors.values():
        if tensor.outlives_step:
            builder.enter(tensor)
    builder.add("update", Other(function="update", shapes=()), ["input"])
    assert [node.name for node in run(builder.finish([]), drop_dead).nodes] == ["update"]


@pytest.mark.parametrize(("nodes", "devices"), [(1, 1), (1, 2), (2, 8), (128, 8)])
def test_every_gradient_is_reduced_over_all_devices_if_there_is_more_than_one(nodes: int, devices: int) -> None:
    placement = Placement(nodes=nodes, devices_per_node=devices)
    assert len(set(placement.devices)) == nodes * devices
    assert placement.devices[-1] == f"node{nodes - 1}/device{devices - 1}"
    graph, _ = build_graph("resnet50")
    for _, make in Pipeline(placement=placement).passes:
        graph = make(graph, GraphBuilder(graph.name))
    updates = [node for node in graph.nodes if node.kind == "update"]
    reduced = [graph.producers[node.inputs[1]].kind == "all_reduce" for node in updates]
    assert set(reduced) == {nodes * devices > 1}


@pytest.mark.parametrize("field", ["nodes", "devices_per_node"])
def test_no_placement_is_on_nothing(field: str) -> None:
    with pytest.raises(InvalidSetting, match="must be at least 1"):
        Placement(**{field: 0})


@pytest.mark.parametrize("name", list(WORKLOADS))
@pytest.mark.parametrize("training", [False, True])
def test_every_workload_goes_through_every_pass(name: str, training: bool) -> None:
    graph, _ = build_graph(name, ReadOptions(batch=2))
    before = Counter(type(op) for op in graph.ops)
    for title, make in Pipeline(training=training, placement=Placement(devices_per_node=4)).passes:
        graph = make(graph, GraphBuilder(graph.name))
        again = place(graph, GraphBuilder(graph.name), placement=Placement())
        assert again.nodes == graph.nodes, title  # inferring a graph once more changes nothing
    forward = Counter(
        type(op)
        for op in graph.ops
        if (op.direction == "forward" if isinstance(op, ConvOp) else op.phase != "backward")
    )
    assert forward == before
