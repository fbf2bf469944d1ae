"""What is in the tensors of a trial, and how far from each other two right results may be. Pure arithmetic.

Random numbers, for a matrix product is faster on zeros than on data, and a kernel that mixes up two elements is right
on constants. Even from -a to a, with a so small that no sum of products can leave float16, whatever the signs.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, log2, prod, sqrt
from typing import Final

import msgspec

from algosearch.ops import BatchNormOp, ConvOp

_LARGEST_SUM: Final = 2.0**14
"""In float16, which ends at 2**16: transforms (Winograd, FFT) have intermediate sums a little larger."""
_FEW_INT8: Final = 900
"""Products up to which int8 elements of 2 saturate no result; beyond, they are 1."""

# Half the spacing of neighbouring numbers, relative.
_HALF: Final = 2.0**-11
_ROUNDING: Final = {
    "float16": _HALF,
    "bfloat16": 2.0**-9,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
    "int8": 0.0,
    "int32": 0.0,
}

_MULTIPLIED: Final = 16.0
"""Roundings of a factor (to TF32; of a part of a sum, to float16) by which a result may be off, relative to what
results are like: six standard deviations, for there are millions of elements, two and a half times over."""
_SUMMED: Final = {"float16": 8.0, "float32": 64.0, "float64": 64.0, "int32": 0.0}
"""The same for roundings of the sum, each of the square root of their number, by what it is summed in. Of the wider
types so much that engines pass that transform and have no note of it."""
_AVERAGED: Final = 16.0
"""The same for a batch norm's sums, which are made in float32 at least."""
_WHOLE: Final = frozenset({"output", "input_gradient", "addend_gradient"})
"""A batch norm's results of the input's shape and type."""
_TRANSFORMED: Final = 4.0
"""By which Winograd's and Fourier's transforms make all of it larger."""


class Range(msgspec.Struct, frozen=True):
    """Elements are drawn evenly from `low` up to `high`; int8 as whole numbers below `high`."""

    low: float
    high: float


class Allowance(msgspec.Struct, frozen=True):
    """A result may be off by `absolute + relative * |right value|`."""

    absolute: float
    relative: float

    def twice(self) -> Allowance:
        """For the difference of two results, each of which may be off."""
        return Allowance(2 * self.absolute, 2 * self.relative)


def summed(op: ConvOp) -> int:
    """Products in an element of the result, at most."""
    taps = prod(op.filter_shape[2:])
    match op.direction:
        case "forward":
            return op.filter_shape[1] * taps
        case "backward_data":
            return op.filter_shape[0] // op.groups * taps
        case "backward_filter":
            return op.input_shape[0] * prod(op.output_shape[2:])


def conv_range(op: ConvOp) -> Range:
    """Of both tensors that a convolution reads."""
    if op.input_type == "int8":
        largest = 2 if summed(op) <= _FEW_INT8 else 1
        return Range(float(-largest), float(largest + 1))
    amplitude = 1.0
    if op.input_type == "float16":
        amplitude = min(1.0, 2.0 ** -ceil(log2(summed(op) / _LARGEST_SUM) / 2))
    return Range(-amplitude, amplitude)


def conv_allowance(op: ConvOp, notes: Collection[str]) -> Allowance:
    """How far from the right value an element of the result may be.

    Args:
        notes: the candidate's: what it may round, and how it computes.
    """
    count = summed(op)
    usual = conv_range(op).high ** 2 / 3 * sqrt(count)  # the standard deviation of a result
    factor = _ROUNDING[op.input_type]
    if op.input_type == "float32" and {"tf32", "tensor_core", "down_converts"} & set(notes):
        factor = _HALF
    roundings = _MULTIPLIED * factor + _SUMMED[op.accumulate_type] * _ROUNDING[op.accumulate_type] * sqrt(count)
    if {"winograd", "fft"} & set(notes):
        roundings *= _TRANSFORMED
    return Allowance(usual * roundings, 2 * _ROUNDING[op.output_type])


def norm_range(op: BatchNormOp, name: str) -> Range:
    """Of a tensor that a batch norm reads. The input's mean is not 0: who forgets to subtract it is found out."""
    match name:
        case "input":
            return Range(-1.0, 3.0)
        case "scale" | "running_variance" | "previous_variance" | "saved_inverse_deviation":
            return Range(0.5, 1.5)
        case "running_mean" | "previous_mean" | "saved_mean":
            return Range(0.5, 1.5)
        case _:
            return Range(-1.0, 1.0)


def norm_allowance(op: BatchNormOp, name: str) -> Allowance:
    """How far from the right value an element of a result may be: sums of so many numbers of a few units, in float32 or
    wider, and the rounding to the result's own type."""
    count = op.shape[0] * (1 if op.statistics == "per_activation" else prod(op.shape[2:]))
    relative = 2 * _ROUNDING[op.data_type if name in _WHOLE else op.parameter_type]
    wide = _ROUNDING["float64" if op.data_type == "float64" else "float32"]
    rounded = _AVERAGED * wide * (4 + sqrt(count))
    if name in ("scale_gradient", "bias_gradient"):
        rounded *= sqrt(count)
    return Allowance(4 * (rounded + (relative if name in _WHOLE else 0.0)), relative)
