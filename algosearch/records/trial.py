"""`Candidate`, `Failure` and `Trial`: what a library offers, and what became of it when it was tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from struct import iter_unpack, pack
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from algosearch.ops.types import LARGEST
from algosearch.records.plain import plain

# What a number may be when it is decoded; NaN is in none of the ranges. Constructors do not check.
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Microseconds = Annotated[float, Meta(gt=0, lt=1e15)]
Duration = Annotated[float, Meta(ge=0, lt=1e15)]
"""In whatever unit the field's name says."""

FailureKind = Literal[
    "not_supported",
    "build_failed",
    "wrong_result",
    "out_of_bounds",
    "out_of_memory",
    "timed_out",
    "crashed",
    "launch_failed",
]
IS_TROUBLE: Final[Mapping[FailureKind, bool]] = MappingProxyType(
    {
        "not_supported": False,  # the library refuses this op
        "build_failed": False,  # it accepts and then cannot build
        "wrong_result": False,  # the output is not the op's
        "out_of_bounds": False,  # it wrote outside its buffers
        "out_of_memory": True,  # this much memory was not to be had at that moment
        "timed_out": True,  # it ran or built longer than the limit
        "crashed": True,  # the process died of it
        "launch_failed": True,  # the driver refused to run it
    }
)
"""Of each kind, whether it is trouble, which carries its circumstances and deserves a second try elsewhere, or a fact,
which stays true. The one place that says so."""
FACTS: Final[frozenset[str]] = frozenset(kind for kind, trouble in IS_TROUBLE.items() if not trouble)
"""The kinds that are no trouble."""

MOST_SAMPLES: Final = 96
"""Kept of one trial."""
MOST_US: Final = 1e15
"""Every time in a record is shorter."""

Stage = Literal["listed", "screened", "coarse", "final"]
"""How far a candidate came.

`listed`: known with its workspace, never run. `screened`: run, then dropped, because another is clearly faster,
needs no more workspace and is no worse in any note. `coarse`: on the front of what some policy could pick, timed a
few times, or on a device that was never quiet. `final`: timed against whatever comes near it for a policy that was
asked, undisturbed, until its time was known within `PRECISE`.
"""
PRECISE: Final = 0.02
"""The standard error of a `final` time, relative to it, at most."""

# Notes are words about a candidate that a policy can refuse. `unknown_<n>` is a note that this version has no
# word for: kept, and taken as "worse".
NONDETERMINISTIC: Final = "nondeterministic"
TF32: Final = "tf32"
REDUCED_PRECISION: Final = "reduced_precision"
DOWN_CONVERTS: Final = "down_converts"
RANGE_LIMITED: Final = "range_limited"
RUNTIME_COMPILED: Final = "runtime_compiled"
REFUSABLE: Final[frozenset[str]] = frozenset(
    {NONDETERMINISTIC, TF32, REDUCED_PRECISION, DOWN_CONVERTS, RANGE_LIMITED, RUNTIME_COMPILED}
)
"""The notes that a policy can ask about. Others (`tensor_core`, `winograd`, `fft`) only inform."""


def refusable(notes: tuple[str, ...]) -> frozenset[str]:
    """The part of `notes` that can make a policy refuse: what the race must not trade away for speed."""
    return frozenset(note for note in notes if note in REFUSABLE or note.startswith("unknown_"))


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Why a candidate cannot be used. Data, not an exception."""

    kind: FailureKind
    message: str
    """The library's own words, with its status code."""
    circumstances: tuple[tuple[str, str], ...] = ()
    """What may make it different next time: (`free_bytes`, …), (`limit_us`, …)."""

    def __post_init__(self) -> None:
        # A library's words may name a path that is no text; and what cannot be written down would cost the record.
        force_setattr(self, "message", plain(self.message))
        if self.circumstances:
            told = tuple((plain(name), plain(value)) for name, value in self.circumstances)
            force_setattr(self, "circumstances", told)

    @property
    def is_fact(self) -> bool:
        """True if trying again cannot help."""
        return not self.is_trouble

    @property
    def is_trouble(self) -> bool:
        """True if it may go well another time, or elsewhere."""
        return IS_TROUBLE[self.kind]


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An algorithm offered for an op, not yet tried. Read without building it."""

    algorithm: str
    """The canonical string of `Algorithm`."""
    rank: int
    """Place in the library's own order, from 0."""
    workspace_bytes: int
    """Temporary device memory that a run needs; 0 means none."""
    notes: tuple[str, ...] = ()
    """Sorted words."""
    reserve_bytes: int = 0
    """What a fused batch norm of training hands on to its backward: the size of an output. 0 for all else."""

    @property
    def is_dear(self) -> bool:
        """Whether it is compiled when it is built: up to a second, where others take a millisecond."""
        return RUNTIME_COMPILED in self.notes


class Trial(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """What one candidate did in one search."""

    algorithm: str
    rank: Count
    workspace_bytes: Count
    notes: tuple[str, ...] = ()
    stage: Stage = "listed"
    time_us: Microseconds | None = None
    """The best estimate of one run; None if it never ran to the end. Comparable within one search only."""
    error_us: Duration | None = None
    """Its standard error, such that hypot(a.error_us, b.error_us) is that of the difference of two trials of one
    search. None if and only if `time_us` is."""
    samples: Annotated[bytes, Meta(max_length=4 * MOST_SAMPLES)] = b""
    """`samples_us` as `packed`. Bytes, for who reads a record for its answer does not look at them, and eighty floats
    are a quarter of what it takes to decode one."""
    build_us: Duration | None = None
    timing: str = ""
    """How it was timed: `gated`, `wall`, `virtual`, with `warm` or `rotating` buffers: `wall,warm`. `disturbed` after
    them says that the device was not quiet, and that more than a few bursts count all the same."""
    failure: Failure | None = None
    reserve_bytes: Count = 0
    """As `Candidate.reserve_bytes`."""

    @property
    def error(self) -> float:
        """`error_us` relative to `time_us`; 0 where there is no time."""
        return self.error_us / self.time_us if self.time_us and self.error_us else 0.0

    @property
    def is_final(self) -> bool:
        """Whether it is what stage `final` says: of a record from elsewhere the stage alone proves nothing."""
        return self.stage == "final" and self.error <= PRECISE

    @property
    def samples_us(self) -> tuple[float, ...]:
        """Each round's time a run, in the order taken, first launches left out; final rounds last. Whatever of the
        stored bytes is no time is left out."""
        return tuple(us for (us,) in iter_unpack("<f", self.samples) if 0.0 < us < inf)


def packed(samples_us: Iterable[float]) -> bytes:
    """The last `MOST_SAMPLES` of them, as `Trial.samples` keeps them: little-endian float32."""
    kept = tuple(min(us, MOST_US) for us in samples_us)[-MOST_SAMPLES:]
    return pack(f"<{len(kept)}f", *kept)
