"""Direct convolution: a matrix product for each tap, summed up, one sample at a time.

No column is ever copied. The input, padded, lies in one or more *phases*: phase `p` of a stride `s` holds every `s`-th
row from the `p`-th. So every tap reads one phase, and reads it as one piece: from `offset` on, `span` elements, which
are a matrix [channels, span] in place. Rows of the phases are longer than rows of the output (*wide*), and what a
product says of the elements between them is never looked at, or multiplied by zeros.

    forward           output += filter[tap] × phase[offset:]
    backward_data     phase[offset:] += filter[tap]ᵀ × output
    backward_filter   filter[tap] += output × phase[offset:]ᵀ

With neither stride, padding nor conversion, the one phase is the input itself.
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np

from algosearch.backends.cpu.arena import Arena, Array, Region, Run, at
from algosearch.backends.cpu.kernel import Cost, Tensors, compute_type, contract, product_flops, store
from algosearch.backends.cpu.window import Overlap, Window, filters_of, grouped, overlap
from algosearch.ops import ELEMENT_BYTES, ConvOp, Layout, Shape


class Direct:
    """The kernel."""

    notes: Final = ()

    def __init__(self, op: ConvOp) -> None:
        self._op = op
        self._window = window = Window.of(op)
        self._phases = phases = _Phases(window)
        self._computed = computed = compute_type(op)
        self._converted = converted = op.input_type != computed
        arena = Arena()

        def take(size: int, needed: bool) -> Region | None:
            return arena.take((size,), computed) if needed else None

        channels, filters = window.groups * window.channels, window.groups * window.filters
        self._input = take(channels * phases.size, converted or not window.is_plain)
        # A filter that is channels first has its taps innermost, and no matrix for each: they are brought outermost.
        apart = (
            op.filter_layout == "channels_first" and window.tap_count > 1 and max(window.channels, window.filters) > 1
        )
        self._filter = take(filters * window.channels * window.tap_count, converted or apart)
        self._output = take(filters * phases.wide, converted or phases.wide != window.positions)
        self._addend = self._take_addend(arena)
        self.workspace_bytes = arena.total_bytes
        self.cost = self._cost()

    def _take_addend(self, arena: Arena) -> Region | None:
        window = self._window
        channels, filters = window.groups * window.channels, window.groups * window.filters
        match self._op.direction:
            case "forward" if window.tap_count > 1:
                size = filters * self._phases.span
            case "backward_data":
                size = channels * self._phases.span
            case "backward_filter" if window.batch > 1:
                size = filters * window.channels
            case _:
                return None
        return arena.take((size,), self._computed)

    def _cost(self) -> Cost:
        op, window, phases = self._op, self._window, self._phases
        sums = 0
        if self._addend is not None and op.direction != "backward_filter":
            sums = 3 * prod(self._addend.shape) * window.tap_count
        copies = 0
        pieces = 0.0
        for region, layout, per_group, row in (
            (self._input, op.input_layout, window.channels, phases.rows[-1]),
            (self._output, op.output_layout, window.filters, window.outputs[-1]),
        ):
            if region is not None:
                copies += 2 * prod(region.shape)
                pieces += prod(region.shape) / (row if layout == "channels_first" else per_group * window.groups)
        rearranged = 0 if self._filter is None else prod(self._filter.shape)
        return Cost(
            flops=product_flops(
                op.flops * phases.wide / window.positions, window.filters, window.channels, phases.span
            ),
            moved_bytes=ELEMENT_BYTES[self._computed] * ((sums + copies) * window.batch + 2 * rearranged),
            pieces=pieces * window.batch + rearranged / 16,
            calls=window.batch * (2 * window.tap_count + 4),
        )

    def bind(self, tensors: Tensors, workspace: Array) -> Run:
        """As the contract says."""
        match self._op.direction:
            case "forward":
                return self._forward(tensors, workspace)
            case "backward_data":
                return self._backward_data(tensors, workspace)
            case "backward_filter":
                return self._backward_filter(tensors, workspace)

    def _forward(self, tensors: Tensors, workspace: Array) -> Run:
        phased = self._phased(tensors["input"], workspace)
        filters, source = self._filters(tensors["filter"], workspace)
        output = self._wide(tensors["output"], workspace)
        span = self._phases.span
        addend = self._spanning(self._addend, workspace, self._op.output_layout, self._window.filters)
        taps = self._phases.taps
        matrices = [filters[:, :, :, tap] for tap in range(len(taps))]

        def run() -> None:
            if filters is not source:
                np.copyto(filters, source)
            phased.clear()
            for sample in range(self._window.batch):
                pieces = phased.load(sample)
                total = output.matrix(sample)[..., :span]
                for tap, (phase, offset) in enumerate(taps):
                    piece = pieces[phase][..., offset : offset + span]
                    if tap == 0 or addend is None:
                        contract(matrices[tap], piece, total)
                    else:
                        contract(matrices[tap], piece, addend)
                        np.add(total, addend, out=total)
                output.save(sample)

        return run

    def _backward_data(self, tensors: Tensors, workspace: Array) -> Run:
        phased = self._phased(tensors["input"], workspace)
        filters, source = self._filters(tensors["filter"], workspace)
        output = self._wide(tensors["output"], workspace)
        span = self._phases.span
        addend = self._spanning(self._addend, workspace, self._op.input_layout, self._window.channels)
        assert addend is not None
        taps = self._phases.taps
        matrices = [filters[:, :, :, tap].swapaxes(-1, -2) for tap in range(len(taps))]

        def run() -> None:
            if filters is not source:
                np.copyto(filters, source)
            output.clear()
            for sample in range(self._window.batch):
                gradient = output.load(sample)[..., :span]
                pieces = phased.start(sample)
                for tap, (phase, offset) in enumerate(taps):
                    contract(matrices[tap], gradient, addend)
                    piece = pieces[phase][..., offset : offset + span]
                    np.add(piece, addend, out=piece)
                phased.save(sample)

        return run

    def _backward_filter(self, tensors: Tensors, workspace: Array) -> Run:
        phased = self._phased(tensors["input"], workspace)
        filters, target = self._filters(tensors["filter"], workspace)
        output = self._wide(tensors["output"], workspace)
        span = self._phases.span
        window = self._window
        shape = (window.groups, window.filters, window.channels)
        addend = None if self._addend is None else self._addend.of(workspace).reshape(shape)
        taps = self._phases.taps

        def run() -> None:
            phased.clear()
            output.clear()
            for sample in range(window.batch):
                pieces = phased.load(sample)
                gradient = output.load(sample)[..., :span]
                for tap, (phase, offset) in enumerate(taps):
                    piece = pieces[phase][..., offset : offset + span].swapaxes(-1, -2)
                    total = filters[:, :, :, tap]
                    if sample == 0 or addend is None:
                        contract(gradient, piece, total)
                    else:
                        contract(gradient, piece, addend)
                        np.add(total, addend, out=total)
            if filters is not target:
                store(filters, target)

        return run

    def _phased(self, tensor: Array, workspace: Array) -> _Phased:
        window, phases, layout = self._window, self._phases, self._op.input_layout
        samples = grouped(tensor, layout, (window.batch,), window.groups, window.channels, window.sizes)
        if self._input is None:
            flat = grouped(tensor, layout, (window.batch,), window.groups, window.channels, (prod(window.sizes),))
            return _Phased(phases, samples, flat[:, None], None)
        memory = self._input.of(workspace)
        lead = (len(phases.overlaps),)
        flat = grouped(memory, layout, lead, window.groups, window.channels, (prod(phases.rows),))
        grid = grouped(memory, layout, lead, window.groups, window.channels, phases.rows)
        return _Phased(phases, samples, flat, grid)

    def _filters(self, tensor: Array, workspace: Array) -> tuple[Array, Array]:
        """[groups, filters, channels, taps] to compute with, and of the tensor: the same object if nothing is moved."""
        window = self._window
        filters = filters_of(tensor, self._op.filter_layout, window)
        if self._filter is None:
            return filters, filters
        shape = (window.tap_count, window.groups, window.filters, window.channels)
        return self._filter.of(workspace).reshape(shape).transpose(1, 2, 3, 0), filters

    def _wide(self, tensor: Array, workspace: Array) -> _Wide:
        window, phases, layout = self._window, self._phases, self._op.output_layout
        samples = grouped(tensor, layout, (window.batch,), window.groups, window.filters, window.outputs)
        if self._output is None:
            flat = grouped(tensor, layout, (window.batch,), window.groups, window.filters, (window.positions,))
            return _Wide(samples, flat, None, ())
        memory = self._output.of(workspace)
        rows = (window.outputs[0], *phases.rows[1:])
        grid = grouped(memory, layout, (), window.groups, window.filters, rows)
        counts = tuple(slice(count) for count in window.outputs)
        flat = grouped(memory, layout, (), window.groups, window.filters, (phases.wide,))
        return _Wide(samples, flat, grid, counts)

    def _spanning(self, region: Region | None, workspace: Array, layout: Layout, channels: int) -> Array | None:
        """[groups, channels, span]; None where nothing is added."""
        if region is None:
            return None
        return grouped(region.of(workspace), layout, (), self._window.groups, channels, (self._phases.span,))


class _Phases:
    """How the padded input is cut into phases, and where in them each tap reads."""

    def __init__(self, window: Window) -> None:
        offsets = window.tap_offsets()
        places = [[divmod(step, stride) for step, stride in zip(o, window.stride, strict=True)] for o in offsets]
        numbers: dict[Shape, int] = {}
        for place in places:
            numbers.setdefault(tuple(phase for _, phase in place), len(numbers))
        self.rows = tuple(
            count + (extent - 1) // stride
            for count, extent, stride in zip(window.outputs, window.extents, window.stride, strict=True)
        )
        """Sizes of a phase."""
        steps = [prod(self.rows[axis + 1 :]) for axis in range(window.axes)]
        self.taps = [
            (
                numbers[tuple(phase for _, phase in place)],
                sum(row * step for (row, _), step in zip(place, steps, strict=True)),
            )
            for place in places
        ]
        """Of each tap, its phase and its offset there."""
        self.span = 1 + sum((count - 1) * step for count, step in zip(window.outputs, steps, strict=True))
        """From the first to the last output, both counted, in a phase."""
        self.wide = window.outputs[0] * steps[0]
        """Elements of an output whose rows are as long as a phase's."""
        self.size = len(numbers) * prod(self.rows)
        """Elements of all phases, for one channel."""
        self.overlaps = [
            overlap(
                window.sizes,
                self.rows,
                window.stride,
                tuple(first - low for first, low in zip(phase, window.low, strict=True)),
            )
            for phase in numbers
        ]
        """Of each phase, how it lies over the input."""


