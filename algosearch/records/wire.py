"""How a record is written: MessagePack, compact, versioned, strictly decoded. `docs/cache-format.md` describes it.

Nothing read is trusted: length first, then the version, then the types of everything, then that the record is that of
the key under which it lay, then what the types cannot say (finite positive times, canonical names, one trial an
algorithm). Whatever fails is `UndecodableRecord`, which the caller turns into a miss with that reason.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

import msgspec

from algosearch.errors import UndecodableRecord
from algosearch.records.key import Key
from algosearch.records.record import Record, Search

WIRE_VERSION: Final = 1
LONGEST_BYTES: Final = 4 << 20
"""No record comes near this; what is longer is not looked at."""


class _Wire(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    version: int
    key: str
    generation: int
    searches: tuple[Search, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Wire, strict=True)
_version_decoder = msgspec.msgpack.Decoder(list[Any])


def encode(record: Record) -> bytes:
    """The bytes of a record."""
    return _encoder.encode(_Wire(WIRE_VERSION, record.key.text, record.generation, record.searches))


def decode(raw: bytes, *, digest: str | None = None, key: Key | None = None) -> Record:
    """The record in `raw`.

    Args:
        digest: under which it lay; or
        key: that was asked, which saves hashing the text.

    Raises:
        UndecodableRecord: with the reason: too long, cut short, of a newer version, not of this key, absurd.
    """
    if len(raw) > LONGEST_BYTES:
        raise UndecodableRecord(f"a record of {len(raw)} bytes is longer than any can be")
    try:
        wire = _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UndecodableRecord(_why(raw, error)) from None
    if wire.version != WIRE_VERSION:
        raise UndecodableRecord(_other_version(wire.version))
    if key is None:
        key = Key.from_text(wire.key)
        if digest is not None and key.digest != digest:
            raise UndecodableRecord("the record is of another key than the one under which it lay")
    elif wire.key != key.text:
        raise UndecodableRecord("the record is of another key than the one under which it lay")
    if wire.generation < 0:
        raise UndecodableRecord("a negative generation")
    if not wire.searches:
        raise UndecodableRecord("a record without a search")
    for search in wire.searches:
        _check(search)
    return Record(key=key, searches=wire.searches, generation=wire.generation)


def _check(search: Search) -> None:
    names = set()
    for trial in search.trials:
        names.add(trial.algorithm)
        if trial.workspace_bytes < 0 or trial.rank < 0:
            raise UndecodableRecord(f"{trial.algorithm}: a negative size or rank")
        time_us, error_us = trial.time_us, trial.error_us
        if time_us is None:
            if trial.stage != "listed" and trial.failure is None:
                raise UndecodableRecord(f"{trial.algorithm}: {trial.stage} without a time")
        elif not 0.0 < time_us < 1e15:  # also false for NaN
            raise UndecodableRecord(f"{trial.algorithm}: an impossible time")
        if error_us is not None and not 0.0 <= error_us < 1e15:
            raise UndecodableRecord(f"{trial.algorithm}: an impossible error")
        if trial.samples_us and not (isfinite(sum(trial.samples_us)) and min(trial.samples_us) > 0.0):
            raise UndecodableRecord(f"{trial.algorithm}: an impossible sample")
    if len(names) != len(search.trials):
        raise UndecodableRecord("an algorithm with two trials in one search")


def _other_version(version: object) -> str:
    if isinstance(version, int) and version > WIRE_VERSION:
        return f"written in format {version} by a newer algosearch; this one reads {WIRE_VERSION}"
    return f"written in the unknown format {version!r}; this algosearch reads {WIRE_VERSION}"


def _why(raw: bytes, error: Exception) -> str:
    """A newer format may have another shape, so the version is looked for once more, and nothing else."""
    try:
        version = _version_decoder.decode(raw)[0]
    except (msgspec.DecodeError, RecursionError, IndexError):
        version = WIRE_VERSION
    return _other_version(version) if version != WIRE_VERSION else f"not a record: {error}"
