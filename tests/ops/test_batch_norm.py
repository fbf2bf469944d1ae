"""`BatchNormOp`: shapes and counts of every phase, normalising, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import asdict, replace

from algosearch import InvalidOp
from algosearch.ops import ELEMENT_BYTES, BatchNormOp, Fusion, Phase
from tests.strategies import batch_norm_ops

SHAPE = (4, 8, 5, 5)
PARAMETERS = ("running_mean", "running_variance", "saved_mean", "saved_inverse_deviation")


@pytest.mark.parametrize(
    ("phase", "fusion", "main", "parameters"),
    [
        ("inference", "none", ["output"], []),
        ("training_forward", "none", ["output"], [*PARAMETERS]),
        ("training_forward", "add_activation", ["output"], [*PARAMETERS]),
        ("backward", "none", ["input_gradient"], ["scale_gradient", "bias_gradient"]),
        ("backward", "activation", ["input_gradient"], ["scale_gradient", "bias_gradient"]),
        ("backward", "add_activation", ["input_gradient", "addend_gradient"], ["scale_gradient", "bias_gradient"]),
        (
            "training",
            "add_activation",
            ["output", "input_gradient", "addend_gradient"],
            [*PARAMETERS, "scale_gradient", "bias_gradient"],
        ),
    ],
)
def test_outputs(phase: Phase, fusion: Fusion, main: list[str], parameters: list[str]) -> None:
    op = BatchNormOp(shape=SHAPE, phase=phase, fusion=fusion)
    assert op.output_shapes == {**dict.fromkeys(main, SHAPE), **dict.fromkeys(parameters, (8,))}
    assert op.output_shape == SHAPE


def test_parameters_of_each_activation() -> None:
    op = BatchNormOp(shape=SHAPE, statistics="per_activation")
    assert op.parameter_shape == (8, 5, 5)
    assert op.output_shapes["saved_mean"] == (8, 5, 5)


@pytest.mark.parametrize(
    ("phase", "fusion", "tensors", "parameters"),
    [
        ("inference", "none", ["x", "y"], ["scale", "bias", "mean", "variance"]),
        (
            "training_forward",
            "none",
            ["x for the mean", "x", "y"],
            ["scale", "bias", "mean", "variance", "new mean", "new variance", "saved mean", "saved deviation"],
        ),
        (
            "backward",
            "add_activation",
            ["x for the sums", "x", "dy for the sums", "dy", "dx", "addend's gradient"],
            ["scale", "saved mean", "saved deviation", "dscale", "dbias"],
        ),
    ],
)
def test_bytes_moved(phase: Phase, fusion: Fusion, tensors: list[str], parameters: list[str]) -> None:
    op = BatchNormOp(shape=SHAPE, phase=phase, fusion=fusion, data_type="float16")
    assert (op.tensor_bytes, op.parameter_bytes) == (prod(SHAPE) * 2, 8 * 4)
    assert op.bytes_moved == len(tensors) * op.tensor_bytes + len(parameters) * op.parameter_bytes


@given(batch_norm_ops())
def test_counts(op: BatchNormOp) -> None:
    assert op.tensor_bytes == prod(op.shape) * ELEMENT_BYTES[op.data_type]
    assert op.flops % prod(op.shape) == 0
    an_element = {"inference": 2, "training_forward": 5, "backward": 8, "training": 13}[op.phase]
    assert op.flops // prod(op.shape) == an_element


def test_sizes_are_exact_beyond_64_bits() -> None:
    n = 2**63 - 1
    assert BatchNormOp(shape=(n, n, n)).tensor_bytes == 4 * n**3


@pytest.mark.parametrize("write", [list, iter, np.array, lambda shape: [np.int32(size) for size in shape]])
@given(op=batch_norm_ops())
def test_equal_descriptions_are_equal_ops(write: Any, op: BatchNormOp) -> None:
    same = BatchNormOp(**{**asdict(op), "shape": write(op.shape)})
    assert same == op
    assert hash(same) == hash(op)
    assert type(same.shape) is tuple
    assert {type(size) for size in same.shape} == {int}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(same), type=BatchNormOp) == op


def test_a_range_is_a_shape_and_hashes_as_one() -> None:
    op = BatchNormOp(shape=range(2, 5))  # type: ignore[arg-type]
    assert op in {BatchNormOp(shape=(2, 3, 4))}


@pytest.mark.parametrize(
    "impostor", [float, np.float32, Fraction, str, lambda size: np.bool_(True), lambda size: -size]
)
@given(op=batch_norm_ops())
def test_no_impostor_passes_after_its_equal(impostor: Any, op: BatchNormOp) -> None:
    for _ in range(2):
        with pytest.raises(InvalidOp) as caught:
            replace(op, shape=(*op.shape[:-1], impostor(op.shape[-1])))
        assert caught.value.field == "shape"


@pytest.mark.parametrize(
    ("changes", "field", "value", "rule"),
    [
        ({"shape": (4,)}, "shape", (4,), "0 to 3 spatial dimensions"),
        ({"shape": (4,) * 6}, "shape", (4,) * 6, "0 to 3 spatial dimensions"),
        ({"shape": (4, 0)}, "shape", 0, "from 1 to"),
        ({"shape": 4}, "shape", 4, "a sequence of integers"),
        ({"shape": {4, 8}}, "shape", {4, 8}, "a sequence of integers"),
        ({"phase": "forward"}, "phase", "forward", "must be one of training_forward, inference, backward"),
        ({"phase": []}, "phase", [], "must be one of"),
        ({"fusion": "relu"}, "fusion", "relu", "must be one of"),
        ({"statistics": "per_batch"}, "statistics", "per_batch", "must be one of"),
        ({"layout": "NHWC"}, "layout", "NHWC", "must be one of"),
        ({"data_type": "int8"}, "data_type", "int8", "must be one of"),
        ({"data_type": {}}, "data_type", {}, "must be one of"),
        ({"parameter_type": "float64"}, "parameter_type", "float64", "must be float32 beside float32 data"),
        ({"data_type": "float64"}, "parameter_type", "float32", "must be float64 beside float64 data"),
        ({"phase": "inference", "fusion": "activation"}, "fusion", "activation", "inference has none"),
        ({"phase": "training"}, "phase", "training", "is of a fused batch norm"),
        (
            {"statistics": "per_activation", "fusion": "activation"},
            "fusion",
            "activation",
            "per-activation statistics cannot be fused",
        ),
    ],
)
def test_each_rule_is_named(changes: dict[str, Any], field: str, value: object, rule: str) -> None:
    with pytest.raises(InvalidOp) as caught:
        BatchNormOp(**{"shape": SHAPE, **changes})
    assert (caught.value.field, caught.value.value) == (field, value)
    assert rule in caught.value.rule


def test_describe() -> None:
    assert BatchNormOp(shape=SHAPE).describe() == "batch_norm training_forward 4x8x5x5 float32"
    fused = BatchNormOp(shape=SHAPE, phase="backward", fusion="activation", layout="channels_last", data_type="float16")
    assert fused.describe() == "batch_norm backward 4x8x5x5 float16 +activation channels_last"
    each = BatchNormOp(shape=SHAPE, statistics="per_activation")
    assert each.describe() == "batch_norm training_forward 4x8x5x5 float32 per_activation"
