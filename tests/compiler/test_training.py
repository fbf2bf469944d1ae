"""Training: which gradients a node has, of what, and in which types."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from algosearch.compiler import Model, Node
from algosearch.compiler.training import expand
from algosearch.compiler.workloads import build_workload
from algosearch.ops import BatchNormOp, ConvOp, Op, Phase
from tests.strategies import conv_ops, ops

CONV = ConvOp(
    input_shape=(2, 4, 9, 9),
    filter_shape=(6, 2, 3, 3),
    stride=(2, 1),
    dilation=(1, 2),
    padding_low=(1, 2),
    padding_high=(0, 2),
    groups=2,
    input_layout="channels_last",
    filter_layout="channels_last",
)
NORM = BatchNormOp(shape=(2, 4, 9, 9), phase="inference", layout="channels_last")


def expanded(op: Op, *, needs_input_gradient: bool = True) -> dict[str, Op]:
    nodes = expand([Node(name="n", op=op, needs_input_gradient=needs_input_gradient)])
    named = {node.name: node.op for node in nodes}
    assert len(named) == len(nodes)
    return named


def test_a_convolution_is_followed_by_its_two_gradients() -> None:
    assert list(expanded(CONV).items()) == [
        ("n", CONV),
        ("n.input_gradient", replace(CONV, direction="backward_data")),
        ("n.filter_gradient", replace(CONV, direction="backward_filter")),
    ]


def test_a_transposed_convolution_has_the_forward_one_as_its_input_gradient() -> None:
    transposed = replace(CONV, direction="backward_data")
    assert list(expanded(transposed).items()) == [
        ("n", transposed),
        ("n.input_gradient", CONV),
        ("n.filter_gradient", replace(CONV, direction="backward_filter")),
    ]


@pytest.mark.parametrize("op", [CONV, replace(CONV, direction="backward_data")])
def test_an_input_gradient_that_nobody_needs_is_not_asked_for(op: ConvOp) -> None:
    assert list(expanded(op, needs_input_gradient=False)) == ["n", "n.filter_gradient"]


@pytest.mark.parametrize("phase", ["inference", "training_forward"])
def test_a_batch_norm_takes_the_statistics_of_the_batch_and_goes_backward(phase: Phase) -> None:
    assert list(expanded(replace(NORM, phase=phase)).items()) == [
        ("n", replace(NORM, phase="training_forward")),
        ("n.backward", replace(NORM, phase="backward")),
    ]


def test_a_fused_batch_norm_stays_fused() -> None:
    fused = replace(NORM, phase="training_forward", fusion="add_activation")
    assert expanded(fused)["n.backward"] == replace(fused, phase="backward")


INT8 = replace(CONV, input_type="int8", filter_type="int8", output_type="int8", accumulate_type="int32")


def test_the_passes_of_a_fused_batch_norm_are_one_problem() -> None:
    fused = replace(NORM, phase="training_forward", fusion="add_activation")
    plain = replace(NORM, phase="training_forward")
    model = Model(source="here", nodes=expand([Node(name="f", op=fused), Node(name="p", op=plain)]))
    assert model.distinct == (replace(fused, phase="training"), plain, replace(plain, phase="backward"))


@pytest.mark.parametrize(
    "op",
    [
        replace(CONV, direction="backward_filter"),
        replace(NORM, phase="backward"),
        replace(NORM, phase="training", fusion="activation"),
        INT8,
        replace(INT8, output_type="float32"),
    ],
)
def test_what_is_no_forward_pass_is_left_as_it_is(op: Op) -> None:
    assert expanded(op) == {"n": op}


def test_the_gradients_of_halves_that_write_float32_are_halves() -> None:
    widening = replace(CONV, input_type="float16", filter_type="float16", output_type="float32")
    found = expanded(widening)
    assert found["n"] == widening
    for name, direction in (("n.input_gradient", "backward_data"), ("n.filter_gradient", "backward_filter")):
        assert found[name] == replace(widening, direction=direction, output_type="float16")


@settings(deadline=None, max_examples=100)
@given(ops())
def test_every_op_can_be_expanded(op: Op) -> None:
    nodes = expand([Node(name="n", op=op)])
    assert nodes[0].name == "n"
    assert 1 <= len(nodes) <= 3


@settings(deadline=None, max_examples=60)
@given(conv_ops(directions=("forward", "backward_data"), input_types=("float16", "bfloat16", "float32", "float64")))
def test_every_direction_of_a_convolution_has_its_work_and_its_shapes(op: ConvOp) -> None:
    found = [each for each in expanded(op).values() if isinstance(each, ConvOp)]
    assert {each.direction for each in found} == {"forward", "backward_data", "backward_filter"}
    assert {each.flops for each in found} == {op.flops}
    assert {each.result_shape for each in found} == {op.input_shape, op.filter_shape, op.output_shape}


def test_resnet50_at_training() -> None:
    model = build_workload("resnet50")
    training = replace(model, nodes=expand(model.nodes))
    assert len(training.nodes) == 53 * 3 - 1 + 53 * 2
    assert training.operations == model.operations == 53 + 53
    assert _distinct_convolutions(training) == 23 * 3 - 1
    assert sum(isinstance(op, BatchNormOp) for op in training.distinct) == 2 * 12
    assert [node.name for node in training.nodes[:5]] == [
        "stem",
        "stem.filter_gradient",
        "stem.norm",
        "stem.norm.backward",
        "stage1.0.reduce",
    ]


def _distinct_convolutions(model: Model) -> int:
    return sum(isinstance(op, ConvOp) for op in model.distinct)
