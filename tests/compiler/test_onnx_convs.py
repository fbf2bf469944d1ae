"""Convolutions of an ONNX graph: what the standard leaves implicit, and where a weight may come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from algosearch.errors import UnreadableModel
from algosearch.ops import ConvOp, canonical
from tests.compiler.onnx_graphs import conv_model, inferred_shape, model, node, only_conv, read, value, weight


def test_g01_same_upper_with_strides_rounds_up(tmp_path: Path) -> None:
    proto = conv_model([1, 1, 7, 5], [1, 1, 3, 3], auto_pad="SAME_UPPER", strides=[2, 2], kernel_shape=[3, 3])
    assert only_conv(read(tmp_path, proto)).output_shape == (1, 1, 4, 3)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_g01_auto_pad_becomes_explicit_pads(tmp_path: Path, auto_pad: str, stride: int) -> None:
    for size in range(5, 10):
        for taps in range(1, 6):
            proto = conv_model([1, 1, size], [1, 1, taps], auto_pad=auto_pad, strides=[stride])
            op = only_conv(read(tmp_path, proto))
            same = auto_pad.startswith("SAME")
            outputs = -(-size // stride) if same else (size - taps) // stride + 1
            total = max(0, (outputs - 1) * stride + taps - size) if same else 0
            larger, smaller = (total + 1) // 2, total // 2
            assert op.output_shape == (1, 1, outputs) == inferred_shape(proto)
            low, high = (larger, smaller) if auto_pad == "SAME_LOWER" else (smaller, larger)
            assert (op.padding_low, op.padding_high) == ((low,), (high,))
            explicit = conv_model([1, 1, size], [1, 1, taps], pads=[low, high], strides=[stride])
            assert only_conv(read(tmp_path, explicit)) == op


@pytest.mark.parametrize(("auto_pad", "low"), [("SAME_UPPER", 1), ("VALID", 0), ("NOTSET", 3)])
def test_g01_auto_pad_wins_over_pads_here_and_for_what_follows(tmp_path: Path, auto_pad: str, low: int) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["z"], auto_pad=auto_pad, pads=[3, 3, 3, 3]),
        node("Conv", ["z", "w"], ["y"]),
    ]
    first, second = read(tmp_path, model(nodes, [value("x", [1, 1, 9, 9])], [weight("w", [1, 1, 3, 3])])).nodes
    assert isinstance(first.op, ConvOp)
    assert isinstance(second.op, ConvOp)
    assert first.op.padding_low == (low, low)
    assert second.op.input_shape == first.op.output_shape


def test_g02_dilation_counts_in_the_pads(tmp_path: Path) -> None:
    op = only_conv(read(tmp_path, conv_model([1, 1, 22, 27], [1, 1, 3, 3], auto_pad="SAME_UPPER", dilations=[2, 2])))
    assert (op.padding_low, op.padding_high, op.output_shape) == ((2, 2), (2, 2), (1, 1, 22, 27))


def test_g02_dilation_with_stride_and_an_odd_total(tmp_path: Path) -> None:
    for auto_pad, low, high in (("SAME_UPPER", (1, 3), (2, 3)), ("SAME_LOWER", (2, 3), (1, 3))):
        proto = conv_model(
            [1, 1, 22, 27], [1, 1, 3, 3], auto_pad=auto_pad, dilations=[2, 3], strides=[2, 1], kernel_shape=[3, 3]
        )
        op = only_conv(read(tmp_path, proto))
        assert (op.padding_low, op.padding_high, op.output_shape) == (low, high, (1, 1, 11, 27))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_g03_kernel_shape_comes_from_the_weight(tmp_path: Path, kind: str, axes: int) -> None:
    data, filters = [2, 4, *[8] * axes], [4, 4, *[3] * axes]
    bare = only_conv(read(tmp_path, conv_model(data, filters, kind)))
    stated = only_conv(read(tmp_path, conv_model(data, filters, kind, kernel_shape=[3] * axes)))
    assert bare == stated
    assert bare.spatial_dimensions == axes
    with pytest.raises(UnreadableModel, match=r"'c1' has kernel_shape"):
        read(tmp_path, conv_model(data, filters, kind, kernel_shape=[5] * axes))


@pytest.mark.parametrize(("stride", "size"), [(1, 2), (2, 4), (3, 6)])
def test_g04_transposed_same_is_input_times_stride(tmp_path: Path, stride: int, size: int) -> None:
    proto = conv_model([1, 1, 2, 2], [1, 1, 3, 3], "ConvTranspose", auto_pad="SAME_UPPER", strides=[stride] * 2)
    op = only_conv(read(tmp_path, proto))
    assert (op.direction, op.input_shape, op.output_shape) == ("backward_data", (1, 1, size, size), (1, 1, 2, 2))


def test_g04_transposed_is_the_data_gradient_of_the_matching_convolution(tmp_path: Path) -> None:
    proto = conv_model([8, 6, 14, 14], [6, 2, 3, 3], "ConvTranspose", strides=[2, 2], pads=[1, 1, 1, 1], group=2)
    gradient = ConvOp(
        direction="backward_data",
        input_shape=(8, 4, 27, 27),
        filter_shape=(6, 2, 3, 3),
        stride=(2, 2),
        padding_low=(1, 1),
        groups=2,
    )
    assert canonical(only_conv(read(tmp_path, proto))) == canonical(gradient)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [0, 2]},
        {"pads": [1, 0]},
        {"dilations": [2]},
        {"dilations": [3], "output_padding": [1]},
        {"output_padding": [2], "dilations": [2]},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "VALID"},
        {"output_shape": [9]},
        {"output_shape": [9], "auto_pad": "SAME_UPPER"},
    ],
)
def test_g04_a_transposed_convolution_gives_its_result_or_says_why_not(
    tmp_path: Path, stride: int, attributes: dict[str, Any]
) -> None:
    proto = conv_model([1, 4, 5], [4, 3, 3], "ConvTranspose", strides=[stride], **attributes)
    found = read(tmp_path, proto)
    if found.skipped:
        (left_out,) = found.skipped
        assert stride < 3
        assert "beyond every window" in left_out.reason
        return
    op = only_conv(found)
    assert op.output_shape == (1, 4, 5)
    assert op.result_shape == inferred_shape(proto)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("stride", "extra"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2)])
@pytest.mark.parametrize("taps", [1, 2, 5])
def test_g04_what_follows_a_transposed_same_has_its_size_too(
    tmp_path: Path, auto_pad: str, extra: int, stride: int, taps: int
) -> None:
    """Inference alone gets it wrong where the stride is larger than the filter or there is an output_padding."""
    transposed = node(
        "ConvTranspose", ["x", "w"], ["z"], auto_pad=auto_pad, strides=[stride], output_padding=[extra], name="up"
    )
    weights = [weight("w", [1, 1, taps]), weight("v", [1, 1, 3])]
    found = read(tmp_path, model([transposed, node("Conv", ["z", "v"])], [value("x", [1, 1, 5])], weights))
    up, after = (each.op for each in found.nodes)
    assert isinstance(up, ConvOp)
    assert isinstance(after, ConvOp)
    assert up.result_shape == after.input_shape == (1, 1, 5 * stride)
    excess = max(0, taps + extra - stride)
    assert up.padding_low == (excess // 2 if auto_pad == "SAME_UPPER" else excess - excess // 2,)


def test_g04_an_output_shape_may_name_batch_and_channels_as_well(tmp_path: Path) -> None:
    ops = []
    for stated in ([10, 10], [1, 1, 10, 10]):
        up = node("ConvTranspose", ["x", "w"], ["z"], strides=[2, 2], output_shape=stated)
        proto = model([up, node("Conv", ["z", "w"])], [value("x", [1, 1, 5, 5])], [weight("w", [1, 1, 3, 3])])
        ops.append([each.op for each in read(tmp_path, proto).nodes])
    assert ops[0] == ops[1]
    assert len(ops[0]) == 2


def _five_forms(ir: int) -> dict[str, Any]:
    conv = node("Conv", ["x", "w", "b"], strides=[2, 2])
    x, w, b = value("x", [1, 3, 9, 9]), weight("w", [3, 3, 3, 3]), weight("b", [3])
    branch = helper.make_graph([conv], "branch", [], [helper.make_empty_tensor_value_info("y")])
    inputs = [value("w", [3, 3, 3, 3]), value("b", [3])]
    constants = [node("Constant", [], ["w"], value=w), node("Constant", [], ["b"], value=b)]
    choose = node("If", ["which"], then_branch=branch, else_branch=branch)
    return {
        "initializer": model([conv], [x], [w, b], ir=ir),
        "initializer and input": model([conv], [x, *inputs], [w, b], ir=ir),
        "constant": model([*constants, conv], [x], ir=ir),
        "outer scope": model([choose], [x, value("which", [], TensorProto.BOOL)], [w, b], ir=ir),
        "runtime input": model([conv], [x, *inputs], ir=ir),
    }


@pytest.mark.parametrize("ir", [3, 8])
def test_g05_a_weight_may_come_from_five_places(tmp_path: Path, ir: int) -> None:
    expected = ConvOp(input_shape=(1, 3, 9, 9), filter_shape=(3, 3, 3, 3), stride=(2, 2))
    for form, proto in _five_forms(ir).items():
        found = read(tmp_path, proto)
        assert {each.op for each in found.nodes} == {expected}, form
        assert len(found.nodes) == (2 if form == "outer scope" else 1), form
        assert found.skipped == ()


@pytest.mark.parametrize("ir", [1, 3, 4])
def test_g05_an_initializer_need_not_be_an_input_for_what_follows(tmp_path: Path, ir: int) -> None:
    nodes = [node("Conv", ["x", "w"], ["z"]), node("Conv", ["z", "w"])]
    found = read(tmp_path, model(nodes, [value("x", [1, 3, 9, 9])], [weight("w", [3, 3, 3, 3])], ir=ir, opset=8))
    assert [each.op.output_shape for each in found.nodes] == [(1, 3, 7, 7), (1, 3, 5, 5)]


def test_g05_a_weight_without_a_shape_is_skipped_and_the_rest_read(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "odd"], ["z"], name="c1"), node("Conv", ["x", "w"], name="c2")]
    proto = model(nodes, [value("x", [1, 3, 9, 9]), value("odd", None)], [weight("w", [3, 3, 3, 3])])
    found = read(tmp_path, proto)
    assert [each.name for each in found.nodes] == ["c2"]
    assert [(each.name, each.kind) for each in found.skipped] == [("c1", "Conv")]
    assert found.skipped[0].reason.startswith("unresolved")


def test_g11_an_absent_bias_is_no_bias_and_a_lost_one_is_an_error(tmp_path: Path) -> None:
    inputs = [value("x", [1, 3, 9, 9]), value("B", [3])]
    read_with = {
        third: only_conv(read(tmp_path, model([node("Conv", ["x", "w", *third])], inputs, [weight("w", [3, 3, 3, 3])])))
        for third in ((), ("",), ("B",))
    }
    assert len(set(read_with.values())) == 1
    lost = model([node("Conv", ["x", "w", "lost"], name="c1")], inputs, [weight("w", [3, 3, 3, 3])])
    with pytest.raises(UnreadableModel, match=r"'c1' takes 'lost'"):
        read(tmp_path, lost)


def test_g12_quantised_convolutions_are_listed_with_a_reason(tmp_path: Path) -> None:
    u8 = TensorProto.UINT8
    inputs = [value("x", [1, 3, 9, 9], u8), value("w", [4, 3, 3, 3], u8), value("s", []), value("z", [], u8)]
    for kind, taken, what in (
        ("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], "a quantized convolution with scales"),
        ("ConvInteger", ["x", "w"], "an integer convolution"),
    ):
        (left_out,) = read(tmp_path, model([node(kind, taken, name="q")], inputs)).skipped
        assert (left_out.name, left_out.kind) == ("q", kind)
        assert left_out.reason.startswith(f"no op describes {what}")


@pytest.mark.parametrize(("channels", "filters", "groups"), [(8, 64, 8), (8, 8, 8), (8, 16, 4), (8, 16, 2), (8, 16, 1)])
def test_g14_groups_and_channel_multipliers(tmp_path: Path, channels: int, filters: int, groups: int) -> None:
    attributes: dict[str, Any] = {"group": groups, "strides": [2, 2], "pads": [1, 1, 1, 1]}
    op = only_conv(read(tmp_path, conv_model([1, channels, 16, 16], [filters, channels // groups, 3, 3], **attributes)))
    assert (op.groups, op.output_shape) == (groups, (1, filters, 8, 8))
    with pytest.raises(UnreadableModel, match="c1"):
        read(tmp_path, conv_model([1, channels + 1, 16, 16], [filters, channels // groups, 3, 3], **attributes))


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [-1, 0, 0, 0]},
        {"pads": [1, 1]},
        {"strides": [0, 1]},
        {"strides": [1]},
        {"dilations": [0, 1]},
        {"auto_pad": "SOMEHOW"},
        {"group": 0},
        {"group": -1},
        {"strides": "2"},
        {"strides": 2},
        {"pads": [1.0, 1.0, 1.0, 1.0]},
        {"dilations": [2.0, 2.0]},
        {"kernel_shape": ["3", "3"]},
        {"auto_pad": 1},
        {"group": 1.0},
    ],
)
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_attributes_that_cannot_be_name_the_node(tmp_path: Path, kind: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableModel, match="'c1'"):
        read(tmp_path, conv_model([1, 4, 9, 9], [4, 4, 3, 3], kind, **attributes))


def test_the_oldest_files_do_not_say_of_what_type_an_attribute_is(tmp_path: Path) -> None:
    proto = conv_model([1, 4, 9, 9], [4, 2, 3, 3], strides=[2, 2], group=2, auto_pad="VALID")
    for attribute in proto.graph.node[0].attribute:
        attribute.ClearField("type")
    op = only_conv(read(tmp_path, proto))
    assert (op.stride, op.groups) == ((2, 2), 2)


def test_unequal_pads_stay_unequal(tmp_path: Path) -> None:
    op = only_conv(read(tmp_path, conv_model([1, 1, 9, 9], [1, 1, 3, 3], pads=[0, 1, 2, 3])))
    assert (op.padding_low, op.padding_high) == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("element_type", "word", "accumulates"),
    [
        (TensorProto.FLOAT16, "float16", "float32"),
        (TensorProto.BFLOAT16, "bfloat16", "float32"),
        (TensorProto.FLOAT, "float32", "float32"),
        (TensorProto.DOUBLE, "float64", "float64"),
    ],
)
def test_element_types_come_from_the_graph_or_the_caller(
    tmp_path: Path, element_type: int, word: str, accumulates: str
) -> None:
    proto = model(
        [node("Conv", ["x", "w"])],
        [value("x", [1, 3, 9, 9], element_type)],
        [weight("w", [4, 3, 3, 3], element_type)],
        opset=22,
    )
    op = only_conv(read(tmp_path, proto))
    assert (op.input_type, op.accumulate_type) == (word, accumulates)
    told = only_conv(read(tmp_path, proto, data_type="float16", layout="channels_last"))
    assert (told.filter_type, told.accumulate_type) == ("float16", "float32")
    assert {told.input_layout, told.filter_layout, told.output_layout} == {"channels_last"}


def test_what_no_op_computes_is_skipped(tmp_path: Path) -> None:
    proto = model([node("Conv", ["x", "w"])], [value("x", [1, 3, 9, 9], TensorProto.INT32), value("w", [4, 3, 3, 3])])
    assert "int32" in read(tmp_path, proto).skipped[0].reason
    assert (
        "forward only"
        in read(tmp_path, conv_model([1, 3, 9], [3, 4, 3], "ConvTranspose"), data_type="int8").skipped[0].reason
    )
    assert "spatial dimensions" in read(tmp_path, conv_model([1, 1, 3, 3, 3, 3], [1, 1, 1, 1, 1, 1])).skipped[0].reason


def test_data_and_weight_of_two_types_are_an_error_unless_the_caller_says_one(tmp_path: Path) -> None:
    half = [weight("w", [4, 3, 3, 3], TensorProto.FLOAT16)]
    proto = model([node("Conv", ["x", "w"], name="c1")], [value("x", [1, 3, 9, 9])], half)
    with pytest.raises(UnreadableModel, match="'c1' has data and a weight of two types"):
        read(tmp_path, proto)
    assert only_conv(read(tmp_path, proto, data_type="float64")).filter_type == "float64"


@pytest.mark.parametrize("imported", [["com.example"], []])
def test_domains_may_be_spelled_out_or_not_imported(tmp_path: Path, imported: list[str]) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["z"], domain="ai.onnx"),
        helper.make_node("Gelu", ["z"], ["g"], domain="com.example"),
        node("Conv", ["z", "w"]),
    ]
    proto = model(nodes, [value("x", [1, 3, 9, 9])], [weight("w", [3, 3, 3, 3])], domains=imported)
    assert [each.op.output_shape for each in read(tmp_path, proto).nodes] == [(1, 3, 7, 7), (1, 3, 5, 5)]
    proto.opset_import[0].domain = "ai.onnx"
    assert read(tmp_path, proto).operations == 2


def test_a_convolution_needs_an_input_gradient_if_something_before_it_is_trained(tmp_path: Path) -> None:
    mean = weight("mean", [3])
    nodes = [
        node("Sub", ["x", "mean"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[0, 3, 1, 2]),
        node("Conv", ["t", "w"], ["z"], name="first"),
        node("Conv", ["t", "w"], ["z2"], name="beside"),
        node("Relu", ["z"], ["r"]),
        node("Conv", ["r", "w"], name="second"),
        node("Add", ["x", "x"], ["sum"]),
        node("Transpose", ["sum"], ["t2"], perm=[0, 3, 1, 2]),
        node("Conv", ["t2", "w"], ["q"], name="behind what may have weights"),
    ]
    found = read(tmp_path, model(nodes, [value("x", [1, 9, 9, 3])], [weight("w", [3, 3, 3, 3]), mean]))
    assert [(each.name, each.needs_input_gradient) for each in found.nodes] == [
        ("first", False),
        ("beside", False),
        ("second", True),
        ("behind what may have weights", True),
    ]


def test_only_a_convolution_of_the_graphs_own_input_needs_no_input_gradient(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], ["z"]), node("Relu", ["z"], ["r"]), node("Conv", ["r", "w"])]
    found = read(tmp_path, model(nodes, [value("x", [1, 3, 9, 9])], [weight("w", [3, 3, 3, 3])]))
    assert [each.needs_input_gradient for each in found.nodes] == [False, True]
    assert [each.name for each in found.nodes] == ["Conv[0]", "Conv[2]"]
