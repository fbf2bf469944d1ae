"""The tensors of an op: what they are called, how large they are, and what is in them for a trial."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

import msgspec
import numpy as np

from algosearch.backends.cpu.arena import Array
from algosearch.ops import ELEMENT_BYTES, BatchNormOp, ConvOp, Op, Shape

_SEED: Final = 20_110
_PERIOD: Final = 65_521
"""Random numbers that are drawn for a tensor, and then repeated. A prime: no row of a tensor is as long."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of an op."""

    name: str
    shape: Shape
    data_type: str
    written: bool = False
    low: float = -1.0
    """What is read is drawn evenly from `low` up to `high`; int8 from the whole numbers -2 to 2."""
    high: float = 1.0

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes."""
        return self.size * ELEMENT_BYTES[self.data_type]


def tensors_of(op: Op) -> tuple[Tensor, ...]:
    """All that a run of an op reads and writes, no tensor both."""
    return tuple(_of_conv(op) if isinstance(op, ConvOp) else _of_norm(op))


def fill(memory: Array, tensor: Tensor) -> None:
    """Random values, the same ones each time, for what is read; NaN (of int8: -1) for what is to be written."""
    if tensor.written:
        memory.fill(-1 if tensor.data_type == "int8" else np.nan)
        return
    dice = np.random.default_rng((_SEED, *tensor.name.encode()))
    count = min(_PERIOD, memory.size)
    if tensor.data_type == "int8":
        drawn: Array = dice.integers(-2, 3, count, dtype=np.int8)
    else:
        drawn = dice.uniform(tensor.low, tensor.high, count).astype(memory.dtype)
    for start in range(0, memory.size, count):
        rest = memory[start : start + count]
        rest[...] = drawn[: rest.size]


def _of_conv(op: ConvOp) -> Iterator[Tensor]:
    written = {"forward": "output", "backward_data": "input", "backward_filter": "filter"}[op.direction]
    for name, shape, data_type in (
        ("input", op.input_shape, op.input_type),
        ("filter", op.filter_shape, op.filter_type),
        ("output", op.output_shape, op.output_type),
    ):
        yield Tensor(name=name, shape=shape, data_type=data_type, written=name == written)


def _of_norm(op: BatchNormOp) -> Iterator[Tensor]:
    for name, shape in op.output_shapes.items():
        data_type = op.data_type if shape == op.shape else op.parameter_type
        yield Tensor(name=name, shape=shape, data_type=data_type, written=True)

    def whole(name: str, low: float = -1.0, high: float = 1.0) -> Tensor:
        return Tensor(name=name, shape=op.shape, data_type=op.data_type, low=low, high=high)

    def row(name: str, low: float, high: float) -> Tensor:
        return Tensor(name=name, shape=op.parameter_shape, data_type=op.parameter_type, low=low, high=high)

    yield whole("input", -1.0, 3.0)
    yield row("scale", 0.5, 1.5)
    match op.phase:
        case "inference":
            yield row("bias", -1.0, 1.0)
            yield row("running_mean", 0.5, 1.5)
            yield row("running_variance", 0.5, 1.5)
        case "training_forward" | "training":
            yield row("bias", -1.0, 1.0)
            yield row("previous_mean", 0.5, 1.5)
            yield row("previous_variance", 0.5, 1.5)
            if op.fusion == "add_activation":
                yield whole("addend")
            if op.phase == "training":
                yield whole("output_gradient")
        case "backward":
            yield whole("output_gradient")
            yield row("saved_mean", 0.5, 1.5)
            yield row("saved_inverse_deviation", 0.5, 1.5)
            if op.fusion != "none":
                yield whole("output")
