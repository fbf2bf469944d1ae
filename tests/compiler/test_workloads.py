"""The built-in workloads: published figures of each network, and what the options make of them."""

from __future__ import annotations

from math import prod
from typing import get_args

import pytest

from algosearch.compiler import WORKLOADS, Model, ReadOptions
from algosearch.compiler.workloads import build_workload
from algosearch.errors import InvalidOp
from algosearch.ops import BatchNormOp, ConvOp, ElementType, canonical

NAMES = tuple(WORKLOADS)


def convs(model: Model) -> list[ConvOp]:
    return [node.op for node in model.nodes if isinstance(node.op, ConvOp)]


def norms(model: Model) -> list[BatchNormOp]:
    return [node.op for node in model.nodes if isinstance(node.op, BatchNormOp)]


def named(model: Model, name: str) -> ConvOp:
    (op,) = [node.op for node in model.nodes if node.name == name]
    assert isinstance(op, ConvOp)
    return op


@pytest.mark.parametrize(
    ("name", "convolutions", "batch_norms", "distinct_convolutions", "multiply_adds"),
    [
        ("resnet50", 53, 53, 23, 4.09e9),
        ("mobilenet_v2", 52, 52, 30, 0.30e9),
        ("r3d18", 20, 20, 11, 40.7e9),
        ("replknet31b", 154, 203, 30, 15.4e9),
        ("wavenet", 92, 0, 14, 20.25e9),
        ("vit_b16", 1, 0, 1, 0.1156e9),
    ],
)
def test_the_figures_of_each_network(
    name: str, convolutions: int, batch_norms: int, distinct_convolutions: int, multiply_adds: float
) -> None:
    model = build_workload(name)
    assert model.source == name
    assert len(convs(model)) == convolutions
    assert len(norms(model)) == batch_norms
    assert model.operations == convolutions + batch_norms
    assert sum(isinstance(op, ConvOp) for op in model.distinct) == distinct_convolutions
    assert sum(op.flops for op in convs(model)) == pytest.approx(2 * multiply_adds, rel=0.01)
    assert model.skipped == ()


def test_every_network_has_its_figures_tested() -> None:
    assert NAMES == ("resnet50", "mobilenet_v2", "r3d18", "replknet31b", "wavenet", "vit_b16")


@pytest.mark.parametrize("name", NAMES)
def test_the_distinct_ops_are_canonical_each_once_and_in_order(name: str) -> None:
    model = build_workload(name)
    seen: list[ConvOp | BatchNormOp] = []
    for node in model.nodes:
        if canonical(node.op) not in seen:
            seen.append(canonical(node.op))
    assert list(model.distinct) == seen


@pytest.mark.parametrize("name", NAMES)
def test_names_are_unique_and_only_the_first_convolution_needs_no_input_gradient(name: str) -> None:
    model = build_workload(name)
    assert len({node.name for node in model.nodes}) == model.operations
    assert [node.name for node in model.nodes if not node.needs_input_gradient] == [model.nodes[0].name]
    assert convs(model)[0].input_shape == (1, *WORKLOADS[name].input_shape)


@pytest.mark.parametrize("name", NAMES)
def test_every_norm_is_of_a_tensor_that_a_convolution_wrote(name: str) -> None:
    model = build_workload(name)
    written = {op.output_shape for op in convs(model)}
    assert {op.shape for op in norms(model)} <= written
    assert {op.phase for op in norms(model)} <= {"inference"}


def test_resnet50_strides_at_its_3x3_and_its_shortcuts() -> None:
    model = build_workload("resnet50")
    strided = [op for op in convs(model) if op.stride == (2, 2)]
    assert sorted(op.filter_shape[2:] for op in strided) == [(1, 1)] * 3 + [(3, 3)] * 3 + [(7, 7)]
    assert named(model, "stem").output_shape == (1, 64, 112, 112)
    assert named(model, "stage1.0.reduce").input_shape == (1, 64, 56, 56)
    assert named(model, "stage4.2.expand").output_shape == (1, 2048, 7, 7)
    assert named(model, "stage2.0.shortcut").output_shape == named(model, "stage2.0.expand").output_shape


