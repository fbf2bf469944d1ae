"""FFT convolution: products of spectra, a small matrix product for each frequency.

    forward           output^ = input^ × conj(filter^)ᵀ
    backward_data     input^  = output^ × filter^
    backward_filter   filter^ = conj(output^)ᵀ × input^

Spectra have the channels innermost and are made over the axes before them, so that each frequency is a matrix in place.
Transforms are as long as the padded input (nothing that is kept then wraps around), rounded up to a length with small
factors. A dilated filter is one with zeros between its taps. A stride is not done: most of what was computed would be
thrown away.

Every transform is `ortho`. numpy does one without a factor in double precision, and converts whole arrays for that
behind our back. What is left of the factors, √points, is multiplied at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Final

import msgspec
import numpy as np

from algosearch.backends.cpu.arena import Arena, Array, Region, Run, at
from algosearch.backends.cpu.kernel import Cost, Tensors, compute_type, contract, store
from algosearch.backends.cpu.window import Window, grouped
from algosearch.ops import ELEMENT_BYTES, ConvOp, Layout, Shape

SPECTRA_LIMIT: Final = 40
"""Spectra of more than so many times the bytes of the op's tensors are absurd: each filter of a few taps is blown up to
the size of a large image. Measured beyond this: more than a hundred times slower than im2col."""

_COMPLEX: Final = {"float32": "complex64", "float64": "complex128"}
_BYTES_A_POINT: Final = 32.0
"""What transforming a point costs, as if it were moved."""


def applies(op: ConvOp) -> bool:
    """Whether `Fft` can do an op, and it is not absurd to try."""
    if op.input_type == "int8" or set(op.stride) != {1} or set(op.filter_shape[2:]) == {1}:
        return False
    return Fft(op).spectra_bytes <= SPECTRA_LIMIT * op.bytes_moved


class Fft:
    """The kernel, for ops without a stride."""

    notes: Final = ("fft",)

    def __init__(self, op: ConvOp) -> None:
        self._op = op
        self._window = window = Window.of(op)
        computed = compute_type(op)
        lengths = tuple(good_length(size) for size in window.padded)
        filters, channels = window.groups * window.filters, window.groups * window.channels
        none, ones = (0,) * window.axes, (1,) * window.axes
        arena = Arena()
        self._sides = {
            "input": _Side(window.batch, channels, lengths, window.sizes, window.low, ones, op.input_layout),
            "filter": _Side(filters, window.channels, lengths, window.taps, none, window.dilation, op.filter_layout),
            "output": _Side(window.batch, filters, lengths, window.outputs, none, ones, op.output_layout),
        }
        self._result = {"forward": "output", "backward_data": "input", "backward_filter": "filter"}[op.direction]
        self._points = prod(lengths)
        self._spectra = {
            name: arena.take(side.spectrum_shape, _COMPLEX[computed]) for name, side in self._sides.items()
        }
        self.spectra_bytes = arena.total_bytes
        # One at a time is transformed: all the staging has the same place.
        mark = arena.mark()
        self._staging: dict[str, Region] = {}
        for name, side in self._sides.items():
            arena.rewind(mark)
            if name == self._result:
                self._staging[name] = arena.take(side.kept_shape, computed)
            elif not side.is_plain or op.input_type != computed:
                self._staging[name] = arena.take(side.placed_shape, computed)
        self.workspace_bytes = arena.total_bytes
        self.cost = self._cost(ELEMENT_BYTES[computed])

    def _cost(self, element_bytes: int) -> Cost:
        window = self._window
        products = window.batch * window.groups * window.channels * window.filters
        frequencies = prod(self._spectra["input"].shape[1:-1])
        points = sum(side.samples * side.channels for side in self._sides.values()) * self._points
        return Cost(
            flops=8.0 * products * frequencies,
            moved_bytes=_BYTES_A_POINT * points * element_bytes / 4 + self.spectra_bytes,
            pieces=frequencies * window.groups * 8.0,
            calls=sum(side.samples for side in self._sides.values()) * 8.0,
        )

    def bind(self, tensors: Tensors, workspace: Array) -> Run:
        """As the contract says."""
        spectra = {name: region.of(workspace) for name, region in self._spectra.items()}
        staging = {name: region.of(workspace) for name, region in self._staging.items()}
        sources = [name for name in self._sides if name != self._result]
        views = {name: side.view(tensors[name]) for name, side in self._sides.items()}
        target = self._sides[self._result]
        multiply = self._multiplication(spectra)
        # Each of the three transforms left 1/√points, and the inverse of a product needs one more of 1/points in all.
        scale = sqrt(self._points)

        def run() -> None:
            for name in sources:
                self._sides[name].transform(views[name], spectra[name], staging.get(name))
            multiply()
            target.restore(spectra[self._result], staging[self._result], scale, views[self._result])

        return run

    def _multiplication(self, spectra: Mapping[str, Array]) -> Run:
        window = self._window
        by_sample = (window.batch, -1, window.groups)
        inputs = spectra["input"].reshape(*by_sample, window.channels).transpose(1, 2, 0, 3)
        outputs = spectra["output"].reshape(*by_sample, window.filters).transpose(1, 2, 0, 3)
        filters = spectra["filter"].reshape(window.groups, window.filters, -1, window.channels).transpose(2, 0, 1, 3)

        def forward() -> None:
            np.conjugate(spectra["filter"], out=spectra["filter"])
            contract(inputs, filters.swapaxes(-1, -2), outputs)

        def backward_data() -> None:
            contract(outputs, filters, inputs)

        def backward_filter() -> None:
            np.conjugate(spectra["output"], out=spectra["output"])
            contract(outputs.swapaxes(-1, -2), inputs, filters)

        runs = {"forward": forward, "backward_data": backward_data, "backward_filter": backward_filter}
        return runs[self._op.direction]


class _Side(msgspec.Struct, frozen=True):
    """One of the three tensors: how it lies in the grid that is transformed."""

    samples: int
    channels: int
    lengths: Shape
    """Of the transforms."""
    counts: Shape
    """Spatial sizes of the tensor."""
    starts: Shape
    """Where the tensor's first element lies in the grid."""
    steps: Shape
    """How far apart its elements lie."""
    layout: Layout

    @property
    def placed(self) -> Shape:
        """From the grid's first to the tensor's last element, both counted."""
        return tuple(s + (c - 1) * t + 1 for s, c, t in zip(self.starts, self.counts, self.steps, strict=True))

    @property
    def is_plain(self) -> bool:
        """True if the tensor can be transformed from where it is."""
        return self.placed == self.counts

    @property
    def placed_shape(self) -> Shape:
        """Of one sample, placed in the grid."""
        return (*self.placed, self.channels)

    @property
    def kept_shape(self) -> Shape:
        """Of one sample, transformed back: all of the last axis, and of each axis before it what is kept."""
        kept = (placed - start for placed, start in zip(self.placed[:-1], self.starts[:-1], strict=True))
        return (*kept, self.lengths[-1], self.channels)

    @property
    def spectrum_shape(self) -> Shape:
        """[samples, frequencies…, channels]"""
        return (self.samples, *self.lengths[:-1], self.lengths[-1] // 2 + 1, self.channels)

    def view(self, tensor: Array) -> Array:
        """[samples, spatial…, channels]"""
        view = grouped(tensor, self.layout, (self.samples,), 1, self.channels, self.counts)[:, 0]
        return np.moveaxis(view, 1, -1)

    def transform(self, view: Array, spectrum: Array, staging: Array | None) -> None:
        """Make the spectrum of every sample: all at once, or one by one through the staging."""
        if staging is None:
            self._transform(view, spectrum)
            return
        staging.fill(0)
        places = tuple(slice(start, None, step) for start, step in zip(self.starts, self.steps, strict=True))
        placed = staging[places]
        for sample, values in enumerate(view):
            np.copyto(placed, values)
            self._transform(staging, spectrum[sample])

    def _transform(self, values: Array, spectrum: Array) -> None:
        axes = len(self.lengths)
        rows = tuple(slice(count) for count in values.shape[-axes - 1 : -2])
        part = at(spectrum, ..., *rows, slice(None), slice(None))
        np.fft.rfft(values, n=self.lengths[-1], axis=-2, norm="ortho", out=part)
        for axis in range(axes - 2, -1, -1):
            rest = (slice(None),) * (axes - axis)
            part = at(spectrum, ..., *rows[:axis], *rest, slice(None))
            at(part, ..., slice(rows[axis].stop, None), *rest).fill(0)
            np.fft.fft(part, axis=axis - axes - 1, norm="ortho", out=part)

    def restore(self, spectrum: Array, staging: Array, scale: float, view: Array) -> None:
        """Transform each sample back, and store what is kept of it. Spoils the spectrum."""
        kept = tuple(slice(start, stop) for start, stop in zip(self.starts, self.placed, strict=True))
        picked = (
            *(slice(None, None, step) for step in self.steps[:-1]),
            slice(self.starts[-1], self.placed[-1], self.steps[-1]),
        )
        axes = len(self.lengths)
        for sample, values in enumerate(view):
            part = spectrum[sample]
            for axis in range(axes - 1):
                np.fft.ifft(part, axis=axis, norm="ortho", out=part)
                part = part[(slice(None),) * axis + (kept[axis],)]
            np.fft.irfft(part, n=self.lengths[-1], axis=-2, norm="ortho", out=staging)
            np.multiply(staging, scale, out=staging)
            store(staging[picked], values)


def good_length(least: int) -> int:
    """The least length from `least` on whose only prime factors are 2, 3, 5, 7 and 11."""
    length = least
    while not _is_smooth(length):
        length += 1
    return length


def _is_smooth(number: int) -> bool:
    for factor in (2, 3, 5, 7, 11):
        while number % factor == 0:
            number //= factor
    return number == 1
