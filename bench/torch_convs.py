"""A `ConvOp` as PyTorch computes it: the peer of the benches on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from algosearch.ops import ConvOp, Shape

TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class TorchConv:
    """Its tensors, random, and a call that computes it once on the current stream."""

    def __init__(self, op: ConvOp) -> None:
        if op.padding_low != op.padding_high:
            raise ValueError(f"PyTorch has no unequal padding: {op.describe()}")
        self.op = op
        self._input = _tensor(op.input_shape, op.input_type, op.input_layout)
        self._filter = _tensor(op.filter_shape, op.filter_type, op.filter_layout)
        self._output = _tensor(op.output_shape, op.output_type, op.output_layout)

    def __call__(self) -> Any:
        op = self.op
        axes = op.spatial_dimensions
        rest = (list(op.stride), list(op.padding_low), list(op.dilation), False, [0] * axes, op.groups)
        if op.direction == "forward":
            return torch.ops.aten.convolution(self._input, self._filter, None, *rest)
        mask = [op.direction == "backward_data", op.direction == "backward_filter", False]
        return torch.ops.aten.convolution_backward(self._output, self._input, self._filter, None, *rest, mask)


def _tensor(shape: Shape, element_type: str, layout: str) -> Any:
    made = torch.randn(shape, device="cuda").to(TYPES[element_type])
    if layout == "channels_last" and len(shape) in _LAST:
        return made.contiguous(memory_format=_LAST[len(shape)])
    return made
