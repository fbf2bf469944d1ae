"""`Choice`: what a policy picked from a record for one caller; `Rejection`: why another candidate was not it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, cast, get_args

import msgspec

from algosearch.records.trial import Candidate, Failure, Trial
from algosearch.records.trials import Trials

Precision = Literal["final", "coarse", "heuristic"]
Rule = Literal[
    "failed",
    "workspace_limit",
    "nondeterministic",
    "tf32",
    "reduced_precision",
    "down_converts",
    "range_limited",
    "runtime_compiled",
    "unknown_note",
    "excluded",
    "not_tried",
    "screened",
    "slower",
    "tie",
]
RULES: Final[tuple[Rule | None, ...]] = (None, *get_args(Rule))
"""A verdict is a place here; 0 is the pick's."""


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """Why one candidate was not picked."""

    algorithm: str
    rule: Rule
    workspace_bytes: int
    time_us: float | None = None
    failure: Failure | None = None

    @classmethod
    def of(cls, candidate: Trial | Candidate, rule: Rule) -> Rejection:
        """Of a candidate that was tried, or was not."""
        if isinstance(candidate, Candidate):
            return cls(candidate.algorithm, rule, candidate.workspace_bytes)
        return cls(candidate.algorithm, rule, candidate.workspace_bytes, candidate.time_us, candidate.failure)

    def describe(self) -> str:
        """One line: `cpu/numpy:fft: needs 9437184 bytes of workspace, more than the limit`."""
        match self.rule:
            case "failed":
                assert self.failure is not None
                why = f"{self.failure.kind}: {self.failure.message}"
            case "workspace_limit":
                why = f"needs {self.workspace_bytes} bytes of workspace, more than the limit"
            case "not_tried":
                why = "was listed and never run"
            case "screened":
                why = f"dropped early at {self.time_us} µs: another is clearly faster and asks for nothing more"
            case "slower":
                why = f"slower: {self.time_us} µs"
            case "tie":
                why = f"a tie at {self.time_us} µs, lost on preference, workspace, determinism or the library's order"
            case "excluded":
                why = "excluded by the policy"
            case _:
                why = f"the policy refuses {self.rule}"
        return f"{self.algorithm}: {why}"


class Choice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One answer: which algorithm, and the bytes of workspace that it needs."""

    algorithm: str
    """Of a fused batch norm of training, for both passes: whichever of them was asked about, the choice is the same."""
    workspace_bytes: int
    """What a run needs; of a fused batch norm of training, the pass that needs more."""
    notes: tuple[str, ...] = ()
    reserve_bytes: int = 0
    """The size of the reserve that a fused batch norm of training writes for its backward; 0 for all else."""
    time_us: float | None = None
    """The picked algorithm's time a run; of a fused batch norm of training, that of both passes. None if nothing was
    run."""
    error_us: float | None = None
    """Its standard error. None if and only if `time_us` is."""
    first_us: float | None = None
    """The time of the first candidate that the policy admits, in the order in which its backend listed them: what a
    caller without a search would run. None if nobody ran it: others were as good as any."""
    precision: Precision = "final"
    """`final`: it and whatever may be as fast were timed against each other on a quiet device, until its time was known
    within two per cent; `coarse`: from few samples, or on a device that was never quiet; `heuristic`: the library's
    guess, never run."""
    provisional: bool = False
    """True if a better-founded answer may follow: mode heuristic, or a deadline that passed."""
    tie_window: float = 0.0
    """Relative: the pick is at most this much slower than the best candidate looked at, measuring errors counted. Never
    less than the standard error of `time_us`: an answer claims nothing finer than it is known."""
    alone: bool = False
    """True if it was found while the shared store could not be reached: other ranks may go by another."""
    digest: str = ""
    """The key's digest."""
    generation: int = 0
    """The record's generation."""
    seen: Trials | tuple[Candidate, ...] = ()
    """Every candidate of the search, in the library's order, in the form that the record has: to spell them out would
    be most of what a pick costs."""
    verdicts: bytes = b""
    """For each of them the place in `RULES` of the rule by which it was not picked."""

    @property
    def candidates(self) -> tuple[Trial | Candidate, ...]:
        """Every candidate of the search, in the library's order."""
        return tuple(cast("Sequence[Trial | Candidate]", self.seen))

    @property
    def rules(self) -> tuple[Rule | None, ...]:
        """For each of `candidates` the rule by which it was not picked; None for the pick."""
        return tuple(RULES[verdict] for verdict in self.verdicts)

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Why not the others: one for each candidate but the pick, in the library's order."""
        return rejections(self.seen, self.verdicts)


def rejections(seen: Trials | tuple[Candidate, ...], verdicts: bytes | bytearray) -> tuple[Rejection, ...]:
    """The verdicts spelled out."""
    pairs = zip(cast("Sequence[Trial | Candidate]", seen), (RULES[verdict] for verdict in verdicts), strict=True)
    return tuple(Rejection.of(candidate, rule) for candidate, rule in pairs if rule is not None)
