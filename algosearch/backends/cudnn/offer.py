"""`Offer`: what the library has for an op, as the prepare thread sees it: a listing, and plans of what is listed."""

from __future__ import annotations

from typing import Protocol

import msgspec

from algosearch.backends.cudnn.candidates import engine_of, legacy_mode_of, listing, norm_listing, pair_listing
from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.legacy_norm import LegacyNorm
from algosearch.backends.cudnn.norm_graph import NormGraph, can_be_a_graph
from algosearch.backends.cudnn.norm_pair import PairPlan
from algosearch.backends.cudnn.plan import Runnable
from algosearch.backends.cudnn.status import CudnnError
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import Failure, Listing


class Made(msgspec.Struct, frozen=True):
    """A runnable candidate."""

    plan: Runnable
    is_legacy: bool = False
    """Whether it is a mode of the legacy API, which updates running statistics in place."""

    def destroy(self) -> None:
        """Give it back; in the lane."""
        self.plan.destroy()


class Offer(Protocol):
    """One op's. Owned by the prepare thread."""

    def listing(self, width: int | None) -> Listing:
        """As `Session.enumerate`."""
        ...

    def make(self, algorithm: str) -> Made | Failure:
        """A plan of a listed algorithm.

        Raises:
            InvalidAlgorithm: it is none of this library's.
        """
        ...

    def destroy(self) -> None:
        """Give it back. Harmless if done twice."""
        ...


def offer_of(handle: Handle, op: Op) -> Offer | None:
    """What the library has for a canonical op; None if it does no such thing.

    Raises:
        CudnnError: it cannot be asked.
    """
    try:
        if isinstance(op, ConvOp):
            return _ConvOffer(handle, op)
        return _PairOffer(handle, op) if op.phase == "training" else _NormOffer(handle, op)
    except CudnnError as error:
        if error.fault != "candidate":
            raise
        return None


class _ConvOffer:
    def __init__(self, handle: Handle, op: ConvOp) -> None:
        self._op = op
        self._graph = ConvolutionGraph(handle, op)

    def listing(self, width: int | None) -> Listing:
        return listing(self._graph, self._op, width)

    def make(self, algorithm: str) -> Made | Failure:
        plan = self._graph.build(*engine_of(algorithm))
        return plan if isinstance(plan, Failure) else Made(plan)

    def destroy(self) -> None:
        self._graph.destroy()


class _NormOffer:
    """One pass."""

    def __init__(self, handle: Handle, op: BatchNormOp) -> None:
        self._op = op
        self._legacy = LegacyNorm(handle, op)
        self._graph = _graph_of(handle, op)

    def listing(self, width: int | None) -> Listing:
        return norm_listing(self._legacy, self._graph, width)

    def make(self, algorithm: str) -> Made | Failure:
        mode = legacy_mode_of(algorithm)
        if mode is None:
            if self._graph is None:
                return Failure("not_supported", f"no {algorithm} for {self._op.describe()}")
            compiled = self._graph.build(*engine_of(algorithm))
            return compiled if isinstance(compiled, Failure) else Made(compiled)
        plan = self._legacy.build(mode)
        return plan if isinstance(plan, Failure) else Made(plan, is_legacy=True)

    def destroy(self) -> None:
        if self._graph is not None:
            self._graph.destroy()


class _PairOffer:
    """Both passes of a fused batch norm. The backward one reads what the forward one of the same mode wrote, so that
    only modes are offered which do both."""

    def __init__(self, handle: Handle, op: BatchNormOp) -> None:
        self._op, self._handle = op, handle
        self._forward, self._backward = (LegacyNorm(handle, each) for each in op.passes)

    def listing(self, width: int | None) -> Listing:
        return pair_listing(self._forward, self._backward)

    def make(self, algorithm: str) -> Made | Failure:
        mode = legacy_mode_of(algorithm)
        if mode is None:
            return Failure("not_supported", f"no {algorithm} for {self._op.describe()}")
        forward = self._forward.build(mode)
        if isinstance(forward, Failure):
            return forward
        backward = self._backward.build(mode)
        if isinstance(backward, Failure):
            forward.destroy()
            return backward
        return Made(PairPlan(self._handle, forward, backward), is_legacy=True)

    def destroy(self) -> None:
        """Nothing is kept but sizes."""


def _graph_of(handle: Handle, op: BatchNormOp) -> NormGraph | None:
    if not can_be_a_graph(op):
        return None
    try:
        return NormGraph(handle, op)
    except CudnnError as error:
        if error.fault != "candidate":
            raise
        return None
