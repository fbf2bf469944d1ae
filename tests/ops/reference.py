"""Convolution and normalisation by their definitions, on bytes as they lie in memory. Shares no code with the package.

A tensor comes and goes as a flat array in the order of its layout, so that two descriptions of one computation must
give the same flat result from the same flat operands.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from algosearch.ops import BatchNormOp, ConvOp

Flat = NDArray[np.float64]


def windows(size: int, taps: int, stride: int, dilation: int, low: int, high: int) -> int:
    """How many windows fit into one padded axis, counted one by one."""
    count = 0
    while count * stride + (taps - 1) * dilation < low + size + high:
        count += 1
    return count


def numbered(seed: int, count: int) -> Flat:
    """Small whole numbers, so that every sum below is exact in whatever order it is taken."""
    return np.random.default_rng(seed).integers(-4, 5, count).astype(np.float64)


def convolved(op: ConvOp, first: Flat, second: Flat) -> Flat:
    """What `op` writes, from its operands: (input, filter), (output gradient, filter) or (input, output gradient)."""
    axes = list(
        zip(
            op.input_shape[2:],
            op.filter_shape[2:],
            op.stride,
            op.dilation,
            op.padding_low,
            op.padding_high,
            strict=True,
        )
    )
    output_shape = (op.input_shape[0], op.filter_shape[0], *(windows(*axis) for axis in axes))
    layouts = {"x": op.input_layout, "w": op.filter_layout, "y": op.output_layout}
    shapes = {"x": op.input_shape, "w": op.filter_shape, "y": output_shape}
    reads, writes = {"forward": ("xw", "y"), "backward_data": ("yw", "x"), "backward_filter": ("xy", "w")}[op.direction]
    tensors = {
        name: _logical(flat, shapes[name], layouts[name]) for name, flat in zip(reads, (first, second), strict=True)
    }
    tensors[writes] = np.zeros(shapes[writes])
    x, w, y = tensors["x"], tensors["w"], tensors["y"]
    filters, channels = op.filter_shape[0] // op.groups, op.filter_shape[1]
    for group, tap in product(range(op.groups), product(*(range(count) for count in op.filter_shape[2:]))):
        reached = [
            [(o, o * s + t * d - low) for o in range(outputs) if 0 <= o * s + t * d - low < size]
            for t, outputs, (size, _, s, d, low, _) in zip(tap, output_shape[2:], axes, strict=True)
        ]
        batch = range(op.input_shape[0])
        k = range(group * filters, (group + 1) * filters)
        c = range(group * channels, (group + 1) * channels)
        at_x: Any = np.ix_(batch, c, *([i for _, i in pairs] for pairs in reached))
        at_y: Any = np.ix_(batch, k, *([o for o, _ in pairs] for pairs in reached))
        at_w: Any = (slice(k.start, k.stop), slice(None), *tap)
        if writes == "y":
            y[at_y] += np.einsum("nc...,kc->nk...", x[at_x], w[at_w])
        elif writes == "x":
            x[at_x] += np.einsum("nk...,kc->nc...", y[at_y], w[at_w])
        else:
            w[at_w] += np.einsum("nkp,ncp->kc", _merged(y[at_y]), _merged(x[at_x]))
    return _flat(tensors[writes], layouts[writes])


def normalised(op: BatchNormOp, flat: Flat) -> Flat:
    """The plain forward output of training, scale 1 and bias 0."""
    x = _logical(flat, op.shape, op.layout)
    over = 0 if op.statistics == "per_activation" else (0, *range(2, x.ndim))
    mean, variance = x.mean(axis=over, keepdims=True), x.var(axis=over, keepdims=True)
    return _flat((x - mean) / np.sqrt(variance + 1e-5), op.layout)


def _merged(tensor: Flat) -> Flat:
    positions = 1
    for size in tensor.shape[2:]:
        positions *= size
    return tensor.reshape(*tensor.shape[:2], positions)


def _logical(flat: Flat, shape: tuple[int, ...], layout: str) -> Flat:
    if layout == "channels_first":
        return flat.reshape(shape)
    return np.moveaxis(flat.reshape(shape[0], *shape[2:], shape[1]), -1, 1)


def _flat(tensor: Flat, layout: str) -> Flat:
    return (tensor if layout == "channels_first" else np.moveaxis(tensor, 1, -1)).ravel()
