"""Searchers whose devices are in child processes, and quiet ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from blockbuster import BlockBuster

from algosearch import InvalidSetting, SearcherClosed, open_searcher
from algosearch.backends.simulated import (
    CandidateScript,
    Fault,
    Generated,
    ProblemScript,
    Script,
    SimulatedBackend,
    read_trace,
    searches,
)
from algosearch.records import Trial
from algosearch.search import Searcher
from algosearch.settings import Isolation
from tests.cancelling import cancel_at_every_suspension
from tests.devices.children import children, no_child_is_left
from tests.search.helpers import FAST, SLOW, not_before_it_waits, scripted, some_op, some_ops, three_candidates, until

LIMIT_S = 30.0
ISOLATIONS: tuple[Isolation, ...] = ("thread", "process")
LONG = Script(generated=Generated(candidates=3, noise=0.0, time_us=5_000.0))
"""With a pace of `real`, a search of this takes about a tenth of a second."""


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    no_child_is_left()


@asynccontextmanager
async def opened(backend: SimulatedBackend, isolation: Isolation) -> AsyncIterator[Searcher]:
    async with open_searcher(store="memory:", backends=[backend], isolation=isolation) as searcher:
        with anyio.fail_after(LIMIT_S):
            yield searcher


# -- where the devices are -------------------------------------------------------------------------------------------


async def test_answers_do_not_depend_on_where_the_device_is() -> None:
    backend = scripted(*some_ops(3))
    digests = set()
    for isolation in ISOLATIONS:
        async with opened(backend, isolation) as searcher:
            await searcher.select_many(some_ops(3))
            digests.add(searcher.choices_digest())
            assert searcher.statistics().engine.lane_wait_seconds >= 0.0
            assert bool(children()) == (isolation == "process")
    assert len(digests) == 1


async def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_ISOLATION", "process")
    async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        assert (await searcher.select(some_op())).algorithm == FAST
        assert len(children()) == 1
    async with open_searcher(store="memory:", backends=[scripted(some_op())], isolation="thread") as searcher:
        assert (await searcher.select(some_op())).algorithm == FAST
        assert not children(), "an argument comes first"


def test_another_word_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="isolation = 'fork'"):
        open_searcher(isolation="fork")  # type: ignore[arg-type]


async def test_each_key_is_searched_once_and_bad_candidates_cost_themselves(tmp_path: Path) -> None:
    """C19."""
    bad = ProblemScript(
        op=some_op(7),
        candidates=(
            CandidateScript(algorithm=SLOW, time_us=300.0),
            CandidateScript(algorithm=FAST, time_us=1.0, faults=(Fault(at="launch", does="killed"),)),
        ),
    )
    script = Script(problems=(*(three_candidates(op) for op in some_ops(7)), bad))
    async with opened(SimulatedBackend(script, trace=tmp_path / "trace"), "process") as searcher:
        choices = await searcher.select_many(some_ops(8) * 3)
        assert [choice.algorithm for choice in choices[:8]] == [FAST] * 7 + [SLOW]
        (failure,) = (trial.failure for trial in choices[7].candidates if isinstance(trial, Trial) and trial.failure)
        assert failure.kind == "crashed"
    died = [event for event in read_trace(tmp_path / "trace") if event.outcome == "killed"]
    assert len(died) <= 2
    assert searches(read_trace(tmp_path / "trace")) <= 8 + 2 * 3, "once, and those in hand again after each death"


async def test_no_loop_is_blocked_by_a_child(no_blocking: BlockBuster) -> None:
    """Neither the caller's nor the engine's: not by its start, its work, its death and its end."""
    faults = (Fault(at="launch", does="killed"),)
    bad = ProblemScript(
        op=some_op(1),
        candidates=(
            CandidateScript(algorithm=FAST, time_us=1.0, faults=faults),
            CandidateScript(algorithm=SLOW, time_us=9.0),
        ),
    )
    script = Script(problems=(three_candidates(some_op(0)), bad))
    async with opened(SimulatedBackend(script), "process") as searcher:
        async with searcher.quiet():
            request = searcher.request(some_op(0))
        assert (await request.choice()).algorithm == FAST
        assert (await searcher.select(some_op(1))).algorithm == SLOW


async def test_a_device_in_a_child_is_cancelled_at_every_suspension() -> None:
    async def scenario() -> None:
        async with open_searcher(store="memory:", backends=[scripted(some_op())], isolation="process") as searcher:
            await searcher.select(some_op())

    async def check(cancelled: bool) -> None:
        for _ in range(2000):
            if not children():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"left over: {children()}")

    assert await cancel_at_every_suspension(scenario, check) >= 2


# -- quiet -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_nothing_happens_in_a_quiet_block(isolation: Isolation, tmp_path: Path) -> None:
    """D09."""
    trace = tmp_path / "trace"
    backend = SimulatedBackend(LONG, devices=2, trace=trace, pace="real")
    async with opened(backend, isolation) as searcher:
        requests = [searcher.request(op) for op in some_ops(12)]
        await requests[0].choice()
        async with searcher.quiet():
            before = len(read_trace(trace))
            late = searcher.request(some_op(12))
            async with searcher.quiet():
                await asyncio.sleep(0.1)  # some twenty steps long: so long nothing must happen
            await asyncio.sleep(0.1)
            assert len(read_trace(trace)) == before, "a block within the block has not ended the quiet"
        for request in (*requests, late):
            await request.choice()
        assert searcher.statistics().engine.searched == 13


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_quiet_from_several_tasks(isolation: Isolation, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with opened(SimulatedBackend(LONG, trace=trace, pace="real"), isolation) as searcher:
        requests = [searcher.request(op) for op in some_ops(6)]
        inside = 0
        counts: set[int] = set()

        async def one() -> None:
            nonlocal inside
            async with searcher.quiet():
                inside += 1
                counts.add(len(read_trace(trace)))
                while inside < 5:
                    await asyncio.sleep(0.002)
                counts.add(len(read_trace(trace)))

        await requests[0].choice()
        await asyncio.gather(*(one() for _ in range(5)))
        assert len(counts) == 1, "from when the first was in until the last went out nothing happened"
        for request in requests:
            await request.choice()


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_quiet_is_cancelled_at_every_suspension(isolation: Isolation) -> None:
    async with opened(SimulatedBackend(LONG, pace="real"), isolation) as searcher:
        n = iter(range(1000))

        def scenario() -> Coroutine[None, None, None]:
            async def hush() -> None:
                not_before_it_waits(searcher)
                searcher.request(some_op(next(n)))
                async with searcher.quiet():
                    await asyncio.sleep(0)
                    async with searcher.quiet():
                        await asyncio.sleep(0)

            return hush()

        async def check(cancelled: bool) -> None:
            assert (await searcher.select(some_op(next(n)))).algorithm

        assert await cancel_at_every_suspension(scenario, check) >= 3


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_it_can_be_closed_while_it_is_quiet(isolation: Isolation) -> None:
    async with opened(SimulatedBackend(LONG, pace="real"), isolation) as searcher:
        request = searcher.request(some_op())
        async with searcher.quiet():
            searcher.close()
            with pytest.raises(SearcherClosed):
                await request.choice()
        with pytest.raises(SearcherClosed):
            async with searcher.quiet():
                raise AssertionError("it is closed")


async def test_the_engine_ends_while_somebody_waits_for_quiet() -> None:
    hang = Fault(at="launch", does="hangs")
    problem = ProblemScript(op=some_op(), candidates=(CandidateScript(algorithm=FAST, time_us=1.0, faults=(hang,)),))
    backend = SimulatedBackend(Script(problems=(problem,)))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        searcher.request(some_op())
        assert await asyncio.to_thread(backend.hanging.wait, LIMIT_S)

        async def wait_for_quiet() -> None:
            async with searcher.quiet():
                raise AssertionError("it is not quiet")

        waiting = asyncio.create_task(wait_for_quiet())
        await until(lambda: searcher._engine._stillness.quiet.is_wanted)
    with pytest.raises(SearcherClosed):
        await waiting
    backend.release.set()


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_quiet_before_any_device_is_open(isolation: Isolation, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with opened(SimulatedBackend(trace=trace), isolation) as searcher:
        async with searcher.quiet():
            request = searcher.request(some_op())
            await asyncio.sleep(0.1)
            assert read_trace(trace) == ()
        assert (await request.choice()).algorithm
