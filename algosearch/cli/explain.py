"""Why an op is a hit or a miss: its key, what the store has under it, and how the nearest key differs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from algosearch.cli.contents import Entry
from algosearch.compiler.jsonlines import parse_lines, read_lines
from algosearch.errors import UnreadableModel
from algosearch.ops import Op
from algosearch.records import Environment, Key


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """One ingredient of two keys; None where a key has none of that name."""

    ingredient: str
    asked: str | None
    stored: str | None


class Nearest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored key with the fewest differing ingredients."""

    digest: str
    problem: str
    differences: tuple[Differing, ...]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What a searcher would find for one op."""

    problem: str
    digest: str
    device: str
    hit: bool
    reason: str
    """Of a hit: how it is answered, of a miss: why it is one."""
    nearest: Nearest | None = None
    """None if there is a record of this very key, and if the store is empty."""


def explain_op(
    op: Op, environment: Environment, entries: Sequence[Entry], unreadable: Mapping[str, str]
) -> Explanation:
    """Explain one op, asked under the default policy.

    Args:
        entries: every record of the store.
        unreadable: reasons by digest.
    """
    key = Key.of(op, environment)
    found = next((entry for entry in entries if entry.digest == key.digest), None)
    hit = found is not None and found.covered
    if found is None:
        reason = unreadable.get(key.digest, "no record has this key")
    elif found.choice is None:
        reason = found.why_none
    else:
        reason = f"answered from the store: {found.choice.algorithm}"
    if environment.incomplete is not None:
        reason += f"; and nothing that is found here is stored: {environment.incomplete}"
    return Explanation(
        problem=op.describe(),
        digest=key.digest,
        device=environment.device,
        hit=hit,
        reason=reason,
        nearest=_nearest(key, entries) if found is None else None,
    )


def _nearest(key: Key, entries: Sequence[Entry]) -> Nearest | None:
    if not entries:
        return None
    nearest = min(entries, key=lambda entry: len(key.difference(entry.record.key)))
    return Nearest(
        digest=nearest.digest,
        problem=nearest.problem,
        differences=tuple(
            Differing(ingredient=name, asked=asked, stored=stored)
            for name, asked, stored in key.difference(nearest.record.key)
        ),
    )


def ops_of(asked: str) -> tuple[Op, ...]:
    """The op that an option gives as JSON, or those in the file that it names with an `@`, one a line.

    Raises:
        UnreadableModel: it cannot be read, or is no op.
    """
    if asked.startswith("@"):
        path = asked[1:]
        try:
            with open(path, "rb") as file:
                nodes = read_lines(path, file)
        except UnreadableModel:
            raise
        except (OSError, ValueError) as error:  # ValueError: a zero byte, which no path can hold
            raise UnreadableModel(path, f"cannot be read: {error}") from None
    else:
        nodes = parse_lines("--explain", os.fsencode(asked))
    return tuple(node.op for node in nodes)
