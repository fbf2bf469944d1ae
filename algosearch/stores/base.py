"""The contract of a store: one layer of memory for records. Memory, a directory, a server.

Rules that every implementation keeps and `tests/stores/contract.py` checks:

- Best effort. No method raises because the home is gone, full, locked or lying: a read is a `Miss` with the reason,
  a write that cannot be kept says so in its return value, and one warning is logged for each kind of trouble.
- `commit` is compare-and-swap on `Record.revision` (and a higher generation always replaces a lower one): the first
  wins, and the loser is given the winner's record. Where nothing readable is stored, every commit wins, whatever
  revision it comes after: a store may have forgotten (evicted, deleted, begun afresh), and there is nobody to adopt.
- Claims are leases: an owner's claim lapses by itself after `expiry_s` unless renewed, by the store's own clock.
  A claim of another owner is never renewed, released or overwritten before it lapses.
- Where claims cannot be written, each is granted and each renewal succeeds, unless another's claim in force can still
  be read: to search alone is better than not to search, and `commit` keeps the answers apart.
- Methods may be called from any task of the loop that opened the store, and survive cancellation: what was begun is
  finished, and a caller that left is not told. Before `open` and after `aclose` none of them raises either.
- A fork closes the child's copy: the child's engine opens it again, with threads, locks and connections of its own
  (`algosearch.forks`).
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
    """A lease on a key's search.

    It lapses by the clock alone: once lapsed it cannot be renewed, even if nobody has taken it over. The lapse is
    counted when *another* owner takes it over; an owner that comes back and claims again did not die. What nobody took
    over for a day is forgotten, with the lapses before it: whatever killed its owner then is not to be held against the
    key for ever.
    """

    digest: str
    owner: str
    """Unique for each engine of each process of each host."""
    lapses: int = 0
    """How many claims before this one lapsed without a commit or a release."""
    trying: str = ""
    """The candidate that is about to be launched, so that who takes over knows what killed the owner: a claim that was
    taken over shows what the lapsed one was trying, until its new owner writes down something else."""
    found: Record | Miss | None = None
    """What there was of the key when it was claimed, if that was asked for and granted. None if nobody looked."""


class StoreStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot."""

    location: str
    records: int
    """Undecodable ones included, claims not."""
    bytes: int
    """Of all records, encoded."""
    writable: bool
    """False if what is committed now would not be kept."""
    claims: int = 0
    """In force or lapsed and not yet taken over."""
    claims_in_force: int = 0
    """Keys that somebody is searching, or was until a moment ago."""
    trouble: tuple[str, ...] = ()
    """One line for each kind of trouble met so far."""


@runtime_checkable
class Store(Protocol):
    """A home of records. `open` it on the loop that will use it; whoever opens it closes it.

    What one handle is asked about a claim is carried out in the order in which it was asked, although nobody may wait
    for the answer any more: a claim that was given up half-way and is then given back is not held.
    """

    @property
    def location(self) -> str:
        """As the user would write it: `memory:`, a path. Where the store chooses by itself, known after `open`."""
        ...

    lasting: bool
    """Whether it outlives this process, so that what may be the end of it is worth writing down."""

    async def open(self) -> None:
        """Get ready. Harmless if it is open.

        Raises:
            StoreUnusable: nothing can even be read; the reason and the remedy are in it.

        Cancellation: nothing is left open.
        """
        ...

    async def aclose(self) -> None:
        """Let go. Harmless if called twice or before `open`.

        Cancellation: it closes all the same, unattended.
        """
        ...

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """One answer a key, in order, in one trip."""
        ...

    async def commit(self, record: Record, *, after: int) -> Committed:
        """Keep `record` if the stored one has revision `after` (0: none) or a lower generation, or is not there."""
        ...

    async def claim(
        self, digest: str, owner: str, *, expiry_s: float, trying: str = "", reading: Key | None = None
    ) -> Claim:
        """Take the lease if it is free, lapsed or already this owner's; the claim now in force is returned, so
        `claim.owner == owner` says that it was taken. An empty `trying` leaves what was written down before.

        Args:
            reading: the key, if its record is to be read under the claim, in the same trip: nobody else begins from
                then on. If it cannot be, `found` is None, and it is for the caller to read it."""
        ...

    async def renew(self, claim: Claim, *, expiry_s: float) -> bool:
        """Extend the owner's own lease and write down what it is `trying`. False if it has lapsed or is another's."""
        ...

    async def release(self, claim: Claim) -> bool:
        """Give the owner's own lease back; nothing happens if it is another's. False if it may be there still."""
        ...

    async def holders(self, digests: Sequence[str]) -> list[Claim | None]:
        """The claim in force on each, in order, in one trip; None where there is none, or it cannot be read. For who
        waits for others' claims, and would not take one yet."""
        ...

    async def changes(self) -> bool | frozenset[str]:
        """True if somebody else has written or deleted a record, or given a claim back, since `open` or the last call
        (that a claim was taken may be told too); from a store that knows it, the digests of exactly what was written,
        empty for nothing. What this handle wrote does not count; a store of which this is the only handle never says
        True. Cheap: made to be polled. A store that is told of changes may
        wait a quarter of a second for one, and let some time pass between two calls."""
        ...

    def scan(self) -> AsyncIterator[tuple[str, Record | Miss]]:
        """Every (digest, record) in the order of digests, undecodable ones as misses; claims are not records.

        No snapshot: what is written meanwhile is seen if it comes later in the order.
        """
        ...

    async def delete(self, digests: Sequence[str]) -> int:
        """Remove records; how many there were."""
        ...

    async def statistics(self) -> StoreStatistics:
        """What is in it and what went wrong so far."""
        ...
