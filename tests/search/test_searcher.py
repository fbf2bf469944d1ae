"""The searcher through its public face, over the simulated backend."""

from __future__ import annotations

import asyncio

import pytest

from algosearch import Policy, open_searcher, select_algo
from algosearch.backends.simulated import Script, SimulatedBackend, TraceEvent, searches
from algosearch.errors import (
    InvalidOp,
    InvalidPolicy,
    InvalidSetting,
    NoAlgorithm,
    NotCached,
    SearcherClosed,
    UnknownDevice,
    WouldBlockLoop,
)
from algosearch.ops import ConvOp
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, SLOW, SMALL, not_before_it_waits, scripted, some_op, some_ops


async def test_a_miss_is_searched_and_a_hit_is_not() -> None:
    trace: list[TraceEvent] = []
    async with open_searcher(store="memory:", backends=[scripted(some_op(), trace=trace)]) as searcher:
        first = await searcher.select(some_op())
        again = await searcher.select(some_op())
        assert first.algorithm == FAST
        assert first.workspace_bytes == 4 << 20
        assert first.first_us is not None
        assert again is first
        statistics = searcher.statistics()
    assert searches(trace) == 1
    assert (statistics.asked, statistics.hits, statistics.engine.searched) == (1, 1, 1)


async def test_a_hit_is_no_checkpoint() -> None:
    async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        await searcher.select(some_op())
        with pytest.raises(StopIteration) as end:
            searcher.select(some_op()).send(None)
    assert end.value.value.algorithm == FAST


async def test_equal_requests_share_one_search() -> None:
    trace: list[TraceEvent] = []
    async with open_searcher(store="memory:", backends=[SimulatedBackend(trace=trace)]) as searcher:
        asking = [asyncio.create_task(searcher.select(some_op(n % 8))) for n in range(200)]
        not_before_it_waits(searcher)
        answers = await asyncio.gather(*asking)
        assert searcher.statistics().joined == 192
    assert searches(trace) == 8
    assert len({answer.digest for answer in answers}) == 8


async def test_two_descriptions_of_one_problem_share_one_search() -> None:
    trace: list[TraceEvent] = []
    flat = ConvOp(input_shape=(2, 4, 9), filter_shape=(4, 4, 3))
    tall = ConvOp(input_shape=(2, 4, 1, 9), filter_shape=(4, 4, 1, 3))
    async with open_searcher(store="memory:", backends=[SimulatedBackend(trace=trace)]) as searcher:
        one, two = await searcher.select_many([flat, tall])
        assert (await searcher.select(tall)).digest == one.digest == two.digest
    assert searches(trace) == 1


async def test_the_workspace_is_known_before_anything_runs() -> None:
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        request = searcher.request(some_op())
        assert await request.workspace() == {SLOW: 0, FAST: 4 << 20, SMALL: 1 << 10}
        assert not request.answered
        backend.gates["launch"].open()
        assert (await request.choice()).algorithm == FAST
        assert request.source == "search"


async def test_another_policy_is_another_pick_from_the_same_record() -> None:
    trace: list[TraceEvent] = []
    async with open_searcher(store="memory:", backends=[scripted(some_op(), trace=trace)]) as searcher:
        assert (await searcher.select(some_op())).algorithm == FAST
        assert (await searcher.select(some_op(), Policy(deterministic=True))).algorithm == SMALL
        assert (await searcher.select(some_op(), Policy(workspace_limit_bytes=1 << 20))).algorithm == SMALL
        assert (await searcher.select(some_op(), Policy(workspace_limit_bytes=0))).algorithm == SLOW
        assert (await searcher.select(some_op())).algorithm == FAST
        request = searcher.request(some_op())
        assert (await request.choice(Policy(workspace_limit_bytes=0))).algorithm == SLOW
    assert searches(trace) == 1


async def test_what_the_record_does_not_cover_is_one_further_search() -> None:
    trace: list[TraceEvent] = []
    excluding = Policy(exclude=(FAST, SMALL))
    async with open_searcher(store="memory:", backends=[scripted(some_op(), trace=trace)]) as searcher:
        before = await searcher.select(some_op())
        await searcher.select(some_op(), mode="exhaustive")
        assert searches(trace) == 2
        assert (await searcher.select(some_op(), excluding)).algorithm == SLOW
        assert (await searcher.select(some_op(), Policy(), mode="race")).algorithm == before.algorithm
        assert await searcher.select(some_op()) == before


async def test_nothing_fits_is_an_answer_without_a_new_search() -> None:
    trace: list[TraceEvent] = []
    nothing = Policy(exclude=("*",))
    async with open_searcher(store="memory:", backends=[scripted(some_op(), trace=trace)]) as searcher:
        await searcher.select(some_op())
        for _ in range(2):
            with pytest.raises(NoAlgorithm) as caught:
                await searcher.select(some_op(), nothing)
            assert len(caught.value.reasons) == 3
    assert searches(trace) == 1


async def test_select_many_keeps_the_order_and_raises_the_first_error() -> None:
    ops = some_ops(20)
    async with open_searcher(store="memory:", backends=[SimulatedBackend()]) as searcher:
        many = await searcher.select_many(ops)
        assert many == [await searcher.select(op) for op in ops]
        with pytest.raises(NoAlgorithm):
            await searcher.select_many(ops, Policy(exclude=("*",)))


