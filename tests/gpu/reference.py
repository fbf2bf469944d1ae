"""A whole convolution in float64, a tap at a time: fast enough for every element of every candidate's result, and
without a line of any backend's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from algosearch.ops import ConvOp
from tests.backends.reference import in_memory, logical

Array = npt.NDArray[Any]


def conv(op: ConvOp, tensors: Mapping[str, Array]) -> Array:
    """The result of an op, from and as dense rows of memory; what is written need not be among `tensors`."""
    written = {"forward": "output", "backward_data": "input", "backward_filter": "filter"}[op.direction]
    described = {
        "input": (op.input_shape, op.input_layout),
        "filter": (op.filter_shape, op.filter_layout),
        "output": (op.output_shape, op.output_layout),
    }
    full = {
        name: np.zeros(shape) if name == written else logical(tensors[name], shape, layout)
        for name, (shape, layout) in described.items()
    }
    low, sizes = op.padding_low, op.input_shape[2:]
    # So much behind that the last window of every tap is inside, however the padding was told.
    reach = [
        (outputs - 1) * step + (taps - 1) * dil + 1
        for outputs, step, taps, dil in zip(
            op.output_shape[2:], op.stride, op.filter_shape[2:], op.dilation, strict=True
        )
    ]
    padding = [(before, max(0, end - before - size)) for before, end, size in zip(low, reach, sizes, strict=True)]
    source = np.pad(full["input"], [(0, 0), (0, 0), *padding])
    batch, (filters, channels) = op.input_shape[0], op.filter_shape[:2]
    groups = op.groups
    result = full["output"].reshape(batch, groups, filters // groups, -1)
    for tap in product(*map(range, op.filter_shape[2:])):
        window: Any = (
            slice(None),
            slice(None),
            *(
                slice(t * dil, t * dil + (outputs - 1) * step + 1, step)
                for t, dil, outputs, step in zip(tap, op.dilation, op.output_shape[2:], op.stride, strict=True)
            ),
        )
        x = source[window]
        columns = x.reshape(batch, groups, channels, -1)
        place: Any = (slice(None), slice(None), *tap)
        weights = full["filter"][place].reshape(groups, filters // groups, channels)
        match op.direction:
            case "forward":
                result += np.einsum("gkc,ngcp->ngkp", weights, columns, optimize=True)
            case "backward_data":
                source[window] += np.einsum("gkc,ngkp->ngcp", weights, result, optimize=True).reshape(x.shape)
            case "backward_filter":
                found = np.einsum("ngkp,ngcp->gkc", result, columns, optimize=True)
                full["filter"][place] = found.reshape(filters, channels)
    if op.direction == "forward":
        full["output"] = result.reshape(op.output_shape)
        if op.output_type == "int8":
            full["output"] = np.clip(full["output"], -128, 127)
    elif op.direction == "backward_data":
        inside: Any = (slice(None), slice(None), *(slice(b, b + size) for b, size in zip(low, sizes, strict=True)))
        full["input"] = source[inside]
    return in_memory(full[written], described[written][1])
