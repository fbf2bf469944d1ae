"""What is asked of an open device, what it is doing, and what it brings back: the nouns of this room. They cross to a
child process as they are."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from algosearch.ops import Op
from algosearch.records import Failure, Listing, Policy, SearchMode, Trial
from algosearch.records.trial import RUNTIME_COMPILED, Duration

Side = Literal["prepare", "compile", "lane"]
"""`compile`: where what is dear is built, so that prepare goes on with other keys meanwhile."""
Deed = Literal["list", "build", "wait", "load", "launch", "time", "check", "clean"]
"""`wait`: for the lane, which somebody else has, for however long."""
FOR_EVER_S: Final = 1e12
"""The limit of what may take any time."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key to search."""

    op: Op
    """Canonical."""
    listing: Listing | None
    """None: it is listed first, and told. A key is one message then: the parent's loop, which may wait 5 ms for each of
    its turns, does not stand between listing and building."""
    policies: tuple[Policy, ...]
    mode: SearchMode
    failed: dict[str, Failure] = {}
    """Candidates, by algorithm, that are known to fail: they are not tried."""
    width: int | None = None
    """How many candidates are listed then, as `Session.enumerate`."""
    careful: bool = False
    """Whether every run is made and announced by itself: some candidate has brought down a device, and it is not known
    which."""
    compiles: bool = True
    """Whether what is dear may be built. If not, a search that comes to that ends at once with `MustCompile`."""


class SearchStopped(Exception):
    """A search was given up between two steps, because nobody wants it or its device closes. Never reaches a caller."""


class MustCompile(Exception):
    """A search has come to what is dear to build, and was not to: nobody shall wait behind it who needs nothing of the
    kind. It ends, and is made again in a place for such. Never reaches a caller."""


class Found(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a search brings back."""

    trials: tuple[Trial, ...]
    complete: bool
    seconds: float
    """At work on it in all threads; waiting for a turn not counted."""
    lane_wait_s: float = 0.0
    """It waited for others, in this process or another, to leave the device to it; not in `seconds`."""

    @property
    def is_dear(self) -> bool:
        """Whether something that is dear was built for it."""
        return any(trial.build_us is not None and RUNTIME_COMPILED in trial.notes for trial in self.trials)

    @property
    def best_us(self) -> float | None:
        """What the fastest candidate takes; None if none works."""
        return min((trial.time_us for trial in self.trials if trial.time_us and trial.failure is None), default=None)


class Step(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """What one of a device's threads is about to do. Announced before it does it: it may be the last thing."""

    side: Side
    deed: Deed
    job: int
    """The number of the search that it is for; 0 if for none."""
    limit_s: Duration
    """If it takes longer than this it hangs."""
    algorithms: tuple[str, ...] = ()
    """Whose fault it would be. One at most when building or launching, and always in a careful search; of a check, the
    one that is checked and the one that it is held against."""

    def describe(self) -> str:
        """For a progress line: `first run of cpu/numpy:im2col`."""
        whom = self.algorithms[0] if len(self.algorithms) == 1 else f"{len(self.algorithms)} candidates"
        match self.deed:
            case "list":
                return "listing candidates"
            case "build":
                return f"building {whom}"
            case "launch":
                return f"first run of {whom}"
            case "time":
                return f"timing {whom}"
            case "check":
                return f"checking {self.algorithms[0]}"
        return {"wait": "waiting for the device", "load": "filling buffers", "clean": "tidying up"}[self.deed]


class Worked(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """One turn of one of a device's threads: at work on one problem, from when it began until it was done."""

    side: Side
    problem: str
    began_s: Duration
    """By `perf_counter`, which is one clock for all processes of a host;"""
    ended_s: Duration
    """as is this."""
    waited_s: Duration = 0.0
    """Of the time between: held still, because somebody wanted quiet."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a step may take before it hangs. Generous: only a child process can act on it, and it loses its device's
    context by that. What a run takes at most, compared with the best, is a matter of the race (`RaceRules`)."""

    open_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    list_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    build_s: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    """Of one candidate. Compiling at run time was seen to take seconds; on a machine that swaps it takes minutes."""
    other_s: Annotated[float, msgspec.Meta(gt=0)] = 120.0
    """Loading buffers, checking against a reference that is computed on the host, giving back; and how long a child may
    say nothing while it owes an answer."""
    first_run_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """A run of a problem while nothing tells how long it may take."""
    run_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Any other run at least."""
    hopeless: float = 200.0
    """A run of so many times what could be expected hangs."""