def test_mobilenet_v2_has_a_depthwise_filter_in_every_block() -> None:
    model = build_workload("mobilenet_v2")
    depthwise = [op for op in convs(model) if op.groups > 1]
    assert len(depthwise) == 17
    assert all(op.groups == op.input_shape[1] == op.filter_shape[0] for op in depthwise)
    assert {op.filter_shape[1:] for op in depthwise} == {(1, 3, 3)}
    assert sum(op.stride == (2, 2) for op in depthwise) == 4
    assert named(model, "head").output_shape == (1, 1280, 7, 7)


def test_r3d18_has_three_axes_and_a_stem_that_keeps_time() -> None:
    model = build_workload("r3d18")
    assert {op.spatial_dimensions for op in convs(model)} == {3}
    assert named(model, "stem").output_shape == (1, 64, 16, 56, 56)
    assert named(model, "stage4.1.second").output_shape == (1, 512, 2, 7, 7)
    assert sum(op.filter_shape[2:] == (1, 1, 1) for op in convs(model)) == 3


def test_replknet31b_has_large_depthwise_filters_of_four_sizes() -> None:
    model = build_workload("replknet31b")
    large = [op for op in convs(model) if op.filter_shape[2] > 5]
    counts = {taps: sum(op.filter_shape[2:] == (taps, taps) for op in large) for taps in (31, 29, 27, 13)}
    assert counts == {31: 2, 29: 2, 27: 18, 13: 2}
    assert all(op.groups == op.input_shape[1] for op in large)
    assert {(op.filter_shape[2], op.input_shape[2]) for op in large} == {(31, 56), (29, 28), (27, 14), (13, 7)}
    assert all(op.output_shape == op.input_shape for op in large)


def test_wavenet_is_causal_and_keeps_its_length() -> None:
    model = build_workload("wavenet")
    gates = [op for op in convs(model) if op.filter_shape[0] == 128]
    assert [op.dilation for op in gates] == [(1 << power,) for _ in range(3) for power in range(10)]
    assert all(op.padding_low == op.dilation and op.padding_high == (0,) for op in gates)
    assert {op.output_shape[2] for op in convs(model)} == {16_000}
    assert {op.spatial_dimensions for op in convs(model)} == {1}


@pytest.mark.parametrize("name", NAMES)
def test_the_batch_multiplies_the_work_and_changes_no_filter(name: str) -> None:
    one, many = build_workload(name), build_workload(name, ReadOptions(batch=8))
    assert [op.filter_shape for op in convs(many)] == [op.filter_shape for op in convs(one)]
    assert [op.flops for op in convs(many)] == [8 * op.flops for op in convs(one)]
    assert [prod(op.shape) for op in norms(many)] == [8 * prod(op.shape) for op in norms(one)]


@pytest.mark.parametrize("data_type", [each for each in get_args(ElementType) if each != "int8"])
def test_the_data_type_is_that_of_every_tensor(data_type: ElementType) -> None:
    model = build_workload("resnet50", ReadOptions(data_type=data_type))
    wide = "float64" if data_type == "float64" else "float32"
    assert {(op.input_type, op.filter_type, op.output_type, op.accumulate_type) for op in convs(model)} == {
        (data_type, data_type, data_type, wide)
    }
    assert {(op.data_type, op.parameter_type) for op in norms(model)} == {(data_type, wide)}


def test_int8_has_no_batch_norm_and_says_so() -> None:
    model = build_workload("resnet50", ReadOptions(data_type="int8"))
    assert {(op.input_type, op.output_type, op.accumulate_type) for op in convs(model)} == {("int8", "int8", "int32")}
    assert (len(convs(model)), norms(model), len(model.skipped)) == (53, [], 53)
    assert model.skipped[0].name == "stem.norm"
    assert "folds" in model.skipped[0].reason
    assert [op.filter_shape for op in convs(model)] == [op.filter_shape for op in convs(build_workload("resnet50"))]


def test_the_layout_is_that_of_every_tensor() -> None:
    model = build_workload("r3d18", ReadOptions(layout="channels_last"))
    assert {(op.input_layout, op.filter_layout, op.output_layout) for op in convs(model)} == {("channels_last",) * 3}
    assert {op.layout for op in norms(model)} == {"channels_last"}


@pytest.mark.parametrize("batch", [0, -1, 1 << 63])
def test_a_batch_of_nothing_is_no_op(batch: int) -> None:
    with pytest.raises(InvalidOp, match=rf"^op\.input_shape = {batch}: "):
        build_workload("resnet50", ReadOptions(batch=batch))


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        build_workload("resnet51")
