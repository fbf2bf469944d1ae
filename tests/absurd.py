"""Values that nobody should pass, and somebody will: for every argument that is checked.

Nothing here is a legitimate shape, word, number or name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np
from hypothesis import strategies as st


class Hostile:
    """Raises whatever is done to it, except to show and to drop it."""

    def _refuse(self, *args: object) -> NoReturn:
        raise ZeroDivisionError("a stranger's class")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __bool__ = __len__ = __iter__ = __index__ = __int__ = __float__ = __str__ = __fspath__ = _refuse
    __contains__ = __getitem__ = __call__ = _refuse


class Agreeing:
    """Equal to whatever it is compared with, and hashed like a value of one's choice."""

    def __init__(self, like: object) -> None:
        self._like = like

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(self._like)

    def __repr__(self) -> str:
        return f"<Agreeing with {self._like!r}>"


class Liar:
    """Says that it is a `str`."""

    __class__ = str  # type: ignore[assignment]


class AgreeingWord(str):
    """A string that is equal to whatever it is compared with."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return hash("float32")


class RaisingWord(str):
    """A string that cannot be looked up."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("a stranger's class")

    def __hash__(self) -> int:
        raise ZeroDivisionError("a stranger's class")


def endless() -> Iterator[int]:
    """Never comes to an end."""
    return itertools.repeat(1)


def absurd() -> st.SearchStrategy[Any]:
    """Of every kind. Made afresh for each draw: an iterator is used up."""
    makers: tuple[Callable[[], Any], ...] = (
        *(Hostile, Liar, endless, object, dict, set, bytearray, lambda: Hostile, lambda: len),
        *(lambda: AgreeingWord("nonsense"), lambda: RaisingWord("nonsense"), lambda: Agreeing("float32")),
        *(lambda: Agreeing("forward"), lambda: Agreeing(1), lambda: Agreeing(None), lambda: Agreeing("cpu")),
        *(lambda: np.array(["float32"]), lambda: np.array(1.5), lambda: np.array([[1, 2]]), lambda: np.array([None])),
        *(lambda: [[]], lambda: [Hostile()], lambda: (Agreeing(1),) * 4, lambda: ["1"], lambda: {1: 2}, lambda: {1, 2}),
        *(lambda: Decimal("NaN"), lambda: 1j, lambda: float("nan"), lambda: float("-inf"), lambda: -1.5),
        *(
            lambda: b"float32",
            lambda: "nonsense",
            lambda: "\ud800",
            lambda: "a\0b",
            lambda: ...,
            lambda: NotImplemented,
        ),
    )
    return st.sampled_from(makers).map(lambda make: make())
