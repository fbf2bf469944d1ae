"""Descriptors of cuDNN's backend (graph) API: made, set, finalised, asked, and destroyed by their owner.

Ownership is explicit: whatever makes descriptors has a `Descriptors`, and ends it. Never `__del__`: destroying a plan
may unload code and then waits for the device, which must happen neither in whatever thread collects garbage nor at
the interpreter's exit. What a descriptor was set to, the library keeps alive itself: an operation may be destroyed as
soon as its graph is finalised.

Type and number of an attribute's elements come from `Attribute.holds` and from what is passed, so that nothing can be
marshalled as something else. Calls that take microseconds keep the interpreter's lock; `finalize(long=True)` does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_bool, c_double, c_float, c_int, c_int64, c_void_p
from typing import Any, Final, Self

from algosearch.backends.cudnn.enums import Attribute, AttributeType, DescriptorKind
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.status import CudnnError

_C_TYPES: Final[dict[AttributeType, Any]] = {
    AttributeType.HANDLE: c_void_p,
    AttributeType.BOOLEAN: c_bool,
    AttributeType.INT64: c_int64,
    AttributeType.FLOAT: c_float,
    AttributeType.DOUBLE: c_double,
    AttributeType.VOID_PTR: c_void_p,
    AttributeType.BACKEND_DESCRIPTOR: c_void_p,
}
"""All others are enumerations, which C passes as int."""
_MOST_ELEMENTS: Final = 1 << 14
"""Of an attribute, whatever a library says: room is made for so many. The longest list seen has some hundreds."""


class Descriptor:
    """One descriptor. Made by `Descriptors.new`, which destroys it."""

    __slots__ = ("_library", "kind", "pointer")

    def __init__(self, library: Library, kind: DescriptorKind) -> None:
        self._library = library
        self.kind = kind
        self.pointer = c_void_p()
        status = library.short.cudnnBackendCreateDescriptor(kind, byref(self.pointer))
        if status:
            raise library.error(status, f"creating {kind.name}")

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.pointer.value or 0:#x}>"

    def set(self, attribute: Attribute, *values: Any, holds: AttributeType | None = None) -> Self:
        """Set an attribute to one or more values: numbers, enumeration members, descriptors, addresses, or none.

        Args:
            attribute: which.
            values: descriptors where it holds descriptors.
            holds: the elements' type, where the attribute takes another than its usual one.

        Raises:
            CudnnError: the library refuses the value.
        """
        kind = attribute.holds if holds is None else holds
        if kind is AttributeType.BACKEND_DESCRIPTOR:
            values = tuple(value.pointer.value for value in values)
        array = (_C_TYPES.get(kind, c_int) * len(values))(*values)
        status = self._library.short.cudnnBackendSetAttribute(self.pointer, attribute, kind, len(values), array)
        if status:
            raise self._library.error(status, f"setting {attribute.name} of {self.kind.name}")
        return self

    def finalize(self, *, long: bool = False) -> Self:
        """Declare it complete. `long` gives the interpreter's lock up meanwhile.

        Raises:
            CudnnError: what it was set to does not belong together, or is not supported.
        """
        view = self._library.long if long else self._library.short
        status = view.cudnnBackendFinalize(self.pointer)
        if status:
            raise self._library.error(status, f"finalising {self.kind.name}")
        return self

    def number(self, attribute: Attribute) -> int:
        """The one integer that an attribute holds.

        Raises:
            CudnnError: it cannot be told.
        """
        value = _C_TYPES.get(attribute.holds, c_int)()
        if not self._get(attribute, 1, byref(value)):
            raise CudnnError.nonsense(self._reading(attribute), "no number")
        return int(value.value)

    def numbers(self, attribute: Attribute) -> tuple[int, ...]:
        """All integers that an attribute holds, however many: newer libraries know more than this package.

        Raises:
            CudnnError: they cannot be told.
        """
        count = self.count(attribute)
        array = (_C_TYPES.get(attribute.holds, c_int) * count)()
        return tuple(array[: min(count, self._get(attribute, count, array))]) if count else ()

    def count(self, attribute: Attribute) -> int:
        """How many elements an attribute has.

        Raises:
            CudnnError: it cannot be told.
        """
        return self._get(attribute, 0, None)

    def fill(self, attribute: Attribute, room: Room, *, long: bool = False) -> list[Descriptor]:
        """Let an attribute's elements be written into a room of descriptors; those that were.

        Raises:
            CudnnError: they cannot be told.
        """
        count = self._get(attribute, len(room.descriptors), room.array, long=long)
        return room.descriptors[:count]

    def _get(self, attribute: Attribute, room: int, target: Any, *, long: bool = False) -> int:
        view = self._library.long if long else self._library.short
        count = c_int64()
        status = view.cudnnBackendGetAttribute(self.pointer, attribute, attribute.holds, room, byref(count), target)
        if status:
            raise self._library.error(status, self._reading(attribute))
        if not 0 <= count.value <= _MOST_ELEMENTS:
            raise CudnnError.nonsense(self._reading(attribute), f"{count.value} elements")
        return count.value

    def _reading(self, attribute: Attribute) -> str:
        return f"reading {attribute.name} of {self.kind.name}"

    def destroy(self) -> None:
        """Give it back. Harmless if done twice."""
        pointer, self.pointer = self.pointer, c_void_p()
        if pointer:
            # What a plan frees may wait for the device.
            view = self._library.long if self.kind is DescriptorKind.EXECUTION_PLAN else self._library.short
            view.cudnnBackendDestroyDescriptor(pointer)


class Room:
    """Descriptors of one kind that `Descriptor.fill` writes into, as often as it likes. Made by `Descriptors.room`."""

    __slots__ = ("array", "descriptors")

    def __init__(self, descriptors: list[Descriptor]) -> None:
        self.descriptors = descriptors
        self.array = (c_void_p * len(descriptors))(*(each.pointer.value for each in descriptors))


class Descriptors:
    """The owner of some descriptors (of a graph, a plan, a query), ended by `destroy` or by the end of `with`."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._owned: list[Descriptor] = []

    def __repr__(self) -> str:
        return f"<Descriptors {self._owned}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.destroy()

    def new(self, kind: DescriptorKind) -> Descriptor:
        """A fresh one.

        Raises:
            CudnnError: the library cannot make one.
        """
        descriptor = Descriptor(self.library, kind)
        self._owned.append(descriptor)
        return descriptor

    def newest(self, kind: DescriptorKind) -> Descriptor:
        """The last one of a kind. There must be one."""
        return next(each for each in reversed(self._owned) if each.kind is kind)

    def room(self, kind: DescriptorKind, count: int) -> Room:
        """Fresh descriptors to be filled.

        Raises:
            CudnnError: the library cannot make so many; then it has made none.
        """
        made: list[Descriptor] = []
        try:
            for _ in range(count):
                made.append(self.new(kind))
        except BaseException:
            self.give_back(made)
            raise
        return Room(made)

    def give_back(self, some: Sequence[Descriptor]) -> None:
        """Destroy some of them before the others."""
        for each in some:
            each.destroy()
        self._owned = [each for each in self._owned if each.pointer]

    def destroy(self) -> None:
        """Destroy them, the last one first. Harmless if done twice."""
        while self._owned:
            self._owned.pop().destroy()
