"""What is known to fail is left alone: a race that starts again after a worker's death goes on without the guilty."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from algosearch.race import Build, Check, Finished, Launch, Race, Time
from algosearch.records import Failure, Policy, SearchMode
from tests.race.track import POLICIES, Lane, Track, random_policies, random_track

DIED = Failure("crashed", "the worker died of it", (("signal", "11"),))


def touched(track: Track) -> set[int]:
    """Every rank that an instruction named."""
    found: set[int] = set()
    for instruction in track.instructions:
        if isinstance(instruction, Build | Launch):
            found |= set(instruction.ranks)
        elif isinstance(instruction, Time):
            found |= {rank for rank, _ in instruction.bursts}
        elif isinstance(instruction, Check):
            found |= {instruction.rank, *(() if instruction.against is None else (instruction.against,))}
    return found


@settings(max_examples=100)
@given(seed=st.integers(0, 10**9), mode=st.sampled_from(["race", "exhaustive"]), share=st.sampled_from([0.1, 0.5, 1.0]))
def test_who_is_known_to_fail_is_never_touched(seed: int, mode: SearchMode, share: float) -> None:
    track, dice = random_track(seed, 0.005), random.Random(seed)
    names = [f"simulated/t:lane?v={rank}" for rank in range(len(track.lanes))]
    guilty = {name for name in names if dice.random() < share}
    failed = {name: Failure("crashed", f"of {name}") for name in (*guilty, "simulated/t:not_listed")}
    policies = random_policies(seed)
    record = track.run(policies=policies, mode=mode, failed=failed)
    assert not {f"simulated/t:lane?v={rank}" for rank in touched(track)} & guilty
    for trial in record.searches[0].trials:
        if trial.algorithm in guilty:
            assert (trial.failure, trial.stage, trial.time_us) == (failed[trial.algorithm], "listed", None)
            assert trial.build_us is None
        else:
            assert trial.failure is None or not trial.failure.message.startswith("of ")
    for policy in (*POLICIES, *policies):
        outcome = track.regret(record, policy)
        assert outcome is None or outcome[0].algorithm not in guilty
        assert outcome is None or outcome[1] <= outcome[0].tie_window


def test_a_race_starts_again_without_the_one_that_took_its_worker_with_it() -> None:
    track = Track([Lane(time_us=90.0), Lane(time_us=100.0), Lane(time_us=120.0, workspace_bytes=1)])
    race = Race(track.listing())
    failed: dict[str, Failure] = {}
    while not isinstance(instruction := race.next(), Finished):
        if isinstance(instruction, Launch) and instruction.ranks == (0,):
            failed[race.candidates[0].algorithm] = DIED
            race = Race(track.listing(), failed=failed)
            continue
        race.tell(track.outcome(instruction))
        race.validate()
    assert instruction.trials[0].failure == DIED
    assert [trial.stage for trial in instruction.trials] == ["listed", "final", "screened"]


def test_others_are_looked_at_in_their_place() -> None:
    lanes = [Lane(time_us=100.0 + rank) for rank in range(8)]
    track = Track(lanes, look_at=4)
    failed = {f"simulated/t:lane?v={rank}": DIED for rank in (0, 2)}
    record = track.run(failed=failed)
    assert touched(track) == {1, 3, 4, 5}
    assert Policy().pick(record).algorithm.endswith("v=1")


def test_where_all_are_known_to_fail_nothing_is_run() -> None:
    track = Track([Lane(time_us=100.0)] * 3, listed=2)
    record = track.run(failed={f"simulated/t:lane?v={rank}": DIED for rank in range(3)})
    assert touched(track) == set()
    assert [trial.failure for trial in record.searches[0].trials] == [DIED] * 3
