"""How a record is written: MessagePack, compact, versioned, strictly decoded. `docs/cache-format.md` describes it.

Nothing read is trusted: length first, then the type of everything and the range of what is not packed (the annotations
of `Trials` and `Search`), then the version, then that the record is that of the key under which it lay, then what types
cannot say (packed numbers, columns of one length, canonical names, one trial an algorithm, a time for what ran).
Whatever fails is `UndecodableRecord`, which the caller turns into a miss with that reason.

Rejected: JSON (half as long and half as slow again), an array for each trial (three times as slow, and five times the
memory once it is read), and reading what another version wrote: a search is cheaper than a wrong answer.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from struct import unpack
from typing import Annotated, Final, cast

import msgspec
from msgspec.structs import force_setattr

from algosearch.errors import UndecodableRecord
from algosearch.records.algorithm import InvalidAlgorithm, shared_names
from algosearch.records.key import Key
from algosearch.records.record import Record, Search
from algosearch.records.trial import MOST_SAMPLES, MOST_US, Count
from algosearch.records.trials import NOTHING, STAGES, Trials

WIRE_VERSION: Final = 2
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
        _check(search.trials)
    return Record(key=key, searches=wire.searches, generation=wire.generation)


def _told_apart(good: range) -> bytes:
    """A table for `translate` that leaves ASCII of good bytes only: two passes in C tell of a whole column."""
    return bytes(0 if byte in good else 0xFF for byte in range(256))


# By the highest byte of each number. A float64 in which it is at most 0x42 is not negative, NaN or infinite, and below
# 2**49; above 0 if that byte is not 0.
_DURATIONS: Final = _told_apart(range(0x43))
_TIMES: Final = _told_apart(range(1, 0x43))
_STAGES: Final = _told_apart(range(len(STAGES)))
_COUNTS: Final = _told_apart(range(MOST_SAMPLES + 1))


def _check(trials: Trials) -> None:
    """What the types cannot say. Whole columns at a time: this is done on each hit in a store."""
    count = len(trials.algorithms)
    if not (
        count == len(trials.ranks) == len(trials.notes) == len(trials.timing)
        and count == len(trials.stages) == len(trials.sample_counts)
        and 8 * count == len(trials.workspaces) == len(trials.times) == len(trials.errors) == len(trials.builds)
    ):
        raise UndecodableRecord("columns of unequal length")
    _check_names(trials)
    if not trials.workspaces[7::8].isascii():
        raise UndecodableRecord("a workspace of less than nothing")
    if not (_are_below(len(trials.note_sets), trials.notes) and _are_below(len(trials.timings), trials.timing)):
        raise UndecodableRecord("notes or a timing that are not among those listed")
    if not trials.stages.translate(_STAGES).isascii():
        raise UndecodableRecord("an unknown stage")
    if not trials.sample_counts.translate(_COUNTS).isascii() or 4 * sum(trials.sample_counts) != len(trials.samples):
        raise UndecodableRecord("samples too many, or cut short")
    places = [place for place, _ in trials.failures]
    if places and (places != sorted(set(places)) or places[-1] >= count):
        raise UndecodableRecord("failures of no trials, or out of order")
    if trials.reserves:
        reserved = [place for place, _ in trials.reserves]
        if reserved != sorted(set(reserved)) or reserved[-1] >= count:
            raise UndecodableRecord("reserves of no trials, or out of order")
    if not trials.errors[7::8].translate(_DURATIONS).isascii() and not all(map(_is_duration, trials.errors_us)):
        raise UndecodableRecord("an error out of range")
    if not trials.builds[7::8].translate(_DURATIONS).isascii():
        builds: tuple[float, ...] = unpack(f"<{count}d", trials.builds)
        if not all(build_us == NOTHING or _is_duration(build_us) for build_us in builds):
            raise UndecodableRecord("a build out of range")
    if not trials.times[7::8].translate(_TIMES).isascii() or 0 in trials.stages:
        _check_times(trials, frozenset(places))


def _check_names(trials: Trials) -> None:
    """No algorithm twice, each name canonical, all in order. Strings that records have in common become one."""
    try:
        names = shared_names(trials.algorithms)
    except InvalidAlgorithm as error:
        raise UndecodableRecord(_quotable(str(error))) from None
    if len(set(names)) != len(names):
        raise UndecodableRecord("an algorithm with two trials in one search")
    force_setattr(trials, "algorithms", names)
    ordinary = _first_ranks(len(names))
    if trials.ranks == ordinary:
        force_setattr(trials, "ranks", ordinary)
    else:
        order = list(zip(trials.ranks, names, strict=True))
        if order != sorted(order):
            raise UndecodableRecord("trials out of order")
    force_setattr(trials, "note_sets", _shared_sets(trials.note_sets))
    force_setattr(trials, "timings", _shared_words(trials.timings))


def _check_times(trials: Trials, failed: frozenset[int]) -> None:
    """A time for whoever ran to the end, and for nobody else."""
    for place, (time_us, stage) in enumerate(zip(trials.times_us, trials.stages, strict=True)):
        if not 0.0 < time_us < MOST_US and time_us != NOTHING:
            raise UndecodableRecord("a time out of range")
        if (time_us == NOTHING) != (STAGES[stage] == "listed") and not (time_us == NOTHING and place in failed):
            told = "without a time" if time_us == NOTHING else "with a time"
            raise UndecodableRecord(f"{trials.algorithms[place]}: {STAGES[stage]} {told}")


def _are_below(count: int, places: bytes | tuple[int, ...]) -> bool:
    if isinstance(places, bytes):
        return places.translate(_told_below(min(count, 256))).isascii()
    return max(places, default=-1) < count


@lru_cache(maxsize=256)
def _told_below(count: int) -> bytes:
    return _told_apart(range(count))


def _is_duration(number: float) -> bool:
    return 0.0 <= number < MOST_US


_FIRST_RANKS: Final = tuple(range(4096))


@lru_cache(maxsize=256)
def _first_ranks(count: int) -> tuple[int, ...]:
    """The ranks of so many trials, one object for all searches that have as many."""
    return _FIRST_RANKS[:count]


_SETS_KEPT: Final = 512
_sets: dict[tuple[str, ...], tuple[str, ...]] = {}
"""Sets of words by themselves. Emptied when full, which costs time and memory only."""


def _shared_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Equal words, one object for all records that have them."""
    if len(_sets) >= _SETS_KEPT:
        _sets.clear()
    return _sets.setdefault(words, words)


def _shared_sets(sets: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """`_shared_words` of each; in one step in C, if all are known."""
    if len(sets) > 1:  # of one it gives no tuple
        try:
            return cast("tuple[tuple[str, ...], ...]", itemgetter(*sets)(_sets))
        except KeyError:
            pass
    return tuple(map(_shared_words, sets))


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