class _Phased:
    """The phases of one sample at a time, over an input."""

    def __init__(self, phases: _Phases, samples: Array, flat: Array, grid: Array | None) -> None:
        self._overlaps: list[Overlap] = phases.overlaps
        self._samples = samples
        """[batch, groups, channels, spatial…]"""
        self._flat = flat
        """[phases, groups, channels, elements], or with the batch before it if the input itself is the phase."""
        self._grid = grid
        """[phases, groups, channels, sizes of a phase…]; None if the input itself is the phase."""

    def clear(self) -> None:
        """Write the zeros of the padding. Once a run: loading does not touch them."""
        if self._grid is not None:
            for grid, over in zip(self._grid, self._overlaps, strict=True):
                for slab in over.outside:
                    at(grid, ..., *slab).fill(0)

    def load(self, sample: int) -> Array:
        """[phases, groups, channels, elements] of a sample."""
        if self._grid is None:
            return self._sample(sample)
        source = self._samples[sample]
        for grid, over in zip(self._grid, self._overlaps, strict=True):
            np.copyto(at(grid, ..., *over.grid), at(source, ..., *over.tensor))
        return self._flat

    def start(self, sample: int) -> Array:
        """The same, all zeros, to be summed up in."""
        pieces = self._sample(sample) if self._grid is None else self._flat
        pieces.fill(0)
        return pieces

    def save(self, sample: int) -> None:
        """Give the sums of a sample to the input. What no phase reaches is zero."""
        if self._grid is not None:
            target = self._samples[sample]
            target.fill(0)
            for grid, over in zip(self._grid, self._overlaps, strict=True):
                store(at(grid, ..., *over.grid), at(target, ..., *over.tensor))

    def _sample(self, sample: int) -> Array:
        return at(self._flat, sample)


class _Wide:
    """The output of one sample at a time, its rows as long as a phase's."""

    def __init__(self, samples: Array, flat: Array, grid: Array | None, counts: tuple[slice, ...]) -> None:
        self._samples = samples
        """[batch, groups, filters, outputs…]"""
        self._flat = flat
        """[groups, filters, elements], or with the batch before it if the rows of the output are as long."""
        self._grid = grid
        self._inside = None if grid is None else at(grid, ..., *counts)

    def clear(self) -> None:
        """Write the zeros between the rows. Once a run: loading does not touch them."""
        if self._grid is not None:
            self._grid.fill(0)

    def matrix(self, sample: int) -> Array:
        """[groups, filters, elements] of a sample, to be written."""
        return self._flat if self._inside is not None else self._flat[sample]

    def load(self, sample: int) -> Array:
        """The same, filled."""
        if self._inside is not None:
            np.copyto(self._inside, self._samples[sample])
        return self.matrix(sample)

    def save(self, sample: int) -> None:
        """Give the output of a sample to the tensor."""
        if self._inside is not None:
            store(self._inside, self._samples[sample])
