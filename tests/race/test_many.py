"""A race of thousands asks what one that works everything out anew asks, and does not look at all for each of them."""

from __future__ import annotations

import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from statistics import median
from types import FrameType
from typing import Any

import pytest

from algosearch.race import Check, Finished, Instruction, Launch, Race, RaceRules, Time
from algosearch.race import machine as machines
from algosearch.race.rules import STEADY
from algosearch.race.standings import Standings
from algosearch.records import Failure, SearchMode
from tests.race.track import Lane, Track, random_policies, random_track

RULES = (
    None,
    STEADY,
    RaceRules(together=3, coarse_rounds=2, most_us=20_000.0, slow_us=200.0),
    RaceRules(worth_it=1.2, slow_worth_it=4.0, slow_us=5_000.0),
)


class ThoroughStandings(Standings):
    """Compares everybody with everybody."""

    def rivals(self) -> set[int]:
        return {rank for rank in self.front() if any(self._is_near(rank, other) for other in self.front())}

    def _is_near(self, rank: int, other: int) -> bool:
        rules, (low, high) = self._rules, sorted((self.time_us(rank), self.time_us(other)))
        return rank != other and high <= (rules.worth_it if high < rules.slow_us else rules.slow_worth_it) * low


class ThoroughRace(Race):
    """Takes nothing for known between two instructions but the facts."""

    def next(self) -> Instruction:
        if self._pending is None:
            self._standings.timed()
            self._unbuilt, self._unlaunched = list(self._looked), deque(self._looked)
        return super().next()


def with_slow_ones(seed: int) -> Track:
    dice = random.Random(seed)
    track = random_track(seed, dice.choice((0.0, 0.01, 0.2)), interrupted=dice.choice((0.0, 0.05)))
    for _ in range(dice.choice((0, 0, 4))):
        track.lanes.append(Lane(time_us=dice.uniform(50_000.0, 800_000.0)))
    return track


def asked(make: type[Race], seed: int) -> list[Instruction]:
    """By a race in which launches and bursts fail, memory is lacking for a while, and some are known to fail."""
    dice = random.Random(seed)
    track = with_slow_ones(seed)
    mode: SearchMode = dice.choice(("race", "exhaustive"))
    race = make(
        track.listing(),
        policies=random_policies(seed),
        mode=mode,
        rules=RULES[seed % len(RULES)],
        failed={f"simulated/t:lane?v={dice.randrange(20)}": Failure("timed_out", "it hung")},
    )
    instructions: list[Instruction] = []
    dropped: list[int] = []
    while True:
        instruction = race.next()
        instructions.append(instruction)
        if isinstance(instruction, Finished):
            return instructions

        race.validate()
        event = dice.random()
        if event < 0.02:
            dropped.append(dice.randrange(len(race.candidates)))
            race.drop(dropped[-1:], Failure("out_of_memory", "no room"))
        elif event < 0.04 and dropped:
            race.forgive(dropped)
            dropped.clear()
        else:
            outcome = track.outcome(instruction)
            if event > 0.97 and isinstance(instruction, Launch | Time) and isinstance(outcome, tuple):
                outcome = (Failure("launch_failed", "it did not run"), *outcome[1:])
            race.tell(outcome)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_the_same_is_asked_as_if_everything_were_worked_out_anew(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    for seed in range(first, first + 100):
        found = asked(Race, seed)
        with monkeypatch.context() as thorough:
            thorough.setattr(machines, "Standings", ThoroughStandings)
            assert asked(ThoroughRace, seed) == found


def steps_of(call: Callable[[], object]) -> int:
    """How many instructions of Python's: no clock, and the same each time."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("mode", ["race", "exhaustive"])
@pytest.mark.parametrize("spread", [1.0, 1000.0], ids=["all alike", "far apart"])
def test_what_is_asked_of_many_is_as_cheap_as_of_few(mode: SearchMode, spread: float) -> None:
    """Of the race itself, without the device: a launch and a check cost the same among however many, and a round of all
    for each of them."""

    def costs(candidates: int) -> tuple[float, ...]:
        dice = random.Random(0)
        lanes = [Lane(time_us=10.0 * spread ** (n / candidates)) for n in range(candidates)]
        dice.shuffle(lanes)
        track = Track(lanes, noise=0.01, look_at=candidates)
        race = Race(track.listing(), mode=mode)
        steps: defaultdict[type[Instruction], list[int]] = defaultdict(list)
        while True:
            deciding = steps_of(race.next)
            if isinstance(instruction := race.next(), Finished):
                wanting = steps_of(race._standings.want_coarse)
                return median(steps[Launch]), min(steps[Check]), steps[Time][0] / candidates, wanting / candidates

            outcome = track.outcome(instruction)
            steps[type(instruction)].append(deciding + steps_of(partial(race.tell, outcome)))

    few, many = costs(50), costs(400)
    assert all(more < 1.5 * less for less, more in zip(few, many, strict=True))
