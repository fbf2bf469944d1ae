"""`MemoryStore`: records in this process's memory. For tests, and for who wants to keep nothing.

Guarantees: bounded by `limit_records`, beyond which the record least recently read or committed goes; claims are never
evicted. Several handles may share one memory, as several processes share one directory: from any loops and threads.

Records lie here as the objects that they are (they are immutable), not as bytes: to decode on the loop would stop it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from algosearch.forks import renew_in_children
from algosearch.records import Key, Record
from algosearch.stores.base import Claim, Committed, Miss, StoreStatistics
from algosearch.stores.rules import Lease, contest, extend, settle
from algosearch.stores.trouble import Troubles

LIMIT_RECORDS: Final = 20_000


class _Memory:
    """What the handles share. Whoever touches it holds `lock`, for microseconds."""

    def __init__(self, limit_records: int) -> None:
        self.renew_after_fork()
        renew_in_children(self)
        self.limit_records = limit_records
        self.records: OrderedDict[str, tuple[Record, int]] = OrderedDict()
        """By digest, with the encoded size; the least recently used first."""
        self.leases: dict[str, Lease] = {}
        self.writes = 0
        """Counts up with every change, so that a handle can tell the others' from its own."""

    def renew_after_fork(self) -> None:
        """The child has a memory of its own, with what was in it."""
        self.lock = threading.Lock()


class MemoryStore:
    """One handle on a memory of records. Nothing that it does waits.

    Args:
        limit_records: how many records to keep, at least 1.
        clock: seconds, for the expiry of claims.
        beside: another handle, whose memory is to be shared; its limit then counts.
    """

    location = "memory:"
    lasting = False

    def __init__(
        self,
        *,
        limit_records: int = LIMIT_RECORDS,
        clock: Callable[[], float] = time.time,
        beside: MemoryStore | None = None,
    ) -> None:
        if limit_records < 1:
            raise ValueError(f"limit_records = {limit_records}: must be at least 1")
        self._memory: _Memory = _Memory(limit_records) if beside is None else beside._memory
        self._clock = clock
        self._troubles = Troubles(self.location)
        self._own_writes = 0
        self._foreign_seen = 0

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._memory.records)} records, {len(self._memory.leases)} claims>"

    async def open(self) -> None:
        """Begin to count what others write."""
        self._foreign_seen = self._memory.writes - self._own_writes

    async def aclose(self) -> None:
        """Nothing to do: the memory lives as long as its handles."""

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """As `Store.get_many`. What is read is the last to be evicted."""
        with self._memory.lock:
            return [self._get(key.digest) for key in keys]

    async def commit(self, record: Record, *, after: int) -> Committed:
        """As `Store.commit`."""
        raw = self._troubles.storable(record)
        if raw is None:
            return Committed(record, won=True, kept=False)
        digest = record.key.digest
        memory = self._memory
        with memory.lock:
            stored = self._get(digest)
            settled = settle(stored if isinstance(stored, Record) else None, record, after=after)
            if settled.won:
                memory.records[digest] = (record, len(raw))
                memory.records.move_to_end(digest)
                while len(memory.records) > memory.limit_records:
                    memory.records.popitem(last=False)
                lease = memory.leases.get(digest)
                if lease is not None:
                    memory.leases[digest] = replace(lease, settled=True)
                self._wrote()
        return settled

    async def claim(
        self, digest: str, owner: str, *, expiry_s: float, trying: str = "", reading: Key | None = None
    ) -> Claim:
        """As `Store.claim`."""
        with self._memory.lock:
            held = self._memory.leases.get(digest)
            lease = contest(held, owner, expiry_s=expiry_s, trying=trying, now_s=self._clock())
            if lease is not held:
                self._memory.leases[digest] = lease
                self._wrote()
            found = self._get(digest) if reading is not None and lease.owner == owner else None
        return replace(lease.claim(digest), found=found)

    async def renew(self, claim: Claim, *, expiry_s: float) -> bool:
        """As `Store.renew`."""
        with self._memory.lock:
            held = self._memory.leases.get(claim.digest)
            lease = extend(held, claim, expiry_s=expiry_s, now_s=self._clock())
            if lease is not None:
                self._memory.leases[claim.digest] = lease
                self._wrote()
        return lease is not None

    async def release(self, claim: Claim) -> bool:
        """As `Store.release`."""
        with self._memory.lock:
            held = self._memory.leases.get(claim.digest)
            if held is not None and held.owner == claim.owner:
                del self._memory.leases[claim.digest]
                self._wrote()
        return True

    async def holders(self, digests: Sequence[str]) -> list[Claim | None]:
        """As `Store.holders`."""
        with self._memory.lock:
            leases = [self._memory.leases.get(digest) for digest in digests]
        now_s = self._clock()
        return [
            lease.claim(digest) if lease is not None and lease.in_force(now_s) else None
            for digest, lease in zip(digests, leases, strict=True)
        ]

    async def changes(self) -> bool:
        """As `Store.changes`: whether another handle of this memory has written."""
        with self._memory.lock:
            foreign = self._memory.writes - self._own_writes
        changed, self._foreign_seen = foreign != self._foreign_seen, foreign
        return changed

    async def scan(self) -> AsyncIterator[tuple[str, Record | Miss]]:
        """As `Store.scan`."""
        with self._memory.lock:
            digests = sorted(self._memory.records)
        for digest in digests:
            with self._memory.lock:
                entry = self._memory.records.get(digest)
            if entry is not None:
                yield digest, entry[0]

    async def delete(self, digests: Sequence[str]) -> int:
        """As `Store.delete`."""
        with self._memory.lock:
            deleted = sum(self._memory.records.pop(digest, None) is not None for digest in digests)
            if deleted:
                self._wrote()
        return deleted

    async def statistics(self) -> StoreStatistics:
        """As `Store.statistics`."""
        now_s = self._clock()
        with self._memory.lock:
            return StoreStatistics(
                location=self.location,
                records=len(self._memory.records),
                bytes=sum(size_bytes for _, size_bytes in self._memory.records.values()),
                writable=True,
                claims=len(self._memory.leases),
                claims_in_force=sum(lease.in_force(now_s) for lease in self._memory.leases.values()),
                trouble=self._troubles.lines(),
            )

    # -- with the lock held ------------------------------------------------------------------------------------------

    def _get(self, digest: str) -> Record | Miss:
        entry = self._memory.records.get(digest)
        if entry is None:
            return Miss("absent", "not in the store")
        self._memory.records.move_to_end(digest)
        return entry[0]

    def _wrote(self) -> None:
        self._memory.writes += 1
        self._own_writes += 1
