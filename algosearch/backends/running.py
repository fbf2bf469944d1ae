"""The contract with a library that runs what was picked: in the caller's own process, on the caller's arrays.

It stands beside `Session`, which serves a search. A backend that has a `runner` for a device can run what it found;
one that has none (the simulated one, whose times are scripted) cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final, Protocol, runtime_checkable

import msgspec

from algosearch.backends.arrays import Seen, dense_strides
from algosearch.backends.base import Device
from algosearch.errors import InvalidCall
from algosearch.ops import BatchNormOp, Layout, Op, Shape
from algosearch.records import Environment, Failure

RESERVE: Final = "reserve"
"""The tensor that a fused batch norm's forward pass writes for its backward pass: so many bytes, of no type."""
_WHOLE: Final = frozenset({"input", "output", "addend", "output_gradient", "input_gradient", "addend_gradient"})
"""A batch norm's tensors of the input's shape and type; all others are parameters."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller's array must be to stand for one tensor of an op."""

    name: str
    shape: Shape
    layout: Layout
    element_type: str
    written: bool
    parameter: bool = False
    """Whether axes of size 1 may be there or not: [C], or [1, C, 1, 1]."""

    def check(self, array: Seen, alignment_bytes: int) -> None:
        """Nothing, if the array will do.

        Raises:
            InvalidCall: it will not.
        """
        if array.element_type != self.element_type:
            raise InvalidCall(self.name, array.element_type, f"must be of {self.element_type}")
        axes, wanted = _axes(array.shape, array.strides), self._axes()
        if array.shape != self.shape and not (self.parameter and [s for s, _ in axes] == [s for s, _ in wanted]):
            raise InvalidCall(self.name, array.shape, f"must have the shape {self.shape}")
        if axes != wanted:
            raise InvalidCall(self.name, array.strides, f"must be dense, {self.layout}: strides {self.strides}")
        check_place(self.name, array, alignment_bytes, written=self.written)

    @property
    def strides(self) -> Shape:
        """In elements."""
        if not self.parameter:
            return dense_strides(self.shape, channels_last=self.layout == "channels_last")
        # [C, spatial…] of channels last lies as the input does.
        return dense_strides((1, *self.shape), channels_last=self.layout == "channels_last")[1:]

    def _axes(self) -> list[tuple[int, int]]:
        return _axes(self.shape, self.strides)


def check_place(name: str, array: Seen, alignment_bytes: int, *, written: bool) -> None:
    """Whether an array lies where it may, and may be written if it is to be.

    Raises:
        InvalidCall: it does not, or may not.
    """
    if array.address % alignment_bytes:
        raise InvalidCall(name, array.address, f"its address must be a multiple of {alignment_bytes}")
    if written and not array.writeable:
        raise InvalidCall(name, "a read-only array", "is written")


def check_bytes(name: str, array: Seen, size_bytes: int, alignment_bytes: int) -> None:
    """Whether an array is one of at least so many bytes without a gap.

    Raises:
        InvalidCall: it is not.
    """
    if array.size_bytes < size_bytes:
        raise InvalidCall(name, array.size_bytes, f"must have at least {size_bytes} bytes")
    if _axes(array.shape, array.strides) != _axes(array.shape, dense_strides(array.shape, channels_last=False)):
        raise InvalidCall(name, array.strides, "must be dense")
    check_place(name, array, alignment_bytes, written=True)


def slot_of(op: Op, name: str, *, written: bool) -> Slot:
    """One tensor of an op, as its caller described it (that is: of no canonical op)."""
    if isinstance(op, BatchNormOp):
        whole = name in _WHOLE
        return Slot(
            name=name,
            shape=op.shape if whole else op.parameter_shape,
            layout=op.layout,
            element_type=op.data_type if whole else op.parameter_type,
            written=written,
            parameter=not whole,
        )
    shape: Shape = getattr(op, f"{name}_shape")
    layout: Layout = getattr(op, f"{name}_layout")
    element_type: str = getattr(op, f"{name}_type")
    return Slot(name=name, shape=shape, layout=layout, element_type=element_type, written=written)


class Executable(Protocol):
    """One picked algorithm made runnable for one op. May be called from any thread; made and closed by its runner's
    owner."""

    names: tuple[tuple[str, bool], ...]
    """Of every tensor, and whether it is written. A reserve is not among them."""
    workspace_bytes: int
    reserve_bytes: int
    alignment_bytes: int
    """Of every tensor."""
    workspace_alignment_bytes: int

    def run(
        self,
        tensors: Mapping[str, Seen],
        *,
        numbers: Mapping[str, float],
        workspace: Seen | None,
        stream: object,
    ) -> None:
        """Run it once, or queue it, on checked arrays.

        Args:
            tensors: by name; with `reserve` where `reserve_bytes` is not 0.
            numbers: of `epsilon` and `momentum`, what the caller gave.
            workspace: None if the executable is to see for one itself.
            stream: where it is queued, however the caller names one; None for what is usual.

        Raises:
            InvalidCall: an array lies elsewhere, or the library cannot compute with such a number or stream.
            RunFailed: the library refuses.
        """
        ...

    def close(self) -> None:
        """Give it back. May wait for the device; harmless if called twice."""
        ...


class Runner(Protocol):
    """A device, opened to run what was picked for it. Its owner builds in one thread."""

    environment: Environment

    def build(self, op: Op, algorithm: str) -> Executable | Failure:
        """Rebuild an algorithm from its name: milliseconds, up to a second where it is compiled.

        Raises:
            InvalidAlgorithm: it is no name of this library's.
        """
        ...

    def close(self) -> None:
        """Build nothing any more. What was built goes on working until it is closed itself."""
        ...


@runtime_checkable
class RunsPicks(Protocol):
    """A `Backend` that can run what was picked."""

    def runner(self, device: Device) -> Runner:
        """Open a device to run on; blocking, up to seconds.

        Raises:
            DeviceUnavailable: with the reason and the remedy.
        """
        ...


def _axes(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """(size, stride) of each axis whose stride means something."""
    if prod(shape) == 0:
        return list(zip(shape, strides, strict=True))
    return [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
