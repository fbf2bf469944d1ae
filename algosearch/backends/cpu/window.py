"""The geometry of a convolution: which element meets which, as strided slices and as matrices.

Pure. The one idea behind all of it: along each spatial axis, tap `t` of output `o` reads the input at
`o * stride + t * dilation - padding_low`. `overlap` says for which `o` of a row that lies inside the input.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Self

import msgspec

from algosearch.backends.cpu.arena import Array
from algosearch.ops import ConvOp, Layout, Shape

Slices = tuple[slice, ...]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A `ConvOp` taken apart, its channels and filters counted within one group."""

    batch: int
    groups: int
    channels: int
    filters: int
    sizes: Shape
    taps: Shape
    outputs: Shape
    stride: Shape
    dilation: Shape
    low: Shape

    @classmethod
    def of(cls, op: ConvOp) -> Self:
        """The window of an op."""
        return cls(
            batch=op.input_shape[0],
            groups=op.groups,
            channels=op.filter_shape[1],
            filters=op.filter_shape[0] // op.groups,
            sizes=op.input_shape[2:],
            taps=op.filter_shape[2:],
            outputs=op.output_shape[2:],
            stride=op.stride,
            dilation=op.dilation,
            low=op.padding_low,
        )

    @property
    def axes(self) -> int:
        """Spatial dimensions."""
        return len(self.sizes)

    @property
    def tap_count(self) -> int:
        """Elements of a filter for one channel."""
        return prod(self.taps)

    @property
    def positions(self) -> int:
        """Outputs for one filter and sample."""
        return prod(self.outputs)

    @property
    def extents(self) -> Shape:
        """From the first to the last element that one output reads, both counted, padding too."""
        return tuple((taps - 1) * dilation + 1 for taps, dilation in zip(self.taps, self.dilation, strict=True))

    @property
    def padded(self) -> Shape:
        """From the first to the last element that any output reads, padding too. Never more than the padded input."""
        return tuple(
            (outputs - 1) * stride + extent
            for outputs, stride, extent in zip(self.outputs, self.stride, self.extents, strict=True)
        )

    @property
    def is_plain(self) -> bool:
        """True if output `o` of tap `t` simply is input `o + t * dilation`: no stride, and no padding."""
        return set(self.stride) == {1} and self.padded == self.sizes and not any(self.low)

    def tap_offsets(self) -> list[Shape]:
        """Of each tap, in order: where it lies from the first one."""
        return list(
            product(*(range(0, taps * step, step) for taps, step in zip(self.taps, self.dilation, strict=True)))
        )


class Overlap(msgspec.Struct, frozen=True):
    """Where a grid of points, laid over a tensor, meets it."""

    grid: Slices
    """The points inside the tensor; of no length where there are none."""
    tensor: Slices
    """The elements under them, in the same order."""
    outside: tuple[Slices, ...]
    """Slabs that together hold every other point of the grid. They may share points."""


def overlap(sizes: Shape, counts: Shape, strides: Shape, shifts: Shape) -> Overlap:
    """How a grid of `counts` points, point `i` over element `i * stride + shift`, lies over a tensor of `sizes`."""
    grid: list[slice] = []
    tensor: list[slice] = []
    outside: list[Slices] = []
    everything = (slice(None),) * len(sizes)
    for axis, (size, count, stride, shift) in enumerate(zip(sizes, counts, strides, shifts, strict=True)):
        first = min(count, max(0, -(shift // stride)))
        end = max(first, min(count, (size - 1 - shift) // stride + 1))
        start = first * stride + shift
        grid.append(slice(first, end))
        tensor.append(slice(start, start + (end - first - 1) * stride + 1, stride) if end > first else slice(0, 0))
        for slab in (slice(0, first), slice(end, count)):
            if slab.start < slab.stop:
                outside.append((*everything[:axis], slab, *everything[axis + 1 :]))
    return Overlap(tuple(grid), tuple(tensor), tuple(outside))


def grouped(memory: Array, layout: Layout, lead: Shape, groups: int, channels: int, spatial: Shape) -> Array:
    """Dense `memory` as [lead…, groups, channels, spatial…], whatever its layout. A view."""
    if layout == "channels_first":
        return memory.reshape(*lead, groups, channels, *spatial)
    view = memory.reshape(*lead, *spatial, groups, channels)
    first, last = len(lead), len(lead) + len(spatial)
    return view.transpose(*range(first), last, last + 1, *range(first, last))


def stacked(memory: Array, layout: Layout, samples: int, groups: int, channels: int, spatial: Shape) -> Array:
    """Dense `memory` as [groups, channels, samples * spatial]: one matrix a group over *all* samples. A view.

    So memory that holds several samples is not ordered as a tensor is, when its layout is channels first: it is
    [groups, channels, samples, spatial…].
    """
    points = samples * prod(spatial)
    if layout == "channels_first":
        return memory.reshape(groups, channels, points)
    return memory.reshape(points, groups, channels).transpose(1, 2, 0)


def unstacked(memory: Array, layout: Layout, samples: int, groups: int, channels: int, spatial: Shape) -> Array:
    """The memory of `stacked` as [samples, groups, channels, spatial…]. A view."""
    if layout == "channels_first":
        view = memory.reshape(groups, channels, samples, *spatial)
        return view.transpose(2, 0, 1, *range(3, view.ndim))
    return grouped(memory, layout, (samples,), groups, channels, spatial)


def filters_of(memory: Array, layout: Layout, window: Window) -> Array:
    """A dense filter as [groups, filters, channels, taps], the taps in one axis, whatever its layout. A view."""
    lead = (window.groups, window.filters)
    return grouped(memory, layout, lead, 1, window.channels, (window.tap_count,))[:, :, 0]
