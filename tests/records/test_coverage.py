"""What a record covers: when a policy says that it cannot tell, and that more trials change no answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch import NoAlgorithm, NotCovered
from algosearch.records import Failure, Policy, Record, Search, SearchMode, Trials
from algosearch.records.policy import AS_GOOD, LOOK_AT
from tests.records.picking import KEY, met_trouble, outcome, picked, record, search, trial
from tests.strategies import policies, records, searches


class TestWhenItCannotTell:
    def test_no_candidate_may_be_used(self) -> None:
        found = record(
            search(
                trial("wide", 1, workspace_bytes=8),
                trial("dead", 0, None, failure=Failure("build_failed", "status 3")),
            )
        )
        with pytest.raises(NoAlgorithm) as caught:
            Policy(workspace_limit_bytes=0).pick(found)
        assert caught.value.problem == KEY.problem.describe()
        assert caught.value.reasons == (
            "cudnn/graph:dead: build_failed: status 3",
            "cudnn/graph:wide: needs 8 bytes of workspace, more than the limit",
        )

    def test_an_empty_list_is_no_algorithm(self) -> None:
        with pytest.raises(NoAlgorithm, match="offers no candidate"):
            Policy().pick(record(search()))

    def test_a_record_without_a_search(self) -> None:
        with pytest.raises(NotCovered, match="has no search"):
            Policy().pick(record())

    def test_the_library_has_more(self) -> None:
        some = [trial(str(rank), rank, 10.0 + rank) for rank in range(LOOK_AT)]
        with pytest.raises(NotCovered, match="the library has more"):
            picked(Policy(exclude=("*:0",)), *some, complete=False)
        assert picked(Policy(), *some, complete=False) == "0"
        assert picked(Policy(exclude=("*:0",)), *some, complete=True) == "1"
        with pytest.raises(NotCovered, match="the library has more"):
            picked(Policy(exclude=("*",)), *some, complete=False)

    @pytest.mark.parametrize(("time_us", "is_as_good"), [(10.0 * (1 + AS_GOOD) - 1e-6, True), (10.11, False)])
    def test_who_is_as_good_as_if_nothing_had_been_refused(self, time_us: float, is_as_good: bool) -> None:
        fits = trial("fits", LOOK_AT - 1, time_us)
        others = [trial(str(rank), rank, 10.0 + rank, workspace_bytes=8) for rank in range(LOOK_AT - 1)]
        none = Policy(workspace_limit_bytes=0)
        if is_as_good:
            assert picked(none, *others, fits, complete=False) == "fits"
            assert picked(none, *others, fits, trial("listed", LOOK_AT, None), complete=False) == "fits"
        else:
            with pytest.raises(NotCovered, match="the library has more"):
                picked(none, *others, fits, complete=False)

    def test_nobody_is_as_good_beside_those_who_were_not_looked_at(self) -> None:
        """A search for one policy says nothing of what that policy refuses."""
        fits, first = trial("fits", 1), trial("first", 0, None, workspace_bytes=8)
        rest = [trial(str(rank), rank, 99.0, workspace_bytes=8) for rank in range(2, LOOK_AT)]
        for looked_at in ([fits, *rest], [first, fits, *rest, trial("more", LOOK_AT, None)]):
            with pytest.raises(NotCovered):
                picked(Policy(workspace_limit_bytes=0), *looked_at, complete=False)

    def test_who_is_wrong_is_no_measure(self) -> None:
        wrong = trial("wrong", 0, 1.0, workspace_bytes=8, failure=Failure("wrong_result", "wrong"))
        others = [trial(str(rank), rank, 10.0 + rank, workspace_bytes=8) for rank in range(2, LOOK_AT + 1)]
        assert picked(Policy(workspace_limit_bytes=0), wrong, trial("fits", 1, 10.0), *others, complete=False) == "fits"

    def test_screened_candidates_were_looked_at(self) -> None:
        some = [trial(str(rank), rank, 20.0, stage="screened") for rank in range(1, LOOK_AT)]
        assert picked(Policy(), trial("0", 0, 10.0), *some, complete=False) == "0"

    def test_what_was_dropped_early_may_be_the_better_one(self) -> None:
        dropped = trial("dropped", 0, 15.0, stage="screened")
        against, left = trial("against", 1, 10.0), trial("left", 2, 20.0)
        assert picked(Policy(), dropped, against, left) == "against"
        with pytest.raises(NotCovered, match="cudnn/graph:dropped was dropped early"):
            picked(Policy(exclude=("*:against",)), dropped, against, left)

    def test_admitted_and_never_run(self) -> None:
        with pytest.raises(NotCovered, match="admits were not looked at"):
            picked(Policy(workspace_limit_bytes=0), trial("timed", 0, workspace_bytes=4), trial("listed", 1, None))

    def test_admitted_and_passed_over(self) -> None:
        """What the library ranks behind enough that were looked at need not be."""
        looked_at = [trial(str(rank), rank, 10.0 + rank) for rank in range(LOOK_AT)]
        assert picked(Policy(), *looked_at, trial("behind", LOOK_AT, None)) == "0"
        with pytest.raises(NotCovered, match="admits were not looked at"):
            picked(Policy(exclude=("*:0",)), *looked_at, trial("behind", LOOK_AT, None))

    def test_admitted_and_dropped_early(self) -> None:
        dropped = trial("dropped", 1, 20.0, stage="screened")
        with pytest.raises(NotCovered, match="were not timed as rivals"):
            picked(Policy(workspace_limit_bytes=0), trial("wide", 0, workspace_bytes=4), dropped)

    def test_what_found_no_memory_at_first_may_answer_later(self) -> None:
        full = trial("a", 0, None, failure=Failure("out_of_memory", "full"))
        wrong = trial("b", 1, None, failure=Failure("wrong_result", "wrong"))
        with pytest.raises(NoAlgorithm):
            Policy().pick(record(search(full, wrong)))
        with pytest.raises(NoAlgorithm):
            Policy().pick(record(search(full, wrong), search(full, wrong)))
        assert Policy().pick(record(search(full, wrong), search(trial("a", 0), wrong))).algorithm == "cudnn/graph:a"
        with pytest.raises(NoAlgorithm):
            Policy().pick(record(search(wrong), search(trial("b", 1))))

    def test_a_race_is_not_exhaustive(self) -> None:
        raced, thorough = search(trial("raced", 0)), search(trial("thorough", 0), mode="exhaustive")
        with pytest.raises(NotCovered, match="an exhaustive search was asked"):
            Policy().pick(record(raced), mode="exhaustive")
        assert Policy().pick(record(raced, thorough), mode="exhaustive").algorithm == "cudnn/graph:thorough"
        assert Policy().pick(record(thorough), mode="race").algorithm == "cudnn/graph:thorough"

    @pytest.mark.parametrize("left_out", range(LOOK_AT + 2))
    def test_what_an_exhaustive_search_was_told_to_leave_out_is_not_covered_by_it(self, left_out: int) -> None:
        """Whoever asks for everything is not to be answered by the first few, nor by who is as good as those."""
        some = [trial(str(rank), rank, None if rank == left_out else 10.0) for rank in range(LOOK_AT + 2)]
        found = record(search(*some, mode="exhaustive"))
        with pytest.raises(NotCovered, match="left out"):
            Policy().pick(found, mode="exhaustive")
        assert Policy(exclude=(f"*:{left_out}",)).pick(found, mode="exhaustive").precision == "final"
        failed = trial(str(left_out), left_out, None, failure=Failure("build_failed", "no"))
        some[left_out] = failed
        assert Policy().pick(record(search(*some, mode="exhaustive")), mode="exhaustive").precision == "final"


@given(records(), policies(), st.randoms(use_true_random=False), st.sampled_from(("race", "exhaustive")))
def test_the_order_of_trials_is_no_matter(found: Record, policy: Policy, random: Any, mode: SearchMode) -> None:
    shuffled = []
    for each in found.searches:
        trials = list(each.trials)
        random.shuffle(trials)
        shuffled.append(replace(each, trials=Trials.of(trials)))
    assert outcome(policy, replace(found, searches=tuple(shuffled)), mode) == outcome(policy, found, mode)


@pytest.mark.timeout(300)
@given(records(max_searches=3), searches(), policies(), st.sampled_from(("race", "exhaustive")))
def test_a_further_search_changes_no_answer(found: Record, more: Search, policy: Policy, mode: SearchMode) -> None:
    """The first search that covers a policy answers it, be it that there is no algorithm; unless it is for trouble."""
    answer = outcome(policy, found, mode)
    if isinstance(answer, tuple) and answer[0] is NoAlgorithm and met_trouble(policy, found):
        return
    later = outcome(policy, replace(found, searches=(*found.searches, more)), mode)
    if not (isinstance(answer, tuple) and answer[0] is NotCovered):
        assert later == answer
    else:
        alone = outcome(policy, replace(found, searches=(more,)), mode)
        assert later == alone
