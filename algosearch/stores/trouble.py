"""Trouble with a home of records: what hindered a call, and what has been met so far.

A store raises nothing for trouble (`algosearch.stores.base`), so within this room it travels as `Hindrance`, which
never leaves, and ends as a line in `Troubles`: logged once for each kind, counted ever after.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from typing import Final, Literal

from algosearch.errors import UndecodableRecord
from algosearch.records import Record
from algosearch.stores.rules import storable

logger = logging.getLogger("algosearch.stores")

Kind = Literal[
    "locked",
    "read_only",
    "full",
    "failed",
    "gone",
    "corrupt",
    "undecodable",
    "unfit",
    "network",
    "newer",
    "unreachable",
    "refused",
]
"""`locked`: somebody holds it for too long. `failed`: an error of the system that says no more. `gone`: deleted or
replaced while in use. `unfit`: a place where nothing may be kept. `network`: other hosts may have it too. `newer`: made
by a newer version, and left alone.
`unreachable`: a server that does not answer, or not in time. `refused`: one that does, and does not let us in."""

_REMEDIES: Final[dict[Kind, str]] = {
    "locked": "end the program that holds it, or choose another directory",
    "read_only": "make it writable, or choose another directory",
    "full": "free some space, or choose another directory",
    "corrupt": "remove the file, or choose another directory",
    "network": "choose a local directory",
    "newer": "update algosearch, or choose another directory",
    "unreachable": "start the server, or correct its address",
    "refused": "correct the user and password in its address, or what the server lets that user do",
}
_BY_ERRNO: Final[dict[int, Kind]] = {
    errno.EACCES: "read_only",
    errno.EPERM: "read_only",
    errno.EROFS: "read_only",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
}


_LONGEST: Final = 1000
"""Characters of a line."""


class Hindrance(Exception):
    """Why something could not be done. Caught within this room."""

    known = False
    """True if it was met before, noted, and is only the answer to one more question."""

    def __init__(self, kind: Kind, reason: str, remedy: str | None = None) -> None:
        self.kind: Kind = kind
        self.reason = reason
        self.remedy = remedy or _REMEDIES.get(kind, "choose another directory")
        super().__init__(kind, reason, self.remedy)

    def __str__(self) -> str:
        return self.reason

    def again(self) -> Hindrance:
        """The same, known, to be raised once more: an instance raised twice would grow its traceback."""
        known = Hindrance(self.kind, self.reason, self.remedy)
        known.known = True
        return known

    @classmethod
    def of_system(cls, error: OSError) -> Hindrance:
        """That of an error of the operating system."""
        return cls(_BY_ERRNO.get(error.errno or 0, "failed"), str(error))


class Troubles:
    """What a store has met. Belongs to one thread."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._first: dict[Kind, str] = {}
        self._count: Counter[Kind] = Counter()

    def note(self, kind: Kind, text: str) -> None:
        """One more; the first of each kind is logged as a warning."""
        self._count[kind] += 1
        if kind not in self._first:
            text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"  # a key in a file may be megabytes long
            self._first[kind] = text
            logger.warning("store %s: %s", self.location, text)

    def storable(self, record: Record) -> bytes | None:
        """As `rules.storable`; None for a record that no reader would take, and it is noted."""
        try:
            return storable(record)
        except UndecodableRecord as error:
            self.note("undecodable", f"a record that no reader would take is not kept: {error}")
            return None

    def lines(self) -> tuple[str, ...]:
        """One for each kind, the first met first: what it was, and how often it was met."""
        return tuple(
            f"{kind}: {text}" + (f" (and {self._count[kind] - 1} more)" if self._count[kind] > 1 else "")
            for kind, text in self._first.items()
        )
