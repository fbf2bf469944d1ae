"""Dimensions that a model leaves open, and bodies of control flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from algosearch.errors import InvalidSetting, UnknownDimension, UnreadableModel
from tests.compiler.onnx_graphs import Sizes, conv_model, model, node, only_conv, read, value, weight


@pytest.mark.parametrize(
    ("data", "names", "flags"),
    [
        (["N", 3, 9, 9], ("N",), ("--batch N",)),
        ([None, 3, 9, 9], ("x.0",), ("--batch N",)),
        ([-1, 3, 9, 9], ("x.0",), ("--batch N",)),
        ([0, 3, 9, 9], ("x.0",), ("--batch N",)),
        ([1, 3, "height", "width"], ("height", "width"), ("--dim height=N", "--dim width=N")),
        ([1, 3, "side", "side"], ("side",), ("--dim side=N",)),
        (["N", 3, None, 0], ("N", "x.2", "x.3"), ("--batch N", "--dim x.2=N", "--dim x.3=N")),
    ],
)
def test_g13_open_dimensions_are_listed_with_the_flags_that_set_them(
    tmp_path: Path, data: Sizes, names: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    proto = conv_model(data, [4, 3, 3, 3], pads=[1, 1, 1, 1])
    with pytest.raises(UnknownDimension) as caught:
        read(tmp_path, proto)
    assert (caught.value.names, caught.value.flags) == (names, flags)

    batch = 9 if "--batch N" in flags else None
    sizes = tuple((flag.removeprefix("--dim ").removesuffix("=N"), 9) for flag in flags if flag != "--batch N")
    expected = tuple(each if isinstance(each, int) and each > 0 else 9 for each in data)
    assert only_conv(read(tmp_path, proto, batch=batch, dimensions=sizes)).input_shape == expected


def test_g13_one_open_size_is_enough_to_ask(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Conv", ["r", "w"], ["z"]), node("Conv", ["z", "w"])]
    inputs = [value("x", [1, 3, "h", 9]), value("unused", ["m", 3])]
    with pytest.raises(UnknownDimension) as caught:
        read(tmp_path, model(nodes, inputs, [weight("w", [3, 3, 3, 3])]))
    assert caught.value.names == ("h",)


def test_g13_an_input_without_a_rank_cannot_be_set_so_its_nodes_are_skipped(tmp_path: Path) -> None:
    found = read(tmp_path, conv_model(None, [4, 3, 3, 3]))
    assert found.nodes == ()
    assert found.skipped[0].about == "x"


def test_g13_the_same_symbol_is_one_size_on_every_input(tmp_path: Path) -> None:
    nodes = [node("Concat", ["x", "x2"], ["z"], axis=1), node("Conv", ["z", "w"])]
    inputs = [value("x", ["N", 3, 9, 9]), value("x2", ["N", 1, 9, 9]), value("lengths", ["N"])]
    proto = model(nodes, inputs, [weight("w", [4, 4, 3, 3])])
    for options in ({"batch": 5}, {"dimensions": (("N", 5),)}):
        assert only_conv(read(tmp_path, proto, **options)).input_shape == (5, 4, 9, 9)


def test_g13_batch_replaces_a_fixed_one_but_no_filter(tmp_path: Path) -> None:
    stale = [value("y", [1, 4, 7, 7])]
    proto = model(
        [node("Relu", ["x"], ["r"]), node("Conv", ["r", "w"])],
        [value("x", [1, 3, 9, 9]), value("w", [4, 3, 3, 3])],
        outputs=stale,
    )
    proto.graph.value_info.append(value("r", [1, 3, 9, 9]))
    op = only_conv(read(tmp_path, proto, batch=16))
    assert (op.input_shape, op.filter_shape) == ((16, 3, 9, 9), (4, 3, 3, 3))


@pytest.mark.parametrize("options", [{"batch": 0}, {"batch": -1}, {"dimensions": (("h", 0),)}])
def test_g13_sizes_below_one_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        read(tmp_path, conv_model(["N", 3, "h", 9], [4, 3, 3, 3]), **options)


@pytest.mark.parametrize("name", ["N", "x.0"])
def test_g13_two_sizes_for_the_batch_are_refused(tmp_path: Path, name: str) -> None:
    proto = conv_model(["N", 3, 9, 9], [4, 3, 3, 3])
    assert only_conv(read(tmp_path, proto, batch=2, dimensions=((name, 2),))).input_shape[0] == 2
    with pytest.raises(InvalidSetting, match="is 3 by --dim"):
        read(tmp_path, proto, batch=2, dimensions=((name, 3),))


def test_g13_a_name_is_set_wherever_only_the_model_can_say_it(tmp_path: Path) -> None:
    """What a foreign node makes is declared with the same names; a number there may be a stale batch."""
    foreign = helper.make_node("Gelu", ["x"], ["z"], domain="com.example")
    proto = model([foreign, node("Conv", ["z", "w"])], [value("x", ["N", 3, 9, 9])], [weight("w", [4, 3, 3, 3])])
    proto.graph.value_info.append(value("z", ["N", 3, 9, 9]))
    assert only_conv(read(tmp_path, proto, batch=2)).input_shape == (2, 3, 9, 9)

    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    found = read(tmp_path, proto, batch=2)
    assert (found.nodes, len(found.skipped)) == ((), 1)


def test_g13_a_body_keeps_no_batch_but_the_callers(tmp_path: Path) -> None:
    """A loop's own inputs are only declared: with another batch, that is no longer true."""
    body = helper.make_graph(
        [node("Conv", ["carried", "w"], ["next"], pads=[1, 1, 1, 1]), node("Identity", ["go"], ["on"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("carried", [1, 3, 9, 9])],
        [value("on", [], TensorProto.BOOL), helper.make_empty_tensor_value_info("next")],
    )
    inputs = [value("x", [1, 3, 9, 9]), value("more", [], TensorProto.BOOL)]
    proto = model([node("Loop", ["", "more", "x"], body=body)], inputs, [weight("w", [3, 3, 3, 3])])
    assert only_conv(read(tmp_path, proto)).input_shape == (1, 3, 9, 9)
    assert only_conv(read(tmp_path, proto, batch=1)).input_shape == (1, 3, 9, 9)
    assert [each.reason[:10] for each in read(tmp_path, proto, batch=4).skipped] == ["unresolved"]


def test_a_result_that_the_model_contradicts_is_an_error_for_who_reads_it(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], ["z"], name="c1"), node("Relu", ["z"], ["r"]), node("Conv", ["r", "w"])]
    proto = model(nodes, [value("x", [8, 3, 9, 9])], [weight("w", [3, 3, 3, 3])])
    proto.graph.value_info.append(value("z", [1, 3, 7, 7]))
    with pytest.raises(UnreadableModel, match=r"'c1' makes \(8, 3, 7, 7\), but the model says \(1, 3, 7, 7\)"):
        read(tmp_path, proto)
    del proto.graph.node[2]
    assert only_conv(read(tmp_path, proto)).input_shape == (8, 3, 9, 9)


