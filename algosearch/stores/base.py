"""The contract of a store: one layer of memory for records. Memory, a directory, later a server.

Rules that every implementation keeps and `tests/stores/contract.py` checks:

- Best effort. No method raises because the home is gone, full, locked or lying: a read is a `Miss` with the reason,
  a write that cannot be kept says so in its return value, and one warning is logged for each kind of trouble.
- `commit` is compare-and-swap on `Record.revision` (and a higher generation always replaces a lower one): the first
  wins, and the loser is given the winner's record.
- Claims are leases: an owner's claim lapses by itself after `expiry_s` unless renewed, by the store's own clock.
  A claim of another owner is never renewed, released or overwritten before it lapses.
- Methods may be called from any task of the loop that opened the store, and survive cancellation: what was begun is
  finished, and a caller that left is not told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from algosearch.records import Key, Record

MissKind = Literal["absent", "undecodable", "unreadable"]


class Miss(msgspec.Struct, frozen=True):
    """No record, and why not."""

    kind: MissKind
    reason: str


class Committed(msgspec.Struct, frozen=True):
    """What a commit led to."""

    record: Record
    """The record to go on with: the committed one, or the winner's."""
    won: bool
    """True if it is the committed one."""
    kept: bool = True
    """False if the store could not keep it; it is good all the same."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A lease on a key's search."""

    digest: str
    owner: str
    """Unique for each engine of each process of each host."""
    lapses: int = 0
    """How many claims before this one lapsed without a commit or a release."""
    trying: str = ""
    """The candidate that is about to be launched, so that who takes over knows what killed the owner."""


class StoreStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot."""

    location: str
    records: int
    bytes: int
    writable: bool
    trouble: tuple[str, ...] = ()
    """One line for each kind of trouble met so far."""


@runtime_checkable
class Store(Protocol):
    """A home of records. `open` it on the loop that will use it; whoever opens it closes it."""

    location: str
    """As the user would write it: `memory:`, a path."""

    async def open(self) -> None:
        """Get ready.

        Raises:
            StoreUnusable: nothing can even be read; the reason and the remedy are in it.
        """
        ...

    async def aclose(self) -> None:
        """Let go. Harmless if called twice or before `open`."""
        ...

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """One answer a key, in order, in one trip."""
        ...

    async def commit(self, record: Record, *, after: int) -> Committed:
        """Keep `record` if the stored one has revision `after` (0: none) or a lower generation."""
        ...

    async def claim(self, digest: str, owner: str, *, expiry_s: float, trying: str = "") -> Claim:
        """Take the lease if it is free, lapsed or already this owner's; the claim now in force is returned, so
        `claim.owner == owner` says that it was taken."""
        ...

    async def renew(self, claim: Claim, *, expiry_s: float) -> bool:
        """Extend the owner's own lease and write down what it is `trying`. False if it is no longer the owner's."""
        ...

    async def release(self, claim: Claim) -> None:
        """Give the owner's own lease back; nothing happens if it is another's."""
        ...

    async def changes(self) -> bool:
        """True if somebody else has written since the last call. Cheap: made to be polled."""
        ...

    def scan(self) -> AsyncIterator[tuple[str, Record | Miss]]:
        """Every (digest, record) in the order of digests, undecodable ones as misses; claims are not records."""
        ...

    async def delete(self, digests: Sequence[str]) -> int:
        """Remove records; how many there were."""
        ...

    async def statistics(self) -> StoreStatistics:
        """What is in it and what went wrong so far."""
        ...
