"""im2col: a convolution as one matrix product over *columns*, the input copied once for each tap that reads it.

    forward           output = filter × columns(input)
    backward_data     input  = sum of columns(filterᵀ × output), added back to where each column came from
    backward_filter   filter = output × columns(input)ᵀ, summed over the samples

`samples` at a time go into one product: one needs the least workspace, all of them make the widest matrices.

The columns lie as the input does (its rows are copied as rows), and their rows are ordered as the filter's elements
are, so that no filter is ever rearranged. With filters of one tap, and neither stride, padding nor conversion, the
columns *are* the input, and nothing is copied.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np

from algosearch.backends.cpu.arena import Arena, Array, Region, Run, at
from algosearch.backends.cpu.kernel import Cost, Tensors, compute_type, contract, product_flops, store
from algosearch.backends.cpu.window import Window, grouped, overlap, stacked, unstacked
from algosearch.ops import ELEMENT_BYTES, ConvOp, Layout, Shape


class Im2col:
    """The kernel, `samples` (which divide the batch) at a time."""

    notes: Final = ()

    def __init__(self, op: ConvOp, samples: int) -> None:
        self._direction = op.direction
        self._window = window = Window.of(op)
        self._chunks, rest = divmod(window.batch, samples)
        assert rest == 0, f"{samples} samples do not divide a batch of {window.batch}"
        computed = compute_type(op)
        converted = op.input_type != computed
        arena = Arena()
        self._columns = _Columns(op, window, samples, computed, arena)
        self._output = _Matrices(
            op.output_layout, op.output_type, computed, (samples, window.groups, window.filters, *window.outputs), arena
        )
        filter_size = window.groups * window.filters * window.channels * window.tap_count
        input_size = samples * window.groups * window.channels * prod(window.sizes)
        self._filter: Region | None = arena.take((filter_size,), computed) if converted else None
        self._addend: Region | None = None
        self._result: Region | None = None
        if op.direction == "backward_filter" and self._chunks > 1:
            self._addend = arena.take((filter_size,), computed)
        if op.direction == "backward_data" and converted and not self._columns.is_tensor:
            self._result = arena.take((input_size,), computed)
        self.workspace_bytes = arena.total_bytes
        self.cost = self._cost(op, ELEMENT_BYTES[computed], 2 * filter_size if converted else 0)

    def _cost(self, op: ConvOp, element_bytes: int, converted: int) -> Cost:
        window = self._window
        copied = self._columns.size * self._chunks
        passes, slower = (3, 2) if op.direction == "backward_data" else (2, 1)
        rows, points = window.channels * window.tap_count, window.batch * window.positions // self._chunks
        return Cost(
            flops=product_flops(op.flops, window.filters, rows, points),
            moved_bytes=element_bytes * (passes * copied + 2 * self._output.size * self._chunks + converted),
            pieces=slower * copied / self._columns.run,
            calls=self._chunks * (window.tap_count * (copied > 0) + 2),
        )

    def bind(self, tensors: Tensors, workspace: Array) -> Run:
        """As the contract says."""
        match self._direction:
            case "forward":
                return self._forward(tensors, workspace)
            case "backward_data":
                return self._backward_data(tensors, workspace)
            case "backward_filter":
                return self._backward_filter(tensors, workspace)

    def _forward(self, tensors: Tensors, workspace: Array) -> Run:
        columns = self._columns.bind(tensors["input"], workspace)
        output = self._output.bind(tensors["output"], workspace)
        source = tensors["filter"]
        filters = source if self._filter is None else self._filter.of(workspace)
        matrix = self._filter_matrix(filters)

        def run() -> None:
            if filters is not source:
                np.copyto(filters, source)
            columns.clear()
            for chunk in range(self._chunks):
                columns.gather(chunk)
                contract(matrix, columns.matrices[chunk], output.matrices[chunk])
                output.save(chunk)

        return run

    def _backward_data(self, tensors: Tensors, workspace: Array) -> Run:
        result = None if self._result is None else self._result.of(workspace)
        columns = self._columns.bind(tensors["input"], workspace, result)
        output = self._output.bind(tensors["output"], workspace)
        source = tensors["filter"]
        filters = source if self._filter is None else self._filter.of(workspace)
        matrix = self._filter_matrix(filters).swapaxes(-1, -2)

        def run() -> None:
            if filters is not source:
                np.copyto(filters, source)
            for chunk in range(self._chunks):
                output.load(chunk)
                contract(matrix, output.matrices[chunk], columns.matrices[chunk])
                columns.scatter(chunk)

        return run

    def _backward_filter(self, tensors: Tensors, workspace: Array) -> Run:
        columns = self._columns.bind(tensors["input"], workspace)
        output = self._output.bind(tensors["output"], workspace)
        target = tensors["filter"]
        filters = target if self._filter is None else self._filter.of(workspace)
        total = self._filter_matrix(filters)
        addend = total if self._addend is None else self._filter_matrix(self._addend.of(workspace))
        transposed = [matrix.swapaxes(-1, -2) for matrix in columns.matrices]

        def run() -> None:
            columns.clear()
            for chunk in range(self._chunks):
                output.load(chunk)
                columns.gather(chunk)
                contract(output.matrices[chunk], transposed[chunk], addend if chunk else total)
                if chunk:
                    np.add(total, addend, out=total)
            if filters is not target:
                store(filters, target)

        return run

    def _filter_matrix(self, memory: Array) -> Array:
        """[groups, filters, rows of the columns]."""
        window = self._window
        return memory.reshape(window.groups, window.filters, window.channels * window.tap_count)


class _Matrices:
    """A tensor, some samples at a time, as a matrix for each group.

    It is its own matrix if it needs no conversion and its samples lie in one row of a matrix; else there is a copy.
    """

    def __init__(self, layout: Layout, data_type: str, computed: str, shape: Shape, arena: Arena) -> None:
        """`shape` is [samples, groups, channels, spatial…] of a chunk."""
        self._layout = layout
        self._shape = shape
        is_tensor = data_type == computed and (shape[0] == 1 or layout == "channels_last")
        self._copy = None if is_tensor else arena.take((prod(shape),), computed)
        self.size = 0 if is_tensor else prod(shape)
        """Elements that are copied for a chunk."""

    def bind(self, tensor: Array, workspace: Array) -> _BoundMatrices:
        samples, groups, channels, *spatial = self._shape
        chunks = tensor.reshape(-1, prod(self._shape))
        if self._copy is None:
            matrices = [stacked(c, self._layout, samples, groups, channels, tuple(spatial)) for c in chunks]
            return _BoundMatrices(matrices, None, chunks)
        copy = self._copy.of(workspace)
        matrix = stacked(copy, self._layout, samples, groups, channels, tuple(spatial))
        grid = unstacked(copy, self._layout, samples, groups, channels, tuple(spatial))
        lead = (len(chunks), samples)
        return _BoundMatrices(
            [matrix] * len(chunks),
            grid,
            grouped(tensor, self._layout, lead, groups, channels, tuple(spatial)),
        )


class _BoundMatrices:
    """`_Matrices` over a tensor: a matrix for each chunk."""

    __slots__ = ("_chunks", "_copy", "matrices")

    def __init__(self, matrices: list[Array], copy: Array | None, chunks: Array) -> None:
        self.matrices = matrices
        self._copy = copy
        self._chunks = chunks

    def load(self, chunk: int) -> None:
        """Fill the matrix, if it is a copy."""
        if self._copy is not None:
            np.copyto(self._copy, self._chunks[chunk])

    def save(self, chunk: int) -> None:
        """Give the matrix back to the tensor, if it is a copy."""
        if self._copy is not None:
            store(self._copy, self._chunks[chunk])


class _Columns:
    """The columns of some samples of the input."""

    def __init__(self, op: ConvOp, window: Window, samples: int, computed: str, arena: Arena) -> None:
        self._window = window
        self._samples = samples
        self._layout: Layout = op.input_layout
        self._by_channel = op.filter_layout == "channels_first"
        self.is_tensor = (
            set(window.taps) == {1}
            and window.is_plain
            and op.input_type == computed
            and (samples == 1 or op.input_layout == "channels_last")
        )
        """True if the columns are the input itself."""
        size = samples * window.groups * window.channels * window.tap_count * window.positions
        self._region = None if self.is_tensor else arena.take((size,), computed)
        self.size = 0 if self.is_tensor else size
        """Elements that are copied for a chunk."""
        self.run = window.channels if self._layout == "channels_last" else window.outputs[-1]
        """Of so many elements without a gap."""
        if self._layout == "channels_last" and self._by_channel and window.tap_count > 1:
            self.run = 1

    def bind(self, tensor: Array, workspace: Array, result: Array | None = None) -> _BoundColumns:
        """Over the input. With `result`, what is scattered is summed up there, then stored in `tensor`."""
        window, samples = self._window, self._samples
        shape = (samples, window.groups, window.channels, window.sizes)
        size = samples * window.groups * window.channels * prod(window.sizes)
        chunks = tensor.reshape(-1, size)
        if self._region is None:
            return _BoundColumns([stacked(chunk, self._layout, *shape) for chunk in chunks])
        memory = self._region.of(workspace)
        bound = _BoundColumns([self._matrix(memory)] * len(chunks))
        bound.chunks = grouped(tensor, self._layout, (len(chunks), samples), *shape[1:])
        if result is not None:
            bound.result = grouped(result, self._layout, (samples,), *shape[1:])
        grid = self._grid(memory)
        for tap, offset in enumerate(window.tap_offsets()):
            shifts = tuple(step - low for step, low in zip(offset, window.low, strict=True))
            over = overlap(window.sizes, window.outputs, window.stride, shifts)
            bound.outside += [at(grid, tap, ..., *slab) for slab in over.outside]
            if all(part.start < part.stop for part in over.grid):
                bound.pairs.append((at(grid, tap, ..., *over.grid), (..., *over.tensor)))
        return bound

    def _matrix(self, memory: Array) -> Array:
        """[groups, rows, samples * outputs]."""
        window = self._window
        rows, points = window.channels * window.tap_count, self._samples * window.positions
        if self._layout == "channels_first":
            return memory.reshape(window.groups, rows, points)
        return memory.reshape(points, window.groups, rows).transpose(1, 2, 0)

    def _grid(self, memory: Array) -> Array:
        """[taps, samples, groups, channels, outputs…]."""
        window = self._window
        counts = (window.channels, window.tap_count) if self._by_channel else (window.tap_count, window.channels)
        channel, tap = (1, 2) if self._by_channel else (2, 1)
        if self._layout == "channels_first":
            view = memory.reshape(window.groups, *counts, self._samples, *window.outputs)
            return view.transpose(tap, 3, 0, channel, *range(4, view.ndim))
        view = memory.reshape(self._samples, *window.outputs, window.groups, *counts)
        group = 1 + window.axes
        return view.transpose(group + tap, 0, group, group + channel, *range(1, group))


class _BoundColumns:
    """`_Columns` over an input: a matrix for each chunk, all the same one if they are a copy."""

    __slots__ = ("chunks", "matrices", "outside", "pairs", "result")

    def __init__(self, matrices: list[Array]) -> None:
        self.matrices = matrices
        self.chunks: Array | None = None
        """[chunks, samples, groups, channels, spatial…] of the input; None if that is the columns."""
        self.result: Array | None = None
        self.outside: list[Array] = []
        self.pairs: list[tuple[Array, Any]] = []
        """For each tap, its columns, and the place in the input that they are of."""

    def clear(self) -> None:
        """Write the zeros of the padding. Once a run: gathering does not touch them."""
        for slab in self.outside:
            slab.fill(0)

    def gather(self, chunk: int) -> None:
        """Copy the input of a chunk to its columns."""
        if self.chunks is not None:
            source = self.chunks[chunk]
            for columns, place in self.pairs:
                np.copyto(columns, source[place])

    def scatter(self, chunk: int) -> None:
        """Sum the columns up to the input of a chunk."""
        if self.chunks is None:
            return
        target = self.chunks[chunk] if self.result is None else self.result
        target.fill(0)
        for columns, place in self.pairs:
            summed = target[place]
            np.add(summed, columns, out=summed)
        if self.result is not None:
            store(self.result, self.chunks[chunk])
