"""Gradients of a graph: the same problems as those of its list of ops, and every tensor where it belongs."""

from __future__ import annotations

from collections import Counter

import pytest

from algosearch.compiler import WORKLOADS, ReadOptions, read_model
from algosearch.compiler.gradients import with_gradients
from algosearch.compiler.graph import Graph, GraphBuilder, Tensor
from algosearch.compiler.inference import Conv, Other
from algosearch.compiler.layers import Layers
from algosearch.compiler.workloads import build_graph
from algosearch.errors import InvalidGraph


def trained(graph: Graph) -> Graph:
    return with_gradients(graph, GraphBuilder(graph.name))


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_training_graph_has_the_ops_that_a_list_of_ops_expands_to(name: str) -> None:
    graph, _ = build_graph(name)
    flat = read_model(name, ReadOptions(training=True))
    assert Counter(trained(graph).ops) == Counter(node.op for node in flat.nodes)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_every_parameter_is_updated_once_by_a_gradient_of_its_own_shape_and_type(name: str) -> None:
    graph, _ = build_graph(name)
    step = trained(graph)
    updates = [node for node in step.nodes if node.kind == "update"]
    parameters = [tensor.name for tensor in step.tensors.values() if tensor.role == "parameter"]
    assert Counter(node.inputs[0] for node in updates) == Counter(parameters)
    for node in updates:
        parameter, gradient = (step.tensors[each] for each in node.inputs)
        assert (gradient.shape, gradient.element_type) == (parameter.shape, parameter.element_type)


def test_a_tensor_with_two_readers_gets_the_sum_of_two_gradients() -> None:
    net = Layers("two", data_type="float32", layout="channels_first")
    x = net.conv("enter", net.enter("input", (1, 3, 8, 8)), 4, 3)
    step = trained(net.finish(net.add("add", net.conv("left", x, 4, 3), net.conv("right", x, 4, 1))))
    (total,) = [node for node in step.nodes if node.name == "enter.gradient"]
    assert total.kind == "add"
    assert set(total.inputs) == {"left.input_gradient", "right.input_gradient"}
    (weight,) = [node for node in step.nodes if node.name == "enter.filter_gradient"]
    assert weight.inputs == ("input", "enter.gradient")


def test_a_sum_sends_its_gradient_on_without_a_node() -> None:
    net = Layers("sum", data_type="float32", layout="channels_first")
    entering = net.enter("input", (1, 3, 8, 8))
    step = trained(net.finish(net.add("add", net.conv("a", entering, 4, 3), net.conv("b", entering, 4, 3))))
    filters = [node for node in step.nodes if node.name.endswith("filter_gradient")]
    assert {node.inputs[1] for node in filters} == {"add.loss_gradient"}


def test_what_no_parameter_comes_before_gets_no_gradient() -> None:
    builder = GraphBuilder("plain")
    builder.enter(Tensor(name="x", shape=(1, 3, 4, 4), element_type="float32", role="input"))
    builder.add("y", Other(function="relu", shapes=((1, 3, 4, 4),)), ["x"])
    step = trained(builder.finish(["y"]))
    assert [node.kind for node in step.nodes] == ["relu", "loss"]


def test_a_transposed_convolution_is_trained_through_the_forward_one() -> None:
    builder = GraphBuilder("transposed")
    builder.enter(Tensor(name="x", shape=(1, 4, 5, 5), element_type="float32", role="input"))
    for name, shape in (("first", (4, 4, 1, 1)), ("w", (4, 3, 2, 2))):
        builder.enter(Tensor(name=name, shape=shape, element_type="float32", role="parameter"))
    plain = Conv(stride=(1, 1), dilation=(1, 1), padding_low=(0, 0), padding_high=(0, 0))
    builder.add("before", plain, ["x", "first"])
    up = Conv(
        stride=(2, 2),
        dilation=(1, 1),
        padding_low=(0, 0),
        padding_high=(0, 0),
        direction="backward_data",
        result_shape=(1, 3, 10, 10),
    )
    builder.add("up", up, ["before", "w"])
    step = trained(builder.finish(["up"]))
    directions = {node.name: node.op.direction for node in step.nodes if node.op is not None}  # type: ignore[union-attr]
    assert directions == {
        "before": "forward",
        "up": "backward_data",
        "up.input_gradient": "forward",
        "up.filter_gradient": "backward_filter",
        "before.filter_gradient": "backward_filter",
    }
    assert step.tensors["up.input_gradient"].shape == (1, 4, 5, 5)


@pytest.mark.parametrize("read", [(0,), (1,), (0, 1)])
def test_the_gradients_of_all_outputs_reach_what_a_node_read(read: tuple[int, ...]) -> None:
    builder = GraphBuilder("split")
    builder.enter(Tensor(name="x", shape=(1, 3, 8, 8), element_type="float32", role="input"))
    builder.enter(Tensor(name="w", shape=(8, 3, 1, 1), element_type="float32", role="parameter"))
    builder.add("c", Conv(stride=(1, 1), dilation=(1, 1), padding_low=(0, 0), padding_high=(0, 0)), ["x", "w"])
    halves = builder.add("split", Other(function="Split", shapes=((1, 4, 8, 8),) * 2), ["c"], ["a", "b"])
    step = trained(builder.finish(halves[index] for index in read))
    (backward,) = [node for node in step.nodes if node.name == "split.backward"]
    assert backward.inputs == (*(f"{halves[index]}.loss_gradient" for index in read), "c")
    (weight,) = [node for node in step.nodes if node.name == "c.filter_gradient"]
    assert weight.inputs == ("x", "split.backward")
    assert [node.inputs[0] for node in step.nodes if node.kind == "update"] == ["w"]


@pytest.mark.parametrize("masked", [True, False])
def test_the_backward_of_a_dropout_reads_its_mask_and_nothing_else(masked: bool) -> None:
    builder = GraphBuilder("dropout")
    builder.enter(Tensor(name="x", shape=(2, 6), element_type="float32", role="input"))
    builder.enter(Tensor(name="w", shape=(6, 6), element_type="float32", role="parameter"))
    builder.add("product", Other(function="matmul", shapes=((2, 6),)), ["x", "w"])
    types = (None, "bool") if masked else (None,)
    written = ["y", "mask"][: len(types)]
    builder.add(
        "drop", Other(function="dropout", shapes=((2, 6),) * len(types), element_types=types), ["product"], written
    )
    step = trained(builder.finish(["y"]))
    (backward,) = [node for node in step.nodes if node.name == "drop.backward"]
    assert backward.inputs == ("y.loss_gradient", *(["mask"] if masked else []))


def test_what_has_no_outputs_cannot_be_trained() -> None:
    with pytest.raises(InvalidGraph, match="no outputs"):
        trained(GraphBuilder("nothing").finish(()))
