"""What an answer says about itself is true: `final`, its error, its window; and what it costs to be able to say so."""

from __future__ import annotations

from math import log

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algosearch.errors import NoAlgorithm, NotCovered
from algosearch.race import RaceRules, Time
from algosearch.records import PRECISE, Choice, Policy, Record
from tests.race.track import POLICIES, Lane, Track, random_policies, random_track

ASIDE = (Lane(time_us=30.0, build_fails=True), Lane(time_us=20.0, wrong=True))
"""Candidates that are not there in the end."""


def choices(record: Record, policies: tuple[Policy, ...]) -> list[Choice]:
    found = []
    for policy in policies:
        try:
            found.append(policy.pick(record))
        except (NotCovered, NoAlgorithm):
            continue
    return found


@settings(max_examples=150)
@given(seed=st.integers(0, 10**9), noise=st.floats(0.0, 0.2), disturbed=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_final_is_what_it_says(seed: int, noise: float, disturbed: float) -> None:
    track, asked = random_track(seed, noise, disturbed=disturbed), random_policies(seed)
    record = track.run(policies=asked)
    trials = record.searches[0].trials
    for trial in trials:
        assert trial.is_final == (trial.stage == "final")
        if trial.stage == "final":
            assert trial.error <= PRECISE
            assert "disturbed" not in trial.timing
            assert trial.failure is None
    for choice in choices(record, (*POLICIES, *asked)):
        assert choice.time_us is not None
        assert choice.error_us is not None
        assert choice.error_us <= choice.tie_window * choice.time_us * (1 + 1e-9)
        by_name = {trial.algorithm: trial for trial in trials}
        if choice.precision == "final":
            assert by_name[choice.algorithm].stage == "final"
            ties = [rejection for rejection in choice.rejections if rejection.rule == "tie"]
            assert all(by_name[tie.algorithm].stage == "final" for tie in ties)


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.03])
@pytest.mark.parametrize(
    "lanes",
    [
        (Lane(time_us=100.0),),
        (Lane(time_us=1_000.0), *ASIDE),
        (Lane(time_us=100.0), Lane(time_us=250.0)),
        (Lane(time_us=100.0), Lane(time_us=5_000.0, workspace_bytes=1)),
        (Lane(time_us=100.0, workspace_bytes=1), Lane(time_us=5_000.0), *ASIDE),
        (Lane(time_us=100.0), Lane(time_us=100.1, workspace_bytes=1)),
    ],
)
def test_a_leader_whom_nobody_comes_near_is_timed_until_it_is_final(lanes: tuple[Lane, ...], noise: float) -> None:
    off = []
    for seed in range(20):
        record = Track(list(lanes), seed=seed, noise=noise).run()
        choice = Policy().pick(record)
        assert choice.precision == "final"
        assert choice.time_us is not None
        off.append(abs(log(choice.time_us / lanes[0].time_us)))
    assert max(off) <= 3 * PRECISE


def test_who_cannot_be_known_so_well_is_coarse_and_costs_no_more_than_its_budget() -> None:
    rules = RaceRules()
    for lanes in ([Lane(time_us=1_000.0)], [Lane(time_us=1_000.0), Lane(time_us=90_000.0)]):
        track = Track(lanes, noise=0.6)
        choice = Policy().pick(track.run())
        assert choice.precision == "coarse"
        assert choice.tie_window > PRECISE
        alone = [i for i in track.instructions if isinstance(i, Time) and i.alone]
        runs = sum(repeats for instruction in alone for _, repeats in instruction.bursts)
        assert 0 < runs * 1_000.0 <= 1.3 * rules.alone_budget_us


def test_a_device_that_is_never_quiet_makes_nothing_final() -> None:
    record = Track([Lane(time_us=100.0), Lane(time_us=300.0)], disturbed=1.0).run()
    choice = Policy().pick(record)
    assert choice.precision == "coarse"
    assert choice.algorithm.endswith("v=0")
    assert {trial.timing for trial in record.searches[0].trials} == {"virtual,warm,disturbed"}


def test_a_few_disturbed_bursts_are_no_matter() -> None:
    record = Track([Lane(time_us=100.0), Lane(time_us=100.2)], noise=0.002, disturbed=0.1).run()
    assert Policy().pick(record).precision == "final"
    assert {trial.timing for trial in record.searches[0].trials} == {"virtual,warm"}


def test_a_record_from_elsewhere_is_not_believed_by_its_word_alone() -> None:
    record = Track([Lane(time_us=100.0)]).run()
    (search,) = record.searches
    (trial,) = search.trials
    vague = msgspec.structs.replace(trial, error_us=10.0)
    search = msgspec.structs.replace(search, trials=(vague,))
    choice = Policy().pick(msgspec.structs.replace(record, searches=(search,)))
    assert (choice.precision, choice.error_us) == ("coarse", 10.0)
    assert choice.tie_window == pytest.approx(0.1, rel=1e-3)


def test_several_leaders_are_timed_together() -> None:
    """For their comparison; and not for ever."""
    lanes = [Lane(time_us=100.0, workspace_bytes=1), Lane(time_us=900.0)]
    track = Track(lanes, noise=0.02)
    record = track.run(policies=(Policy(), Policy(workspace_limit_bytes=0)))
    assert {choice.precision for choice in choices(record, (Policy(), Policy(workspace_limit_bytes=0)))} == {"final"}
    alone = [i for i in track.instructions if isinstance(i, Time) and i.alone]
    assert {rank for rank, _ in alone[0].bursts} == {0, 1}
