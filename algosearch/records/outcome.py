"""What a backend answers: `Listing`, `Built`, `Burst` (or a `Failure` in place of the last two)."""

from __future__ import annotations

import msgspec

from algosearch.records.trial import Candidate


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The library's candidates for an op, in its own order, their workspaces read without building."""

    candidates: tuple[Candidate, ...]
    """Ranks count up from 0 without a gap."""
    complete: bool
    """False if the library would list more when asked for more."""
    look_at: int | None = None
    """How many a race should begin with; None for all. Fewer than all where the library's order is known to be good."""
    look_up_to: int | None = None
    """How many from its beginning a race may look at merely because they are listed, or the latest were better; None
    for any, and for more than are listed. What follows is dear to build, or hopeless: a race comes to it only for what
    an asked policy lacks, or in mode exhaustive."""
    steady: bool = False
    """Whether the backend's times are those of a quiet device that it times itself: a round of two bursts of 100 µs
    scatters by half a per cent at most, and `launch` tells the time of a run whose code is loaded."""


class Built(msgspec.Struct, frozen=True):
    """A runnable plan, kept by the session under a number until `destroy`."""

    plan: int
    build_us: float


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs of one plan, back to back, the device otherwise idle."""

    time_us: float
    """Of one run: the burst's time divided by `repeats`."""
    repeats: int
    timing: str
    """As in `Trial.timing`."""
    disturbed: str | None = None
    """Why the time should not count, or None."""
