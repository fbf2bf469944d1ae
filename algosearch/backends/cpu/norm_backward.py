"""The backward of batch norm, `centred` and `folded`: see `norm`, which has the formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from algosearch.backends.cpu.arena import Array, Run
from algosearch.backends.cpu.kernel import Tensors
from algosearch.backends.cpu.norm import FOLDED_NOTES, Form, Scratch
from algosearch.ops import BatchNormOp


class NormBackward:
    """The kernel."""

    def __init__(self, op: BatchNormOp, *, centred: bool) -> None:
        self._op = op
        self._centred = centred
        self._form = form = Form.of(op)
        self._scratch = scratch = Scratch(op, form, sums=2)
        fused = op.fusion != "none"
        self._block = scratch.block()
        self._gradient = scratch.block(fused or scratch.converted)
        self._mask = scratch.arena.take((form.block,), "bool") if fused else None
        self._rows = scratch.rows(6)
        self._narrow = scratch.rows(4, scratch.computed)
        self.workspace_bytes = scratch.arena.total_bytes
        self.notes = () if centred else FOLDED_NOTES
        passes = (13 if centred else 11) + (6 if fused else 0)
        self.cost = scratch.cost(passes)

    def bind(self, tensors: Tensors, workspace: Array) -> Run:
        """As the contract says."""
        scratch = self._scratch
        work = scratch.view(self._block, workspace)
        assert work is not None
        load = scratch.loader(tensors["input"], work)
        gradient = self._gradients(tensors, workspace)
        reduce = self._reduce(tensors, workspace, work, load, gradient)
        combine = self._combine(tensors, workspace)
        apply = self._apply(tensors, workspace, work, load, gradient)

        def run() -> None:
            reduce()
            combine()
            apply()

        return run

    def _gradients(self, tensors: Tensors, workspace: Array) -> Callable[[int], Array]:
        """What gives a block of the output's gradient, zero where the activation let nothing pass."""
        scratch, form = self._scratch, self._form
        copy = scratch.view(self._gradient, workspace)
        if self._mask is None:
            return scratch.loader(tensors["output_gradient"], copy)
        assert copy is not None
        gradients, outputs = form.view(tensors["output_gradient"]), form.view(tensors["output"])
        mask = form.view(self._mask.of(workspace))[0]

        def load(block: int) -> Array:
            np.greater(outputs[block], 0, out=mask)
            copy.fill(0)
            np.copyto(copy, gradients[block], where=mask)
            return copy

        return load

    def _reduce(
        self,
        tensors: Tensors,
        workspace: Array,
        work: Array,
        load: Callable[[int], Array],
        gradient: Callable[[int], Array],
    ) -> Run:
        """What sums up g, and g times the input or what is left of that without the mean."""
        form = self._form
        sums = self._scratch.summer(workspace)
        addends = form.view(tensors["addend_gradient"]) if self._op.fusion == "add_activation" else None
        bias_sum, scale_sum, wide_mean, *_ = self._rows.of(workspace)
        narrow = self._narrow.of(workspace)[0]
        mean = narrow[:, None]

        def run() -> None:
            sums.clear()
            np.copyto(wide_mean, tensors["saved_mean"])
            np.copyto(narrow, wide_mean, casting="same_kind")
            for block in range(form.blocks):
                passed = gradient(block)
                if addends is not None:
                    np.copyto(addends[block], passed, casting="same_kind")
                sums.take(0, block, passed)
                values = load(block)
                if self._centred:
                    np.subtract(values, mean, out=work)
                    values = work
                np.multiply(values, passed, out=work)
                sums.take(1, block, work)
            sums.give(0, bias_sum)
            sums.give(1, scale_sum)

        return run

    def _combine(self, tensors: Tensors, workspace: Array) -> Run:
        """What makes of the sums the parameters' gradients, and input_gradient = g · a + values · b + c."""
        count = self._form.count
        bias_sum, scale_sum, mean, inverse, factor, spare = self._rows.of(workspace)
        _, narrow_a, narrow_b, narrow_c = self._narrow.of(workspace)

        def run() -> None:
            np.copyto(inverse, tensors["saved_inverse_deviation"])
            if not self._centred:
                np.multiply(mean, bias_sum, out=spare)
                np.subtract(scale_sum, spare, out=scale_sum)
            np.multiply(scale_sum, inverse, out=scale_sum)
            np.copyto(tensors["bias_gradient"], bias_sum, casting="same_kind")
            np.copyto(tensors["scale_gradient"], scale_sum, casting="same_kind")
            np.copyto(factor, tensors["scale"])
            np.multiply(factor, inverse, out=factor)
            np.copyto(narrow_a, factor, casting="same_kind")
            np.divide(factor, -count, out=factor)
            np.multiply(bias_sum, factor, out=bias_sum)
            np.multiply(scale_sum, inverse, out=scale_sum)
            np.multiply(scale_sum, factor, out=scale_sum)
            np.copyto(narrow_b, scale_sum, casting="same_kind")
            if not self._centred:
                np.multiply(mean, scale_sum, out=spare)
                np.subtract(bias_sum, spare, out=bias_sum)
            np.copyto(narrow_c, bias_sum, casting="same_kind")

        return run

    def _apply(
        self,
        tensors: Tensors,
        workspace: Array,
        work: Array,
        load: Callable[[int], Array],
        gradient: Callable[[int], Array],
    ) -> Run:
        form = self._form
        targets = form.view(tensors["input_gradient"])
        mean, a, b, c = self._narrow.of(workspace)[:, :, None]

        def run() -> None:
            for block in range(form.blocks):
                passed = gradient(block)
                values = load(block)
                if self._centred:
                    np.subtract(values, mean, out=work)
                    values = work
                np.multiply(values, b, out=work)
                np.add(work, c, out=work)
                # The caller's own gradient is not ours to scale in place; the result has room for it.
                scaled = targets[block] if self._gradient is None else passed
                np.multiply(passed, a, out=scaled)
                if self._scratch.converted:
                    np.add(work, scaled, out=work)
                    np.copyto(targets[block], work, casting="same_kind")
                else:
                    np.add(work, scaled, out=targets[block])

        return run
