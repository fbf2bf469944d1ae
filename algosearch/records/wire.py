"""How a record is written: MessagePack, compact, versioned, strictly decoded. `docs/cache-format.md` describes it.

Nothing read is trusted: length first, then the type and range of everything (the annotations of `Trial` and `Search`),
then the version, then that the record is that of the key under which it lay, then what types cannot say (canonical
names, one trial an algorithm, a time for what ran). Whatever fails is `UndecodableRecord`, which the caller turns into
a miss with that reason.

Rejected: JSON (half as long and half as slow again), a map for each trial (two thirds longer), and reading what another
version wrote: a search is cheaper than a wrong answer.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from algosearch.errors import UndecodableRecord
from algosearch.records.algorithm import InvalidAlgorithm, check_names
from algosearch.records.key import Key
from algosearch.records.record import Record, Search
from algosearch.records.trial import Count

WIRE_VERSION: Final = 1
LONGEST_BYTES: Final = 4 << 20
"""No record comes near this; what is longer is not looked at."""

_LONGEST_REASON: Final = 200
"""Characters. A reason may quote what was read, and ends up in logs and on terminals."""


class _Wire(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    version: int
    key: str
    generation: Count
    searches: Annotated[tuple[Search, ...], msgspec.Meta(min_length=1)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Wire, strict=True)


def encode(record: Record) -> bytes:
    """The bytes of a record. Nothing is checked: `decode` says whether they can be read."""
    return _encoder.encode(_Wire(WIRE_VERSION, record.key.text, record.generation, record.searches))


def decode(raw: bytes, *, digest: str | None = None, key: Key | None = None) -> Record:
    """The record in `raw`.

    Args:
        digest: under which it lay; or
        key: that was asked, which saves reading the text of the stored one.

    Raises:
        UndecodableRecord: with the reason: too long, cut short, of another version, not of this key, absurd.
    """
    if len(raw) > LONGEST_BYTES:
        raise UndecodableRecord(f"a record of {len(raw)} bytes is longer than any can be")
    try:
        wire = _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        # Another version may have another shape, so that its number has to be looked for apart from it.
        _check_version(_version_in(raw))
        raise UndecodableRecord(f"not a record: {_quotable(str(error))}") from None
    _check_version(wire.version)
    if key is None:
        key = Key.from_text(wire.key)
        if digest is not None and key.digest != digest:
            raise UndecodableRecord("the record is of another key than the one under which it lay")
    elif wire.key != key.text:
        raise UndecodableRecord("the record is of another key than the one under which it lay")
    for search in wire.searches:
        _check(search)
    return Record(key=key, searches=wire.searches, generation=wire.generation)


def _check(search: Search) -> None:
    trials = search.trials
    names = {trial.algorithm for trial in trials}
    if len(names) != len(trials):
        raise UndecodableRecord("an algorithm with two trials in one search")
    try:
        check_names(names)
    except InvalidAlgorithm as error:
        raise UndecodableRecord(_quotable(str(error))) from None
    if sum([len(trial.samples) % 4 for trial in trials]):  # lists: half the time of a loop, on each hit
        raise UndecodableRecord("samples cut short")
    for trial in [trial for trial in trials if trial.time_us is None]:
        if trial.stage != "listed" and trial.failure is None:
            raise UndecodableRecord(f"{trial.algorithm}: {trial.stage} without a time")


def _check_version(version: int) -> None:
    if version > WIRE_VERSION:
        raise UndecodableRecord(f"written in format {version} by a newer algosearch; this one reads {WIRE_VERSION}")
    if version != WIRE_VERSION:
        raise UndecodableRecord(f"written in the unknown format {version}; this algosearch reads {WIRE_VERSION}")


def _version_in(raw: bytes) -> int:
    """The number with which an array in `raw` begins, as every format to come will; else `WIRE_VERSION`.

    By hand, for to decode all the rest as whatever it may be costs fifty times its length.
    """
    start = 1 if raw[:1] and raw[0] >> 4 == 0x9 else {b"\xdc": 3, b"\xdd": 5}.get(raw[:1], len(raw))
    length = {b"\xcc": 2, b"\xcd": 3, b"\xce": 5, b"\xcf": 9}.get(raw[start : start + 1], 1)
    try:
        return msgspec.msgpack.decode(raw[start : start + length], type=int)
    except msgspec.DecodeError:
        return WIRE_VERSION


def _quotable(text: str) -> str:
    shown = text[:_LONGEST_REASON]
    return shown if shown.isprintable() else ascii(shown)
