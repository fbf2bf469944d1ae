"""Two descriptions of one problem are one problem.

`canonical(op)` rewrites an op into the one description that stands for all its equals. Keys are made from it,
and a backend is given *it*, not what the caller wrote: so a record speaks of exactly the problem that was timed.

Rules, each of which leaves the computation and the bytes in memory as they are:

1. A size-1 spatial axis with one tap and no padding is dropped down to two axes (3-D of depth 1 is 2-D), and a
   1-D problem is 2-D of height 1, which is how cuDNN takes it.
2. Where a filter has one tap, its dilation is 1. Where a stride of 1 gives the same single output, it is 1.
3. High padding that no window reaches does not count. If `padding_low` fits as well, the padding is symmetric
   (libraries like that best), else it is the least that gives the same output.
4. The layout of a tensor whose bytes lie the same either way is that of the first tensor for which it matters
   (input, filter, output), or channels first.
"""

from __future__ import annotations

from math import prod
from typing import TypeVar, cast

from msgspec.structs import replace

from algosearch.ops.batch_norm import BatchNormOp
from algosearch.ops.conv import ConvOp
from algosearch.ops.types import Layout, Shape

AnyOp = TypeVar("AnyOp", bound=ConvOp | BatchNormOp)


def canonical(op: AnyOp) -> AnyOp:
    """The description that stands for every op equal to `op`. Idempotent; the result shape is the same up to rule 1."""
    same = _canonical_conv(op) if isinstance(op, ConvOp) else _canonical_batch_norm(op)
    return cast("AnyOp", same)


def _canonical_conv(op: ConvOp) -> ConvOp:
    axes = [
        _canonical_axis(*axis)
        for axis in zip(
            op.input_shape[2:],
            op.filter_shape[2:],
            op.output_shape[2:],
            op.stride,
            op.dilation,
            op.padding_low,
            op.padding_high,
            strict=True,
        )
    ]
    trivial = (1, 1, 1, 1, 0, 0)
    while len(axes) > 2 and trivial in axes:
        axes.remove(trivial)
    if len(axes) == 1:
        axes.insert(0, trivial)
    sizes, taps, strides, dilations, lows, highs = zip(*axes, strict=True)
    layouts = _settle(
        _matters(op.input_layout, op.input_shape),
        _matters(op.filter_layout, op.filter_shape),
        _matters(op.output_layout, op.output_shape),
    )
    return replace(
        op,
        input_shape=op.input_shape[:2] + sizes,
        filter_shape=op.filter_shape[:2] + taps,
        stride=strides,
        dilation=dilations,
        padding_low=lows,
        padding_high=highs,
        input_layout=layouts[0],
        filter_layout=layouts[1],
        output_layout=layouts[2],
    )


def _canonical_axis(
    size: int, taps: int, outputs: int, stride: int, dilation: int, low: int, high: int
) -> tuple[int, int, int, int, int, int]:
    if taps == 1:
        dilation = 1
    extent = (taps - 1) * dilation + 1
    reached = (outputs - 1) * stride + extent - size - low  # the least high padding for so many outputs
    high = low if reached <= low < reached + stride else max(0, reached)
    if outputs == 1 and size + low + high == extent:
        stride = 1
    return size, taps, stride, dilation, low, high


def _canonical_batch_norm(op: BatchNormOp) -> BatchNormOp:
    batch, channels, *spatial = op.shape
    while len(spatial) > 2 and 1 in spatial:
        spatial.remove(1)
    while len(spatial) < 2:
        spatial.insert(0, 1)
    layout = _settle(_matters(op.layout, op.shape))[0]
    statistics = "per_channel" if prod(spatial) == 1 else op.statistics
    return replace(op, shape=(batch, channels, *spatial), layout=layout, statistics=statistics)


def _matters(layout: Layout, shape: Shape) -> Layout | None:
    """None if channels first and last put the same bytes in the same places."""
    return None if shape[1] == 1 or prod(shape[2:]) == 1 else layout


def _settle(*layouts: Layout | None) -> tuple[Layout, ...]:
    first: Layout = next((layout for layout in layouts if layout is not None), "channels_first")
    return tuple(first if layout is None else layout for layout in layouts)
