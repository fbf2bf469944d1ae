"""How records lie on a server: under which keys, and in which bytes."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from algosearch.errors import UndecodableRecord
from algosearch.records import Key, Record, wire
from algosearch.stores.scripts import TAG_BYTES

FORMAT: Final = 2
"""Counted up with any change of keys, leases or tags. The version of the records comes on top of it."""


class Names:
    """The keys on the server."""

    def __init__(self, prefix: str) -> None:
        base = f"{prefix}:v{FORMAT}.{wire.WIRE_VERSION}"
        self._records = f"{base}:record:"
        self.claims, self.news = f"{base}:claims", f"{base}:news"
        self.index, self.born = f"{base}:index", f"{base}:born"

    def record(self, digest: str) -> bytes:
        """Of the record of a digest."""
        return self.record_of(as_bytes(digest))

    def record_of(self, digest: bytes) -> bytes:
        """The same, of a digest as it is in the index."""
        return self._records.encode() + digest


def tag_of(raw: bytes) -> bytes:
    """What is compared in place of a record."""
    return blake2b(raw, digest_size=TAG_BYTES).digest()


def record_in(value: bytes, digest: str, key: Key | None) -> Record:
    """The record in a value that lay under a digest.

    Args:
        key: that was asked, if one was.

    Raises:
        UndecodableRecord: as `wire.decode`; or it is not what its tag says.
    """
    if len(value) > TAG_BYTES + wire.LONGEST_BYTES:
        raise UndecodableRecord(f"a value of {len(value)} bytes is longer than any record can be")
    raw = value[TAG_BYTES:]
    record = wire.decode(raw, key=key) if key is not None else wire.decode(raw, digest=digest)
    if tag_of(raw) != value[:TAG_BYTES]:
        raise UndecodableRecord("the record is not what its tag says")
    return record


def as_bytes(text: str) -> bytes:
    """What a caller passes for a digest or a name may be any string."""
    return text.encode("utf-8", "replace")
