"""Single elements of a batch norm's results, from the definition, in float64: as `reference` for convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from typing import Final

import numpy as np

from algosearch.backends.cpu.arena import Array
from algosearch.backends.cpu.norm import EPSILON, MOMENTUM
from algosearch.backends.cpu.reference import Points, Verdict
from algosearch.ops import BatchNormOp

_SLACK: Final = 16.0


def norm_elements(
    op: BatchNormOp, tensors: Mapping[str, Array], name: str, points: Points, precision: float
) -> Verdict:
    """The right values of tensor `name` at `points`, as `reference.elements`.

    A gradient of a pair is that of what its forward pass left in `tensors`.

    What is allowed grows with mean² / variance, as it must for a kernel that folds: that much of its digits it loses.
    """
    op = op.pass_that_writes(name)
    case = _Case(op, tensors, points if op.output_shapes[name] != op.shape else _rows_of(op, points))
    case.error = _SLACK * precision * (4 + sqrt(case.count))
    if op.phase == "training_forward":
        return case.training(name, points)
    return case.inference(points) if op.phase == "inference" else case.backward(name, points)


def _rows_of(op: BatchNormOp, points: Points) -> Points:
    """For places in a tensor the size of the input: which statistic is theirs."""
    channels, positions = op.shape[1], prod(op.shape[2:])
    if op.statistics == "per_activation":
        return points % (channels * positions)
    return points % channels if op.layout == "channels_last" else points // positions % channels


class _Case:
    """Some rows of statistics, [points]."""

    def __init__(self, op: BatchNormOp, tensors: Mapping[str, Array], rows: Points) -> None:
        self._op = op
        self._tensors = tensors
        self._rows = rows
        self.error = 0.0
        self.count = op.shape[0] * (1 if op.statistics == "per_activation" else prod(op.shape[2:]))

    def training(self, name: str, points: Points) -> Verdict:
        """Statistics of the batch, and the output made with them."""
        values = self._taken_over("input")
        mean = values.mean(axis=1)
        variance = np.square(values - mean[:, None]).mean(axis=1)
        inverse = 1 / np.sqrt(variance + EPSILON)
        size = mean**2 + variance
        match name:
            case "saved_mean":
                return mean, self.error * np.sqrt(size)
            case "saved_inverse_deviation":
                return inverse, self.error * inverse * (1 + size / (variance + EPSILON))
            case "running_mean":
                found = (1 - MOMENTUM) * self._row("previous_mean") + MOMENTUM * mean
                return found, self.error * (1 + np.sqrt(size))
            case "running_variance":
                unbiased = variance * self.count / max(self.count - 1, 1)
                found = (1 - MOMENTUM) * self._row("previous_variance") + MOMENTUM * unbiased
                return found, self.error * (1 + 2 * size)
            case _:
                return self._output(points, mean, inverse, 1 + size / (variance + EPSILON))

    def inference(self, points: Points) -> Verdict:
        """The output made with the running statistics."""
        inverse = 1 / np.sqrt(self._row("running_variance") + EPSILON)
        return self._output(points, self._row("running_mean"), inverse, np.ones(len(points)))

    def _output(self, points: Points, mean: Array, inverse: Array, condition: Array) -> Verdict:
        values, scale, bias = self._at("input", points), self._row("scale"), self._row("bias")
        addend = self._at("addend", points) if self._op.fusion == "add_activation" else np.zeros(len(points))
        found = scale * (values - mean) * inverse + bias + addend
        if self._op.fusion != "none":
            found = np.maximum(found, 0)
        # All terms as if none of them cancelled, and what the error in the deviation makes of what is multiplied by it.
        size = np.abs(scale) * inverse * (np.abs(values) + np.abs(mean)) + np.abs(bias) + np.abs(addend)
        return found, self.error * (size + condition * np.abs(scale * (values - mean)) * inverse)

    def backward(self, name: str, points: Points) -> Verdict:
        """The gradients."""
        passed = self._taken_over("output_gradient")
        if self._op.fusion != "none":
            passed = np.where(self._taken_over("output") > 0, passed, 0.0)
        values = self._taken_over("input")
        mean, inverse = self._row("saved_mean"), self._row("saved_inverse_deviation")
        bias_gradient = passed.sum(axis=1)
        scale_gradient = (passed * (values - mean[:, None])).sum(axis=1) * inverse
        sums_error = self.error * sqrt(self.count)
        largest = inverse * (np.abs(mean) + np.abs(values).max(axis=1))
        match name:
            case "bias_gradient":
                return bias_gradient, np.full(len(points), sums_error)
            case "scale_gradient":
                return scale_gradient, sums_error * largest
        here = self._at("output_gradient", points)
        if self._op.fusion != "none":
            here = np.where(self._at("output", points) > 0, here, 0.0)
        if name == "addend_gradient":
            return here, np.zeros(len(points))
        factor = self._row("scale") * inverse
        normed = (self._at("input", points) - mean) * inverse
        found = factor * (here - bias_gradient / self.count - normed * scale_gradient / self.count)
        # Both sums with what is allowed for them, then all terms as if none of them cancelled.
        sums = np.abs(bias_gradient) + largest * np.abs(scale_gradient) + sqrt(self.count) * (1 + largest**2)
        return found, self.error * np.abs(factor) * (1 + sums / self.count)

    def _row(self, name: str) -> Array:
        """A tensor of one number a statistic."""
        return self._tensors[name][self._rows].astype(np.float64)

    def _at(self, name: str, points: Points) -> Array:
        return self._tensors[name][points].astype(np.float64)

    def _taken_over(self, name: str) -> Array:
        """[points, count]: what the statistic of each point is taken over."""
        tensor = self._tensors[name]
        batch, channels, *_ = self._op.shape
        if self._op.statistics == "per_activation":
            taken = tensor.reshape(batch, -1)[:, self._rows].T
        elif self._op.layout == "channels_last":
            taken = tensor.reshape(-1, channels)[:, self._rows].T
        else:
            taken = np.moveaxis(tensor.reshape(batch, channels, -1)[:, self._rows], 1, 0)
        return taken.reshape(len(self._rows), -1).astype(np.float64)