async def test_peek_starts_nothing() -> None:
    trace: list[TraceEvent] = []
    async with open_searcher(store="memory:", backends=[scripted(some_op(), trace=trace)]) as searcher:
        assert searcher.peek(some_op()) is None
        choice = await searcher.select(some_op())
        assert searcher.peek(some_op()) is choice
        assert searcher.peek(some_op(), Policy()) is choice
        assert searcher.peek(some_op(), mode="race") is choice
        assert searcher.peek(some_op(), Policy(deterministic=True)) is None
    assert searches(trace) == 1


async def test_mode_cached_refuses_a_miss_and_gives_a_hit() -> None:
    async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        with pytest.raises(NotCached) as caught:
            await searcher.select(some_op(), mode="cached")
        assert "warm" in str(caught.value)
        tuned = await searcher.select(some_op())
        assert (await searcher.select(some_op(), mode="cached")).algorithm == tuned.algorithm


async def test_mode_cached_does_not_wait_for_a_search_under_way() -> None:
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        request = searcher.request(some_op())
        await request.workspace()
        with pytest.raises(NotCached):
            await searcher.select(some_op(), mode="cached")
        backend.gates["launch"].open()
        await request.choice()


async def test_mode_heuristic_runs_nothing_and_keeps_nothing() -> None:
    trace: list[TraceEvent] = []
    async with open_searcher(store="memory:", backends=[scripted(some_op(), trace=trace)]) as searcher:
        choice = await searcher.select(some_op(), mode="heuristic")
        assert (choice.algorithm, choice.precision, choice.provisional) == (SLOW, "heuristic", True)
        assert searcher.peek(some_op(), mode="heuristic") is None
        with pytest.raises(NotCached):
            await searcher.select(some_op(), mode="cached")
        assert not {event.call for event in trace} & {"build", "load", "launch", "time"}


async def test_wrong_arguments_are_refused_by_name() -> None:
    async with open_searcher(store="memory:", backends=[SimulatedBackend()]) as searcher:
        with pytest.raises(InvalidOp):
            await searcher.select("conv")  # type: ignore[arg-type]
        with pytest.raises(InvalidOp):
            searcher.request([1])  # type: ignore[arg-type]
        with pytest.raises(InvalidPolicy):
            searcher.request(some_op(), 64)  # type: ignore[arg-type]
        with pytest.raises(InvalidSetting):
            searcher.request(some_op(), mode="fast")  # type: ignore[arg-type]
        with pytest.raises(UnknownDevice) as caught:
            await searcher.select(some_op(), device="simulated:7")
        assert "simulated:0" in str(caught.value)
        with pytest.raises(WouldBlockLoop):
            searcher.select_blocking(some_op())


async def test_the_digest_of_choices_tells_equal_choices_and_nothing_else() -> None:
    digests = []
    for ops in (some_ops(5), some_ops(5)[::-1], some_ops(4)):
        async with open_searcher(store="memory:", backends=[SimulatedBackend()]) as searcher:
            await searcher.select_many(ops)
            await searcher.select(ops[0], mode="heuristic")
            digests.append(searcher.choices_digest())
    assert digests[0] == digests[1] != digests[2]
    assert [digest.choices for digest in digests] == [5, 5, 4]


async def test_closing_fails_what_is_open_and_refuses_what_comes() -> None:
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        request = searcher.request(some_op())
        await request.workspace()
        waiter = asyncio.create_task(request.choice())
        await asyncio.sleep(0)
        # Not before it closes, which is the next that this loop does: it might be answered.
        asyncio.get_running_loop().call_soon(backend.gates["launch"].open)
    with pytest.raises(SearcherClosed):
        await waiter
    with pytest.raises(SearcherClosed):
        searcher.request(some_op())
    with pytest.raises(SearcherClosed):
        await searcher.select(some_op())
    assert searcher.closed


async def test_select_algo_uses_the_open_searcher() -> None:
    backend = scripted(some_op())
    async with open_searcher(store="memory:", backends=[backend]) as outer:
        async with open_searcher(store="memory:", backends=[backend]) as inner:
            await select_algo(some_op())
            assert inner.statistics().asked == 1
        await asyncio.create_task(select_algo(some_op()))
        assert outer.statistics().asked == 1


async def test_like_devices_share_and_unlike_ones_do_not() -> None:
    """A01: identity is what the device is, not its ordinal."""
    from algosearch.backends.simulated import DeviceScript

    trace: list[TraceEvent] = []
    devices = (DeviceScript(kind="A"), DeviceScript(kind="B", speed=2.0), DeviceScript(kind="A"))
    backend = SimulatedBackend(Script(devices=devices), trace=trace)
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        first = await searcher.select(some_op(), device="simulated:0")
        second = await searcher.select(some_op(), device="simulated:1")
        third = await searcher.select(some_op(), device="simulated:2")
        unnamed = await searcher.select(some_op())
        assert first.digest == third.digest == unnamed.digest != second.digest
    assert searches(trace) == 2


async def test_eight_devices_of_a_kind_all_work() -> None:
    """D04."""
    trace: list[TraceEvent] = []
    backend = GatedBackend(SimulatedBackend(devices=8, trace=trace))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        asking = asyncio.create_task(searcher.select_many(some_ops(64)))
        while [event.call for event in trace].count("open") < 8:  # each as long as there is work for it
            await asyncio.sleep(0.002)
        backend.gates["launch"].open()
        await asking
    assert searches(trace) == 64
    assert len({event.device for event in trace if event.call == "launch"}) == 8
