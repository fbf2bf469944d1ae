"""`Trials`: the trials of one search, kept as columns and spelled out when somebody looks at one.

A process that reads a thousand records looks at a few numbers of each. As forty structs a record takes 21 kB and 21 µs
to read, and much of that is touching memory for the first time; as columns it is 3 kB, and they are those of the wire
format (`docs/cache-format.md`), so that reading is little more than checking.

Rejected: columns of Python numbers (three times the memory of packed ones), and keeping the undecoded bytes (each pick
would decode them again). `docs/decisions/0008-columns.md` has the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import attrgetter
from struct import pack, unpack
from typing import Annotated, Final, TypeVar, get_args, overload

import msgspec
from msgspec import Meta

from algosearch.ops.types import LARGEST
from algosearch.records.trial import MOST_SAMPLES, Count, Failure, Stage, Trial

T = TypeVar("T")
Word = Annotated[str, Meta(max_length=200)]

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
"""A stage is written as its place here."""
NOTHING: Final = -1.0
"""Written where a trial has no time, or no build."""
_SAMPLE_BYTES: Final = 4
_library_order = attrgetter("rank", "algorithm")


class Trials(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """The trials of one search, in the library's order: by rank, then by name. A sequence of `Trial`.

    Made by `Trials.of`, or read and checked by `records.wire`. Columns are packed little-endian, one item a trial.
    """

    algorithms: tuple[str, ...]
    ranks: tuple[Count, ...]
    workspaces: bytes
    """int64, in bytes."""
    note_sets: tuple[Annotated[tuple[Word, ...], Meta(max_length=100)], ...]
    """Each set of notes once."""
    notes: bytes | tuple[Count, ...]
    """Of each trial, the place of its notes in `note_sets`: uint8, as long as that is enough."""
    stages: bytes
    """uint8, a place in `STAGES`."""
    times: bytes
    """float64, in µs; `NOTHING` for who has none."""
    errors: bytes
    """float64, in µs; 0 for who has no time."""
    sample_counts: bytes
    """uint8."""
    samples: bytes
    """float32, in µs: those of all trials, one after the other."""
    builds: bytes
    """float64, in µs; `NOTHING` for who was not built."""
    timings: tuple[Word, ...]
    """Each word once."""
    timing: bytes | tuple[Count, ...]
    """Of each trial, the place of its timing in `timings`: uint8, as long as that is enough."""
    failures: tuple[tuple[Count, Failure], ...]
    """The places of the trials that failed, in order, and why."""
    reserves: tuple[tuple[Count, Count], ...] = ()
    """The places of the trials that have a reserve, in order, and its bytes."""

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Trials:
        """The columns of some trials. What no reader would take is kept for `wire.decode` to refuse, but for a
        workspace or a reserve beyond 2**63 - 1 bytes, which is taken for that: no device has either."""
        rows = sorted(trials, key=_library_order)
        kept = [row.samples[-_SAMPLE_BYTES * MOST_SAMPLES :] for row in rows]
        note_sets, notes = _numbered(row.notes for row in rows)
        timings, timing = _numbered(row.timing for row in rows)
        return cls(
            algorithms=tuple(row.algorithm for row in rows),
            ranks=tuple(row.rank for row in rows),
            workspaces=pack(f"<{len(rows)}q", *(max(-1, min(row.workspace_bytes, LARGEST)) for row in rows)),
            note_sets=note_sets,
            notes=notes,
            stages=bytes(STAGES.index(row.stage) for row in rows),
            times=_packed(row.time_us for row in rows),
            errors=_packed(row.error_us or 0.0 for row in rows),
            sample_counts=bytes(len(each) // _SAMPLE_BYTES for each in kept),
            samples=b"".join(each[: len(each) // _SAMPLE_BYTES * _SAMPLE_BYTES] for each in kept),
            builds=_packed(row.build_us for row in rows),
            timings=timings,
            timing=timing,
            failures=tuple((place, row.failure) for place, row in enumerate(rows) if row.failure is not None),
            reserves=tuple(
                (place, min(row.reserve_bytes, LARGEST)) for place, row in enumerate(rows) if row.reserve_bytes
            ),
        )

    @property
    def workspaces_bytes(self) -> tuple[int, ...]:
        """The workspace of each."""
        return unpack(f"<{len(self.stages)}q", self.workspaces)

    def workspace_bytes(self, place: int) -> int:
        """The workspace of one."""
        return int.from_bytes(self.workspaces[8 * place : 8 * place + 8], "little", signed=True)

    def reserve_bytes(self, place: int) -> int:
        """The reserve of one."""
        return dict(self.reserves).get(place, 0) if self.reserves else 0

    @property
    def times_us(self) -> tuple[float, ...]:
        """The time of each; `NOTHING` for who has none."""
        return unpack(f"<{len(self.stages)}d", self.times)

    @property
    def errors_us(self) -> tuple[float, ...]:
        """The standard error of each time; 0 for who has none."""
        return unpack(f"<{len(self.stages)}d", self.errors)

    def __len__(self) -> int:
        return len(self.stages)

    def __iter__(self) -> Iterator[Trial]:
        failures, reserves = dict(self.failures), dict(self.reserves)
        builds = unpack(f"<{len(self.stages)}d", self.builds)
        ends = tuple(accumulate(self.sample_counts))
        numbers = zip(self.workspaces_bytes, self.times_us, self.errors_us, builds, strict=True)
        for place, (workspace_bytes, time_us, error_us, build_us) in enumerate(numbers):
            start, end = ends[place] - self.sample_counts[place], ends[place]
            yield Trial(
                algorithm=self.algorithms[place],
                rank=self.ranks[place],
                workspace_bytes=workspace_bytes,
                notes=self.note_sets[self.notes[place]],
                stage=STAGES[self.stages[place]],
                time_us=_or_none(time_us),
                error_us=None if time_us == NOTHING else error_us,
                samples=self.samples[_SAMPLE_BYTES * start : _SAMPLE_BYTES * end],
                build_us=_or_none(build_us),
                timing=self.timings[self.timing[place]],
                failure=failures.get(place),
                reserve_bytes=reserves.get(place, 0),
            )

    @overload
    def __getitem__(self, place: int) -> Trial: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Trial, ...]: ...

    def __getitem__(self, place: int | slice) -> Trial | tuple[Trial, ...]:
        return tuple(self)[place]

    def __repr__(self) -> str:
        return f"<Trials {', '.join(self.algorithms)}>"


def _packed(numbers: Iterable[float | None]) -> bytes:
    column = [NOTHING if number is None else number for number in numbers]
    return pack(f"<{len(column)}d", *column)


def _or_none(number: float) -> float | None:
    return None if number == NOTHING else number


def _numbered(items: Iterable[T]) -> tuple[tuple[T, ...], bytes | tuple[int, ...]]:
    """Each item once, in the order of first appearance, and the place of each among those."""
    places: dict[T, int] = {}
    numbers = tuple(places.setdefault(item, len(places)) for item in items)
    return tuple(places), bytes(numbers) if len(places) <= 256 else numbers
