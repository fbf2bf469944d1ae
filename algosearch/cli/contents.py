"""What is in a store, for the verbs that look at it: read once, and only read.

A store that is not there is not made by looking at it, and what cannot be read is listed with its reason.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec

from algosearch.errors import AlgosearchError, NoAlgorithm, NotCovered
from algosearch.records import DEFAULT_POLICY, Choice, Record
from algosearch.settings import Settings
from algosearch.stores import DirectoryStore, Miss, Store, open_store
from algosearch.stores.home import user_directories
from algosearch.stores.inspection import FILE


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


def contents_of(asked: str | None) -> Contents:
    """Read the store that an option named, or else the environment, or else the user's own.

    Raises:
        InvalidSetting: it cannot be understood.
        StoreUnusable: it is there and cannot be read.
    """
    location: str | Path | None = Settings.read().store if asked is None else asked
    if location is None:
        candidates = user_directories()
        location = next((path for path in candidates if path.exists()), candidates[0])
    store = open_store(location)
    # Opening a store makes one, and to look must not.
    if isinstance(store, DirectoryStore) and not Path(store.location, FILE).exists():
        return Contents(location=store.location, missing=True)
    return anyio.run(_read, store)


async def _read(store: Store) -> Contents:
    entries: list[Entry] = []
    unreadable: list[Unreadable] = []
    await store.open()
    try:
        async for digest, record in store.scan():
            if isinstance(record, Miss):
                unreadable.append(Unreadable(digest=digest, reason=record.reason))
                continue
            try:
                entries.append(Entry.of(record))
            except (msgspec.MsgspecError, AlgosearchError) as error:
                unreadable.append(Unreadable(digest=digest, reason=f"its key cannot be read: {error}"))
    finally:
        await store.aclose()
    return Contents(location=store.location, entries=tuple(entries), unreadable=tuple(unreadable))
