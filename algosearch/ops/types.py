"""Element types, layouts and the exact arithmetic of tensors that both kinds of op share."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Set
from itertools import islice
from math import prod
from typing import Final, Literal, SupportsIndex, cast

from algosearch.errors import InvalidOp

ElementType = Literal["float16", "bfloat16", "float32", "float64", "int8"]
AccumulateType = Literal["float16", "float32", "float64", "int32"]
Layout = Literal["channels_first", "channels_last"]

Shape = tuple[int, ...]

ELEMENT_BYTES: Final[dict[str, int]] = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "int32": 4,
}
LAYOUTS: Final = ("channels_first", "channels_last")

# What may accumulate what. A library never accumulates in fewer bits than it stores, nor int8 in floats.
ACCUMULATES: Final[dict[str, tuple[str, ...]]] = {
    "float16": ("float32", "float16"),
    "bfloat16": ("float32",),
    "float32": ("float32",),
    "float64": ("float64",),
    "int8": ("int32",),
}

LARGEST: Final = 2**63 - 1
"""The largest single size: dimensions cross to C libraries and onto the wire as signed 64-bit integers."""

MOST_SIZES: Final = 8
"""Entries that a shape or a stride is read for; more than any op has."""

MEMO_LIMIT: Final = 100_000
"""Valid ops remembered by value, of each class; beyond it the memo starts afresh, which costs time only."""


def element_bytes(shape: Shape, element_type: str) -> int:
    """Bytes of a dense tensor; exact at any size."""
    return prod(shape) * ELEMENT_BYTES[element_type]


def whole(field: str, value: object, *, least: int) -> int:
    """A plain int of at least `least` from an int, a bool or a numpy integer.

    Raises:
        InvalidOp: it is no integer (a float is none, even 3.0), or out of range.
    """
    try:
        number = int.__int__(operator.index(cast("SupportsIndex", value)))  # past whatever a subclass makes of it
    except Exception:  # a stranger's class may raise anything
        raise InvalidOp(field, value, "must be an integer") from None
    if not least <= number <= LARGEST:
        raise InvalidOp(field, value, f"must be from {least} to 2**63 - 1")
    return number


def whole_tuple(field: str, value: object, *, least: int) -> Shape:
    """A tuple of plain ints from any ordered iterable of integers: a list, a range, an array. Not from a string, whose
    items are no integers, nor from a set or a mapping, whose items have no order that means anything.

    Raises:
        InvalidOp: it is none, or an item is no integer of at least `least`, or there are more than any op has.
    """
    kind = type(value)
    if issubclass(kind, str | bytes | bytearray | memoryview | Set | Mapping) or not issubclass(kind, Iterable):
        raise InvalidOp(field, value, "must be a sequence of integers")
    try:
        items = tuple(islice(cast("Iterable[object]", value), MOST_SIZES + 1))  # it may be endless
    except Exception:  # an array without dimensions is iterable by its class only
        raise InvalidOp(field, value, "must be a sequence of integers") from None
    if len(items) > MOST_SIZES:
        raise InvalidOp(field, value, f"must have at most {MOST_SIZES} entries")
    return tuple(whole(field, item, least=least) for item in items)


def one_of(field: str, value: object, allowed: Collection[str]) -> str:
    """The plain word from a string that is one of those allowed. A subclass of `str` is taken at what it holds: what it
    says of itself when it is compared or hashed is its own affair.

    Raises:
        InvalidOp: it is none of them.
    """
    word = str.__str__(cast("str", value)) if issubclass(type(value), str) else None  # `isinstance` asks the value
    if word is None or word not in allowed:  # in this order: a list cannot be looked up in a dict
        raise InvalidOp(field, value, f"must be one of {', '.join(allowed)}")
    return word
