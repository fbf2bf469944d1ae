"""`Offer`: what the library has for an op, as a thread that builds sees it: a listing, and plans of what is listed."""

from __future__ import annotations

from typing import Protocol

import msgspec

from algosearch.backends.cudnn.candidates import (
    engine_of,
    legacy_mode_of,
    listing,
    norm_listing,
    padded_candidates,
    pair_listing,
    without_padding,
)
from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.gpu import CopiesRows, CudaFault
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.legacy_norm import LegacyNorm
from algosearch.backends.cudnn.norm_graph import NormGraph, can_be_a_graph
from algosearch.backends.cudnn.norm_pair import PairPlan
from algosearch.backends.cudnn.padded_plan import PaddedPlan
from algosearch.backends.cudnn.padding import Padding, padded_to, worthwhile
from algosearch.backends.cudnn.plan import Runnable
from algosearch.backends.cudnn.status import CudnnError
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import Candidate, Failure, Listing


class Made(msgspec.Struct, frozen=True):
    """A runnable candidate."""

    plan: Runnable
    is_legacy: bool = False
    """Whether it is a mode of the legacy API, which updates running statistics in place."""

    def destroy(self) -> None:
        """Give it back; in the lane."""
        self.plan.destroy()


class Offer(Protocol):
    """One op's. Its thread's alone: see `offers`."""

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


def offer_of(handle: Handle, op: Op, copier: CopiesRows) -> Offer | None:
    """What the library has for a canonical op; None if it does no such thing.

    Args:
        copier: of the device on which its plans will run.

    Raises:
        CudnnError: it cannot be asked.
    """
    try:
        if isinstance(op, ConvOp):
            return _ConvOffer(handle, op, copier)
        return _PairOffer(handle, op) if op.phase == "training" else _NormOffer(handle, op)
    except CudnnError as error:
        if error.fault != "candidate":
            raise
        return None


class _ConvOffer:
    """With the padded op's candidates among its own."""

    def __init__(self, handle: Handle, op: ConvOp, copier: CopiesRows) -> None:
        self._handle, self._op, self._copier = handle, op, copier
        self._graph = ConvolutionGraph(handle, op)
        self._padded: dict[int, _PaddedOffer | None] = {}
        """By the multiple that channels are padded to; None where the library does no such thing."""

    def listing(self, width: int | None) -> Listing:
        padding = worthwhile(self._op)
        padded = None if padding is None else self._padded_to(padding.multiple)
        return listing(self._graph, self._op, width, padded=() if padded is None else padded.candidates())

    def make(self, algorithm: str) -> Made | Failure:
        name, multiple = without_padding(algorithm)
        if multiple is None:
            plan = self._graph.build(*engine_of(name))
            return plan if isinstance(plan, Failure) else Made(plan)
        padded = self._padded_to(multiple)
        if padded is None:
            return Failure("not_supported", f"no {algorithm} for {self._op.describe()}")
        return padded.make(name)

    def destroy(self) -> None:
        for padded in self._padded.values():
            if padded is not None:
                padded.graph.destroy()
        self._padded.clear()
        self._graph.destroy()

    def _padded_to(self, multiple: int) -> _PaddedOffer | None:
        if multiple not in self._padded:
            padding = padded_to(self._op, multiple)
            graph = None if padding is None else _padded_graph(self._handle, padding)
            made = (
                None if padding is None or graph is None else _PaddedOffer(self._handle, padding, graph, self._copier)
            )
            self._padded[multiple] = made
        return self._padded[multiple]


class _PaddedOffer:
    """What the library has for an op whose channels are padded."""

    def __init__(self, handle: Handle, padding: Padding, graph: ConvolutionGraph, copier: CopiesRows) -> None:
        self._handle, self._padding, self._copier = handle, padding, copier
        self.graph = graph

    def candidates(self) -> list[Candidate]:
        return padded_candidates(self.graph, self._padding)

    def make(self, name: str) -> Made | Failure:
        plan = self.graph.build(*engine_of(name))
        if isinstance(plan, Failure):
            return plan
        try:
            return Made(PaddedPlan(self._handle, plan, self._padding, self._copier))
        except CudaFault as fault:
            plan.destroy()
            return Failure("build_failed", str(fault))


def _padded_graph(handle: Handle, padding: Padding) -> ConvolutionGraph | None:
    try:
        return ConvolutionGraph(handle, padding.op)
    except CudnnError as error:
        if error.fault != "candidate":
            raise
        return None


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
