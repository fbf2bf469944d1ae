"""Batch norm, in two ways.

`centred` takes the mean off before anything else, which costs a pass more over the input. `folded` sums raw values and
their squares in one pass, and makes of the rest one multiplication and one addition an element. What that gains it
loses in digits where the mean is large against the deviation, for then the two nearly cancel: its note is
`range_limited`.

    training_forward   output = relu(scale · x̂ + bias + addend), with x̂ = (input - mean) · inverse deviation
    inference          the same, with the running statistics
    backward           of M elements, with g = output_gradient where output > 0:
                       bias_gradient = Σ g, scale_gradient = Σ g x̂, addend_gradient = g,
                       input_gradient = scale · inverse deviation · (g - bias_gradient / M - x̂ · scale_gradient / M)

The inverse deviation is that of the biased variance plus `EPSILON`. The running variance takes the unbiased one, which
of a single element is zero here. A fused backward sees in the forward's output where the activation let it pass, so
that this backend's reserve is empty.

A sum over a sample is a product with ones, in the type that is computed in; sums over samples, and all that is done
once a channel, are in float64. Temporaries are a sample or two, and some rows of one number a channel.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

import msgspec
import numpy as np

from algosearch.backends.cpu.arena import Arena, Array, Region, Run
from algosearch.backends.cpu.kernel import Cost, Tensors
from algosearch.ops import ELEMENT_BYTES, BatchNormOp, Layout

EPSILON: Final = 1e-5
MOMENTUM: Final = 0.1
"""The share of a batch in the running statistics. Neither number changes what a run costs, so no op has them."""

FOLDED_NOTES: Final = ("range_limited",)


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor as [blocks, channels, elements], statistics taken over blocks and elements."""

    blocks: int
    channels: int
    elements: int
    layout: Layout

    @classmethod
    def of(cls, op: BatchNormOp) -> Form:
        """The form of an op's tensors."""
        batch, channels, *spatial = op.shape
        points = prod(spatial)
        if op.statistics == "per_activation" or points == 1:
            return cls(blocks=1, channels=channels * points, elements=batch, layout="channels_last")
        return cls(blocks=batch, channels=channels, elements=points, layout=op.layout)

    @property
    def block(self) -> int:
        """Numbers in a block."""
        return self.channels * self.elements

    @property
    def count(self) -> int:
        """Numbers that a statistic is taken over."""
        return self.blocks * self.elements

    def view(self, memory: Array) -> Array:
        """Dense memory of some blocks as [blocks, channels, elements]."""
        if self.layout == "channels_first":
            return memory.reshape(-1, self.channels, self.elements)
        return memory.reshape(-1, self.elements, self.channels).transpose(0, 2, 1)


class Scratch:
    """The temporaries that both directions have, and what is done with them."""

    def __init__(self, op: BatchNormOp, form: Form, *, sums: int) -> None:
        self.form = form
        self.computed = "float64" if op.data_type == "float64" else "float32"
        self.converted = op.data_type != self.computed
        self.arena = arena = Arena()
        self._ones = arena.take((form.elements,), self.computed) if sums else None
        partial = (form.blocks, form.channels)
        self._partials = [arena.take(partial, self.computed) for _ in range(sums)]
        self._wide = arena.take(partial, "float64") if sums and self.computed != "float64" else None

    def block(self, needed: bool = True) -> Region | None:
        """Room for one block."""
        return self.arena.take((self.form.block,), self.computed) if needed else None

    def rows(self, count: int, data_type: str = "float64") -> Region:
        """Room for so many rows of a number a channel."""
        return self.arena.take((count, self.form.channels), data_type)

    def cost(self, passes: int) -> Cost:
        """Of reading or writing a tensor so many times."""
        moved = passes * self.form.blocks * self.form.block
        return Cost(moved_bytes=moved * ELEMENT_BYTES[self.computed], calls=passes * self.form.blocks)

    def view(self, region: Region | None, workspace: Array) -> Array | None:
        """A block as [channels, elements]."""
        if region is None:
            return None
        view: Array = self.form.view(region.of(workspace))[0]
        return view

    def loader(self, tensor: Array, copy: Array | None) -> Callable[[int], Array]:
        """What gives a block of a tensor in the type that is computed in: itself, or through `copy`."""
        blocks = self.form.view(tensor)
        if not self.converted:
            return lambda block: blocks[block]
        assert copy is not None

        def load(block: int) -> Array:
            np.copyto(copy, blocks[block])
            return copy

        return load

    def summer(self, workspace: Array) -> Sums:
        """What sums blocks up."""
        assert self._ones is not None
        wide = None if self._wide is None else self._wide.of(workspace)
        return Sums(self._ones.of(workspace), [partial.of(workspace) for partial in self._partials], wide)


class Sums:
    """Sums over the blocks, one number a channel."""

    def __init__(self, ones: Array, partials: list[Array], wide: Array | None) -> None:
        self._ones = ones
        self._partials = partials
        self._wide = wide

    def clear(self) -> None:
        """Once a run, before the first."""
        self._ones.fill(1)

    def take(self, number: int, block: int, values: Array) -> None:
        """Sum up a block, [channels, elements], for sum `number`."""
        np.matmul(values, self._ones, out=self._partials[number][block])

    def give(self, number: int, out: Array) -> None:
        """Sum `number` over all blocks, in float64."""
        wide = self._partials[number]
        if self._wide is not None:
            np.copyto(self._wide, wide)
            wide = self._wide
        np.add.reduce(wide, axis=0, out=out)


