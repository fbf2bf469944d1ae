"""Is a plan's result right? Compared on the device with another plan's; where they differ, or there is no other, a few
elements with the definition, in float64 on the host."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from algosearch.backends.cudnn.buffers import Buffers, on_host
from algosearch.backends.cudnn.contents import Allowance
from algosearch.backends.cudnn.gpu import Gpu, Verdict
from algosearch.backends.cudnn.graph import GraphTensor
from algosearch.backends.cudnn.problem import RESERVE_UID, Problem
from algosearch.ops import ELEMENT_BYTES

_SAMPLED: Final = 24
"""Elements that are held against the definition where there is no other result."""
_SEED: Final = 2_718
MOST_READ_BYTES: Final = 1 << 28
"""Of the tensors that the definition needs. Beyond, it would take seconds, and is left out."""


class Judgement:
    """Of the result that a plan has just left in the buffers.

    Args:
        notes: the plan's.
        others: the notes of those whose result is the buffers' other one; None if there is no other.
    """

    def __init__(
        self, gpu: Gpu, problem: Problem, buffers: Buffers, notes: Collection[str], others: Collection[str] | None
    ) -> None:
        self._gpu = gpu
        self._problem = problem
        self._buffers = buffers
        self._notes = notes
        self._others = others
        self.differs = False
        """Whether it is not the other result; known when `what_is_wrong` has been asked."""
        self._on_host: dict[str, npt.NDArray[Any]] = {}
        """What was read, by name: a batch norm has up to nine results, most of them made of the same tensors, and to
        read one of 100 MB takes a tenth of a second. Nothing runs while a result is judged."""

    def what_is_wrong(self) -> str | None:
        """In words; None if nothing is, as far as can be told. Blocks."""
        for tensor in self._results:
            verdict = self._verdict(tensor)
            places = [] if verdict.worst is None else [verdict.worst]
            if self._others is None:
                places = sorted({*places, *_sampled(tensor)})
            self.differs = self.differs or verdict.worst is not None
            what = self._against_definition(tensor, places) if places else None
            if what is not None:
                return what
        return None

    def _verdict(self, tensor: GraphTensor) -> Verdict:
        """Where it differs from the other result, each being off as far as it may; or where it is no number."""
        other, allowance = self._buffers.address(tensor), Allowance(0.0, 0.0)
        if self._others is not None:
            other = self._buffers.copy_of(tensor)
            allowance = self._problem.allowance(tensor.name, {*self._notes, *self._others}).twice()
        return self._gpu.compare(
            self._buffers.address(tensor),
            other,
            tensor.element_type,
            _size(tensor),
            absolute=allowance.absolute,
            relative=allowance.relative,
        )

    def error(self) -> float | None:
        """How far what was left is from the definition, in float64, at a few places of each result: the largest
        distance, in parts of the largest right value there; of several results that of the worst. None where the
        definition would need too much of the device's memory. Blocks."""
        worst = 0.0
        for tensor in self._results:
            values = self._beside_definition(tensor, _sampled(tensor))
            if values is None:
                return None
            _, found, right = values
            worst = max(worst, float(np.max(np.abs(found - right)) / np.max(np.abs(right), initial=1e-300)))
        return worst

    @property
    def _results(self) -> list[GraphTensor]:
        """What is written and somebody's result."""
        return [tensor for tensor in self._buffers.written if tensor.uid != RESERVE_UID]

    def _against_definition(self, tensor: GraphTensor, places: list[int]) -> str | None:
        values = self._beside_definition(tensor, places)
        if values is None:
            return None
        allowance = self._problem.allowance(tensor.name, self._notes)
        for place, value, expected in zip(values[0], values[1].tolist(), values[2].tolist(), strict=True):
            margin = allowance.absolute + allowance.relative * abs(expected)
            if not abs(value - expected) <= margin:  # so that NaN is wrong
                return f"{tensor.name}[{place}] is {value:.6g}, and should be {expected:.6g} ± {margin:.1g}"
        return None

    def _beside_definition(
        self, tensor: GraphTensor, places: Sequence[int]
    ) -> tuple[Sequence[int], npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        """Some of these places, what was found there, and what should be; None if it takes too much to know."""
        wanted = self._problem.read_for(tensor.name)
        read = [each for each in self._buffers.tensors if each.name in wanted]
        if sum(each.bytes for each in read) > MOST_READ_BYTES:
            return None
        places = self._problem.near(tensor, places)
        size = ELEMENT_BYTES[tensor.element_type]
        raw = self._gpu.read([(self._buffers.address(tensor) + place * size, size) for place in places])
        found = on_host(b"".join(raw), tensor.element_type).astype(np.float64)
        return (
            places,
            found,
            self._problem.right(tensor.name, {each.name: self._contents(each) for each in read}, places),
        )

    def _contents(self, tensor: GraphTensor) -> npt.NDArray[Any]:
        found = self._on_host.get(tensor.name)
        if found is None:
            found = self._on_host[tensor.name] = self._buffers.contents(tensor)
        return found


def _sampled(tensor: GraphTensor) -> list[int]:
    """Some places of a tensor, its first and last among them."""
    size = _size(tensor)
    dice = np.random.default_rng(_SEED)
    return sorted({0, size - 1, *dice.integers(0, size, _SAMPLED).tolist()})


def _size(tensor: GraphTensor) -> int:
    return tensor.bytes // ELEMENT_BYTES[tensor.element_type]
