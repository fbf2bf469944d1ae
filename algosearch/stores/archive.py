"""An archive: records in one file, to be carried from one store to another. `docs/export-format.md` describes it.

JSON lines, each of which can be checked by itself, so that damage costs the records that it hits and no others: a
header, then for each record its digest, the SHA-256 of its bytes and the bytes themselves, which are those of the wire
format. Nothing that is read is trusted: a line has a greatest length and a strict shape, the bytes are compared with
their sum, and then decoded as those from any store.

Rejected: the store's own file (SQLite's pages are no format to hand around, and only a store can tell damage in them
from good), MessagePack frames (a damaged length loses everything behind it), the record as readable JSON (another
format for the same thing, of which `show` is the readable one).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Annotated, BinaryIO, Final

import msgspec
from msgspec import Meta

from algosearch.errors import UndecodableRecord
from algosearch.records import Record, wire

ARCHIVE_FORMAT: Final = 1
"""Counts up when a line gets another shape. The records in it have a version of their own (`records.wire`)."""
_LONGEST_LINE: Final = wire.LONGEST_BYTES * 4 // 3 + 1024
_LONGEST_REASON: Final = 200

_Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line."""

    algosearch_export: int
    """`ARCHIVE_FORMAT`."""
    version: str
    """Of the algosearch that wrote it."""
    exported_at_s: Annotated[int, Meta(ge=0)]
    records: Annotated[int, Meta(ge=0)]
    """How many follow, so that a file that was cut between two lines is seen to be."""


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    digest: _Hex
    sha256: _Hex
    record: bytes


class Damage(msgspec.Struct, frozen=True):
    """One line of which nothing could be taken."""

    line: int
    """From 1."""
    reason: str


_encode: Final = msgspec.json.Encoder().encode
_decode_header: Final = msgspec.json.Decoder(Header, strict=True).decode
_decode_line: Final = msgspec.json.Decoder(_Line, strict=True).decode


def header_line(*, version: str, exported_at_s: int, records: int) -> bytes:
    """The first line of an archive."""
    header = Header(algosearch_export=ARCHIVE_FORMAT, version=version, exported_at_s=exported_at_s, records=records)
    return _encode(header) + b"\n"


def record_line(record: Record) -> bytes:
    """The line of one record."""
    raw = wire.encode(record)
    line = _Line(digest=record.key.digest, sha256=hashlib.sha256(raw).hexdigest(), record=raw)
    return _encode(line) + b"\n"


def wins(incoming: Record, stored: Record) -> bool:
    """Whether a record from an archive replaces the one of its key that is stored: a higher generation does, then more
    searches do; else the stored one stays."""
    return (incoming.generation, incoming.revision) > (stored.generation, stored.revision)


class Reader:
    """Reads an archive line by line; iterated once. At most one line is ever held, whatever the file holds."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.header: Header | None = None
        """None until the first line is read, and if it is none."""
        self.records = 0
        """Lines of records met, good or damaged."""

    @property
    def missing(self) -> int:
        """At the end: how many of the records that were promised did not come."""
        return 0 if self.header is None else max(0, self.header.records - self.records)

    def __iter__(self) -> Iterator[Record | Damage]:
        """The records and the damage, in order.

        Raises:
            UndecodableRecord: it is an archive of another format.
            OSError: the file cannot be read.
        """
        for number, line in enumerate(self._lines(), 1):
            if number == 1:
                self.header = _header_in(line)
                if self.header is not None:
                    continue
            try:
                record = _record_in(line)
            except UndecodableRecord as error:
                self.records += number > 1
                yield Damage(number, str(error) if number > 1 else "not the header of an export")
                continue
            self.records += 1
            if number == 1:  # the header is gone, and what it promised with it
                yield Damage(1, "the header of the export is missing")
            yield record

    def _lines(self) -> Iterator[bytes | None]:
        """Each line; None for one that is longer than any can be."""
        while line := self._file.readline(_LONGEST_LINE + 1):
            if len(line) <= _LONGEST_LINE:
                yield line
                continue
            while line and not line.endswith(b"\n"):
                line = self._file.readline(_LONGEST_LINE + 1)
            yield None


def _header_in(line: bytes | None) -> Header | None:
    """The header in the first line; None if it is none.

    Raises:
        UndecodableRecord: of an archive of another format.
    """
    header = None
    with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        header = None if line is None else _decode_header(line)
    if header is not None and header.algosearch_export != ARCHIVE_FORMAT:
        raise UndecodableRecord(
            f"an export in format {header.algosearch_export}; this algosearch reads {ARCHIVE_FORMAT}"
        )
    return header


def _record_in(line: bytes | None) -> Record:
    if line is None:
        raise UndecodableRecord("longer than the line of a record can be")
    try:
        parts = _decode_line(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        cut = "" if line.endswith(b"\n") else ", and cut short"
        raise UndecodableRecord(f"not the line of a record{cut}: {str(error)[:_LONGEST_REASON]}") from None
    if hashlib.sha256(parts.record).hexdigest() != parts.sha256:
        raise UndecodableRecord("damaged: its bytes are not those that were written")
    return wire.decode(parts.record, digest=parts.digest)
