"""`Algorithm`: the serialisable identity of one way to do an op. Never an index into a list.

Its one canonical string is what trials, choices, policies and stores carry:

    backend/source:engine[?knob=value&knob=value][#math]

such as `cudnn/graph:63?16=3&2=1#tensor_op` or `cpu/numpy:im2col`. A string, because decoding a record of 44 trials
takes 16 µs with strings and 92 with structs (`docs/cache-format.md`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import index, itemgetter
from typing import Final, SupportsIndex, cast

import msgspec
from msgspec.structs import force_setattr

from algosearch.errors import InvalidValue

_WORD: Final = r"[a-z0-9][a-z0-9_.-]*"
_WORD_RULE: Final = "must be a lower-case word of a-z, 0-9, _, . and -, a letter or digit first"
_KNOB: Final = rf"{_WORD}=(?:0|-?[1-9][0-9]{{0,18}})"  # at most 19 digits; `\d` would take the digits of every script
_CANONICAL: Final = re.compile(
    rf"(?P<backend>{_WORD})/(?P<source>{_WORD}):(?P<engine>{_WORD})"
    rf"(?:\?(?P<knobs>{_KNOB}(?:&{_KNOB})*))?(?:#(?P<math>{_WORD}))?"
)
_LARGEST_KNOB: Final = 10**19 - 1
_LONGEST: Final = 500
"""Characters of a name: several times what an engine with all of its knobs takes."""
_MEMO_LIMIT: Final = 10_000

_canonical_names: dict[str, str] = {}
"""Names already found canonical, by themselves: records repeat the same few hundred. Emptied when full, which costs
time and memory only."""


class InvalidAlgorithm(InvalidValue):
    """A string or part that is no algorithm's name."""

    noun = "algorithm"


class Algorithm(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One way to do an op. `str(algorithm)` and `Algorithm.parse` are inverse to each other.

    Raises:
        InvalidAlgorithm: a part is not what the canonical string could carry.
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
        for field in ("backend", "source", "engine", "math"):
            if not _is_word(getattr(self, field)) and (field, getattr(self, field)) != ("math", ""):
                raise InvalidAlgorithm(field, getattr(self, field), _WORD_RULE)
        force_setattr(self, "knobs", _plain_knobs(self.knobs))
        if len(str(self)) > _LONGEST:
            raise InvalidAlgorithm("name", str(self), f"must have at most {_LONGEST} characters")

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
        match = _CANONICAL.fullmatch(text) if len(text) <= _LONGEST else None
        if match is None:
            raise InvalidAlgorithm("name", text, "must look like backend/source:engine?knob=1#math")
        pairs = (pair.split("=") for pair in (match["knobs"] or "").split("&") if pair)
        return cls(
            backend=match["backend"],
            source=match["source"],
            engine=match["engine"],
            knobs=tuple((name, int(value)) for name, value in pairs),
            math=match["math"] or "",
        )


def is_canonical(name: str) -> bool:
    """Whether `Algorithm.parse` would take it, in a tenth of the time."""
    match = _CANONICAL.fullmatch(name) if len(name) <= _LONGEST else None
    if match is None:
        return False
    knobs = [knob.partition("=")[0] for knob in (match["knobs"] or "").split("&")]
    return knobs == sorted(set(knobs))


def shared_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Equal names, each the one object that all records share. Made for reading records: 1 µs for 40 names.

    Raises:
        InvalidAlgorithm: one is no algorithm's canonical string.
    """
    if len(names) > 1:  # of one it gives no tuple
        try:
            return cast("tuple[str, ...]", itemgetter(*names)(_canonical_names))
        except KeyError:
            pass
    for name in names:
        if name not in _canonical_names and not is_canonical(name):
            Algorithm.parse(name)  # says why not
    if len(_canonical_names) >= _MEMO_LIMIT:
        _canonical_names.clear()
    return tuple(_canonical_names.setdefault(name, name) for name in names)


def _is_word(part: object) -> bool:
    return isinstance(part, str) and re.fullmatch(_WORD, part) is not None


def _plain_knobs(knobs: object) -> tuple[tuple[str, int], ...]:
    try:
        plain = tuple((name, index(value)) for name, value in cast("Iterable[tuple[str, SupportsIndex]]", knobs))
        names = [name for name, _ in plain]
    except (TypeError, ValueError):
        raise InvalidAlgorithm("knobs", knobs, "must be pairs of a name and an integer") from None
    if not all(map(_is_word, names)):
        raise InvalidAlgorithm("knobs", knobs, f"each name {_WORD_RULE}")
    if names != sorted(set(names)):
        raise InvalidAlgorithm("knobs", knobs, "must be sorted by name, each name once")
    if any(abs(value) > _LARGEST_KNOB for _, value in plain):
        raise InvalidAlgorithm("knobs", knobs, "must have at most 19 digits")
    return plain
