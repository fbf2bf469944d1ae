"""A pick over columns is what the same rules say trial by trial: here they are once more, as plainly as can be."""

from __future__ import annotations

from fnmatch import fnmatchcase
from math import hypot
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algosearch import NoAlgorithm, NotCovered
from algosearch.ops import ConvOp
from algosearch.records import Environment, Failure, Key, Policy, Provenance, Record, Rule, Search, Stage, Trial, Trials
from algosearch.records.policy import AS_GOOD, LOOK_AT, MOST_TIE, TIE, WINDOW
from algosearch.records.wire import decode, encode
from tests.strategies import policies, records, searches, trials

KEY: Final = Key.of(ConvOp(input_shape=(1, 2, 9, 9), filter_shape=(3, 2, 3, 3)), Environment(backend="b", device="d"))
ORIGIN: Final = Provenance(version="0", found_at_s=0, seconds=0.0)


def by_rows(
    policy: Policy, rows: tuple[Trial, ...], *, complete: bool
) -> tuple[str, float, str, dict[str, Rule]] | str:
    """(algorithm, window, rule by which each other one was not picked), or why there is none: `gap`, `nothing`."""
    rules: dict[str, Rule] = {}
    for row in rows:
        refused = policy.refuses(row)
        if refused is not None:
            rules[row.algorithm] = refused
        elif row.failure is not None:
            rules[row.algorithm] = "failed"
        elif row.stage == "listed":
            rules[row.algorithm] = "not_tried"
        elif row.stage == "screened":
            rules[row.algorithm] = "screened"
    admitted = [row for row in rows if rules.get(row.algorithm) in (None, "screened", "not_tried")]
    gap = any(rules.get(row.algorithm) == "not_tried" for row in admitted[:LOOK_AT])
    gap = gap or (len(admitted) < LOOK_AT and not complete)
    rivals = [row for row in admitted if row.algorithm not in rules]
    if not rivals:
        return "gap" if gap or admitted else "nothing"
    leader = min(rivals, key=lambda row: (time_of(row), row.workspace_bytes, row.rank, row.algorithm))
    works = [row for row in rows if row.failure is None]
    ran = [row for row in works if row.stage != "listed"]
    as_good = len(works) >= LOOK_AT and all(row in ran for row in works[:LOOK_AT])
    if gap and not (as_good and time_of(leader) <= (1 + AS_GOOD) * min(map(time_of, ran))):
        return "gap"
    for row in admitted:
        if rules.get(row.algorithm) == "screened" and time_of(row) - 3 * (row.error_us or 0.0) < time_of(leader):
            return "gap"
    ties, window, near = [], TIE, [leader]
    for row in rivals:
        lag = (time_of(row) - time_of(leader)) / time_of(leader)
        error = hypot(row.error_us or 0.0, leader.error_us or 0.0) / time_of(leader)
        if row is leader or lag <= min(max(TIE - 3 * error, 2 * error), MOST_TIE):
            ties.append(row)
        if row is not leader and lag <= WINDOW * error:
            window = max(window, WINDOW * error)
            near.append(row)
    pick = min(
        ties,
        key=lambda row: (
            not any(fnmatchcase(row.algorithm, pattern) for pattern in policy.prefer),
            row.workspace_bytes,
            "nondeterministic" in row.notes,
            row.rank,
            row.algorithm,
        ),
    )
    rules |= {row.algorithm: "tie" if row in ties else "slower" for row in rivals if row is not pick}
    precision = "final" if all(row.is_final for row in (*near, pick)) else "coarse"
    return pick.algorithm, max(window, pick.error), precision, rules


def time_of(row: Trial) -> float:
    assert row.time_us is not None
    return row.time_us


