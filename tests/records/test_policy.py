"""`Policy`: what it refuses, what it picks, and when it says that it cannot tell."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch import AlgosearchError, InvalidPolicy, NoAlgorithm, NotCovered
from algosearch.ops import ConvOp
from algosearch.records import (
    DEFAULT_POLICY,
    Candidate,
    Choice,
    Environment,
    Failure,
    Key,
    Policy,
    Provenance,
    Record,
    Rule,
    Search,
    SearchMode,
    Trial,
    Trials,
)
from algosearch.records.choice import RULES
from algosearch.records.policy import LOOK_AT
from tests.strategies import candidates, policies, records, searches

KEY: Final = Key.of(
    ConvOp(input_shape=(1, 2, 9, 9), filter_shape=(3, 2, 3, 3)), Environment(backend="cudnn", device="d")
)


def trial(engine: str, rank: int, time_us: float | None = 10.0, **changes: Any) -> Trial:
    """A candidate timed in the finals, without error; or what `changes` say."""
    fields: dict[str, Any] = {
        "algorithm": f"cudnn/graph:{engine}",
        "rank": rank,
        "workspace_bytes": 0,
        "stage": "final" if time_us is not None else "listed",
        "time_us": time_us,
    }
    return Trial(**{**fields, **changes})


def search(*trials: Trial, complete: bool = True, mode: SearchMode = "race") -> Search:
    origin = Provenance(version="0", found_at_s=0, seconds=0.0)
    return Search(mode=mode, complete=complete, trials=Trials.of(trials), provenance=origin)


def record(*searches_: Search) -> Record:
    return Record(key=KEY, searches=searches_)


def picked(policy: Policy, *trials: Trial, **changes: Any) -> str:
    return policy.pick(record(search(*trials, **changes))).algorithm.partition(":")[2]


def outcome(policy: Policy, found: Record, mode: SearchMode = "race") -> Choice | tuple[type, tuple[object, ...]]:
    try:
        return policy.pick(found, mode=mode)
    except AlgosearchError as error:
        return type(error), error.args


class TestPicks:
    def test_the_fastest(self) -> None:
        assert picked(Policy(), trial("slow", 0, 12.0), trial("fast", 1, 10.0), trial("middling", 2, 11.0)) == "fast"

    def test_among_ties_less_workspace_then_deterministic_then_the_librarys_order(self) -> None:
        first, second = trial("a", 0, 10.0, workspace_bytes=1), trial("b", 1, 10.0)
        assert picked(Policy(), first, second) == "b"
        assert picked(Policy(), replace(first, workspace_bytes=0), second) == "a"
        wandering = replace(first, workspace_bytes=0, notes=("nondeterministic",))
        assert picked(Policy(), wandering, second) == "b"

    def test_prefer_decides_among_ties_only(self) -> None:
        near, far = trial("near", 1, 10.0, workspace_bytes=9), trial("far", 2, 20.0)
        leader = trial("leader", 0, 10.0)
        assert picked(Policy(), leader, near, far) == "leader"
        assert picked(Policy(prefer=("*:near", "*:far")), leader, near, far) == "near"
        assert picked(Policy(prefer=("*:far",)), leader, near, far) == "leader"

    def test_patterns_are_of_whole_names_and_case_counts(self) -> None:
        leader, other = trial("a1", 0, 10.0), trial("a2", 1, 20.0)
        for pattern in ("*:a1", "cudnn/graph:a[1]", "cudnn/graph:a1", "*1"):
            assert picked(Policy(exclude=(pattern,)), leader, other) == "a2"
        for pattern in ("a1", "cudnn/graph:a", "CUDNN/*", ""):
            assert picked(Policy(exclude=(pattern,)), leader, other) == "a1"
        with pytest.raises(NoAlgorithm):
            picked(Policy(exclude=("nothing", "*1", "*2")), leader, other)

    @pytest.mark.parametrize("limit", [0, 1, 512, 2**31 - 1, 2**31, 4096 << 20, 2**33, None])
    def test_workspace_limits(self, limit: int | None) -> None:
        """The more a candidate needs, the faster it is; so the pick needs as much as the limit allows, to the byte."""
        sizes = [0, 1, 511, 512, 513, 2**31 - 1, 2**31, 2**31 + 1, 4096 << 20, (4096 << 20) + 1, 2**33, 2**33 + 1]
        trials = [trial(str(size), rank, 100.0 - rank, workspace_bytes=size) for rank, size in enumerate(sizes)]
        best = max(size for size in sizes if limit is None or size <= limit)
        choice = Policy(workspace_limit_bytes=limit).pick(record(search(*trials)))
        assert choice.workspace_bytes == best
        refused = {rejection.workspace_bytes for rejection in choice.rejections if rejection.rule == "workspace_limit"}
        assert refused == {size for size in sizes if size > best}

    def test_what_a_choice_tells(self) -> None:
        found = Record(
            key=KEY,
            generation=2,
            searches=(
                search(
                    trial("first", 0, 20.0),
                    trial("best", 1, 10.0, workspace_bytes=7, notes=("tensor_core",), error_us=0.01),
                ),
            ),
        )
        choice = Policy().pick(found)
        assert (choice.algorithm, choice.workspace_bytes, choice.notes) == ("cudnn/graph:best", 7, ("tensor_core",))
        assert (choice.time_us, choice.first_us, choice.precision) == (10.0, 20.0, "final")
        assert (choice.digest, choice.generation, choice.provisional) == (KEY.digest, 2, False)
        assert choice.tie_window >= 0.003

    def test_first_is_the_first_that_the_policy_admits(self) -> None:
        trials = (trial("huge", 0, 20.0, workspace_bytes=9), trial("small", 1, 15.0), trial("best", 2, 10.0))
        assert Policy(workspace_limit_bytes=0).pick(record(search(*trials))).first_us == 15.0

    def test_a_coarse_pick_says_so(self) -> None:
        best = trial("best", 0, 10.0, stage="coarse")
        assert Policy().pick(record(search(best, trial("final", 1, 20.0)))).precision == "coarse"


# Each note, and the change of the default policy under which it is, and is not, a reason to refuse.
NOTE_RULES: Final[list[tuple[str, Rule, dict[str, Any], dict[str, Any]]]] = [
    ("nondeterministic", "nondeterministic", {"deterministic": True}, {}),
    ("unknown_7", "unknown_note", {"deterministic": True}, {}),
    ("tf32", "tf32", {"allow_tf32": False}, {}),
    ("reduced_precision", "reduced_precision", {"allow_reduced_precision": False}, {}),
    ("down_converts", "down_converts", {}, {"allow_down_conversion": True}),
    ("range_limited", "range_limited", {"allow_range_limited": False}, {}),
    ("runtime_compiled", "runtime_compiled", {"allow_runtime_compiled": False}, {}),
]


class TestRejections:
    @pytest.mark.parametrize(("note", "rule", "refusing", "admitting"), NOTE_RULES)
    def test_notes(self, note: str, rule: Rule, refusing: dict[str, Any], admitting: dict[str, Any]) -> None:
        noted, plain = trial("noted", 0, 10.0, notes=("tensor_core", note)), trial("plain", 1, 20.0)
        assert picked(Policy(**admitting), noted, plain) == "noted"
        choice = Policy(**refusing).pick(record(search(noted, plain)))
        assert choice.algorithm == "cudnn/graph:plain"
        assert [(each.algorithm, each.rule) for each in choice.rejections] == [("cudnn/graph:noted", rule)]
        candidate = Candidate(algorithm="cudnn/graph:noted", rank=0, workspace_bytes=0, notes=(note,))
        assert Policy(**refusing).refuses(candidate) == rule
        assert Policy(**admitting).refuses(candidate) is None

    def test_notes_that_only_inform(self) -> None:
        strictest = Policy(
            deterministic=True,
            allow_tf32=False,
            allow_reduced_precision=False,
            allow_range_limited=False,
            allow_runtime_compiled=False,
        )
        assert picked(strictest, trial("noted", 0, notes=("fft", "tensor_core", "winograd"))) == "noted"

    def test_each_rule_has_its_reason(self) -> None:
        choice = Policy(workspace_limit_bytes=100, exclude=("*:barred",)).pick(
            record(
                search(
                    trial("pick", 0, 10.0),
                    trial("big", 1, 9.0, workspace_bytes=101),
                    trial("barred", 2, 9.0),
                    trial("broken", 3, None, failure=Failure("not_supported", "status 9")),
                    trial("screened", 5, 30.0, stage="screened"),
                    trial("slow", 6, 20.0),
                    trial("tie", 7, 10.0, workspace_bytes=5),
                    trial("down", 8, 9.0, notes=("down_converts",)),
                    trial("unseen", 9, None),
                )
            )
        )
        assert choice.algorithm == "cudnn/graph:pick"
        assert [rejection.describe().removeprefix("cudnn/graph:") for rejection in choice.rejections] == [
            "big: needs 101 bytes of workspace, more than the limit",
            "barred: excluded by the policy",
            "broken: not_supported: status 9",
            "screened: dropped early at 30.0 µs: another is clearly faster and asks for nothing more",
            "slow: slower: 20.0 µs",
            "tie: a tie at 10.0 µs, lost on preference, workspace, determinism or the library's order",
            "down: the policy refuses down_converts",
            "unseen: was listed and never run",
        ]

    @given(searches(), policies())
    def test_every_other_candidate_once_in_the_librarys_order(self, found: Search, policy: Policy) -> None:
        try:
            choice = policy.pick(record(found))
        except AlgosearchError:
            return
        ranks = {each.algorithm: each.rank for each in found.trials}
        told = [rejection.algorithm for rejection in choice.rejections]
        assert sorted([*told, choice.algorithm]) == sorted(ranks)
        assert told == sorted(told, key=lambda name: ranks[name])
        by_name = {each.algorithm: each for each in found.trials}
        for rejection in choice.rejections:
            rejected = by_name[rejection.algorithm]
            assert rejection.describe()
            assert (rejection.workspace_bytes, rejection.time_us) == (rejected.workspace_bytes, rejected.time_us)
            refused = policy.refuses(rejected)
            if refused is not None:
                assert rejection.rule == refused

    @given(searches(), policies())
    def test_the_pick_is_admitted_timed_and_within_its_promise(self, found: Search, policy: Policy) -> None:
        try:
            choice = policy.pick(record(found))
        except AlgosearchError:
            return
        pick = next(each for each in found.trials if each.algorithm == choice.algorithm)
        assert policy.refuses(pick) is None
        assert pick.failure is None
        assert pick.time_us is not None
        assert pick.stage in ("coarse", "final")
        for rival in found.trials:
            admitted = policy.refuses(rival) is None and rival.failure is None
            if admitted and rival.time_us is not None and rival.stage != "listed":
                assert pick.time_us <= rival.time_us * (1 + choice.tie_window) * (1 + 1e-12)


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

    def test_a_race_is_not_exhaustive(self) -> None:
        raced, thorough = search(trial("raced", 0)), search(trial("thorough", 0), mode="exhaustive")
        with pytest.raises(NotCovered, match="an exhaustive search was asked"):
            Policy().pick(record(raced), mode="exhaustive")
        assert Policy().pick(record(raced, thorough), mode="exhaustive").algorithm == "cudnn/graph:thorough"
        assert Policy().pick(record(thorough), mode="race").algorithm == "cudnn/graph:thorough"


@given(records(), policies(), st.randoms(use_true_random=False), st.sampled_from(("race", "exhaustive")))
def test_the_order_of_trials_is_no_matter(found: Record, policy: Policy, random: Any, mode: SearchMode) -> None:
    shuffled = []
    for each in found.searches:
        trials = list(each.trials)
        random.shuffle(trials)
        shuffled.append(replace(each, trials=Trials.of(trials)))
    assert outcome(policy, replace(found, searches=tuple(shuffled)), mode) == outcome(policy, found, mode)


@given(records(max_searches=3), searches(), policies(), st.sampled_from(("race", "exhaustive")))
def test_a_further_search_changes_no_answer(found: Record, more: Search, policy: Policy, mode: SearchMode) -> None:
    """The first search that covers a policy answers it, be it that there is no algorithm."""
    answer = outcome(policy, found, mode)
    later = outcome(policy, replace(found, searches=(*found.searches, more)), mode)
    if not (isinstance(answer, tuple) and answer[0] is NotCovered):
        assert later == answer
    else:
        alone = outcome(policy, replace(found, searches=(more,)), mode)
        assert later == alone


class TestFirst:
    def test_the_first_that_is_admitted(self) -> None:
        offered = [
            Candidate(algorithm="cudnn/graph:b", rank=1, workspace_bytes=3, notes=("tensor_core",)),
            Candidate(algorithm="cudnn/graph:a", rank=0, workspace_bytes=9),
        ]
        choice = Policy(workspace_limit_bytes=3).first(offered, problem="p", digest="d")
        assert choice == Choice(
            algorithm="cudnn/graph:b",
            workspace_bytes=3,
            notes=("tensor_core",),
            precision="heuristic",
            provisional=True,
            digest="d",
            seen=(offered[1], offered[0]),
            verdicts=bytes([RULES.index("workspace_limit"), 0]),
        )
        assert choice.candidates == (offered[1], offered[0])
        assert choice.rules == ("workspace_limit", None)
        assert [(each.algorithm, each.rule) for each in choice.rejections] == [("cudnn/graph:a", "workspace_limit")]

    @given(candidates(), policies())
    def test_it_is_admitted_and_nothing_before_it_is(self, offered: tuple[Candidate, ...], policy: Policy) -> None:
        admitted = [each for each in offered if policy.refuses(each) is None]
        if admitted:
            assert policy.first(offered[::-1], problem="p").algorithm == admitted[0].algorithm
        else:
            with pytest.raises(NoAlgorithm) as caught:
                policy.first(offered, problem="p")
            assert len(caught.value.reasons) == len(offered)


class TestValidation:
    @pytest.mark.parametrize(
        "limit",
        [-1, -(2**40), 2**63, 2**70, math.nan, math.inf, 512.0, "4GB", "512", b"1", (), [512], np.float64(512), np.nan],
    )
    def test_limits_that_are_none(self, limit: Any) -> None:
        with pytest.raises(InvalidPolicy) as caught:
            Policy(workspace_limit_bytes=limit)
        assert caught.value.field == "workspace_limit_bytes"
        assert "policy.workspace_limit_bytes = " in str(caught.value)

    @pytest.mark.parametrize("limit", [np.int64(512), np.uint16(512), np.array(512)])
    def test_limits_are_made_plain(self, limit: Any) -> None:
        policy = Policy(workspace_limit_bytes=limit)
        assert type(policy.workspace_limit_bytes) is int
        assert policy == Policy(workspace_limit_bytes=512)
        assert hash(policy) == hash(Policy(workspace_limit_bytes=512))

    @pytest.mark.parametrize(
        "field", [name for name in Policy.__struct_fields__ if isinstance(getattr(DEFAULT_POLICY, name), bool)]
    )
    @pytest.mark.parametrize("value", ["no", "", None, 0, 1, np.bool_(True)])
    def test_switches_are_bools(self, field: str, value: Any) -> None:
        """A string such as "false" would be taken as true."""
        with pytest.raises(InvalidPolicy, match="must be True or False") as caught:
            Policy(**{field: value})
        assert caught.value.field == field

    @pytest.mark.parametrize("field", ["exclude", "prefer"])
    @pytest.mark.parametrize("value", ["*", b"*", None, 3, {"a"}, {"a": "b"}, ("a", 1), (None,)])
    def test_patterns_are_a_sequence_of_text(self, field: str, value: Any) -> None:
        with pytest.raises(InvalidPolicy, match="must be a sequence of patterns") as caught:
            Policy(**{field: value})
        assert caught.value.field == field

    def test_patterns_are_taken_from_any_sequence(self) -> None:
        expected = Policy(exclude=("a*", "b*"))
        lazily: Any = (letter + "*" for letter in "ab")
        listed: Any = ["a*", "b*"]
        assert Policy(exclude=lazily) == Policy(exclude=listed) == expected
        assert hash(Policy(exclude=listed)) == hash(expected)

    def test_the_defaults(self) -> None:
        assert Policy() == DEFAULT_POLICY
        assert Policy().refuses(Candidate(algorithm="a/b:c", rank=0, workspace_bytes=2**62, notes=("tf32",))) is None
