"""Two descriptions of one problem are one problem.

`canonical(op)` rewrites an op into the one description that stands for all its equals. Keys are made from it,
and a backend is given *it*, not what the caller wrote: so a record speaks of exactly the problem that was timed.

Rules, each of which leaves the computation and the bytes in memory as they are:

1. A spatial axis that does nothing (size 1, one tap, no padding) is dropped, wherever it stands. What is left is filled
   up to two axes with a height of 1, which is how cuDNN takes a 1-D problem. So 1-D, 1×W, H×1 and 3-D of depth 1 meet.
2. Where a filter has one tap, its dilation is 1.
3. High padding that no window reaches does not count. If `padding_low` fits as well, the padding is symmetric
   (libraries like that best), else it is the least that gives the same output.
4. Where there is one output, the stride does not count: it is the least that gives one output with that padding.
5. The layout of a tensor whose bytes lie the same either way is that of the first tensor for which it matters
   (input, filter, output), or channels first.
6. Statistics for each activation are those for each channel where a channel is one activation.
7. Words are plain strings, whatever equal thing the caller wrote (a `numpy.str_`, a member of a `StrEnum`).

Not a rule, although it leaves the bytes alone: merging axes (a 1x1 convolution or a batch norm of 56×56 as one of
1×3136). It is another problem to a library, which tiles the axes that it is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from algosearch.ops.batch_norm import BatchNormOp
from algosearch.ops.conv import ConvOp
from algosearch.ops.types import LARGEST, Layout, Shape

AnyOp = TypeVar("AnyOp", bound=ConvOp | BatchNormOp)

_Axis = tuple[int, int, int, int, int, int]
"""Size, taps, stride, dilation, low and high padding of one spatial axis."""
_TRIVIAL: Final[_Axis] = (1, 1, 1, 1, 0, 0)
_CONV_WORDS: Final = ("direction", "input_type", "filter_type", "output_type", "accumulate_type")
_NORM_WORDS: Final = ("phase", "fusion", "data_type", "parameter_type")


def canonical(op: AnyOp) -> AnyOp:
    """The description that stands for every op equal to `op`. Idempotent; the result shape is the same up to rule 1."""
    known = _KNOWN.get(op)
    if known is None:
        known = _canonical_conv(op) if isinstance(op, ConvOp) else _canonical_batch_norm(op)
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[op] = known
    return cast("AnyOp", known)


_MOST_KNOWN: Final = 8192
_KNOWN: dict[ConvOp | BatchNormOp, ConvOp | BatchNormOp] = {}
"""What is canonical of what: asked again for the same op by the reader, the key and the search. Emptied when full.
(`lru_cache` takes three times as long, and a tuple for each entry, which the garbage collector visits.)"""


def _is_plain(op: ConvOp) -> bool:
    """True for what most ops are: two axes with several outputs each, symmetric padding, channels first, no dilation.
    By the rules above such an op stands for itself; to see that takes a tenth of working it out."""
    return (
        op.dilation == (1, 1)
        and op.padding_low == op.padding_high
        and op.input_layout == op.filter_layout == op.output_layout == "channels_first"
        and all(
            size > 1 and size + 2 * low - taps >= stride
            for size, low, taps, stride in zip(
                op.input_shape[2:], op.padding_low, op.filter_shape[2:], op.stride, strict=True
            )
        )
        and {
            type(op.direction),
            type(op.input_type),
            type(op.filter_type),
            type(op.output_type),
            type(op.accumulate_type),
            type(op.input_layout),
            type(op.filter_layout),
            type(op.output_layout),
        }
        == {str}
    )


def _canonical_conv(op: ConvOp) -> ConvOp:
    if _is_plain(op):
        return op
    described = zip(
        op.input_shape[2:],
        op.filter_shape[2:],
        op.output_shape[2:],
        op.stride,
        op.dilation,
        op.padding_low,
        op.padding_high,
        strict=True,
    )
    axes = [axis for axis in (_canonical_axis(*each) for each in described) if axis != _TRIVIAL]
    axes[:0] = [_TRIVIAL] * (2 - len(axes))
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
        **_plain(op, _CONV_WORDS),
    )


def _canonical_axis(size: int, taps: int, outputs: int, stride: int, dilation: int, low: int, high: int) -> _Axis:
    if taps == 1:
        dilation = 1
    extent = (taps - 1) * dilation + 1
    least = (outputs - 1) * stride + extent - size - low  # high padding that it takes; below 0 if a tail is unused
    if outputs == 1:
        symmetric = least <= low and size + 2 * low - extent < LARGEST  # else its stride could not be written
        high = low if symmetric else max(0, least)
        stride = size + low + high - extent + 1
    else:
        high = low if least <= low < least + stride else max(0, least)
    return size, taps, stride, dilation, low, high


def _canonical_batch_norm(op: BatchNormOp) -> BatchNormOp:
    batch, channels, *described = op.shape
    spatial = [size for size in described if size != 1]
    spatial[:0] = [1] * (2 - len(spatial))
    return replace(
        op,
        shape=(batch, channels, *spatial),
        layout=_settle(_matters(op.layout, op.shape))[0],
        statistics="per_channel" if prod(spatial) == 1 else str.__str__(op.statistics),
        **_plain(op, _NORM_WORDS),
    )


def _matters(layout: Layout, shape: Shape) -> Layout | None:
    """None if channels first and last put the same bytes in the same places."""
    return None if shape[1] == 1 or prod(shape[2:]) == 1 else cast("Layout", str.__str__(layout))


def _settle(*layouts: Layout | None) -> tuple[Layout, ...]:
    first: Layout = next((layout for layout in layouts if layout is not None), "channels_first")
    return tuple(first if layout is None else layout for layout in layouts)


def _plain(op: ConvOp | BatchNormOp, fields: Iterable[str]) -> dict[str, Any]:
    # Not str(…), which an enumeration overrides with its own name.
    return {field: str.__str__(getattr(op, field)) for field in fields}