class NormForward:
    """Training forward and inference."""

    def __init__(self, op: BatchNormOp, *, centred: bool) -> None:
        self._op = op
        self._centred = centred
        self._form = form = Form.of(op)
        training = op.phase == "training_forward"
        self._scratch = scratch = Scratch(op, form, sums=(1 if centred else 2) if training else 0)
        self._block = scratch.block(training or scratch.converted)
        self._addend = scratch.block(op.fusion == "add_activation" and scratch.converted)
        self._rows = scratch.rows(6)
        self._narrow = scratch.rows(3, scratch.computed)
        self.workspace_bytes = scratch.arena.total_bytes
        self.notes = () if centred else FOLDED_NOTES
        passes = (8 if centred else 6) if training else (5 if centred else 4)
        self.cost = scratch.cost(passes)

    def bind(self, tensors: Tensors, workspace: Array) -> Run:
        """As the contract says."""
        statistics = (
            self._measured(tensors, workspace)
            if self._op.phase == "training_forward"
            else self._remembered(tensors, workspace)
        )
        apply = self._apply(tensors, workspace)
        mean, _variance, inverse, scale, bias, spare = self._rows.of(workspace)
        narrow = self._narrow.of(workspace)

        def run() -> None:
            statistics()
            np.copyto(scale, tensors["scale"])
            np.copyto(bias, tensors["bias"])
            np.multiply(scale, inverse, out=scale)
            if not self._centred:
                np.multiply(mean, scale, out=spare)
                np.subtract(bias, spare, out=bias)
            for row, wide in zip(narrow, (mean, scale, bias), strict=True):
                np.copyto(row, wide, casting="same_kind")
            apply()

        return run

    def _apply(self, tensors: Tensors, workspace: Array) -> Run:
        """What writes the output from the mean, the scale and the bias in the narrow rows."""
        scratch, form = self._scratch, self._form
        block_copy = scratch.view(self._block, workspace)
        load = scratch.loader(tensors["input"], block_copy)
        adds = self._op.fusion == "add_activation"
        load_addend = scratch.loader(tensors["addend"], scratch.view(self._addend, workspace)) if adds else None
        outputs = form.view(tensors["output"])
        mean, scale, bias = self._narrow.of(workspace)[:, :, None]

        def run() -> None:
            for block in range(form.blocks):
                values = load(block)
                target = values if scratch.converted else outputs[block]
                if self._centred:
                    np.subtract(values, mean, out=target)
                    values = target
                np.multiply(values, scale, out=target)
                np.add(target, bias, out=target)
                if load_addend is not None:
                    np.add(target, load_addend(block), out=target)
                if self._op.fusion != "none":
                    np.maximum(target, 0, out=target)
                if scratch.converted:
                    np.copyto(outputs[block], target, casting="same_kind")

        return run

    def _remembered(self, tensors: Tensors, workspace: Array) -> Run:
        mean, variance, inverse, *_ = self._rows.of(workspace)

        def run() -> None:
            np.copyto(mean, tensors["running_mean"])
            np.copyto(variance, tensors["running_variance"])
            inverse_deviation(variance, inverse)

        return run

    def _measured(self, tensors: Tensors, workspace: Array) -> Run:
        """What takes the statistics of the input, and writes them where the caller wants them."""
        moments = self._moments(tensors, workspace)
        mean, variance, inverse, _scale, _bias, spare = self._rows.of(workspace)
        unbiased = MOMENTUM * self._form.count / max(self._form.count - 1, 1)

        def run() -> None:
            moments()
            inverse_deviation(variance, inverse)
            np.copyto(tensors["saved_mean"], mean, casting="same_kind")
            np.copyto(tensors["saved_inverse_deviation"], inverse, casting="same_kind")
            for name, found, share in (("mean", mean, MOMENTUM), ("variance", variance, unbiased)):
                running = tensors[f"running_{name}"]
                np.copyto(running, tensors[f"previous_{name}"])
                np.multiply(running, 1 - MOMENTUM, out=running)
                np.multiply(found, share, out=spare)
                narrow = self._narrow.of(workspace)[0]
                np.copyto(narrow, spare, casting="same_kind")
                np.add(running, narrow, out=running)

        return run

    def _moments(self, tensors: Tensors, workspace: Array) -> Run:
        scratch, form = self._scratch, self._form
        work = scratch.view(self._block, workspace)
        assert work is not None
        load = scratch.loader(tensors["input"], work)
        sums = scratch.summer(workspace)
        mean, variance, _inverse, _scale, _bias, spare = self._rows.of(workspace)
        narrow = self._narrow.of(workspace)[0]
        column = narrow[:, None]

        def centred() -> None:
            sums.clear()
            for block in range(form.blocks):
                sums.take(0, block, load(block))
            sums.give(0, mean)
            np.divide(mean, form.count, out=mean)
            np.copyto(narrow, mean, casting="same_kind")
            for block in range(form.blocks):
                np.subtract(load(block), column, out=work)
                np.multiply(work, work, out=work)
                sums.take(0, block, work)
            sums.give(0, variance)
            np.divide(variance, form.count, out=variance)

        def folded() -> None:
            sums.clear()
            for block in range(form.blocks):
                values = load(block)
                sums.take(0, block, values)
                np.multiply(values, values, out=work)
                sums.take(1, block, work)
            sums.give(0, mean)
            sums.give(1, variance)
            np.divide(mean, form.count, out=mean)
            np.divide(variance, form.count, out=variance)
            np.multiply(mean, mean, out=spare)
            np.subtract(variance, spare, out=variance)
            np.maximum(variance, 0, out=variance)

        return centred if self._centred else folded


def inverse_deviation(variance: Array, out: Array) -> None:
    """1 / √(variance + EPSILON), in float64."""
    np.add(variance, EPSILON, out=out)
    np.sqrt(out, out=out)
    np.divide(1.0, out, out=out)
