"""What is in a store, for the verbs that look at it: read once, and only read.

A store that is not there is not made by looking at it, and what cannot be read is listed with its reason.
"""

from __future__ import annotations

from typing import Final

import anyio
import msgspec

from algosearch.cli.places import Place, require_read
from algosearch.cli.progress import Progress, Tally, progress
from algosearch.cli.terminal import Terminal
from algosearch.errors import AlgosearchError, NoAlgorithm, NotCovered
from algosearch.records import DEFAULT_POLICY, Choice, Record
from algosearch.stores import Miss, Store, StoreStatistics


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One record, and what the default policy makes of it."""

    record: Record
    problem: str
    """Described in one line."""
    ingredients: dict[str, str]
    """As `Key.ingredients`."""
    choice: Choice | None
    why_none: str = ""
    """Why there is no choice; empty if there is one."""
    covered: bool = True
    """False if its searches did not look where the default policy asks, so that it would be searched once more."""

    @classmethod
    def of(cls, record: Record) -> Entry:
        """The entry of a record.

        Raises:
            msgspec.MsgspecError, AlgosearchError: its key is of another schema than this version's.
        """
        problem, ingredients = record.key.problem.describe(), record.key.ingredients
        choice, why_none, covered = None, "", True
        try:
            choice = DEFAULT_POLICY.pick(record)
        except NoAlgorithm as error:
            why_none = "no algorithm: " + ("; ".join(error.reasons) or "the backend offers no candidate")
        except NotCovered as error:
            why_none, covered = str(error), False
        return cls(
            record=record,
            problem=problem,
            ingredients=ingredients,
            choice=choice,
            why_none=why_none,
            covered=covered,
        )

    @property
    def digest(self) -> str:
        """The name of the record."""
        return self.record.key.digest

    @property
    def device(self) -> str:
        """The kind of device."""
        return self.ingredients["device"]

    @property
    def version(self) -> str:
        """The algosearch that made its last search."""
        return self.record.searches[-1].provenance.version

    @property
    def found_at_s(self) -> int:
        """Unix time of its last search."""
        return max(search.provenance.found_at_s for search in self.record.searches)


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """Something under a record's name that is none."""

    digest: str
    reason: str


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a store, in the order of digests."""

    location: str
    entries: tuple[Entry, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    missing: bool = False
    """True if there is no store at that place."""
    statistics: StoreStatistics | None = None
    """What the store itself says, when all was read; None if there is none."""

    @property
    def nothing(self) -> str | None:
        """That there is nothing to find, in words; None if there is something."""
        if self.missing:
            return f"there is no store at {self.location}"
        if not self.entries and not self.unreadable:
            return f"the store {self.location} is empty"
        return None

    def behind(self, other: Contents) -> Contents:
        """With what is in another store and not in this one."""
        known = {entry.digest for entry in self.entries}
        more = tuple(entry for entry in other.entries if entry.digest not in known)
        return msgspec.structs.replace(self, entries=self.entries + more)


_UNSAID_S: Final = 1.0
"""Nothing is said of how far reading is, if it takes no longer."""


def read_contents(terminal: Terminal, place: Place) -> Contents:
    """Read the store at a place, with progress if it takes long. Nothing is made, and nothing changed.

    Raises:
        StoreUnusable: it is there and cannot be read.
    """
    store = place.store()
    if not place.exists:
        return Contents(location=store.location, missing=True)
    with progress(terminal, after_s=_UNSAID_S) as bar:
        return anyio.run(_read, store, bar)


async def _read(store: Store, bar: Progress) -> Contents:
    entries: list[Entry] = []
    unreadable: list[Unreadable] = []
    await store.open()
    try:
        require_read(store)
        tally = Tally(bar, (await store.statistics()).records)
        async for digest, record in store.scan():
            tally.count("reading the store")
            if isinstance(record, Miss):
                unreadable.append(Unreadable(digest=digest, reason=record.reason))
                continue
            try:
                entries.append(Entry.of(record))
            except (msgspec.MsgspecError, AlgosearchError) as error:
                unreadable.append(Unreadable(digest=digest, reason=f"its key cannot be read: {error}"))
        statistics = await store.statistics()
        require_read(store)
    finally:
        await store.aclose()
    return Contents(
        location=store.location, entries=tuple(entries), unreadable=tuple(unreadable), statistics=statistics
    )
