"""The file of `export`: what is written is read back, and damage costs what it hits."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algosearch.errors import UndecodableRecord
from algosearch.records import Record, wire
from algosearch.stores import archive
from algosearch.stores.archive import Damage, Reader, header_line, record_line, wins
from tests.stores.nouns import some_key, some_record

RECORDS = [some_record(n, trials=5) for n in range(6)]


def written(records: Sequence[Record] = RECORDS, *, promised: int | None = None) -> bytes:
    count = len(records) if promised is None else promised
    header = header_line(version="0.1.0", exported_at_s=1_767_225_600, records=count)
    return header + b"".join(map(record_line, records))


def read(content: bytes) -> tuple[list[Record], list[Damage], int]:
    reader = Reader(io.BytesIO(content))
    found = list(reader)
    records = [each for each in found if isinstance(each, Record)]
    return records, [each for each in found if isinstance(each, Damage)], reader.missing


def test_what_is_written_is_read_back() -> None:
    assert read(written()) == (RECORDS, [], 0)
    assert read(written([])) == ([], [], 0)


def test_the_format_is_the_one_that_is_described() -> None:
    """As `docs/export-format.md` says it."""
    header, line = written(RECORDS[:1]).splitlines()
    assert msgspec.json.decode(header) == {
        "algosearch_export": 1,
        "version": "0.1.0",
        "exported_at_s": 1_767_225_600,
        "records": 1,
    }
    raw = wire.encode(RECORDS[0])
    assert msgspec.json.decode(line) == {
        "digest": some_key(0).digest,
        "sha256": hashlib.sha256(raw).hexdigest(),
        "record": base64.b64encode(raw).decode(),
    }


@given(st.data())
def test_a_flipped_bit_costs_at_most_the_line_it_is_in(data: st.DataObject) -> None:
    content = bytearray(written())
    at = data.draw(st.integers(0, len(content) - 1), label="byte")
    line = content[:at].count(b"\n") + 1
    content[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    reader = Reader(io.BytesIO(bytes(content)))
    try:
        found = [each for each in reader if isinstance(each, Record)]
    except UndecodableRecord:  # the number of the format became another one
        assert line == 1
        return
    assert all(each in RECORDS for each in found)
    # A line end that went joins two lines, one that came makes two of one.
    hit = {line - 2, line - 1}
    assert {n for n, record in enumerate(RECORDS) if record not in found} <= hit


@given(st.integers(0, len(written()) - 1))
def test_cut_anywhere_the_whole_lines_before_are_good(length: int) -> None:
    content = written()[:length]
    whole = content.count(b"\n")
    records, damage, missing = read(content)
    lines = content.splitlines()
    if len(lines) > whole and content.endswith(written().splitlines()[len(lines) - 1]):
        whole += 1  # only the end of the line is missing
    assert records == RECORDS[: max(0, whole - 1)]
    assert len(damage) <= 1
    if whole >= 1:
        assert missing + len(records) + len(damage) == len(RECORDS)


def test_a_cut_between_two_lines_is_seen() -> None:
    assert read(written(RECORDS[:4], promised=6)) == (RECORDS[:4], [], 2)


def line(**changes: object) -> bytes:
    parts: dict[str, object] = msgspec.json.decode(record_line(RECORDS[0]))
    return msgspec.json.encode({**parts, **changes}) + b"\n"


OTHER = wire.encode(RECORDS[1])
BAD = [
    (b"\n", "not the line of a record"),
    (b"\xff\xfe\n", "not the line of a record"),
    (b'{"digest":"' + b"[" * 100_000 + b"\n", "not the line of a record"),
    (b"[" * 100_000 + b"\n", "not the line of a record"),
    (line(more=1), "unknown field `more`"),
    (line(digest="ab"), "matching regex"),
    (line(digest=RECORDS[0].key.digest + "\n"), "matching regex"),
    (line(digest=RECORDS[0].key.digest.upper()), "matching regex"),
    (line(record="!!!"), "not the line of a record"),
    (line(record=""), "damaged: its bytes are not those that were written"),
    (line(record=base64.b64encode(OTHER).decode()), "damaged"),
    (
        line(record=base64.b64encode(OTHER).decode(), sha256=hashlib.sha256(OTHER).hexdigest()),
        "the record is of another key",
    ),
    (line(record=base64.b64encode(b"\xc0").decode(), sha256=hashlib.sha256(b"\xc0").hexdigest()), "not a record"),
    (line(digest=None), "not the line of a record"),
    (header_line(version="0.1.0", exported_at_s=0, records=0), "not the line of a record"),
    (b'{"digest":"00', "and cut short"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=lambda value: value[:20] if isinstance(value, str) else "")
def test_a_bad_line_is_named_and_the_others_are_read(bad: bytes, reason: str) -> None:
    header, first, *_ = written().splitlines(keepends=True)
    last = b"" if not bad.endswith(b"\n") else record_line(RECORDS[2])
    records, (damage,), _ = read(header + first + bad + last)
    assert records == ([RECORDS[0], RECORDS[2]] if last else [RECORDS[0]])
    assert damage.line == 3
    assert reason in damage.reason
    assert len(damage.reason) < 300


def test_a_line_that_is_too_long_is_passed_over_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = max(len(record_line(record)) for record in RECORDS)
    monkeypatch.setattr(archive, "_LONGEST_LINE", longest)
    header, *lines = written().splitlines(keepends=True)
    content = header + lines[0] + b"x" * (10 * longest) + b"\n" + lines[1] + b"y" * (2 * longest)
    taken: list[int] = []

    class Watched(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            taken.append(size)
            return super().readline(size)

    found = list(Reader(Watched(content)))
    assert [each for each in found if isinstance(each, Record)] == RECORDS[:2]
    assert [each.line for each in found if isinstance(each, Damage)] == [3, 5]
    assert set(taken) == {longest + 1}


@pytest.mark.parametrize("kept", [3, 1])
def test_where_the_line_of_the_header_is_gone_no_record_goes_with_it(kept: int) -> None:
    """The first record is in the place of the header then."""
    lines = written().splitlines(keepends=True)[1:]
    records, damage, missing = read(b"".join(lines[:kept]))
    assert (records, damage, missing) == (RECORDS[:kept], [Damage(1, "the header of the export is missing")], 0)


def test_without_its_header_the_records_are_read_all_the_same() -> None:
    content = b'{"algosearch_export":1,"vers' + b"\n" + b"".join(map(record_line, RECORDS))
    records, (damage,), missing = read(content)
    assert (records, damage, missing) == (RECORDS, Damage(1, "not the header of an export"), 0)


def test_another_format_is_refused_as_a_whole() -> None:
    content = written().replace(b'"algosearch_export":1', b'"algosearch_export":2')
    with pytest.raises(UndecodableRecord, match="an export in format 2; this algosearch reads 1"):
        read(content)


def test_who_wins() -> None:
    """A higher generation, then more searches; else the stored one stays."""

    def made(generation: int, searches: int) -> Record:
        return some_record(0, searches=searches, generation=generation)

    assert wins(made(2, 1), made(1, 3))
    assert not wins(made(1, 3), made(2, 1))
    assert wins(made(1, 2), made(1, 1))
    assert not wins(made(1, 1), made(1, 2))
    assert not wins(made(1, 1), made(1, 1))