def test_a_shape_that_depends_on_data_is_skipped(tmp_path: Path) -> None:
    nodes = [
        node("NonZero", ["x"], ["found"]),
        node("Cast", ["found"], ["real"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["real", "axes"], ["z"]),
        node("Conv", ["z", "w"], name="c1"),
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [0])
    found = read(tmp_path, model(nodes, [value("x", [4, 4])], [axes, weight("w", [2, 2, 3])]))
    assert [(each.name, each.reason[:10]) for each in found.skipped] == [("c1", "unresolved")]


def test_bodies_are_read_where_their_node_stands(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [node("Conv", ["x", "w"], ["i"], name="inner"), node("Conv", ["i", "w"], ["o"])],
        "branch",
        [],
        [helper.make_empty_tensor_value_info("o")],
    )
    nodes = [
        node("If", ["which"], ["z"], name="if1", then_branch=branch, else_branch=branch),
        node("Conv", ["z", "w"], name="last"),
    ]
    inputs = [value("x", ["N", 3, 9, 9]), value("which", [], TensorProto.BOOL)]
    proto = model(nodes, inputs, [weight("w", [3, 3, 3, 3])])
    found = read(tmp_path, proto, batch=2)
    assert [each.name for each in found.nodes] == [
        "if1/else_branch/inner",
        "if1/else_branch/Conv[1]",
        "if1/then_branch/inner",
        "if1/then_branch/Conv[1]",
        "last",
    ]
    assert [each.op.output_shape for each in found.nodes][-1] == (2, 3, 3, 3)
    with pytest.raises(UnknownDimension, match="--batch N"):
        read(tmp_path, proto)


def test_another_domains_convolution_is_not_ours(tmp_path: Path) -> None:
    other = helper.make_node("Conv", ["x", "w"], ["y"], name="c1", domain="com.example")
    proto = model([other], [value("x", [1, 3, 9, 9])], [weight("w", [3, 3, 3, 3])], domains=["com.example"])
    assert "com.example" in read(tmp_path, proto).skipped[0].reason


def test_the_dimensions_that_there_are_and_the_options_that_find_none(tmp_path: Path) -> None:
    nodes = [node("Concat", ["x", "x2"], ["z"], axis=1), node("Conv", ["z", "w"])]
    inputs = [value("x", ["N", 3, "h", 9]), value("x2", ["N", 1, 9, 9]), value("w", [4, 4, 3, 3])]
    proto = model(nodes, inputs, [weight("w", [4, 4, 3, 3])])  # a weight that is also an input, as IR 3 has it
    sizes = (("h", 9), ("x.3", 9), ("x.0", 2), ("w.0", 4), ("H", 9), ("x.4", 1))
    found = read(tmp_path, proto, batch=2, dimensions=sizes, data_type="float16")
    assert found.dimensions == ("N", "x.1", "h", "x.3", "x2.1", "x2.2", "x2.3")
    assert found.ignored == ("--dim w.0=4", "--dim H=9", "--dim x.4=1")


def test_a_batch_finds_nothing_where_no_input_has_one(tmp_path: Path) -> None:
    found = read(tmp_path, model([node("Relu", ["x"])], [value("x", [7])]), batch=2)
    assert (found.dimensions, found.ignored) == (("x.0",), ("--batch 2",))
