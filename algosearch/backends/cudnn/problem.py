"""`Problem`: an op as the lane sees it: its tensors, what is in them, and what its results should be. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from algosearch.backends.cpu.norm_reference import norm_elements
from algosearch.backends.cpu.reference import conv_elements
from algosearch.backends.cudnn.contents import (
    Allowance,
    Range,
    conv_allowance,
    conv_range,
    norm_allowance,
    norm_range,
)
from algosearch.backends.cudnn.convolution import convolution_tensors
from algosearch.backends.cudnn.graph import GraphTensor
from algosearch.backends.cudnn.legacy_norm import IN_PLACE
from algosearch.backends.cudnn.norm import UIDS, names_read, norm_tensors
from algosearch.ops import BatchNormOp, ConvOp, Op

Array = npt.NDArray[Any]

RESERVE_UID: Final = UIDS["reserve"]
_FEW_ROWS: Final = 3
"""Statistics that are held against the definition: each takes a pass over the input."""


class Problem(Protocol):
    """What a session asks of a kind of op."""

    tensors: tuple[GraphTensor, ...]
    """All that a run reads or writes."""
    copied: tuple[tuple[int, int], ...]
    """(from, to), by uid: what must be copied before a run whose result counts."""

    def range_of(self, name: str) -> Range:
        """What a tensor that is read is drawn from."""
        ...

    def allowance(self, name: str, notes: Collection[str]) -> Allowance:
        """How far from the right value a result may be, of candidates with these notes."""
        ...

    def near(self, tensor: GraphTensor, places: Sequence[int]) -> list[int]:
        """So many of these places that `right` need not take long."""
        ...

    def read_for(self, name: str) -> Collection[str]:
        """The tensors from which a result follows: of a pair's gradients, some that its forward pass wrote."""
        ...

    def right(self, name: str, tensors: Mapping[str, Array], places: Sequence[int]) -> Array:
        """The right values of a result at some places, in float64.

        Args:
            tensors: `read_for` it, each as one row in memory order.
        """
        ...


class ConvProblem:
    """A convolution."""

    copied: tuple[tuple[int, int], ...] = ()

    def __init__(self, op: ConvOp) -> None:
        self.tensors: tuple[GraphTensor, ...] = convolution_tensors(op)
        self._op = op

    def range_of(self, name: str) -> Range:
        """As `Problem` says."""
        return conv_range(self._op)

    def allowance(self, name: str, notes: Collection[str]) -> Allowance:
        """As `Problem` says."""
        return conv_allowance(self._op, notes)

    def near(self, tensor: GraphTensor, places: Sequence[int]) -> list[int]:
        """As `Problem` says."""
        return list(places)

    def read_for(self, name: str) -> Collection[str]:
        """As `Problem` says."""
        return [tensor.name for tensor in self.tensors if not tensor.written]

    def right(self, name: str, tensors: Mapping[str, Array], places: Sequence[int]) -> Array:
        """As `Problem` says."""
        values, _ = conv_elements(self._op, tensors, np.array(places, np.intp), 0.0)
        return values


class NormProblem:
    """A batch norm.

    Of a pair every result of both passes counts. The reserve between them is written as they are, so that it is spoilt
    before a check and has guards; but it is nobody's result: each mode has its own idea of what is in it, and what it
    is good for shows in the gradients.

    Args:
        reserve_bytes: the largest among the plans.
    """

    def __init__(self, op: BatchNormOp, reserve_bytes: int) -> None:
        tensors = list(norm_tensors(op))
        if reserve_bytes:
            tensors.append(_reserve(reserve_bytes))
        self.tensors: tuple[GraphTensor, ...] = tuple(tensors)
        self.copied: tuple[tuple[int, int], ...] = IN_PLACE if op.phase in ("training_forward", "training") else ()
        self._op = op

    def range_of(self, name: str) -> Range:
        """As `Problem` says."""
        return norm_range(self._op, name)

    def allowance(self, name: str, notes: Collection[str]) -> Allowance:
        """As `Problem` says."""
        return norm_allowance(self._op, name)

    def near(self, tensor: GraphTensor, places: Sequence[int]) -> list[int]:
        """As `Problem` says."""
        op = self._op
        row_of = {place: _row_of(op, tensor, place) for place in places}
        few = list(dict.fromkeys(row_of.values()))[:_FEW_ROWS]
        return [place for place in places if row_of[place] in few]

    def read_for(self, name: str) -> Collection[str]:
        """As `Problem` says."""
        return tuple(names_read(self._op.pass_that_writes(name)))

    def right(self, name: str, tensors: Mapping[str, Array], places: Sequence[int]) -> Array:
        """As `Problem` says."""
        values, _ = norm_elements(self._op, tensors, name, np.array(places, np.intp), 0.0)
        return values


def problem_of(op: Op, reserve_bytes: int = 0) -> Problem:
    """An op as a problem; `reserve_bytes` is the largest of the plans that will run."""
    return ConvProblem(op) if isinstance(op, ConvOp) else NormProblem(op, reserve_bytes)


def _reserve(size_bytes: int) -> GraphTensor:
    return GraphTensor(
        uid=RESERVE_UID,
        name="reserve",
        shape=(size_bytes,),
        strides=(1,),
        element_type="int8",
        bytes=size_bytes,
        written=True,
    )


def _row_of(op: BatchNormOp, tensor: GraphTensor, place: int) -> int:
    """Which statistic a place of a result belongs to."""
    channels = op.shape[1]
    if op.statistics == "per_activation" or tensor.shape != op.shape:
        return place % int(np.prod(op.shape[1:])) if op.statistics == "per_activation" else place
    positions = int(np.prod(op.shape[2:]))
    return place % channels if op.layout == "channels_last" else place // positions % channels
