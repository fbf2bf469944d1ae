"""A race track: candidates whose true times are known, run with noise, drift and faults from one seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import exp

import msgspec

from algosearch.errors import NoAlgorithm, NotCovered
from algosearch.ops import ConvOp
from algosearch.race import Build, Check, Finished, Instruction, Launch, Outcome, Race, RaceRules, Time, Widen
from algosearch.records import (
    Built,
    Burst,
    Candidate,
    Choice,
    Environment,
    Failure,
    Key,
    Listing,
    Policy,
    Provenance,
    Record,
    Search,
    SearchMode,
    Trials,
)

KEY = Key.of(
    ConvOp(input_shape=(1, 8, 8, 8), filter_shape=(8, 8, 1, 1)), Environment(backend="simulated", device="track")
)

POLICIES = (
    Policy(),
    Policy(deterministic=True),
    Policy(allow_tf32=False),
    Policy(workspace_limit_bytes=0),
    Policy(workspace_limit_bytes=1 << 15),
    Policy(deterministic=True, allow_tf32=False, allow_reduced_precision=False),
    Policy(exclude=("*v=0", "*v=1")),
)


class Lane(msgspec.Struct, kw_only=True):
    """What a candidate is in truth."""

    time_us: float
    workspace_bytes: int = 0
    notes: tuple[str, ...] = ()
    build_fails: bool = False
    wrong: bool = False
    reports: float | None = None
    """What it reports instead of a time, or None."""


class Track:
    """Carries out a race's instructions; the same seed gives the same race."""

    def __init__(
        self,
        lanes: list[Lane],
        *,
        seed: int = 0,
        noise: float = 0.0,
        ramp_us: float = 0.0,
        disturbed: float = 0.0,
        interrupted: float = 0.0,
        listed: int | None = None,
        look_at: int | None = None,
        look_up_to: int | None = None,
    ) -> None:
        self.lanes = lanes
        self.listed = len(lanes) if listed is None else listed
        self.look_at = look_at
        self.look_up_to = look_up_to
        self.instructions: list[Instruction] = []
        self.busy_us = 0.0
        self._dice = random.Random(seed)
        self._noise = noise
        self._ramp_us = ramp_us
        self._disturbed = disturbed
        self._interrupted = interrupted
        """How often a burst has a context switch of up to 10 ms in it, and nobody says so."""

    def listing(self) -> Listing:
        candidates = tuple(
            Candidate(
                algorithm=f"simulated/t:lane?v={rank}",
                rank=rank,
                workspace_bytes=lane.workspace_bytes,
                notes=lane.notes,
            )
            for rank, lane in enumerate(self.lanes[: self.listed])
        )
        return Listing(
            candidates=candidates,
            complete=self.listed == len(self.lanes),
            look_at=self.look_at,
            look_up_to=None if (self.look_up_to or 0) > self.listed else self.look_up_to,
        )

    def run(
        self,
        *,
        policies: tuple[Policy, ...] = (),
        mode: SearchMode = "race",
        rules: RaceRules | None = None,
        failed: Mapping[str, Failure] | None = None,
    ) -> Record:
        """The whole race."""
        race = Race(self.listing(), policies=policies, mode=mode, rules=rules, failed=failed)
        while not isinstance(instruction := race.next(), Finished):
            self.instructions.append(instruction)
            assert race.next() is instruction
            race.validate()
            assert repr(race)
            assert len(self.instructions) < 2000, "it never ends"
            race.tell(self.outcome(instruction))
        provenance = Provenance(version="0", found_at_s=0, seconds=0.0)
        trials = Trials.of(instruction.trials)
        search = Search(mode=mode, complete=instruction.complete, trials=trials, provenance=provenance)
        return Record(key=KEY, searches=(search,))

    def outcome(self, instruction: Instruction) -> Outcome:
        match instruction:
            case Build(ranks):
                return tuple(
                    Failure("build_failed", "it does not build") if self.lanes[rank].build_fails else Built(rank, 50.0)
                    for rank in ranks
                )
            case Launch(ranks):
                return tuple(self._burst(rank, 1) for rank in ranks)
            case Time(bursts):
                return tuple(self._burst(rank, repeats) for rank, repeats in bursts)
            case Check(rank):
                return Failure("wrong_result", "it is wrong") if self.lanes[rank].wrong else None
            case Widen(width):
                self.listed = len(self.lanes) if width is None else min(len(self.lanes), max(self.listed, width))
                return self.listing()
            case _:
                raise AssertionError(instruction)

    def _burst(self, rank: int, repeats: int) -> Burst:
        lane = self.lanes[rank]
        if lane.reports is not None:
            return Burst(time_us=lane.reports, repeats=repeats, timing="virtual,warm")
        ramp = min(1.0, self.busy_us / self._ramp_us) if self._ramp_us else 1.0
        factors = (exp(self._dice.gauss(-(self._noise**2) / 2, self._noise)) for _ in range(repeats))
        time_us = lane.time_us / (0.6 + 0.4 * ramp) * sum(factors) / repeats
        if self._interrupted and self._dice.random() < self._interrupted:
            time_us += 10_000.0 * self._dice.random() / repeats
        self.busy_us += time_us * repeats
        disturbed = self._dice.random() < self._disturbed
        return Burst(
            time_us=time_us * (1.5 if disturbed else 1.0),
            repeats=repeats,
            timing="virtual,warm",
            disturbed="somebody else ran" if disturbed else None,
        )

    def true_us(self, algorithm: str) -> float:
        return self.lanes[int(algorithm.rpartition("=")[2])].time_us

    def regret(self, record: Record, policy: Policy) -> tuple[Choice, float] | None:
        """The pick and how much slower it truly is than the best looked at; None if not covered or nothing fits."""
        try:
            choice = policy.pick(record)
        except (NotCovered, NoAlgorithm):
            return None
        looked_at = [
            self.true_us(trial.algorithm)
            for trial in record.searches[0].trials
            if trial.time_us is not None and trial.failure is None and policy.refuses(trial) is None
        ]
        return choice, self.true_us(choice.algorithm) / min(looked_at) - 1


def random_track(seed: int, noise: float, *, interrupted: float = 0.0, disturbed: float | None = None) -> Track:
    """A field of 2 to 14, some close together, some far apart, some faulty; sometimes a clock that ramps up."""
    dice = random.Random(seed)
    base = dice.choice((5.0, 20.0, 100.0, 1000.0, 20_000.0))
    close = dice.random()

    def lane() -> Lane:
        spread = 0.02 if dice.random() < close else 0.5
        words = ("nondeterministic", "reduced_precision", "tf32")
        return Lane(
            time_us=base * exp(abs(dice.gauss(0.0, spread))),
            workspace_bytes=dice.choice((0, 0, 1 << 10, 1 << 20, 4 << 20)),
            notes=tuple(word for word in words if dice.random() < 0.2),
            build_fails=dice.random() < 0.08,
            wrong=dice.random() < 0.05,
        )

    lanes = [lane() for _ in range(dice.randint(2, 14))]
    return Track(
        lanes,
        seed=seed,
        noise=noise,
        ramp_us=dice.choice((0.0, 0.0, 50_000.0)),
        disturbed=dice.choice((0.0, 0.05)) if disturbed is None else disturbed,
        interrupted=interrupted,
        listed=dice.choice((len(lanes), max(1, len(lanes) // 2))),
        look_at=dice.choice((None, 3, 10)),
    )


def random_policies(seed: int) -> tuple[Policy, ...]:
    return tuple(random.Random(seed).sample(POLICIES, 1 + seed % 2))
