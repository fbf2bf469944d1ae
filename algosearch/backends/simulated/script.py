"""What a simulated device does, written down: `Script`, and the nouns in it.

A script names problems and, for each, the candidates with their true times, their noise and their faults; what it does
not name is generated from the op (`generate`), so that any model can be searched. It can be written as JSON and is
decoded strictly; a script that makes no sense is refused when it is made, never when it is played.

Rejected: callables in place of numbers (they cannot cross to another process, nor be compared).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from algosearch.errors import InvalidValue
from algosearch.ops import Op, searched_as
from algosearch.records import Algorithm, FailureKind, InvalidAlgorithm

BACKEND: Final = "simulated"

ProblemStage = Literal["enumerate", "load"]
CandidateStage = Literal["build", "launch", "time", "check"]
FaultStage = ProblemStage | CandidateStage

Accident = Literal[
    "hangs",  # waits until `SimulatedBackend.release` is set, at most `Script.hang_s`; then goes on as if nothing were
    "crashes",  # SIGSEGV to its own process
    "killed",  # SIGKILL to its own process
    "raises",  # a broken contract: RuntimeError
]
Nonsense = Literal["nan", "zero", "negative"]
"""A broken contract as well: a time that cannot be."""
Poison = Literal["poisons"]
"""Its launch fails, and so does everything that is run or built in that session from then on."""
Deed = FailureKind | Accident | Nonsense | Poison

ACCIDENTS: Final[frozenset[str]] = frozenset({"hangs", "crashes", "killed", "raises"})
NONSENSE: Final[dict[str, float]] = {"nan": float("nan"), "zero": 0.0, "negative": -1.0}


class InvalidScript(InvalidValue):
    """A script whose values make no sense."""

    noun = "script"


def _is_duration(value: float) -> bool:
    return 0 <= value < float("inf")  # false for NaN


def _require(holds: bool, field: str, value: object, rule: str) -> None:
    if not holds:
        raise InvalidScript(field, value, rule)


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that goes wrong, at one kind of call.

    Raises:
        InvalidScript: this cannot happen there.
    """

    at: FaultStage
    does: Deed
    message: str = ""
    """The library's own words; left out, some are made up."""
    after: int = 0
    """So many calls go well first, counted for each problem and candidate of one session."""
    times: int | None = None
    """So many calls go wrong then; None for all."""

    def __post_init__(self) -> None:
        if self.does in NONSENSE:
            _require(self.at in ("launch", "time"), "does", self.does, "only `launch` and `time` give times")
        if self.does == "poisons":
            _require(self.at in ("launch", "time", "check"), "does", self.does, "only what runs can spoil a device")
        if self.at == "enumerate":
            possible = ACCIDENTS | {"not_supported"}
            _require(self.does in possible, "does", self.does, "a listing is empty (not_supported) or does not come")
        _require(self.after >= 0, "after", self.after, "must be at least 0")
        _require(self.times is None or self.times >= 1, "times", self.times, "must be at least 1, or None")

    def strikes(self, call: int) -> bool:
        """Whether the call with this number, from 0, goes wrong."""
        return self.after <= call and (self.times is None or call < self.after + self.times)


class CandidateScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One candidate: what it says, and what it does.

    Raises:
        InvalidScript: naming the field, its value and the rule.
    """

    algorithm: str
    """A canonical name of this backend, `simulated/…`."""
    time_us: float | tuple[float, ...]
    """The true time of one run on a device of speed 1; or of each run in turn, the last one from then on."""
    workspace_bytes: int = 0
    reserve_bytes: int = 0
    """Of a fused batch norm of training."""
    notes: tuple[str, ...] = ()
    """Sorted words."""
    noise: float = 0.0
    """σ of the log-normal factor, of mean 1, on each run: 0.005 is half a per cent. Runs are independent."""
    build_us: float = 1000.0
    first_us: float = 0.0
    """What the first launch of a plan takes on top: loading code."""
    faults: tuple[Fault, ...] = ()
    """At build, launch, time or check. The first that strikes counts."""

    def __post_init__(self) -> None:
        try:
            backend = Algorithm.parse(self.algorithm).backend
        except InvalidAlgorithm as error:
            raise InvalidScript("algorithm", self.algorithm, error.rule) from None
        _require(backend == BACKEND, "algorithm", self.algorithm, f"must begin with {BACKEND}/")
        times = self.time_us if isinstance(self.time_us, tuple) else (self.time_us,)
        positive = bool(times) and all(_is_duration(time_us) and time_us > 0 for time_us in times)
        _require(positive, "time_us", self.time_us, "must be finite and positive, or one or more such times")
        _require(self.workspace_bytes >= 0, "workspace_bytes", self.workspace_bytes, "must be at least 0")
        _require(self.reserve_bytes >= 0, "reserve_bytes", self.reserve_bytes, "must be at least 0")
        _require(list(self.notes) == sorted(set(self.notes)), "notes", self.notes, "must be sorted, each once")
        for field in ("noise", "build_us", "first_us"):
            _require(_is_duration(getattr(self, field)), field, getattr(self, field), "must be finite and at least 0")
        for fault in self.faults:
            _require(fault.at not in ("enumerate", "load"), "faults", fault.at, "belongs to the problem's faults")

    def run_us(self, run: int) -> float:
        """The true time of the run with this number, from 0."""
        if isinstance(self.time_us, tuple):
            return self.time_us[min(run, len(self.time_us) - 1)]
        return self.time_us


class ProblemScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One problem and its candidates in the library's order. No candidates: the library cannot do it.

    Raises:
        InvalidScript: naming the field, its value and the rule.
    """

    op: Op
    """In any of its equal descriptions; either pass of a fused batch norm stands for both."""
    candidates: tuple[CandidateScript, ...] = ()
    prepare_us: float = 2000.0
    """What one listing takes."""
    look_at: int | None = None
    """As in `Listing.look_at`."""
    least_width: int = 1
    """The backend's own measure: so many candidates are listed even if fewer are asked for."""
    faults: tuple[Fault, ...] = ()
    """At enumerate or load. The first that strikes counts."""

    def __post_init__(self) -> None:
        names = [candidate.algorithm for candidate in self.candidates]
        _require(len(set(names)) == len(names), "candidates", names, "must have different algorithms")
        _require(_is_duration(self.prepare_us), "prepare_us", self.prepare_us, "must be finite and at least 0")
        _require(self.look_at is None or self.look_at >= 1, "look_at", self.look_at, "must be at least 1, or None")
        _require(self.least_width >= 1, "least_width", self.least_width, "must be at least 1")
        for fault in self.faults:
            _require(fault.at in ("enumerate", "load"), "faults", fault.at, "belongs to a candidate's faults")


class DeviceScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of device.

    Raises:
        InvalidScript: naming the field, its value and the rule.
    """

    kind: str = "Simulated Device"
    memory_bytes: int = 16 << 30
    speed: float = 1.0
    """Every true time is divided by it."""
    clock_start: float = 1.0
    """The fraction of its speed with which a device at rest begins; unloading the buffers lets it rest."""
    clock_ramp_us: float = 0.0
    """The running time in which it comes, evenly, to full speed."""
    disturbed: float = 0.0
    """The probability that a timed burst is disturbed: half as long again, and it says so."""
    resolution_us: float = 0.0
    """Bursts are measured in whole multiples of this, at least one; 0 for exactly."""
    facts: dict[str, str] = {}
    """Facts of the environment beside the script's own."""
    incomplete: str | None = None
    """As in `Environment.incomplete`."""
    unavailable: str | None = None
    """Why it cannot be opened; None if it can."""

    def __post_init__(self) -> None:
        _require(bool(self.kind), "kind", self.kind, "must not be empty")
        _require(self.memory_bytes >= 0, "memory_bytes", self.memory_bytes, "must be at least 0")
        _require(_is_duration(self.speed) and self.speed > 0, "speed", self.speed, "must be finite and positive")
        _require(0 < self.clock_start <= 1, "clock_start", self.clock_start, "must be above 0 and at most 1")
        _require(0 <= self.disturbed <= 1, "disturbed", self.disturbed, "must be from 0 to 1")
        for field in ("clock_ramp_us", "resolution_us"):
            _require(_is_duration(getattr(self, field)), field, getattr(self, field), "must be finite and at least 0")


