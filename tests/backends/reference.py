"""What a convolution and a batch norm are: obvious, slow, in float64, and sharing nothing with any backend.

Arrays are [N, C, spatial…] here, whatever the layout in memory; `logical` and `in_memory` go between the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from algosearch.ops import BatchNormOp, ConvOp, Layout, Shape

Array = npt.NDArray[Any]


def logical(memory: Array, shape: Shape, layout: Layout) -> Array:
    """A dense row of memory as [N, C, spatial…], in float64."""
    if layout == "channels_last":
        memory = np.moveaxis(memory.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    return memory.reshape(shape).astype(np.float64)


def in_memory(values: Array, layout: Layout) -> Array:
    """[N, C, spatial…] as a dense row of memory."""
    if layout == "channels_last":
        values = np.moveaxis(values, 1, -1)
    return np.ascontiguousarray(values).ravel()


def conv(op: ConvOp, tensors: Mapping[str, Array]) -> Array:
    """The result of an op, from and as dense rows of memory: every product goes where the definition puts it."""
    layouts = {"input": op.input_layout, "filter": op.filter_layout, "output": op.output_layout}
    shapes = {"input": op.input_shape, "filter": op.filter_shape, "output": op.output_shape}
    written = {"forward": "output", "backward_data": "input", "backward_filter": "filter"}[op.direction]
    full = {
        name: np.zeros(shapes[name]) if name == written else logical(tensors[name], shapes[name], layouts[name])
        for name in shapes
    }
    source, weights, result = full["input"], full["filter"], full["output"]
    channels, filters = op.filter_shape[1], op.filter_shape[0] // op.groups
    for output in product(*map(range, op.output_shape[2:])):
        for tap in product(*map(range, op.filter_shape[2:])):
            place = tuple(
                o * s + t * d - low
                for o, s, t, d, low in zip(output, op.stride, tap, op.dilation, op.padding_low, strict=True)
            )
            if not all(0 <= i < size for i, size in zip(place, op.input_shape[2:], strict=True)):
                continue
            for group in range(op.groups):
                c = slice(group * channels, (group + 1) * channels)
                k = slice(group * filters, (group + 1) * filters)
                x: Any = (slice(None), c, *place)
                w: Any = (k, slice(None), *tap)
                y: Any = (slice(None), k, *output)
                match op.direction:
                    case "forward":
                        result[y] += source[x] @ weights[w].T
                    case "backward_data":
                        source[x] += result[y] @ weights[w]
                    case "backward_filter":
                        weights[w] += result[y].T @ source[x]
    if op.output_type == "int8":
        result = np.clip(result, -128, 127)
        full["output"] = result
    return in_memory(full[written], layouts[written])


def batch_norm(op: BatchNormOp, tensors: Mapping[str, Array], *, epsilon: float, momentum: float) -> dict[str, Array]:
    """Every result of an op, from and as dense rows of memory. A pair's gradients are those of what its forward pass
    has written into `tensors`."""
    if op.phase == "training":
        each = (batch_norm(single, tensors, epsilon=epsilon, momentum=momentum) for single in op.passes)
        return {name: values for found in each for name, values in found.items()}
    over = (0,) if op.statistics == "per_activation" else (0, *range(2, len(op.shape)))
    one_each = tuple(1 if axis in over else size for axis, size in enumerate(op.shape))
    count = prod(op.shape[axis] for axis in over)

    def tensor(name: str) -> Array:
        return logical(tensors[name], op.shape, op.layout)

    def row(name: str) -> Array:
        return logical(tensors[name], one_each, op.layout)

    x, scale = tensor("input"), row("scale")
    results: dict[str, Array] = {}
    if op.phase == "backward":
        g = tensor("output_gradient")
        if op.fusion != "none":
            g = g * (tensor("output") > 0)
        normed = (x - row("saved_mean")) * row("saved_inverse_deviation")
        results["bias_gradient"] = g.sum(axis=over, keepdims=True)
        results["scale_gradient"] = (g * normed).sum(axis=over, keepdims=True)
        mean_g, mean_gx = results["bias_gradient"] / count, results["scale_gradient"] / count
        results["input_gradient"] = scale * row("saved_inverse_deviation") * (g - mean_g - normed * mean_gx)
        if op.fusion == "add_activation":
            results["addend_gradient"] = g
        return {name: in_memory(values, op.layout) for name, values in results.items()}
    if op.phase == "inference":
        mean, variance = row("running_mean"), row("running_variance")
    else:
        mean, variance = x.mean(axis=over, keepdims=True), x.var(axis=over, keepdims=True)
        unbiased = variance * count / (count - 1) if count > 1 else np.zeros(one_each)
        results["saved_mean"] = mean
        results["saved_inverse_deviation"] = 1 / np.sqrt(variance + epsilon)
        results["running_mean"] = (1 - momentum) * row("previous_mean") + momentum * mean
        results["running_variance"] = (1 - momentum) * row("previous_variance") + momentum * unbiased
    y = scale * (x - mean) / np.sqrt(variance + epsilon) + row("bias")
    if op.fusion == "add_activation":
        y = y + tensor("addend")
    results["output"] = y if op.fusion == "none" else np.maximum(y, 0)
    return {name: in_memory(values, op.layout) for name, values in results.items()}
