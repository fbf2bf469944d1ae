"""Single elements of a result, from the definition, in float64: who decides when two kernels disagree.

It shares no code with the kernels, and is far too slow to be one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from algosearch.backends.cpu.arena import Array, at
from algosearch.ops import ConvOp, Layout, Shape

Points = npt.NDArray[np.intp]
"""Places in a tensor, [count], as it lies in memory."""
Verdict = tuple[Array, Array]
"""Values, and how far from each a right result may be; the rounding to the result's own type not counted."""

_SLACK: Final = 64
"""Rounding errors that each of √(numbers summed up) partial sums may have. The best have one, FFT a few."""


def conv_elements(op: ConvOp, tensors: Mapping[str, Array], points: Points, precision: float) -> Verdict:
    """The right values of an op's result at `points`.

    Args:
        tensors: what is read, each as one row in memory order.
        precision: the relative spacing of the numbers that a kernel computes in.
    """
    per_group, filters = op.filter_shape[1], op.filter_shape[0] // op.groups
    taps = prod(op.filter_shape[2:])
    match op.direction:
        case "forward":
            values, summed = _forward(op, tensors, points), per_group * taps
        case "backward_data":
            values, summed = _backward_data(op, tensors, points), filters * taps
        case "backward_filter":
            values, summed = _backward_filter(op, tensors, points), op.input_shape[0] * prod(op.output_shape[2:])
    # What is drawn for a trial is at most 1, and of int8 computed exactly.
    allowed = 0.0 if op.input_type == "int8" else _SLACK * precision * sqrt(summed)
    return values, np.full(len(points), allowed)


def unravel(points: Points, shape: Shape, layout: Layout) -> tuple[Points, ...]:
    """The logical indices [N], [C], [spatial]… of places in memory."""
    if layout == "channels_first":
        return tuple(np.unravel_index(points, shape))
    batch, *spatial, channel = np.unravel_index(points, (shape[0], *shape[2:], shape[1]))
    return (batch, channel, *spatial)


def logical(tensor: Array, shape: Shape, layout: Layout) -> Array:
    """A row of memory as [N, C, spatial…]."""
    if layout == "channels_first":
        return tensor.reshape(shape)
    return np.moveaxis(tensor.reshape(shape[0], *shape[2:], shape[1]), -1, 1)


def _forward(op: ConvOp, tensors: Mapping[str, Array], points: Points) -> Array:
    source = logical(tensors["input"], op.input_shape, op.input_layout)
    filters = logical(tensors["filter"], op.filter_shape, op.filter_layout)
    batch, number, *place = unravel(points, op.output_shape, op.output_layout)
    channels = _group_of(number, op.filter_shape[0] // op.groups, op.filter_shape[1])
    total = np.zeros(len(points))
    for tap in product(*map(range, op.filter_shape[2:])):
        read = [o * s + t * d - low for o, s, t, d, low in _axes(op, place, tap)]
        inside, index = _clip(read, op.input_shape[2:])
        values = at(source, batch[:, None], channels, *index).astype(np.float64)
        weights = at(filters, number, slice(None), *tap).astype(np.float64)
        total += np.where(inside, (values * weights).sum(axis=1), 0.0)
    return _saturated(total, op)


def _backward_data(op: ConvOp, tensors: Mapping[str, Array], points: Points) -> Array:
    gradient = logical(tensors["output"], op.output_shape, op.output_layout)
    filters = logical(tensors["filter"], op.filter_shape, op.filter_layout)
    batch, channel, *place = unravel(points, op.input_shape, op.input_layout)
    numbers = _group_of(channel, op.filter_shape[1], op.filter_shape[0] // op.groups)
    total = np.zeros(len(points))
    for tap in product(*map(range, op.filter_shape[2:])):
        read = [divmod(i + low - t * d, s) for i, s, t, d, low in _axes(op, place, tap)]
        inside, index = _clip([whole for whole, _ in read], op.output_shape[2:])
        for _, rest in read:
            inside &= rest == 0
        values = at(gradient, batch[:, None], numbers, *index).astype(np.float64)
        weights = at(filters, numbers, (channel % op.filter_shape[1])[:, None], *tap).astype(np.float64)
        total += np.where(inside, (values * weights).sum(axis=1), 0.0)
    return total


def _backward_filter(op: ConvOp, tensors: Mapping[str, Array], points: Points) -> Array:
    source = logical(tensors["input"], op.input_shape, op.input_layout)
    gradient = logical(tensors["output"], op.output_shape, op.output_layout)
    number, channel, *taps = unravel(points, op.filter_shape, op.filter_layout)
    channel = channel + number // (op.filter_shape[0] // op.groups) * op.filter_shape[1]
    total = np.zeros(len(points))
    for point in range(len(points)):
        index = []
        inside = []
        for outputs, s, t, d, low, size in zip(
            op.output_shape[2:], op.stride, taps, op.dilation, op.padding_low, op.input_shape[2:], strict=True
        ):
            read = np.arange(outputs) * s + int(t[point]) * d - low
            inside.append((read >= 0) & (read < size))
            index.append(read[inside[-1]])
        values = source[:, channel[point]][(slice(None), *np.ix_(*index))]
        gradients = gradient[:, number[point]][(slice(None), *np.ix_(*inside))]
        total[point] = np.sum(values.astype(np.float64) * gradients.astype(np.float64))
    return total


def _axes(op: ConvOp, place: list[Points], tap: Shape) -> list[tuple[Points, int, int, int, int]]:
    return list(zip(place, op.stride, tap, op.dilation, op.padding_low, strict=True))


def _group_of(number: Points, here: int, there: int) -> Points:
    """[points, there]: for channels counted `here` a group, all of the same group, counted `there` a group."""
    return (number // here * there)[:, None] + np.arange(there)


def _clip(read: list[Points], sizes: Shape) -> tuple[npt.NDArray[np.bool_], list[Points]]:
    """Whether each place is inside, and the places moved inside."""
    inside = np.ones(len(read[0]), bool)
    index = []
    for places, size in zip(read, sizes, strict=True):
        inside &= (places >= 0) & (places < size)
        index.append(np.clip(places, 0, size - 1)[:, None])
    return inside, index


def _saturated(values: Array, op: ConvOp) -> Array:
    return np.clip(values, -128, 127) if op.output_type == "int8" else values
