"""`Key`: what a record is about. A whitelist: the problem, and the environment that its answer depends on.

In the key: every field of the op that is searched (`ops.searched_as`), and of the environment the backend, the device's
*kind*, the library versions, and what changes the candidate set. Never in it: an ordinal or a host (equal devices
share), a Python hash (differs by process), a policy (a record holds every trial; a policy is another pick from it).

Rejected: hashing the environment wholesale (always changes, so that nothing is ever found again: XLA's fingerprint
had to be switched off for that), and pickled or tuple keys (equal values with other bytes: diskcache#54).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final, Protocol

import msgspec
from msgspec.structs import force_setattr

from algosearch.errors import InvalidValue, UndecodableRecord
from algosearch.ops import BatchNormOp, ConvOp, Op, searched_as

KEY_SCHEMA: Final = 1
"""Counts up when the same problem would get another key, or a key another meaning."""

PROBLEM_INGREDIENTS: Final[dict[str, frozenset[str]]] = {
    "conv": frozenset(ConvOp.__struct_fields__),
    "batch_norm": frozenset(BatchNormOp.__struct_fields__),
}
"""What of an op enters the key: everything. A test fails when a field is added and its key does not change."""


class InvalidEnvironment(InvalidValue):
    """A backend described its environment in a way that no key could carry."""

    noun = "environment"


class Environment(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """What an answer depends on beside the problem. Two devices with equal environments share every record.

    Raises:
        InvalidEnvironment: a fact is named twice, or anything is not text.
    """

    backend: str
    device: str
    """The device's kind: the maker's name of the model, never an ordinal."""
    facts: tuple[tuple[str, str], ...] = ()
    """Named facts, put into the order of their names: compute capability, memory class, library versions, available
    compilers, set overrides."""
    incomplete: str | None = None
    """Why nothing may be stored from here (a library part is missing, say); None if all is well. Not in the key."""

    def __post_init__(self) -> None:
        facts = dict(self.facts)
        if len(facts) != len(self.facts):
            raise InvalidEnvironment("facts", self.facts, "must name each fact once")
        if not all(isinstance(word, str) for word in (self.backend, self.device, *facts, *facts.values())):
            raise InvalidEnvironment("facts", self, "must be text throughout: a version or a number is written out")
        force_setattr(self, "facts", tuple(sorted(facts.items())))


class _KeyText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int
    problem: Op
    backend: str
    device: str
    facts: dict[str, str]


class _Schema(msgspec.Struct, frozen=True):
    schema: int


_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(_KeyText, strict=True).decode
_decode_schema = msgspec.json.Decoder(_Schema, strict=True).decode


@lru_cache(maxsize=64)
def _around_problem(environment: Environment) -> tuple[bytes, bytes]:
    """The canonical text of a key before and after the problem: the same for all keys of an environment."""
    mark = ConvOp(input_shape=(1, 1, 1), filter_shape=(1, 1, 1))
    text = _encode(
        _KeyText(
            schema=KEY_SCHEMA,
            problem=mark,
            backend=environment.backend,
            device=environment.device,
            facts=dict(environment.facts),
        )
    )
    before, _, after = text.rpartition(_encode(mark))  # from the right: a fact may hold any text, what follows cannot
    return before, after


class _Hash(Protocol):
    def hexdigest(self) -> str: ...


@cache
def _sha256() -> Callable[[bytes], _Hash]:
    """Imported with the first key: OpenSSL is 3 of the 40 ms that `import algosearch` takes."""
    from hashlib import sha256

    return sha256


class Key(msgspec.Struct, frozen=True, gc=False):
    """The identity of a record. Made by `Key.of` or `Key.from_text`, and by nothing else: their checks are what the
    properties rely on. Equal problems in equal environments have equal keys."""

    text: str
    """Canonical JSON of all ingredients. It is stored beside the record and compared on every read."""
    digest: str
    """SHA-256 of `text` in hex: the name under which stores file the record."""

    @classmethod
    def of(cls, op: Op, environment: Environment) -> Key:
        """The key of `op`, in any of its equal descriptions, or as either pass of a pair, in an environment."""
        before, after = _around_problem(environment)
        text = before + _encode(searched_as(op)) + after
        return cls(text.decode(), _sha256()(text).hexdigest())

    @classmethod
    def from_text(cls, text: str) -> Key:
        """The key whose stored text this is, exactly as `Key.of` writes it.

        Raises:
            UndecodableRecord: no key of this schema has this text.
        """
        try:
            schema = _decode_schema(text).schema
            if schema != KEY_SCHEMA:
                raise UndecodableRecord(f"its key is of schema {schema}; this algosearch reads {KEY_SCHEMA}")
            parts = _decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise UndecodableRecord("its key cannot be read") from None
        key = cls.of(parts.problem, _environment(parts))
        if key.text != text:
            raise UndecodableRecord("its key is not in canonical form")
        return key

    @property
    def problem(self) -> Op:
        """The op that was searched, as `searched_as` gives it."""
        return _decode(self.text).problem

    @property
    def environment(self) -> Environment:
        """The environment. `incomplete` is None, for it is not in the key."""
        return _environment(_decode(self.text))

    @property
    def ingredients(self) -> dict[str, str]:
        """Every named ingredient with its value as text: `problem.stride` → `[2,2]`, `facts.numpy` → `2.4.6`."""
        flat: dict[str, str] = {}
        for name, value in msgspec.json.decode(self.text).items():
            if isinstance(value, dict):
                for inner, item in value.items():
                    flat[f"{name}.{inner}"] = item if isinstance(item, str) else _encode(item).decode()
            else:
                flat[name] = value if isinstance(value, str) else _encode(value).decode()
        return flat

    def difference(self, other: Key) -> tuple[tuple[str, str | None, str | None], ...]:
        """(ingredient, here, there) for each ingredient that differs; None where a side has none."""
        here, there = self.ingredients, other.ingredients
        return tuple(
            (name, here.get(name), there.get(name))
            for name in sorted(here.keys() | there.keys())
            if here.get(name) != there.get(name)
        )


def _environment(parts: _KeyText) -> Environment:
    return Environment(backend=parts.backend, device=parts.device, facts=tuple(parts.facts.items()))
