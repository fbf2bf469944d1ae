"""ONNX files as op graphs: every node takes part, and what is wrong is refused by name."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from algosearch.cli.report import counted
from algosearch.compiler.compile import Pipeline
from algosearch.compiler.graph import Graph, GraphBuilder
from algosearch.compiler.model import Model
from algosearch.compiler.onnx_graph import read_onnx_graph
from algosearch.compiler.passes import Placement
from algosearch.errors import InvalidGraph
from algosearch.ops import BatchNormOp
from tests.compiler.onnx_graphs import model, node, value, weight, write


def read(directory: Path, proto: Any) -> tuple[Graph, Model]:
    return read_onnx_graph(write(directory, proto))


def through_all_passes(graph: Graph, *, training: bool = True) -> Graph:
    for _, make in Pipeline(training=training, placement=Placement(devices_per_node=2)).passes:
        graph = make(graph, GraphBuilder(graph.name))
    return graph


NORM = [weight(name, [4]) for name in ("scale", "bias", "mean", "variance")]
IMAGE = value("x", [1, 3, 8, 8])


def test_an_input_that_nothing_makes_is_refused_by_name(tmp_path: Path) -> None:
    proto = model([node("Mul", ["x", "nothing"], name="product")], [value("x", [1, 3])])
    with pytest.raises(InvalidGraph, match=r"product.*reads 'nothing', which nothing has written before it"):
        read(tmp_path, proto)


def test_nodes_out_of_order_are_refused_by_name(tmp_path: Path) -> None:
    nodes = [node("Relu", ["c"], name="rectifier"), node("Conv", ["x", "w"], ["c"], name="conv")]
    proto = model(nodes, [IMAGE], [weight("w", [4, 3, 1, 1])], outputs=[value("y", [1, 4, 8, 8])])
    with pytest.raises(InvalidGraph, match=r"rectifier.*reads 'c', which nothing has written before it"):
        read(tmp_path, proto)


def test_a_body_reads_what_is_around_it_and_makes_the_rest_itself(tmp_path: Path) -> None:
    then = model([node("Relu", ["x"], ["inner"]), node("Mul", ["inner", "k"], ["t"])], [], outputs=[value("t", [2])])
    other = model([node("Neg", ["x"], ["e"])], [], outputs=[value("e", [2])])
    branch = node("If", ["cond"], name="if", then_branch=then.graph, else_branch=other.graph)
    graph, _ = read(tmp_path, model([branch], [value("x", [2]), value("cond", [], 9)], [weight("k", [2])]))
    (found,) = graph.nodes
    assert found.inputs == ("cond", "x", "k")


@pytest.mark.parametrize(
    "taken",
    [
        *(
            "x.half",
            "y.single",
            "x.channels_last",
            "c.unbiased",
            "c.bias",
            "n.mean",
            "n.inverse_deviation",
            "n.reserve",
        ),
        *("n.backward", "n.backward.scale", "c.input_gradient", "c.filter_gradient", "y.loss_gradient", "loss"),
        *("w.update", "w.all_reduce", "w.half", "r.gradient", "r.backward", "n"),
    ],
)
@pytest.mark.parametrize("whose", ["tensor", "node", "both"])
def test_a_model_may_use_every_name_that_is_invented(taken: str, whose: str, tmp_path: Path) -> None:
    """`taken` is the name of a tensor, a node, or both, before and behind everything else."""
    tensor, name = ("t" if whose == "node" else taken), ("r" if whose == "tensor" else taken)
    for at_end in (False, True):
        begins, ends = (["x", tensor], ["r", "y"]) if not at_end else (["x", "e"], [tensor, "y"])
        nodes = [
            node("Relu", begins[:1], begins[1:], name="" if at_end else name),
            node("Conv", [begins[1], "w", "b"], ["c0"], name="c"),
            node("BatchNormalization", ["c0", "scale", "bias", "mean", "variance"], ["n0"], name="n"),
            node("Relu", ["n0"], ends[:1], name=name if at_end else ""),
            node("Add", [ends[0], ends[0]], ["two"]),
            node("Mul", ["two", ends[0]], ["y"]),
        ]
        proto = model(nodes, [IMAGE], [weight("w", [4, 3, 1, 1]), weight("b", [4]), *NORM])
        graph, _ = read(tmp_path, proto)
        assert taken in graph.tensors or taken in {each.name for each in graph.nodes}
        for training in (False, True):
            done = through_all_passes(graph, training=training)
            assert len({each.name for each in done.nodes}) == len(done.nodes)
            kinds = [each.kind for each in done.nodes]
            assert kinds.count("conv") == (2 if training else 1)


def test_nodes_without_a_name_or_with_one_twice_get_one_each(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["a"], name="r"), node("Relu", ["a"], ["r"], name="r"), node("Relu", ["r"])]
    graph, _ = read(tmp_path, model(nodes, [IMAGE]))
    assert [each.name for each in graph.nodes] == ["r", "r'", "Relu[2]"]


def trained_norm(outputs: list[str], wanted: list[str], opset: int) -> Any:
    """A convolution and a batch norm in training, with a rectifier behind it."""
    training = {"training_mode": 1} if opset >= 14 else {}
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="c"),
        node("BatchNormalization", ["c", "scale", "bias", "mean", "variance"], outputs, name="n", **training),
        node("Relu", ["n0"], name="r"),
    ]
    ends = [value(each, None) for each in ("y", *wanted)]
    return model(nodes, [IMAGE], [weight("w", [4, 3, 1, 1]), *NORM], outputs=ends, opset=opset)


@pytest.mark.parametrize(
    ("outputs", "wanted", "opset"),
    [
        (["n0", "m1", "v1"], ["m1", "v1"], 17),
        (["n0", "m1", "v1"], ["v1"], 17),
        (["n0", "", "v1"], ["v1"], 17),
        (["n0", "m1", "v1", "saved mean", "saved variance"], ["saved mean"], 9),
        (["n0", "m1", "v1", "saved mean", "saved variance"], ["m1", "saved variance"], 9),
    ],
)
def test_statistics_that_leave_a_batch_norm_of_training_are_written(
    outputs: list[str], wanted: list[str], opset: int, tmp_path: Path
) -> None:
    graph, found = read(tmp_path, trained_norm(outputs, wanted, opset))
    assert Counter(graph.ops) == Counter(each.op for each in found.nodes)
    assert all(graph.tensors[each].shape == (4,) for each in wanted)
    assert {each.name for each in graph.tensors.values() if each.role == "state"} == {"mean", "variance"}
    for training in (False, True):
        step = through_all_passes(graph, training=training)
        (loss,) = [each for each in step.nodes if each.kind == "loss"] if training else [None]
        assert set(wanted) <= set(step.outputs if loss is None else loss.inputs)
        updated = [each.inputs[0] for each in step.nodes if each.kind == "update"]
        assert sorted(updated) == (["bias", "scale", "w"] if training else [])
    fused = [each.op.fusion for each in step.nodes if isinstance(each.op, BatchNormOp)]
    assert fused == ["activation", "activation"]


def test_a_batch_norm_whose_statistics_are_computed_with_is_not_fused(tmp_path: Path) -> None:
    """What is added to it depends on them, and the fused one reads what is added."""
    nodes = [
        node("BatchNormalization", ["x", "scale", "bias", "mean", "variance"], ["n0", "m1", "v1"], training_mode=1),
        node("Neg", ["m1"], ["m2"]),
        node("Mul", ["x", "m2"], ["p"]),
        node("Add", ["n0", "p"], ["s"]),
        node("Relu", ["s"]),
    ]
    step = through_all_passes(read(tmp_path, model(nodes, [value("x", [1, 4, 4, 4])], NORM))[0])
    assert {each.op.fusion for each in step.nodes if isinstance(each.op, BatchNormOp)} == {"none"}


@pytest.mark.parametrize("half", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_parameters_of_a_batch_norm_in_halves_are_cast_to_float32(half: int, tmp_path: Path) -> None:
    parameters = [weight(name, [4], half) for name in ("scale", "bias", "mean", "variance")]
    nodes = [
        node("BatchNormalization", ["x", "scale", "bias", "mean", "variance"], ["a"]),
        node("BatchNormalization", ["a", "scale", "bias", "mean", "variance"]),
    ]
    graph, found = read(tmp_path, model(nodes, [value("x", [1, 4, 8, 8], half)], parameters))
    assert Counter(graph.ops) == Counter(each.op for each in found.nodes)
    assert {op.parameter_type for op in graph.ops if isinstance(op, BatchNormOp)} == {"float32"}
    casts = [each.inputs[0] for each in graph.nodes if each.kind == "cast"]
    assert casts == ["scale", "bias", "mean", "variance"]
    step = through_all_passes(graph)
    for update in [each for each in step.nodes if each.kind == "update"]:
        parameter, gradient = (step.tensors[each] for each in update.inputs)
        assert parameter.element_type == gradient.element_type


def test_what_is_inside_a_body_is_reported(tmp_path: Path) -> None:
    inner = [node("Conv", ["x", "w"], ["i"], name="one"), node("Conv", ["i", "v"], ["t"], name="two")]
    then = model(inner, [], outputs=[value("t", [1, 4, 8, 8])])
    deep = node("If", ["cond"], ["e"], name="deep", then_branch=then.graph, else_branch=then.graph)
    other = model([deep], [], outputs=[value("e", [1, 4, 8, 8])])
    branch = node("If", ["cond"], name="if", then_branch=then.graph, else_branch=other.graph)
    inputs = [IMAGE, value("cond", [], TensorProto.BOOL)]
    weights = [weight("w", [4, 3, 1, 1]), weight("v", [4, 4, 1, 1])]
    graph, found = read(tmp_path, model([branch], inputs, weights))
    assert [each.kind for each in graph.nodes] == ["If"]
    assert set(graph.nodes[0].inputs) == {"cond", "x", "w", "v"}
    assert {(each.kind, each.reason) for each in found.skipped} == {
        ("Conv", "inside If: takes part without an algorithm")
    }
    assert {"if/then_branch/one", "if/then_branch/two"} <= {each.name for each in found.skipped}
    assert len(found.skipped) == 6


@pytest.mark.parametrize("opset", [7, 12])
def test_the_mask_of_a_dropout_has_the_shape_of_its_data(opset: int, tmp_path: Path) -> None:
    drop = node("Dropout", ["x"], ["y", "mask"], name="drop")
    graph, found = read(tmp_path, model([drop], [IMAGE], opset=opset))
    assert found.skipped == ()
    assert graph.tensors["mask"].shape == (1, 3, 8, 8)
    assert graph.producers["mask"].kind == "dropout"


def test_nodes_without_a_known_shape_are_counted_by_kind(tmp_path: Path) -> None:
    names = ["x", *(f"t{place}" for place in range(6)), "y"]
    chain = [
        node("Odd" if place % 3 else "Strange", [before], [after], domain="ours")
        for place, (before, after) in enumerate(pairwise(names))
    ]
    _, found = read(tmp_path, model(chain, [IMAGE], domains=["ours"]))
    unknown = "takes part without memory: the shape of what it writes is not known"
    assert counted(found.skipped) == {
        f"ours.Strange: {unknown} ('t0', 't3', 'y')": 3,
        f"ours.Odd: {unknown} ('t1', 't2', 't4', 1 more)": 4,
    }


def test_a_model_without_outputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidGraph, match="no outputs"):
        read(tmp_path, model([node("Relu", ["x"])], [IMAGE], outputs=[]))


def test_an_output_without_a_name_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InvalidGraph, match="at what has no name: is to be an output"):
        read(tmp_path, model([node("Relu", ["x"])], [IMAGE], outputs=[value("", None)]))
