"""Logical inference: from what a node computes and the tensors that it reads to those that it writes. Pure.

Three kinds of attributes. A convolution and a batch norm have rules of their own, and an op that follows from their
tensors; everything else is `Other`: the reader of a model knows the shapes that it writes, and here only the type and
the layout follow. Such nodes take part with their memory, and no algorithm is searched for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from algosearch.ops import (
    BatchNormOp,
    ConvOp,
    Direction,
    ElementType,
    Fusion,
    Layout,
    NormType,
    Op,
    ParameterType,
    Phase,
    Shape,
)
from algosearch.ops.types import ACCUMULATES

if TYPE_CHECKING:
    from algosearch.compiler.graph import Role, Tensor

__all__ = ("Attributes", "Conv", "Inferred", "Norm", "Other", "Written", "infer")


class Conv(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="conv"):
    """A convolution. Reads (input, filter) forward, (output gradient, filter) for the data gradient, which is also what
    a transposed convolution is, and (input, output gradient) for the filter gradient."""

    stride: Shape
    dilation: Shape
    padding_low: Shape
    padding_high: Shape
    groups: int = 1
    direction: Direction = "forward"
    result_shape: Shape = ()
    """Of a gradient, whose shape does not follow from what is read; empty forward."""
    result_type: ElementType | None = None
    """Of what is written; None: as what is read."""

    @property
    def kind(self) -> str:
        return "conv"


class Norm(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="batch_norm"):
    """A batch norm. Reads, by phase:

    - inference and training_forward: input, scale, bias, running mean, running variance, and an addend if one is fused;
    - backward: output gradient, input, scale, saved mean, saved inverse deviation, and if it is fused the output and
      the reserve.
    """

    phase: Phase
    fusion: Fusion = "none"
    per_activation: bool = False

    @property
    def kind(self) -> str:
        return "batch_norm"


class Other(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="other"):
    """A node that no algorithm is searched for."""

    function: str
    """What it is called: `relu`, `add`, `matmul`, `all_reduce`."""
    shapes: tuple[Shape, ...]
    """Of everything that it writes; none for a node that only has an effect, such as `update`."""
    element_types: tuple[str | None, ...] = ()
    """For each of them; None, or left out: as the first input."""
    layout: Layout | None = None
    """Of everything that it writes; None: as the first input of the same rank, for what has one."""
    gradient: bool = False
    """Whether what it writes are gradients."""

    @property
    def kind(self) -> str:
        return self.function


Attributes = Conv | Norm | Other


class Written(NamedTuple):
    """One tensor that a node writes."""

    word: str
    """What its name ends in; empty for the main one."""
    shape: Shape
    element_type: str
    layout: Layout
    role: Role = "activation"
    deferred: bool = False


class Inferred(NamedTuple):
    """What follows from a node and the tensors that it reads."""

    op: Op | None
    outputs: tuple[Written, ...]


def infer(attributes: Attributes, inputs: Sequence[Tensor]) -> Inferred:
    """What a node writes, and its op.

    Raises:
        ValueError: it reads another number of tensors than it must, or they do not fit; with the reason.
        InvalidOp: they fit and make no valid op.
    """
    match attributes:
        case Conv():
            return _conv(attributes, inputs)
        case Norm():
            return _norm(attributes, inputs)
        case Other():
            return _other(attributes, inputs)


def _conv(conv: Conv, inputs: Sequence[Tensor]) -> Inferred:
    if len(inputs) != 2:
        raise ValueError(f"a convolution reads two tensors, not {len(inputs)}")
    first, second = inputs
    if conv.direction != "forward" and not conv.result_shape:
        raise ValueError("a gradient does not say what shape it has")
    # By their place in the forward convolution, whatever is read and written here.
    written_type = conv.result_type or first.element_type
    match conv.direction:
        case "forward":
            shapes = first.shape, second.shape
            layouts = first.layout, second.layout, first.layout
            types = first.element_type, second.element_type, written_type
            expected = None
        case "backward_data":
            shapes = conv.result_shape, second.shape
            layouts = first.layout, second.layout, first.layout
            types = written_type, second.element_type, first.element_type
            expected = first.shape
        case "backward_filter":
            shapes = first.shape, conv.result_shape
            layouts = first.layout, first.layout, second.layout
            types = first.element_type, written_type, second.element_type
            expected = second.shape
    op = ConvOp(
        direction=conv.direction,
        input_shape=shapes[0],
        filter_shape=shapes[1],
        stride=conv.stride,
        dilation=conv.dilation,
        padding_low=conv.padding_low,
        padding_high=conv.padding_high,
        groups=conv.groups,
        input_layout=layouts[0],
        filter_layout=layouts[1],
        output_layout=layouts[2],
        input_type=cast("ElementType", types[0]),
        filter_type=cast("ElementType", types[1]),
        output_type=cast("ElementType", types[2]),
        accumulate_type=ACCUMULATES.get(types[0], ("float32",))[0],  # type: ignore[arg-type]
    )
    if expected is not None and op.output_shape != expected:
        raise ValueError(
            f"the gradient that it reads has shape {expected}, and its convolution makes {op.output_shape}"
        )
    layout = {"forward": layouts[2], "backward_data": layouts[0], "backward_filter": layouts[1]}[conv.direction]
    role: Role = "activation" if conv.direction == "forward" or first.role == "activation" else "gradient"
    return Inferred(op, (Written("", op.result_shape, written_type, layout, role),))


def _norm(norm: Norm, inputs: Sequence[Tensor]) -> Inferred:
    if norm.phase == "training":
        raise ValueError("the two passes of a batch norm are two nodes of a graph")
    fused = norm.fusion != "none"
    count = (5 + 2 * fused) if norm.phase == "backward" else (5 + (norm.fusion == "add_activation"))
    if len(inputs) != count:
        raise ValueError(f"a batch norm ({norm.phase}, {norm.fusion}) reads {count} tensors, not {len(inputs)}")
    main, scale = inputs[0], inputs[2 if norm.phase == "backward" else 1]
    op = BatchNormOp(
        shape=main.shape,
        phase=norm.phase,
        fusion=norm.fusion,
        statistics="per_activation" if norm.per_activation else "per_channel",
        layout=main.layout,
        data_type=cast("NormType", main.element_type),
        parameter_type=cast("ParameterType", scale.element_type),
    )
    if scale.shape != op.parameter_shape:
        raise ValueError(f"its scale has shape {scale.shape}; for data of {main.shape} it is {op.parameter_shape}")
    outputs = [Written("", op.shape, main.element_type, main.layout)]
    parameters, parameter_type = op.parameter_shape, op.parameter_type
    if norm.phase == "training_forward":
        outputs += [
            Written(word, parameters, parameter_type, "channels_first") for word in ("mean", "inverse_deviation")
        ]
        if fused:
            outputs.append(Written("reserve", (), "uint8", "channels_first", "reserve", deferred=True))
    elif norm.phase == "backward":
        outputs = [each._replace(role="gradient") for each in outputs]
        outputs += [
            Written(word, parameters, parameter_type, "channels_first", "gradient") for word in ("scale", "bias")
        ]
        if norm.fusion == "add_activation":
            outputs.append(Written("addend", op.shape, main.element_type, main.layout, "gradient"))
    return Inferred(op, tuple(outputs))


def _other(other: Other, inputs: Sequence[Tensor]) -> Inferred:
    types = other.element_types or (None,) * len(other.shapes)
    if len(types) != len(other.shapes):
        raise ValueError(f"{other.function} names {len(types)} element types for {len(other.shapes)} outputs")
    if not inputs and None in types:
        raise ValueError(f"{other.function} reads nothing and does not say of what type it is")
    outputs = []
    for index, (shape, element_type) in enumerate(zip(other.shapes, types, strict=True)):
        alike: Layout = next((each.layout for each in inputs if len(each.shape) == len(shape)), "channels_first")
        outputs.append(
            Written(
                str(index) if index else "",
                shape,
                element_type or inputs[0].element_type,
                other.layout or alike,
                "gradient" if other.gradient else "activation",
            )
        )
    return Inferred(None, tuple(outputs))
