"""`ConvolutionGraph`: a `ConvOp` told to cuDNN as PyTorch tells it, for small differences hide the best engines.

- The scales are FLOAT, also beside half-precision tensors, and DOUBLE only where it computes in float64.
- The alignment is the op's promise, as far as it can be kept; PyTorch's is 16 bytes as well, where addresses allow it.
- There is no attribute for groups: they follow from the filter's shape [K, C / groups, …].
- A problem of one dimension is told as one of two, of height 1.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from algosearch.backends.cudnn.descriptor import Descriptor, Descriptors
from algosearch.backends.cudnn.enums import Attribute, AttributeType, ConvolutionMode, DescriptorKind
from algosearch.backends.cudnn.graph import DATA_TYPES, GraphTensor, OperationGraph, strides_of
from algosearch.backends.cudnn.handle import Handle
from algosearch.ops import ConvOp, canonical

MOST_ALIGNMENT_BYTES: Final = 256
"""What is told of a larger promise: padded copies lie no better in a workspace, nor what a search allocates. No kernel
loads more at once."""


class _Operation(msgspec.Struct, frozen=True):
    """What a direction's operation is called, and its attributes."""

    kind: DescriptorKind
    result: str
    convolution: Attribute
    tensors: tuple[Attribute, Attribute, Attribute]
    """For input, filter and output."""
    alpha: Attribute
    beta: Attribute


_OPERATIONS: Final[dict[str, _Operation]] = {
    "forward": _Operation(
        DescriptorKind.OPERATION_CONVOLUTION_FORWARD,
        "output",
        Attribute.OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
        (
            Attribute.OPERATION_CONVOLUTION_FORWARD_X,
            Attribute.OPERATION_CONVOLUTION_FORWARD_W,
            Attribute.OPERATION_CONVOLUTION_FORWARD_Y,
        ),
        Attribute.OPERATION_CONVOLUTION_FORWARD_ALPHA,
        Attribute.OPERATION_CONVOLUTION_FORWARD_BETA,
    ),
    "backward_data": _Operation(
        DescriptorKind.OPERATION_CONVOLUTION_BACKWARD_DATA,
        "input",
        Attribute.OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        (
            Attribute.OPERATION_CONVOLUTION_BWD_DATA_DX,
            Attribute.OPERATION_CONVOLUTION_BWD_DATA_W,
            Attribute.OPERATION_CONVOLUTION_BWD_DATA_DY,
        ),
        Attribute.OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
        Attribute.OPERATION_CONVOLUTION_BWD_DATA_BETA,
    ),
    "backward_filter": _Operation(
        DescriptorKind.OPERATION_CONVOLUTION_BACKWARD_FILTER,
        "filter",
        Attribute.OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
        (
            Attribute.OPERATION_CONVOLUTION_BWD_FILTER_X,
            Attribute.OPERATION_CONVOLUTION_BWD_FILTER_DW,
            Attribute.OPERATION_CONVOLUTION_BWD_FILTER_DY,
        ),
        Attribute.OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
        Attribute.OPERATION_CONVOLUTION_BWD_FILTER_BETA,
    ),
}


class ConvolutionGraph(OperationGraph):
    """One convolution in one direction. Its tensors are, in this order, `input`, `filter` and `output`.

    Raises:
        CudnnError: as `OperationGraph` says.
    """

    def __init__(self, handle: Handle, op: ConvOp) -> None:
        op = canonical(op)
        super().__init__(
            handle,
            convolution_tensors(op),
            partial(_describe, op),
            float32=op.input_type == "float32",
            alignment_bytes=alignment_told(op),
        )


def alignment_told(op: ConvOp) -> int:
    """Of every tensor, in bytes: what a plan relies on."""
    return min(op.alignment_bytes, MOST_ALIGNMENT_BYTES)


def convolution_tensors(op: ConvOp) -> tuple[GraphTensor, GraphTensor, GraphTensor]:
    """Input, filter and output of a canonical op."""
    result = _OPERATIONS[op.direction].result
    described = (
        (1, "input", op.input_shape, op.input_layout, op.input_type, op.input_bytes),
        (2, "filter", op.filter_shape, op.filter_layout, op.filter_type, op.filter_bytes),
        (3, "output", op.output_shape, op.output_layout, op.output_type, op.output_bytes),
    )
    x, w, y = (
        GraphTensor(
            uid=uid,
            name=name,
            shape=shape,
            strides=strides_of(shape, layout),
            element_type=element_type,
            bytes=size,
            written=name == result,
        )
        for uid, name, shape, layout, element_type, size in described
    )
    return x, w, y


def _describe(op: ConvOp, descriptors: Descriptors, tensors: list[Descriptor]) -> Descriptor:
    operation = _OPERATIONS[op.direction]
    convolution = (
        descriptors.new(DescriptorKind.CONVOLUTION)
        .set(Attribute.CONVOLUTION_COMP_TYPE, DATA_TYPES[op.accumulate_type])
        .set(Attribute.CONVOLUTION_CONV_MODE, ConvolutionMode.CROSS_CORRELATION)
        .set(Attribute.CONVOLUTION_SPATIAL_DIMS, op.spatial_dimensions)
        .set(Attribute.CONVOLUTION_FILTER_STRIDES, *op.stride)
        .set(Attribute.CONVOLUTION_DILATIONS, *op.dilation)
        .set(Attribute.CONVOLUTION_PRE_PADDINGS, *op.padding_low)
        .set(Attribute.CONVOLUTION_POST_PADDINGS, *op.padding_high)
        .finalize()
    )
    described = descriptors.new(operation.kind).set(operation.convolution, convolution)
    for attribute, tensor in zip(operation.tensors, tensors, strict=True):
        described.set(attribute, tensor)

    scale = AttributeType.DOUBLE if op.accumulate_type == "float64" else None
    described.set(operation.alpha, 1.0, holds=scale).set(operation.beta, 0.0, holds=scale)
    return described.finalize()
