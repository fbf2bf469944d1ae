"""`Algorithm`: the serialisable identity of one way to do an op. Never an index into a list.

Its one canonical string is what trials, choices, policies and stores carry:

    backend/source:engine[?knob=value&knob=value][#math]

such as `cudnn/graph:63?2=1&16=3#tensor_op` or `cpu/numpy:im2col`. A string, because decoding a record of 44 trials
takes 16 µs with strings and 92 with structs (`docs/cache-format.md`).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from algosearch.errors import InvalidValue

_WORD: Final = r"[a-z0-9][a-z0-9_.-]*"
_CANONICAL: Final = re.compile(
    rf"(?P<backend>{_WORD})/(?P<source>{_WORD}):(?P<engine>{_WORD})"
    rf"(?:\?(?P<knobs>{_WORD}=-?\d+(?:&{_WORD}=-?\d+)*))?(?:#(?P<math>{_WORD}))?"
)


class InvalidAlgorithm(InvalidValue):
    """A string or part that is no algorithm's name."""

    noun = "algorithm"


class Algorithm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One way to do an op. `str(algorithm)` and `Algorithm.parse` are inverse to each other.

    Raises:
        InvalidAlgorithm: a part has characters that the canonical string could not carry.
    """

    backend: str
    """Which backend can build it: `cudnn`, `cpu`, `simulated`."""
    source: str
    """Where in the backend it comes from: an API or a family (`graph`, `legacy`, `numpy`)."""
    engine: str
    """The kernel family, in the library's own numbering or name."""
    knobs: tuple[tuple[str, int], ...] = ()
    """The engine's settings, sorted by name, each name once."""
    math: str = ""
    """The math mode, where the library has one; empty for the default."""

    def __post_init__(self) -> None:
        names = [name for name, _ in self.knobs]
        if names != sorted(set(names)):
            raise InvalidAlgorithm("knobs", self.knobs, "must be sorted by name, each name once")
        if _CANONICAL.fullmatch(str(self)) is None:
            raise InvalidAlgorithm("name", str(self), "its parts must be lower-case words of a-z, 0-9, _, . and -")

    def __str__(self) -> str:
        knobs = "&".join(f"{name}={value}" for name, value in self.knobs)
        return (
            f"{self.backend}/{self.source}:{self.engine}"
            + (f"?{knobs}" if knobs else "")
            + (f"#{self.math}" if self.math else "")
        )

    @classmethod
    def parse(cls, text: str) -> Algorithm:
        """The algorithm of a canonical string.

        Raises:
            InvalidAlgorithm: `text` is not one, or not in canonical form.
        """
        match = _CANONICAL.fullmatch(text)
        if match is None:
            raise InvalidAlgorithm("name", text, "must look like backend/source:engine?knob=1#math")
        pairs = (pair.split("=") for pair in (match["knobs"] or "").split("&") if pair)
        algorithm = cls(
            backend=match["backend"],
            source=match["source"],
            engine=match["engine"],
            knobs=tuple((name, int(value)) for name, value in pairs),
            math=match["math"] or "",
        )
        if str(algorithm) != text:
            raise InvalidAlgorithm("name", text, f"is not in canonical form, which is {algorithm}")
        return algorithm
