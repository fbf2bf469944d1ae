"""What every store decides alike, as pure functions: who wins a commit, and who holds a claim.

A store reads, asks here, and writes the answer, in one transaction of its own kind. So the rules of
`algosearch.stores.base` are written down once, and a store can be wrong only about its storage.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from algosearch.records import Record, wire
from algosearch.stores.base import Claim, Committed


def storable(record: Record) -> bytes:
    """The bytes of `record`, tried: what this process could not read back would make the key a miss for ever.

    Raises:
        UndecodableRecord: it is too long, or has values that no reader would take.
    """
    raw = wire.encode(record)
    wire.decode(raw, key=record.key)
    return raw


def settle(stored: Record | None, record: Record, *, after: int) -> Committed:
    """Whether `record`, found after revision `after`, replaces what is stored; and the record to go on with."""
    if stored is None or stored.generation < record.generation:
        return Committed(record, won=True)
    if stored.generation == record.generation and stored.revision == after:
        return Committed(record, won=True)
    return Committed(stored, won=False)


FORGOTTEN_S: Final = 86_400.0
"""After so long a lapse tells nothing any more."""


_MOST_LAPSES: Final = 1_000_000


class Lease(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A claim as it is stored.

    It is in force while the clock is within `expiry_s` of `written_s`, before or after: a clock that was set back by
    hours must not prolong a dead owner's claim by hours.
    """

    owner: str
    lapses: int
    trying: str
    written_s: float
    expiry_s: float
    settled: bool = False
    """True once a record of the key was committed: a lapse after that says nothing about what was tried."""

    def in_force(self, now_s: float) -> bool:
        """Whether others have to wait. Always false for a time or expiry that is no number."""
        return abs(now_s - self.written_s) < self.expiry_s

    def claim(self, digest: str) -> Claim:
        """What callers see of it."""
        return Claim(digest=digest, owner=self.owner, lapses=self.lapses, trying=self.trying)


def contest(lease: Lease | None, owner: str, *, expiry_s: float, trying: str, now_s: float) -> Lease:
    """The lease after `owner` has claimed: `lease` itself if it is another's and in force, else one to be written."""
    lapses = 0
    if lease is not None:
        if lease.owner != owner and lease.in_force(now_s):
            return lease
        if not lease.settled and abs(now_s - lease.written_s) < FORGOTTEN_S:
            lapses = lease.lapses + (lease.owner != owner)
            trying = trying or lease.trying
    return Lease(owner=owner, lapses=lapses, trying=trying, written_s=now_s, expiry_s=expiry_s)


def extend(lease: Lease | None, claim: Claim, *, expiry_s: float, now_s: float) -> Lease | None:
    """The lease after its owner has renewed it; None if it is no longer the owner's to renew."""
    if lease is None or lease.owner != claim.owner or not lease.in_force(now_s):
        return None
    return replace(lease, trying=claim.trying, written_s=now_s, expiry_s=expiry_s)


_lease_encoder: Final = msgspec.msgpack.Encoder()
_lease_decoder: Final = msgspec.msgpack.Decoder(Lease, strict=True)


def encode_lease(lease: Lease) -> bytes:
    """The bytes of a lease."""
    return _lease_encoder.encode(lease)


def decode_lease(raw: bytes | None) -> Lease | None:
    """The lease in `raw`. None if there is none, or bytes that are none: what cannot be read holds nobody up, nor does
    what no engine writes, such as a lease for ever."""
    if raw is None:
        return None
    try:
        lease = _lease_decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return lease if 0 <= lease.lapses <= _MOST_LAPSES and 0 < lease.expiry_s <= FORGOTTEN_S else None
