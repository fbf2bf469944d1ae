"""What a race asks of its driver, and what it wants to hear. Candidates are called by their rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from algosearch.records import Built, Burst, Candidate, Failure, Listing, Trial


class Build(msgspec.Struct, frozen=True):
    """Make these runnable, in this order. Outcome: `Built` or `Failure` for each. For the prepare thread."""

    ranks: tuple[int, ...]


class Widen(msgspec.Struct, frozen=True):
    """List more candidates. Outcome: a `Listing` that begins as the old one. For the prepare thread."""

    width: int | None
    """As in `Session.enumerate`."""


class Launch(msgspec.Struct, frozen=True):
    """Run each for the first time. Outcome: `Burst` or `Failure` for each. For the lane."""

    ranks: tuple[int, ...]
    limit_us: float
    """A run longer than this is hopeless."""


class Time(msgspec.Struct, frozen=True):
    """A round or several, to be run without a gap. Outcome: `Burst` or `Failure` for each burst. For the lane."""

    bursts: tuple[tuple[int, int], ...]
    """(rank, repeats), in the order in which to run them. As a rule there and back, so that every rank comes twice, and
    at the same time on average: a clock that changes evenly then changes no comparison."""
    limit_us: float
    final: bool = False
    """True in the finals."""
    alone: bool = False
    """True in the finals of leaders whom nobody comes near: for their time, not for a comparison."""
    rounds: int = 1
    """The bursts are those of so many rounds of the same ranks, one after the other, all of one length."""


class Check(msgspec.Struct, frozen=True):
    """Is its output right? Outcome: `Failure` or None. For the lane."""

    rank: int
    against: int | None
    """Whose output to compare it with; None if there is no other."""


class Finished(msgspec.Struct, frozen=True):
    """The end: what a `Search` keeps."""

    trials: tuple[Trial, ...]
    complete: bool


Instruction = Build | Widen | Launch | Time | Check | Finished
Outcome = tuple[Built | Failure, ...] | tuple[Burst | Failure, ...] | Listing | Failure | None

Good = TypeVar("Good", Built, Burst)


def each_of(outcome: Outcome, asked: int, good: type[Good]) -> tuple[Good | Failure, ...]:
    """The outcomes of an instruction that was about `asked` candidates.

    Raises:
        ValueError: it is none of that.
    """
    if not isinstance(outcome, tuple) or len(outcome) != asked:
        raise ValueError(f"{asked} outcomes were asked for, and this is {outcome!r}")
    checked = tuple(each for each in outcome if isinstance(each, good | Failure))
    if len(checked) != asked:
        raise ValueError(f"each outcome must be a {good.__name__} or a Failure")
    return checked


def describe(instruction: Instruction, candidates: Sequence[Candidate]) -> str:
    """In few words, for a `repr`.

    Args:
        candidates: the race's, by rank.
    """
    match instruction:
        case Build(ranks):
            return f"building {_count(len(ranks))}"
        case Widen():
            return "listing more candidates"
        case Launch(ranks):
            return f"first run of {candidates[ranks[0]].algorithm}"
        case Time(bursts, final=final):
            return f"{'finals' if final else 'timing'} of {_count(len({rank for rank, _ in bursts}))}"
        case Check(rank):
            return f"checking {candidates[rank].algorithm}"
        case Finished():
            return "done"


def _count(candidates: int) -> str:
    return "1 candidate" if candidates == 1 else f"{candidates} candidates"
