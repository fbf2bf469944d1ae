"""What a record says about trying again: trouble once more, facts never."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algosearch.errors import NoAlgorithm, NotCovered
from algosearch.ops import ConvOp
from algosearch.records import (
    FACTS,
    Environment,
    Failure,
    Key,
    Policy,
    Provenance,
    Record,
    Search,
    Trial,
    Trials,
    deserves_another_search,
    not_to_try,
)
from algosearch.records.hindsight import PROCESSES
from tests.strategies import policies, records

KEY = Key.of(ConvOp(input_shape=(1, 2, 9, 9), filter_shape=(3, 2, 3, 3)), Environment(backend="cudnn", device="d"))
TROUBLE = ("out_of_memory", "timed_out", "crashed", "launch_failed")


def failed(engine: str, kind: Any, **changes: Any) -> Trial:
    circumstances = changes.pop("circumstances", ())
    return Trial(
        algorithm=f"cudnn/graph:{engine}",
        rank=0,
        workspace_bytes=changes.pop("workspace_bytes", 0),
        failure=Failure(kind, "because", circumstances),
        **changes,
    )


def timed(engine: str, **changes: Any) -> Trial:
    fields: dict[str, Any] = {"rank": 0, "workspace_bytes": 0, "stage": "final", "time_us": 10.0, "error_us": 0.1}
    return Trial(algorithm=f"cudnn/graph:{engine}", **(fields | changes))


def listed(engine: str) -> Trial:
    return Trial(algorithm=f"cudnn/graph:{engine}", rank=0, workspace_bytes=0)


def record(*searches: tuple[Trial, ...]) -> Record:
    origin = Provenance(version="0", found_at_s=0, seconds=0.0)
    return Record(
        key=KEY,
        searches=tuple(
            Search(mode="race", complete=True, trials=Trials.of(each), provenance=origin) for each in searches
        ),
    )


def known(*searches: tuple[Trial, ...]) -> set[str]:
    return {algorithm.rpartition(":")[2] for algorithm in not_to_try(record(*searches))}


def test_of_nothing_nothing_is_known() -> None:
    assert not_to_try(None) == {}


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_a_fact_is_never_tried_again(kind: str) -> None:
    assert known((failed("a", kind), timed("b"))) == {"a"}


@pytest.mark.parametrize("kind", TROUBLE)
def test_trouble_is_tried_once_more(kind: str) -> None:
    once = (failed("a", kind), timed("b"))
    assert known(once) == set()
    assert known(once, once) == {"a"}
    assert known(once, (failed("a", "timed_out"),)) == {"a"}, "whatever kind of trouble it was"


def test_trouble_that_two_processes_met_counts_twice() -> None:
    assert known((failed("a", "crashed", circumstances=((PROCESSES, "2"),)),)) == {"a"}


@pytest.mark.parametrize("said", ["", "x", "-5", "999999999999999999999", "0", "²"])
def test_what_a_record_says_of_its_tries_is_not_trusted(said: str) -> None:
    assert known((failed("a", "crashed", circumstances=((PROCESSES, said),)),)) == set()


def test_what_has_run_since_is_forgiven() -> None:
    once = (failed("a", "out_of_memory"),)
    assert known(once, (timed("a"),), once) == set()


def test_the_failure_is_the_latest_one() -> None:
    found = not_to_try(record((failed("a", "timed_out"),), (failed("a", "crashed"),)))
    assert [failure.kind for failure in found.values()] == ["crashed"]


@pytest.mark.parametrize(
    ("searches", "deserves"),
    [
        (((failed("a", "out_of_memory"), failed("b", "not_supported")),), True),
        (((failed("a", "not_supported"), failed("b", "wrong_result")),), False),
        (((failed("a", "out_of_memory"), timed("b")),), False),
        (((failed("a", "out_of_memory"), listed("b")),), True),
        (((failed("a", "out_of_memory"),), (failed("a", "launch_failed"),)), False),
        (((failed("a", "out_of_memory"),), (failed("b", "launch_failed"),)), True),
        (((listed("a"),),), False),
        (((),), False),
    ],
)
def test_which_records_deserve_another_search(searches: tuple[tuple[Trial, ...], ...], deserves: bool) -> None:
    assert deserves_another_search(record(*searches), Policy()) is deserves


def test_it_is_a_matter_of_the_policy() -> None:
    found = record((timed("a"), failed("b", "out_of_memory", workspace_bytes=5)))
    assert not deserves_another_search(found, Policy())
    assert deserves_another_search(found, Policy(exclude=("*:a",)))
    assert not deserves_another_search(found, Policy(exclude=("*:b",)))


def test_what_ran_when_the_policy_refused_it_is_no_reason_to_go_on_for_ever() -> None:
    """It needed more workspace then: that it ran says nothing of what fails now."""
    ran, fails = (timed("a", workspace_bytes=8),), (failed("a", "out_of_memory"),)
    none = Policy(workspace_limit_bytes=0)
    assert deserves_another_search(record(ran, fails), none)
    assert not deserves_another_search(record(ran, fails, ran, fails), none)
    assert not deserves_another_search(record(fails, ran, fails, ran), none)


@given(records(), policies())
def test_whoever_can_be_answered_deserves_none(found: Record, policy: Policy) -> None:
    try:
        policy.pick(found)
    except (NoAlgorithm, NotCovered):
        return
    assert not deserves_another_search(found, policy)


@given(records(), st.integers(2, 3))
def test_after_the_same_again_nothing_is_left_to_try(found: Record, times: int) -> None:
    again = Record(key=found.key, searches=found.searches * times)
    assert not deserves_another_search(again, Policy())
