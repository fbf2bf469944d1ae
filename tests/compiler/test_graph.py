"""The op graph: what it refuses, and what it infers."""

from __future__ import annotations

from typing import Any

import pytest

from algosearch.compiler.graph import BYTES_OF, Graph, GraphBuilder, GraphNode, Role, Tensor
from algosearch.compiler.inference import Conv, Norm, Other
from algosearch.errors import InvalidGraph, InvalidOp
from algosearch.ops import BatchNormOp, ConvOp

CONV = Conv(stride=(2, 2), dilation=(1, 1), padding_low=(1, 1), padding_high=(1, 1))


def builder_with(**tensors: tuple[tuple[int, ...], Role]) -> GraphBuilder:
    builder = GraphBuilder("g")
    for name, (shape, role) in tensors.items():
        builder.enter(Tensor(name=name, shape=shape, element_type="float32", role=role))
    return builder


def test_a_convolution_is_inferred_from_its_tensors() -> None:
    builder = GraphBuilder("g")
    builder.enter(Tensor(name="x", shape=(2, 4, 9, 9), element_type="float16", layout="channels_last", role="input"))
    builder.enter(Tensor(name="w", shape=(6, 4, 3, 3), element_type="float16", role="parameter"))
    assert builder.add("y", CONV, ["x", "w"]) == ("y",)
    graph = builder.finish(["y"])
    (node,) = graph.nodes
    assert node.op == ConvOp(
        input_shape=(2, 4, 9, 9),
        filter_shape=(6, 4, 3, 3),
        stride=(2, 2),
        padding_low=(1, 1),
        input_layout="channels_last",
        output_layout="channels_last",
        input_type="float16",
        filter_type="float16",
        output_type="float16",
    )
    written = graph.tensors["y"]
    assert (written.shape, written.element_type, written.layout) == ((2, 6, 5, 5), "float16", "channels_last")
    assert written.bytes == 2 * 6 * 5 * 5 * 2


def test_a_fused_batch_norm_has_a_reserve_whose_shape_is_not_known() -> None:
    builder = builder_with(
        x=((2, 4, 9, 9), "input"),
        **dict.fromkeys(("scale", "bias"), ((4,), "parameter")),
        **dict.fromkeys(("mean", "variance"), ((4,), "state")),
    )
    reads = ["x", "scale", "bias", "mean", "variance"]
    written = builder.add("n", Norm(phase="training_forward", fusion="activation"), reads)
    assert written == ("n", "n.mean", "n.inverse_deviation", "n.reserve")
    reserve = builder["n.reserve"]
    assert (reserve.deferred, reserve.role, reserve.bytes) == (True, "reserve", 0)
    (node,) = builder.finish(["n"]).nodes
    assert node.op == BatchNormOp(shape=(2, 4, 9, 9), phase="training_forward", fusion="activation")


def test_other_nodes_follow_their_first_input_in_type_and_one_of_their_rank_in_layout() -> None:
    builder = GraphBuilder("g")
    builder.enter(Tensor(name="a", shape=(8,), element_type="float16", role="input"))
    builder.enter(Tensor(name="b", shape=(1, 2, 3, 4), element_type="int64", layout="channels_last", role="input"))
    builder.add(
        "c", Other(function="f", shapes=((4, 3, 2, 1), (), (5,)), element_types=(None, "bool", None)), ["a", "b"]
    )
    written = [builder[name] for name in ("c", "c.1", "c.2")]
    assert [each.element_type for each in written] == ["float16", "bool", "float16"]
    assert [each.layout for each in written] == ["channels_last", "channels_first", "channels_first"]
    assert [each.bytes for each in written] == [48, 1, 10]


def test_each_node_is_told_of_as_soon_as_it_is_inferred() -> None:
    told: list[GraphNode] = []
    builder = GraphBuilder("g", inferred=told.append)
    builder.enter(Tensor(name="x", shape=(1,), element_type="float32", role="input"))
    builder.add("y", Other(function="f", shapes=((1,),)), ["x"])
    assert [node.name for node in told] == ["y"]
    builder.add("z", Other(function="f", shapes=((1,),)), ["y"])
    assert [node.name for node in told] == ["y", "z"]


