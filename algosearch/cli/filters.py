"""The filter language of every verb that takes a FILTER: which records are meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from algosearch.cli.contents import Contents, Entry, Unreadable

_DIGEST: Final = re.compile(r"[0-9a-f]{6,64}", re.IGNORECASE)
_INGREDIENT: Final = re.compile(r"(?P<name>[a-z][a-z0-9_.]*)=(?P<value>.*)")


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What a filter admits of a store."""

    entries: Sequence[Entry]
    unreadable: Sequence[Unreadable] = ()
    """Of what cannot be read, only what was named by its digest, or everything without a filter."""
    by_digest: bool = False
    """True if the filter was the beginning of a digest."""


def select(contents: Contents, what: str | None) -> Selection:
    """The records that `what` admits: all, if it is None.

    It is the beginning of a digest if it looks like one and there is one; else NAME=VALUE of an ingredient, if any
    record has one of that name; else a part of the problem, the device, the backend or the best algorithm.
    """
    if what is None:
        return Selection(entries=contents.entries, unreadable=contents.unreadable)
    if _DIGEST.fullmatch(what):
        prefix = what.lower()
        entries = [entry for entry in contents.entries if entry.digest.startswith(prefix)]
        unreadable = [each for each in contents.unreadable if each.digest.startswith(prefix)]
        if entries or unreadable:
            return Selection(entries=entries, unreadable=unreadable, by_digest=True)
    return Selection(entries=_matching(contents.entries, what))


def _matching(entries: Sequence[Entry], what: str) -> Sequence[Entry]:
    named = _INGREDIENT.fullmatch(what)
    if named is not None and any(named["name"] in entry.ingredients for entry in entries):
        wanted = _plain(named["value"])
        return [entry for entry in entries if _plain(entry.ingredients.get(named["name"], "")) == wanted]
    part = what.lower()
    return [entry for entry in entries if any(part in text.lower() for text in _texts(entry))]


def _plain(value: str) -> str:
    return value.replace(" ", "").lower()


def _texts(entry: Entry) -> tuple[str, ...]:
    algorithm = entry.choice.algorithm if entry.choice else ""
    return entry.problem, entry.device, entry.ingredients["backend"], algorithm