class Generated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the candidates of a problem are made up that the script does not name (`generate.problem_of`).

    Raises:
        InvalidScript: naming the field, its value and the rule.
    """

    candidates: int = 10
    """0: what the script does not name cannot be done."""
    noise: float = 0.003
    """As in `CandidateScript.noise`."""
    prepare_us: float = 2000.0
    """As in `ProblemScript.prepare_us`; the same for each problem."""
    build_us: float = 3000.0
    """The middle of the build times."""
    time_us: float | None = None
    """The time that the best possible kernel would take; None: as long as FLOPs and bytes take."""
    flops_per_us: float = 20e6
    bytes_per_us: float = 1e6
    look_at: int | None = None
    """As in `Listing.look_at`."""
    least_width: int = 1
    """As in `ProblemScript.least_width`."""
    unsupported: float = 0.0
    """The probability that a candidate turns out as `not_supported` when it is built."""

    def __post_init__(self) -> None:
        _require(self.candidates >= 0, "candidates", self.candidates, "must be at least 0")
        _require(self.look_at is None or self.look_at >= 1, "look_at", self.look_at, "must be at least 1, or None")
        _require(self.least_width >= 1, "least_width", self.least_width, "must be at least 1")
        _require(0 <= self.unsupported <= 1, "unsupported", self.unsupported, "must be from 0 to 1")
        for field in ("noise", "prepare_us", "build_us"):
            _require(_is_duration(getattr(self, field)), field, getattr(self, field), "must be finite and at least 0")
        for field in ("time_us", "flops_per_us", "bytes_per_us"):
            value = getattr(self, field)
            fits = (field == "time_us" and value is None) or (_is_duration(value) and value > 0)
            _require(fits, field, value, "must be finite and positive")


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a simulated library and its devices do.

    Raises:
        InvalidScript: naming the field, its value and the rule.
    """

    devices: tuple[DeviceScript, ...] = (DeviceScript(),)
    problems: tuple[ProblemScript, ...] = ()
    generated: Generated = Generated()
    seed: int = 0
    """Of the noise and of what is generated."""
    facts: dict[str, str] = {}
    """Facts of every environment: library versions, say. The script's own fingerprint is one, `script`, unless given
    here, for the script is the library."""
    hang_s: float = 60.0
    """The longest that anything hangs."""
    machine: str = "here"
    """Where the devices are. Devices of one ordinal on one machine are one device, whoever opens it; and exclude each
    other, from whatever process they are used."""

    def __post_init__(self) -> None:
        ops = [searched_as(problem.op) for problem in self.problems]
        _require(len(set(ops)) == len(ops), "problems", len(ops), "two of them describe one problem")
        _require(_is_duration(self.hang_s), "hang_s", self.hang_s, "must be finite and at least 0")

    def fingerprint(self) -> str:
        """16 hex digits that change with whatever may change an answer; devices are told apart by their own facts."""
        # Read back first: where a script says 100 it means 100.0, as it does once it has been written and read.
        parts = msgspec.json.decode(msgspec.json.encode((self.problems, self.generated, self.seed)), type=_Parts)
        return _hex_of(msgspec.json.encode(parts, order="sorted"))


_Parts = tuple[tuple[ProblemScript, ...], Generated, int]


def problem_digest(op: Op) -> str:
    """16 hex digits for a problem, the same for all its descriptions, for both passes of a pair, and in every process:
    what traces call it by."""
    return _hex_of(msgspec.json.encode(searched_as(op), order="sorted"))


def first_fault(faults: Iterable[Fault], at: FaultStage, call: int) -> Fault | None:
    """What goes wrong at the call with this number, from 0, of this stage; None if it goes well."""
    return next((fault for fault in faults if fault.at == at and fault.strikes(call)), None)


def _hex_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]
