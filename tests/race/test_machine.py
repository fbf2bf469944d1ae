"""The state machine step by step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algosearch.errors import NoAlgorithm
from algosearch.race import Build, Check, Finished, Launch, Race, RaceRules, Time, Widen
from algosearch.records import Built, Burst, Candidate, Failure, Listing, Policy
from tests.race.track import Lane, Track


def stages(track: Track, **how: object) -> list[str]:
    return [trial.stage for trial in track.run(**how).searches[0].trials]  # type: ignore[arg-type]


def test_the_phases_of_a_simple_race() -> None:
    track = Track([Lane(time_us=100.0, workspace_bytes=1), Lane(time_us=102.0)])
    track.run()
    kinds = [type(instruction) for instruction in track.instructions]
    assert kinds[:3] == [Build, Launch, Launch]
    checked = kinds.index(Check)
    assert set(kinds[3:checked]) == {Time}
    assert set(kinds[checked + 2 :]) <= {Time}
    finals = [i for i in track.instructions[checked:] if isinstance(i, Time)]
    assert finals
    for final in finals:
        assert final.final
        assert final.bursts == ((0, 2), (1, 2), (1, 2), (0, 2))


def test_who_is_clearly_beaten_in_everything_is_screened() -> None:
    lanes = [Lane(time_us=300.0), Lane(time_us=100.0), Lane(time_us=90.0, workspace_bytes=1 << 20)]
    track = Track(lanes, noise=0.001)
    assert stages(track) == ["screened", "coarse", "final"]


def test_who_is_slower_but_needs_less_or_notes_less_stays() -> None:
    lanes = [
        Lane(time_us=100.0, workspace_bytes=1 << 20, notes=("nondeterministic",)),
        Lane(time_us=200.0, workspace_bytes=0, notes=("nondeterministic",)),
        Lane(time_us=250.0, workspace_bytes=1 << 20),
        Lane(time_us=400.0, workspace_bytes=1 << 20, notes=("nondeterministic",)),
    ]
    assert stages(Track(lanes, noise=0.001)) == ["final", "coarse", "coarse", "screened"]


def test_what_is_only_slow_is_not_run_again_and_again() -> None:
    track = Track([Lane(time_us=10.0, workspace_bytes=8), Lane(time_us=100_000.0)])
    record = track.run()
    assert len(record.searches[0].trials[1].samples_us) <= 1
    assert Policy(workspace_limit_bytes=0).pick(record).time_us == pytest.approx(100_000.0)


def test_a_wrong_winner_takes_nothing_with_it() -> None:
    lanes = [Lane(time_us=50.0, wrong=True), Lane(time_us=101.0), Lane(time_us=100.0), Lane(time_us=300.0)]
    record = Track(lanes, noise=0.001).run()
    trials = record.searches[0].trials
    assert trials[0].failure is not None
    assert trials[0].failure.kind == "wrong_result"
    choice = Policy().pick(record)
    assert choice.algorithm.endswith("v=2")
    assert choice.precision == "final"
    assert trials[3].stage == "screened"


def test_all_wrong_is_a_record_like_any_other() -> None:
    record = Track([Lane(time_us=50.0, wrong=True), Lane(time_us=90.0, build_fails=True)]).run()
    with pytest.raises(NoAlgorithm) as caught:
        Policy().pick(record)
    assert len(caught.value.reasons) == 2


def test_who_is_known_to_fail_is_not_tried_be_it_listed_late() -> None:
    lanes = [Lane(time_us=time_us) for time_us in (100.0, 90.0, 80.0, 70.0, 60.0, 50.0)]
    known = Failure("crashed", "it did")
    failed = {"simulated/t:lane?v=0": known, "simulated/t:lane?v=5": known}
    track = Track(lanes, listed=3)
    record = track.run(failed=failed)
    trials = record.searches[0].trials
    assert [trial.failure for trial in trials] == [known, None, None, None, None, known]
    assert not {0, 5} & {rank for i in track.instructions if isinstance(i, Build | Launch) for rank in i.ranks}
    assert Policy().pick(record).algorithm.endswith("v=4")


def test_who_is_forgiven_is_tried_again_and_may_win() -> None:
    track = Track([Lane(time_us=100.0), Lane(time_us=98.0, workspace_bytes=1)])
    race = Race(track.listing())

    def finish() -> Finished:
        while not isinstance(instruction := race.next(), Finished):
            race.validate()
            race.tell(track.outcome(instruction))
        return instruction

    assert race.next() == Build((0, 1))
    full = Failure("out_of_memory", "full")
    race.tell((Built(0, 50.0), full))
    assert [trial.failure for trial in finish().trials] == [None, full]
    race.forgive([1])
    race.validate()
    assert race.next() == Build((1,))
    trials = finish().trials
    assert [(trial.failure, trial.stage) for trial in trials] == [(None, "final"), (None, "final")]


def test_no_candidates_at_all() -> None:
    race = Race(Listing(candidates=(), complete=True))
    assert race.next() == Finished((), True)


def test_it_looks_at_the_first_ones_and_further_only_if_that_pays() -> None:
    flat = Track([Lane(time_us=100.0 + n) for n in range(12)], look_at=6)
    assert stages(flat).count("listed") == 6
    falling = Track([Lane(time_us=100.0 - 5 * n) for n in range(12)], look_at=6)
    assert stages(falling).count("listed") == 0


def test_it_does_not_look_further_into_what_is_dear_merely_because_that_pays() -> None:
    lanes = [Lane(time_us=100.0 - 5 * n) for n in range(12)]
    for listed in (12, 6):
        dear = Track(lanes, look_at=6, listed=listed, look_up_to=6)
        assert [stage == "listed" for stage in stages(dear)] == [False] * 6 + [True] * (listed - 6)
        assert not any(isinstance(instruction, Widen) for instruction in dear.instructions)
    everything = Track(lanes, look_at=6, listed=6, look_up_to=6)
    assert stages(everything, mode="exhaustive").count("listed") == 0


def test_it_looks_further_up_to_what_is_hopeless() -> None:
    falling = [Lane(time_us=100.0 - 5 * n) for n in range(12)]
    for listed in (12, 6):
        track = Track(falling, look_at=6, listed=listed, look_up_to=8)
        assert [stage == "listed" for stage in stages(track)] == [False] * 8 + [True] * 4


def test_what_is_hopeless_does_not_take_the_place_of_whom_nobody_admits_or_who_failed() -> None:
    """Neither in the first look, nor later; but for a policy that has not enough others."""
    none = Policy(workspace_limit_bytes=0)
    lanes = [Lane(time_us=100.0 - n, workspace_bytes=n % 2) for n in range(12)] + [Lane(time_us=1e6)] * 6
    failed = {"simulated/t:lane?v=0": Failure("crashed", "it did")}
    for look_at, tried in ((12, [2, 4, 6, 8, 10]), (6, [2, 4, 6, 8])):
        record = Track(lanes, look_at=look_at, look_up_to=look_at).run(policies=(none,), failed=failed)
        assert [trial.rank for trial in record.searches[0].trials if trial.time_us is not None] == tried
        assert none.pick(record).algorithm.endswith(f"v={tried[-1]}")


def test_what_an_asked_policy_lacks_is_looked_for_however_dear_it_is() -> None:
    lanes = [Lane(time_us=100.0 + n, workspace_bytes=1 << 20) for n in range(10)]
    lanes += [Lane(time_us=200.0 + n) for n in range(10)]
    track = Track(lanes, listed=10, look_at=10, look_up_to=10)
    record = track.run(policies=(Policy(workspace_limit_bytes=0),))
    assert Policy(workspace_limit_bytes=0).pick(record).algorithm.endswith("v=10")


def test_it_widens_until_an_asked_policy_has_enough_to_choose_from() -> None:
    lanes = [Lane(time_us=100.0 + n, workspace_bytes=1 << 20) for n in range(10)]
    lanes += [Lane(time_us=200.0 + n) for n in range(10)]
    track = Track(lanes, listed=10, look_at=10)
    record = track.run(policies=(Policy(workspace_limit_bytes=0),))
    assert any(isinstance(instruction, Widen) for instruction in track.instructions)
    assert Policy(workspace_limit_bytes=0).pick(record).algorithm.endswith("v=10")
    assert {trial.stage for trial in record.searches[0].trials[:10]} == {"listed"}


def test_nobody_is_checked_alone_who_will_have_company() -> None:
    """Alone, a candidate is held against the definition, which takes long."""
    lanes = [Lane(time_us=100.0 + n, workspace_bytes=1 << 20) for n in range(4)]
    lanes += [Lane(time_us=200.0 + n) for n in range(4)]
    track = Track([Lane(time_us=150.0), *lanes], listed=4, look_at=4)
    track.run(policies=(Policy(workspace_limit_bytes=0),))
    kinds = [type(instruction) for instruction in track.instructions]
    assert Widen in kinds[: kinds.index(Check)]
    assert all(each.against is not None for each in track.instructions if isinstance(each, Check))


def test_the_first_check_is_against_the_fastest_of_the_others() -> None:
    """Some take a thousand times as long as the best, and it is run for that."""
    track = Track(
        [Lane(time_us=90_000.0), Lane(time_us=101.0, workspace_bytes=8), Lane(time_us=30.0, workspace_bytes=9)]
    )
    track.run()
    checks = [each for each in track.instructions if isinstance(each, Check)]
    assert checks[0] == Check(2, 1)
    assert {each.against for each in checks[1:]} == {2}


def test_an_asked_policy_lacks_nothing_that_is_as_good_as_the_best_of_all() -> None:
    lanes = [Lane(time_us=100.0), *(Lane(time_us=100.0 + n, workspace_bytes=8) for n in range(8))]
    none = Policy(workspace_limit_bytes=0)
    track = Track(lanes, listed=5, look_at=5)
    record = track.run(policies=(Policy(), none))
    assert not any(isinstance(instruction, Widen) for instruction in track.instructions)
    assert none.pick(record).algorithm.endswith("v=0")
    slower = Track([Lane(time_us=103.0), *lanes[1:]], listed=5, look_at=5)
    slower.run(policies=(Policy(), none))
    assert any(isinstance(instruction, Widen) for instruction in slower.instructions)


def test_exhaustive_runs_everything_and_screens_nobody() -> None:
    lanes = [Lane(time_us=100.0 * (n + 1)) for n in range(9)]
    track = Track(lanes, listed=3, look_at=2)
    assert track.run(mode="exhaustive").searches[0].complete
    assert set(stages(Track(lanes, listed=3, look_at=2), mode="exhaustive")) == {"final", "coarse"}


def test_a_listing_that_promises_more_and_has_none_is_believed_once() -> None:
    candidates = (Candidate(algorithm="simulated/t:a", rank=0, workspace_bytes=0),)
    race = Race(Listing(candidates=candidates, complete=False))
    track = Track([Lane(time_us=100.0)])
    widenings = 0
    while not isinstance(instruction := race.next(), Finished):
        widenings += isinstance(instruction, Widen)
        promising = Listing(candidates=candidates, complete=False)
        race.tell(promising if isinstance(instruction, Widen) else track.outcome(instruction))
    assert widenings == 1


def test_memory_that_is_not_there_costs_the_candidate() -> None:
    race = Race(Track([Lane(time_us=1.0, workspace_bytes=8), Lane(time_us=2.0)]).listing())
    assert race.next() == Build((0, 1))
    race.tell((Built(0, 1.0), Built(1, 1.0)))
    assert isinstance(race.next(), Launch)
    race.drop((0,), Failure("out_of_memory", "no room", (("free_bytes", "4"),)))
    instruction = race.next()
    assert isinstance(instruction, Launch)
    assert instruction.ranks == (1,)


def test_what_is_dropped_must_exist_and_what_failed_before_failed_of_that() -> None:
    race = Race(Track([Lane(time_us=1.0), Lane(time_us=2.0)]).listing())
    race.next()
    race.tell((Failure("build_failed", "first"), Built(1, 1.0)))
    asked = race.next()
    with pytest.raises(ValueError):
        race.drop((1, 2), Failure("out_of_memory", "no room"))
    assert race.next() is asked
    race.drop((0, 1), Failure("out_of_memory", "no room"))
    finished = race.next()
    assert isinstance(finished, Finished)
    assert [trial.failure and trial.failure.message for trial in finished.trials] == ["first", "no room"]
    race.drop((0,), Failure("out_of_memory", "still none"))  # a driver that is at it does not look first
    assert race.next() == finished


def test_ranks_must_count_up_from_0() -> None:
    candidates = tuple(Candidate(algorithm=f"simulated/t:{rank}", rank=rank, workspace_bytes=0) for rank in (0, 2))
    with pytest.raises(ValueError):
        Race(Listing(candidates=candidates, complete=True))
    race = Race(Listing(candidates=candidates[:1], complete=False), mode="exhaustive")
    widen = race.next()
    with pytest.raises(ValueError):
        race.tell(Listing(candidates=candidates, complete=True))
    assert race.next() is widen


def test_its_repr_tells_what_is_pending() -> None:
    race = Race(Track([Lane(time_us=1.0)]).listing())
    assert "between two steps" in repr(race)
    race.next()
    assert "building 1 candidate" in repr(race)
    race.tell((Built(0, 1.0),))
    race.next()
    assert "first run of simulated/t:lane?v=0" in repr(race)


def test_the_first_ones_bound_the_later_ones() -> None:
    track = Track([Lane(time_us=2_000_000.0), Lane(time_us=100.0), Lane(time_us=120.0)])
    track.run()
    rules = RaceRules()
    launches = [i.limit_us for i in track.instructions if isinstance(i, Launch)]
    assert launches == [rules.first_limit_us, rules.hopeless * 2_000_000.0, rules.limit_us]


def test_whose_first_run_is_hopelessly_slow_is_not_run_again() -> None:
    """F04."""
    track = Track([Lane(time_us=2_000_000.0), Lane(time_us=100.0)])
    trial = track.run().searches[0].trials[0]
    assert trial.stage == "screened"
    assert trial.time_us == pytest.approx(2_000_000.0)
    assert trial.samples_us == ()


def test_drift_without_end_comes_to_an_end() -> None:
    """Whatever its clock says, and however little time passes by it, so that no budget ends it."""
    track = Track([Lane(time_us=0.01), Lane(time_us=0.01, workspace_bytes=1)])
    race = Race(track.listing())
    rounds = 0
    while not isinstance(instruction := race.next(), Finished):
        race.validate()
        outcome = track.outcome(instruction)
        if isinstance(instruction, Time):
            rounds += 1
            half = len(instruction.bursts) // 2
            assert isinstance(outcome, tuple)
            bursts = [burst for burst in outcome if isinstance(burst, Burst)]
            outcome = tuple(
                Burst(time_us=burst.time_us * (1.0 if number < half else 1.2), repeats=burst.repeats, timing="")
                for number, burst in enumerate(bursts)
            )
        race.tell(outcome)
    assert rounds < RaceRules().most_rounds + RaceRules().most_discards + 20


@pytest.mark.parametrize("reports", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_never_wins(reports: float) -> None:
    """D08, E16: such a time is not measured, and is never compared."""
    record = Track([Lane(time_us=1.0, reports=reports), Lane(time_us=100.0)]).run()
    assert Policy().pick(record).algorithm.endswith("v=1")
    failure = record.searches[0].trials[0].failure
    assert failure is not None
    assert failure.kind == "launch_failed"


def test_disturbed_bursts_are_run_again() -> None:
    lanes = [Lane(time_us=100.0), Lane(time_us=103.0)]
    for seed in range(10):
        track = Track(lanes, seed=seed, noise=0.001, disturbed=0.1)
        assert Policy().pick(track.run()).algorithm.endswith("v=0")


def test_a_device_that_is_never_quiet_is_taken_as_it_is() -> None:
    record = Track([Lane(time_us=100.0), Lane(time_us=200.0)], disturbed=1.0).run()
    assert Policy().pick(record).time_us == pytest.approx(150.0)


def test_the_finals_keep_to_their_budget() -> None:
    rules = RaceRules(final_budget_us=50_000.0)
    lanes = [Lane(time_us=1_000.0), Lane(time_us=1_000.5)]
    track = Track(lanes, noise=0.05)
    track.run(rules=rules)
    finals = [i for i in track.instructions if isinstance(i, Time) and i.final]
    assert 0 < sum(repeats for i in finals for _, repeats in i.bursts) * 1_000.0 < 60_000.0


@pytest.mark.parametrize(
    "outcome",
    [
        None,
        (),
        (Built(0, 1.0),),
        (Built(0, 1.0), None),
        Failure("timed_out", "late"),
        (Burst(time_us=1.0, repeats=1, timing=""),) * 2,
    ],
)
def test_an_outcome_that_was_not_asked_changes_nothing(outcome: object) -> None:
    race = Race(Track([Lane(time_us=1.0), Lane(time_us=2.0)]).listing())
    before = race.next()
    with pytest.raises(ValueError):
        race.tell(outcome)  # type: ignore[arg-type]
    assert race.next() is before


def test_nothing_is_told_unasked() -> None:
    race = Race(Listing(candidates=(), complete=True))
    with pytest.raises(ValueError):
        race.tell(None)
    race.next()
    with pytest.raises(ValueError):
        race.tell(None)


@settings(max_examples=100)
@given(data=st.data(), count=st.integers(1, 6), mode=st.sampled_from(["race", "exhaustive"]))
def test_any_outcomes_at_all_come_to_an_end(data: st.DataObject, count: int, mode: str) -> None:
    track = Track([Lane(time_us=100.0, workspace_bytes=n) for n in range(count)], listed=max(1, count // 2))
    race = Race(track.listing(), mode=mode)  # type: ignore[arg-type]
    failing = st.sampled_from([None, None, None, Failure("timed_out", "late"), Failure("wrong_result", "wrong")])
    times = st.floats(min_value=0.0)
    for _ in range(600):
        instruction = race.next()
        race.validate()
        if isinstance(instruction, Finished):
            break
        if isinstance(instruction, Widen):
            race.tell(track.outcome(instruction))
        elif isinstance(instruction, Check):
            race.tell(data.draw(failing))
        elif isinstance(instruction, Build):
            race.tell(tuple(data.draw(failing) or Built(rank, 1.0) for rank in instruction.ranks))
        else:
            asked = len(instruction.ranks if isinstance(instruction, Launch) else instruction.bursts)
            race.tell(
                tuple(
                    data.draw(failing) or Burst(time_us=data.draw(times), repeats=1, timing="virtual")
                    for _ in range(asked)
                )
            )
    assert isinstance(race.next(), Finished)


def test_what_is_excluded_by_name_is_not_run_even_exhaustively() -> None:
    lanes = [Lane(time_us=100.0 + n) for n in range(5)]
    trials = Track(lanes).run(policies=(Policy(exclude=("*v=2",)),), mode="exhaustive").searches[0].trials
    assert [trial.stage == "listed" for trial in trials] == [False, False, True, False, False]
