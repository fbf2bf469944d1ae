"""Element types, layouts and the exact arithmetic of tensors that both kinds of op share."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Set
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
        number = int(operator.index(cast("SupportsIndex", value)))
    except TypeError:
        raise InvalidOp(field, value, "must be an integer") from None
    if not least <= number <= LARGEST:
        raise InvalidOp(field, value, f"must be from {least} to 2**63 - 1")
    return number


def whole_tuple(field: str, value: object, *, least: int) -> Shape:
    """A tuple of plain ints from any ordered iterable of integers: a list, a range, an array. Not from a string, whose
    items are no integers, nor from a set or a mapping, whose items have no order that means anything.

    A tuple that is plain already is returned itself, so that ops that are built from one constant share it: to compare
    them takes half the time."""
    if isinstance(value, str | bytes | Set | Mapping) or not isinstance(value, Iterable):
        raise InvalidOp(field, value, "must be a sequence of integers")
    numbers = tuple(whole(field, item, least=least) for item in value)
    return value if type(value) is tuple and all(type(item) is int for item in value) else numbers


def one_of(field: str, value: object, allowed: Collection[str]) -> None:
    """Raises InvalidOp unless `value` is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:  # in this order: a list cannot be looked up in a dict
        raise InvalidOp(field, value, f"must be one of {', '.join(allowed)}")
