"""`Policy`: what it refuses, what it picks, and when it says that it cannot tell."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from algosearch import AlgosearchError, InvalidPolicy, NoAlgorithm
from algosearch.records import DEFAULT_POLICY, Candidate, Choice, Failure, Policy, Record, Rule, Search
from algosearch.records.policy import LOOK_AT
from tests.records.picking import KEY, picked, record, search, trial
from tests.strategies import candidates, policies, searches


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

    def test_of_a_first_that_nobody_ran_no_time_is_told(self) -> None:
        trials = [trial(str(rank), rank, 10.0 + rank, workspace_bytes=9) for rank in range(LOOK_AT)]
        trials += [trial("first", LOOK_AT, None), trial("fits", LOOK_AT + 1, 10.0)]
        choice = Policy(workspace_limit_bytes=0).pick(record(search(*trials)))
        assert (choice.algorithm, choice.first_us) == ("cudnn/graph:fits", None)

    def test_a_coarse_pick_says_so(self) -> None:
        best = trial("best", 0, 10.0, stage="coarse")
        assert Policy().pick(record(search(best, trial("final", 1, 20.0)))).precision == "coarse"

    def test_a_pick_is_coarse_beside_a_coarse_one_that_may_be_as_fast(self) -> None:
        best = trial("best", 0, 10.0, error_us=0.1)
        for time_us, precision in ((10.4, "coarse"), (12.0, "final")):
            other = trial("other", 1, time_us, stage="coarse", error_us=0.1)
            choice = Policy().pick(record(search(best, other)))
            assert (choice.algorithm, choice.precision) == (best.algorithm, precision)

    def test_nothing_finer_is_claimed_than_is_known(self) -> None:
        alone = Policy().pick(record(search(trial("alone", 0, 10.0, error_us=1.0))))
        assert alone.tie_window == pytest.approx(0.1)
        assert (alone.error_us, alone.precision) == (1.0, "coarse")
        better = Policy().pick(record(search(trial("alone", 0, 10.0, error_us=0.1))))
        assert better.tie_window == pytest.approx(0.01)
        assert better.precision == "final"


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
            verdicts=choice.verdicts,
        )
        assert (choice.candidates, choice.rules) == ((offered[1], offered[0]), ("workspace_limit", None))
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