@pytest.mark.parametrize(
    ("name", "attributes", "inputs", "reason"),
    [
        ("y", CONV, ["x"], "a convolution reads two tensors, not 1"),
        ("y", CONV, ["x", "gone"], "reads 'gone', which nothing has written before it"),
        ("x", Other(function="f", shapes=((1,),)), ["x"], "two tensors have this name"),
        ("taken", Other(function="f", shapes=((1,),)), ["x"], "two nodes have this name"),
        ("y", Norm(phase="inference"), ["x", "w"], "a batch norm (inference, none) reads 5 tensors, not 2"),
        ("y", Norm(phase="backward", fusion="activation"), ["x"], "(backward, activation) reads 7 tensors, not 1"),
        ("y", Norm(phase="training", fusion="activation"), ["x"], "two passes of a batch norm are two nodes"),
        ("y", Norm(phase="inference"), ["x", "w", "w", "w", "w"], "its scale has shape (6, 4, 3, 3)"),
        ("y", Other(function="f", shapes=((1,),), element_types=("int8", "int8")), ["x"], "2 element types for 1"),
        ("y", Other(function="f", shapes=((1,),)), [], "reads nothing and does not say of what type it is"),
        ("y", Other(function="f", shapes=((1,),), element_types=("complex64",)), ["x"], "elements of type 'complex64'"),
        (
            "y",
            Conv(
                stride=(1, 1),
                dilation=(1, 1),
                padding_low=(0, 0),
                padding_high=(0, 0),
                direction="backward_filter",
            ),
            ["x", "x"],
            "a gradient does not say what shape it has",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    name: str, attributes: Conv | Norm | Other, inputs: list[str], reason: str
) -> None:
    builder = builder_with(x=((2, 4, 9, 9), "input"), w=((6, 4, 3, 3), "parameter"))
    builder.add("taken", Other(function="f", shapes=((1,),)), ["x"])
    with pytest.raises(InvalidGraph) as caught:
        builder.add(name, attributes, inputs)
    assert reason in str(caught.value)
    assert caught.value.graph == "g"
    assert name in str(caught.value)


def test_a_gradient_of_another_shape_than_its_convolution_makes_is_refused() -> None:
    builder = builder_with(dy=((2, 6, 7, 7), "input"), w=((6, 4, 3, 3), "parameter"))
    conv = Conv(
        stride=(1, 1),
        dilation=(1, 1),
        padding_low=(0, 0),
        padding_high=(0, 0),
        direction="backward_data",
        result_shape=(2, 4, 8, 8),
    )
    with pytest.raises(InvalidGraph, match=r"has shape \(2, 6, 7, 7\), and its convolution makes \(2, 6, 6, 6\)"):
        builder.add("dx", conv, ["dy", "w"])


def test_what_makes_no_op_keeps_the_words_of_the_op() -> None:
    builder = builder_with(x=((2, 4, 1, 1), "input"), w=((6, 4, 5, 5), "parameter"))
    with pytest.raises(InvalidOp, match="does not fit into the padded input"):
        builder.add("y", CONV, ["x", "w"])


def test_an_output_that_nothing_writes_is_refused() -> None:
    with pytest.raises(InvalidGraph, match="is to be an output, and nothing writes it"):
        builder_with(x=((1,), "input")).finish(["y"])


def test_a_graph_knows_who_writes_and_who_reads() -> None:
    builder = builder_with(x=((1,), "input"))
    for name, inputs in (("a", ["x"]), ("b", ["a", "a"]), ("c", ["a", "b"])):
        builder.add(name, Other(function="f", shapes=((1,),)), inputs)
    graph: Graph = builder.finish(["c"])
    assert {name: node.name for name, node in graph.producers.items()} == {"a": "a", "b": "b", "c": "c"}
    assert [node.name for node in graph.consumers["a"]] == ["b", "c"]
    reader = graph.only_reader("b")
    assert reader is not None
    assert reader.name == "c"
    assert graph.only_reader("a") is None
    assert graph.only_reader("c") is None


def test_every_element_type_has_a_size() -> None:
    assert BYTES_OF["bool"] == BYTES_OF["uint8"] == BYTES_OF["int8"] == 1
    assert BYTES_OF["int64"] == BYTES_OF["float64"] == 8


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"shape": (-1, 2)}, "a tuple of integers from 0 to 2**63 - 1, not (-1, 2)"),
        ({"shape": (1.5,)}, "not (1.5,)"),
        ({"shape": (True,)}, "not (True,)"),
        ({"shape": [1]}, "not [1]"),
        ({"shape": (1 << 63,)}, "a tuple of integers from 0 to 2**63 - 1"),
        ({"name": None}, "its name, element type, layout and role are strings"),
        ({"element_type": []}, "its name, element type, layout and role are strings"),
        ({"element_type": "complex64"}, "elements of type 'complex64'"),
        ({"layout": "diagonal"}, "no tensor has layout 'diagonal' and role 'input'"),
        ({"role": "king"}, "no tensor has layout 'channels_first' and role 'king'"),
    ],
)
def test_what_is_no_tensor_is_refused(wrong: dict[str, Any], reason: str) -> None:
    fields: dict[str, Any] = {"name": "x", "shape": (1, 2), "element_type": "float32", "role": "input"}
    with pytest.raises(InvalidGraph) as caught:
        GraphBuilder("g").enter(Tensor(**fields | wrong))
    assert reason in str(caught.value)


def test_a_node_writes_no_tensor_that_is_none() -> None:
    builder = builder_with(x=((2, 4), "input"))
    with pytest.raises(InvalidGraph, match=r"not \(-5,\)"):
        builder.add("f", Other(function="f", shapes=((-5,),)), ["x"])


@pytest.mark.parametrize("names", ["x", None, 3, [["x"]], [b"x"]])
def test_tensors_are_named_by_strings_in_a_sequence(names: Any) -> None:
    builder = builder_with(x=((2, 4), "input"))
    attributes = Other(function="f", shapes=((1,),))
    for ask in (
        lambda: builder.add("f", attributes, names),
        lambda: builder.add("f", attributes, ["x"], names),
        lambda: builder.finish(names),
    ):
        with pytest.raises(InvalidGraph, match="string"):
            ask()


def test_attributes_are_of_the_three_kinds() -> None:
    attributes: Any = "relu"
    with pytest.raises(InvalidGraph, match="a Conv, a Norm or an Other, not 'relu'"):
        builder_with(x=((2, 4), "input")).add("f", attributes, ["x"])
