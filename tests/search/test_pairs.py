"""Forward and backward of a fused batch norm: one search, one record, one choice, by the sum of their times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch import open_searcher
from algosearch.backends.cpu import CpuBackend
from algosearch.backends.simulated import (
    CandidateScript,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    searches,
)
from algosearch.errors import InvalidOp, NoAlgorithm
from algosearch.ops import BatchNormOp, Fusion, Layout
from algosearch.records import Policy
from algosearch.search.searcher import Searcher
from tests.strategies import batch_norm_ops

PAIR = BatchNormOp(shape=(4, 8, 6, 6), phase="training", fusion="activation", data_type="float16")
FORWARD, BACKWARD = PAIR.passes

MODES = st.lists(
    st.tuples(
        st.integers(20, 400),  # forward, µs
        st.integers(20, 400),  # backward, µs
        st.sampled_from([0, 1 << 10, 1 << 16, 1 << 20]),  # workspace
        st.sampled_from([(), ("range_limited",), ("nondeterministic",)]),
    ),
    min_size=1,
    max_size=6,
)
POLICIES = st.builds(
    Policy,
    workspace_limit_bytes=st.sampled_from([None, 0, 1 << 10, 1 << 16]),
    deterministic=st.booleans(),
    allow_range_limited=st.booleans(),
)


def name_of(place: int) -> str:
    return f"simulated/mode:m{place}"


def library(modes: list[Any], trace: list[TraceEvent] | None = None) -> SimulatedBackend:
    """Modes that each do both passes, in the times of the one and of the other."""
    candidates = tuple(
        CandidateScript(
            algorithm=name_of(place),
            time_us=float(forward_us + backward_us),
            workspace_bytes=workspace_bytes,
            reserve_bytes=8 * (place + 1),
            notes=notes,
        )
        for place, (forward_us, backward_us, workspace_bytes, notes) in enumerate(modes)
    )
    return SimulatedBackend(Script(problems=(ProblemScript(op=FORWARD, candidates=candidates),)), trace=trace)


@settings(max_examples=40, deadline=None)
@given(modes=MODES, policy=POLICIES, backward_first=st.booleans())
def test_passes_agree_under_every_policy_and_their_sum_is_the_least(
    modes: list[Any], policy: Policy, backward_first: bool
) -> None:
    trace: list[TraceEvent] = []

    async def ask() -> list[Any]:
        async with open_searcher(store="memory:", backends=[library(modes, trace)]) as searcher:
            order = (BACKWARD, FORWARD) if backward_first else (FORWARD, BACKWARD)
            found: list[Any] = []
            for op in (*order, PAIR):
                try:
                    found.append(await searcher.select(op, policy))
                except NoAlgorithm as error:
                    found.append(str(error))
            return found

    found = asyncio.run(ask())
    assert found[0] == found[1] == found[2]
    admitted = [
        place
        for place, (_, _, workspace_bytes, notes) in enumerate(modes)
        if workspace_bytes <= (1 << 60 if policy.workspace_limit_bytes is None else policy.workspace_limit_bytes)
        and not (policy.deterministic and "nondeterministic" in notes)
        and (policy.allow_range_limited or "range_limited" not in notes)
    ]
    if not admitted:
        assert isinstance(found[0], str)
        return

    sums = {name_of(place): modes[place][0] + modes[place][1] for place in admitted}
    choice = found[0]
    assert sums[choice.algorithm] <= min(sums.values()) * (1 + choice.tie_window)
    assert choice.reserve_bytes == 8 * (int(choice.algorithm[-1]) + 1)
    assert {event.problem for event in trace if event.call == "enumerate"} <= {choice_problem(trace)}


def choice_problem(trace: list[TraceEvent]) -> str:
    return next(event.problem for event in trace if event.call == "enumerate")


async def test_what_is_fastest_in_neither_pass_wins_by_its_sum() -> None:
    modes = [(10, 200, 0, ()), (200, 10, 0, ()), (90, 80, 0, ())]
    async with open_searcher(store="memory:", backends=[library(modes)]) as searcher:
        forward, backward = await searcher.select_many([FORWARD, BACKWARD])
    assert forward == backward
    assert forward.algorithm == name_of(2)
    assert forward.time_us == pytest.approx(170.0)


@settings(max_examples=25, deadline=None)
@given(pair=batch_norm_ops(phases=("training",), largest=9), limit_bytes=st.sampled_from([None, 0, 1 << 14]))
def test_passes_agree_whatever_the_library_makes_up(pair: BatchNormOp, limit_bytes: int | None) -> None:
    async def ask() -> None:
        async with open_searcher(store="memory:", backends=[SimulatedBackend(Script())]) as searcher:
            policy = Policy(workspace_limit_bytes=limit_bytes)
            requests = [searcher.request(op, policy) for op in pair.passes]
            sizes = [await request.workspace() for request in requests]
            assert sizes[0] == sizes[1]
            choices = [await request.choice() for request in requests]
            assert choices[0] == choices[1]
            assert choices[0].workspace_bytes == sizes[0][choices[0].algorithm]

    asyncio.run(ask())


async def test_both_passes_are_one_search_and_one_record(tmp_path: Path) -> None:
    trace: list[TraceEvent] = []
    backend = library([(30, 40, 0, ()), (50, 60, 1 << 10, ())], trace)
    store = str(tmp_path / "store")
    async with open_searcher(store=store, backends=[backend]) as searcher:
        forward = await searcher.select(FORWARD)
    found = searches(trace)
    assert found
    async with open_searcher(store=store, backends=[backend]) as searcher:
        assert await searcher.select(BACKWARD) == forward
        assert searcher.statistics().engine.searched == 0
    assert searches(trace) == found


async def test_a_policy_that_was_not_asked_before_gives_both_passes_the_same_again() -> None:
    modes = [(30, 40, 1 << 20, ()), (50, 60, 0, ())]
    async with open_searcher(store="memory:", backends=[library(modes)]) as searcher:
        before = await searcher.select(FORWARD)
        limited = Policy(workspace_limit_bytes=0)
        assert await searcher.select(BACKWARD, limited) == await searcher.select(FORWARD, limited)
        assert (await searcher.select(FORWARD, limited)).algorithm == name_of(1)
        assert await searcher.select(BACKWARD) == before
        assert before.algorithm == name_of(0)


@pytest.mark.parametrize("fusion", ["activation", "add_activation"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
async def test_on_a_real_backend_both_passes_agree_and_either_can_be_built(fusion: Fusion, layout: Layout) -> None:
    pair = replace(PAIR, fusion=fusion, layout=layout)
    async with open_searcher(store="memory:", backends=[CpuBackend()]) as searcher:
        choices = await searcher.select_many(pair.passes)
        assert choices[0] == choices[1]
        assert choices[0].time_us is not None
        assert {each.algorithm for each in choices[0].candidates} == {"cpu/numpy:centred", "cpu/numpy:folded"}
        for op in pair.passes:
            await _is_built(searcher, op, choices[0])


async def _is_built(searcher: Searcher, op: BatchNormOp, choice: Any) -> None:
    with await searcher.build(op, choice) as plan:
        assert plan.workspace_bytes <= choice.workspace_bytes
        assert plan.reserve_bytes == choice.reserve_bytes
        assert {name for name, slot in plan.slots.items() if slot.written} == set(op.output_shapes)


def test_a_plain_batch_norm_has_no_pair() -> None:
    with pytest.raises(InvalidOp, match="is of a fused batch norm"):
        replace(PAIR, fusion="none")