def by_columns(policy: Policy, record: Record) -> tuple[str, float, str, dict[str, Rule]] | str:
    try:
        choice = policy.pick(record)
    except NotCovered:
        return "gap"
    except NoAlgorithm:
        return "nothing"
    rules = {rejection.algorithm: rejection.rule for rejection in choice.rejections}
    assert choice.candidates == tuple(record.searches[0].trials)
    assert choice.error_us is not None
    return choice.algorithm, choice.tie_window, choice.precision, rules


@st.composite
def near_ties(draw: st.DrawFn) -> Search:
    """Trials of which most could be told apart only just, or just not."""
    rows = []
    for n in range(draw(st.integers(2, 6))):
        row = Trial(
            algorithm=f"b/s:e{n}",
            rank=draw(st.integers(0, 8)),
            workspace_bytes=draw(st.sampled_from((0, 1, 2))),
            notes=draw(st.sampled_from(((), (), ("nondeterministic",), ("fft",)))),
            stage=draw(st.sampled_from(cast("tuple[Stage, ...]", ("final", "final", "coarse", "screened")))),
            time_us=100.0 + draw(st.sampled_from((0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.6, 2.0))),
            error_us=draw(st.sampled_from((0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.8, 1.1))),
        )
        rows.append(draw(trials(row.algorithm, row.rank)) if draw(st.integers(0, 5)) == 5 else row)
    return Search(mode="race", complete=draw(st.integers(0, 5)) < 5, trials=Trials.of(rows), provenance=ORIGIN)


@pytest.mark.timeout(300)
@settings(max_examples=400)
@given(st.one_of(near_ties(), searches()), st.one_of(st.just(Policy()), policies()), records(max_size=0))
def test_columns_and_rows_agree(search: Search, policy: Policy, some: Record) -> None:
    record = Record(key=some.key, searches=(search,))
    assert by_columns(policy, record) == by_rows(policy, tuple(search.trials), complete=search.complete)


class TestTrials:
    """The columns spelled out are the trials that they were made of."""

    @given(st.data())
    def test_there_and_back(self, data: Any) -> None:
        names = data.draw(st.lists(st.sampled_from([f"b/s:e{n}" for n in range(9)]), unique=True))
        rows = [data.draw(trials(name, data.draw(st.integers(0, 5)))) for name in names]
        columns = Trials.of(rows)
        in_order = sorted(rows, key=lambda row: (row.rank, row.algorithm))
        assert list(columns) == in_order
        assert len(columns) == len(rows)
        assert columns == Trials.of(reversed(rows)) == Trials.of(columns)
        assert hash(columns) == hash(Trials.of(columns))
        assert columns[:2] == tuple(in_order[:2])
        if rows:
            assert columns[-1] == in_order[-1]
        assert columns.workspaces_bytes == tuple(row.workspace_bytes for row in in_order)
        assert [columns.workspace_bytes(place) for place in range(len(rows))] == list(columns.workspaces_bytes)

    def test_more_sets_of_notes_than_a_byte_can_count(self) -> None:
        rows = [Trial(algorithm=f"b/s:e{n}", rank=n, workspace_bytes=0, notes=(f"note_{n}",)) for n in range(300)]
        for count in (255, 256, 257, 300):
            columns = Trials.of(rows[:count])
            assert list(columns) == rows[:count]
            record = Record(key=KEY, searches=(Search(mode="race", complete=True, trials=columns, provenance=ORIGIN),))
            assert decode(encode(record)) == record

    def test_its_repr_is_short(self) -> None:
        failed = Trial(algorithm="b/s:a", rank=0, workspace_bytes=0, failure=Failure("crashed", "why"))
        assert repr(Trials.of((failed,))) == "<Trials b/s:a>"


@given(records(max_searches=1))
def test_a_choice_holds_what_the_record_holds(record: Record) -> None:
    """It spells nothing out before it is asked: a thousand answers weigh little more than their records."""
    try:
        choice = Policy().pick(record)
    except (NotCovered, NoAlgorithm):
        return
    assert choice.seen is record.searches[0].trials
    assert len(choice.verdicts) == len(choice.seen)
