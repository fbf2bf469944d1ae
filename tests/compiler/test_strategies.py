"""How a compile asks: one answer to each question, turns for others, and nothing that goes on when it is over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from algosearch import ConvOp, open_searcher
from algosearch.backends.simulated import Script, SimulatedBackend, TraceEvent, problem_digest
from algosearch.compiler import queries as queries_module
from algosearch.compiler.compile import Pipeline, compile_graph
from algosearch.compiler.handles import HandleProbe
from algosearch.compiler.passes import Placement
from algosearch.compiler.queries import Again, Queries
from algosearch.compiler.strategies import ASK_LIBRARY, STRATEGIES, Strategy, StrategyName, strategy_of
from algosearch.errors import InvalidSetting
from algosearch.ops import Op, canonical
from tests.compiler.compiling import a_block
from tests.search.gated import GatedBackend

OTHER = ConvOp(input_shape=(1, 2, 5, 5), filter_shape=(2, 2, 1, 1))


async def listings_in_heuristic_mode(name: StrategyName, devices: int) -> tuple[int, bytes]:
    """How often the library was asked for its candidates about convolutions, and the plan.

    For `async` the device is held at its door until all passes are done: else it would be a matter of luck whether it
    is asked about what a pass replaces, and whether both passes of a batch norm are asked about together.
    """
    trace: list[TraceEvent] = []
    backend = SimulatedBackend(Script(), trace=trace)
    gated = GatedBackend(backend)
    pipeline = Pipeline(placement=Placement(devices_per_node=devices))
    queries = Queries()
    async with (
        HandleProbe(backend, backend.devices()[0]) as probe,
        open_searcher(store="memory:", backends=[gated], mode="heuristic") as searcher,
    ):
        strategy = strategy_of(name, searcher, queries, probe)
        if name == "async":
            gated.gates["open"].close()
            open_after_the_passes(gated, strategy, pipeline)
        compiled = await compile_graph(a_block(), strategy, queries, pipeline=pipeline)
    calls = Counter(event.call for event in trace)
    return calls["enumerate"] - probe.handles, compiled.plan.encoded()


def open_after_the_passes(backend: GatedBackend, strategy: Strategy, pipeline: Pipeline) -> None:
    """Open the device's door when the strategy has been told of the last graph."""
    passed, left = strategy.passed, len(pipeline.passes) + 1

    async def opening(askers: Mapping[Op, int]) -> None:
        nonlocal left
        await passed(askers)
        left -= 1
        if not left:
            backend.gates["open"].open()

    strategy.passed = opening  # type: ignore[method-assign]


@pytest.mark.parametrize("name", STRATEGIES)
async def test_a_guess_is_made_once_whatever_the_number_of_devices(name: StrategyName) -> None:
    few, _ = await listings_in_heuristic_mode(name, 2)
    many, _ = await listings_in_heuristic_mode(name, 40)
    assert few == many > 0


async def test_two_compiles_by_guesses_give_the_same_bytes() -> None:
    plans = {(await listings_in_heuristic_mode("async", 2))[1] for _ in range(2)}
    assert len(plans) == 1


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
async def test_what_a_compile_has_asked_is_not_searched_once_it_is_over(ends: str) -> None:
    """The device is held at its door until then, so that no search has begun before."""
    trace: list[TraceEvent] = []
    backend = GatedBackend(SimulatedBackend(Script(), trace=trace))
    backend.gates["open"].close()
    queries = Queries()

    def show(stage: str, done: int, of: int) -> None:
        if ends == "failed" and stage == "pass: dead code":
            raise BrokenPipeError

    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        strategy = strategy_of("async", searcher, queries, None)
        compiling = asyncio.create_task(compile_graph(a_block(), strategy, queries, pipeline=Pipeline(), show=show))
        if ends == "cancelled":
            while not backend.gates["open"].reached.is_set():
                await asyncio.sleep(0)
            compiling.cancel()
        with pytest.raises(asyncio.CancelledError if ends == "cancelled" else BrokenPipeError):
            await compiling

        backend.gates["open"].open()
        await searcher.select(OTHER)
    assert {event.problem for event in trace if event.call == "enumerate"} == {problem_digest(canonical(OTHER))}


async def test_whoever_asks_for_a_million_devices_gives_others_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries_module, "_AT_ONCE", 8)
    turns: list[int] = []
    again = Again()

    async def ask() -> None:
        """An answer in memory, which is no checkpoint."""

    async def watch() -> None:
        while True:
            turns.append(again.count)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await again.ask(ask, 200)
    watching.cancel()
    assert again.count == 200
    assert len(turns) > 20
    assert all(later - earlier <= 16 for earlier, later in pairwise(turns))


async def test_what_was_asked_until_a_compile_was_cancelled_counts() -> None:
    backend = SimulatedBackend(Script())
    queries = Queries()
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        strategy = strategy_of("async", searcher, queries, None)
        pipeline = Pipeline(placement=Placement(nodes=1 << 10, devices_per_node=1 << 10))
        compiling = asyncio.create_task(compile_graph(a_block(), strategy, queries, pipeline=pipeline))
        while "memory plan" not in queries.seconds and not compiling.done():
            await asyncio.sleep(0)
        compiling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compiling
    assert queries.count > len(queries.statistics())


@pytest.mark.parametrize("name", [*sorted(ASK_LIBRARY), "lazy", None])
async def test_a_strategy_that_is_none_or_lacks_its_probe_is_refused(name: Any) -> None:
    """Without one, `naive` would cache what it is there to show uncached."""
    async with open_searcher(store="memory:", backends=[SimulatedBackend(Script())]) as searcher:
        with pytest.raises(InvalidSetting, match=r"by a HandleProbe|must be one of naive, fixed, cached, async"):
            strategy_of(name, searcher, Queries(), None)


@pytest.mark.parametrize("memory_bytes", [0, -1, 1.5, True, "1", float("nan")])
async def test_a_memory_that_is_no_number_of_bytes_is_refused(memory_bytes: Any) -> None:
    queries = Queries()
    async with open_searcher(store="memory:", backends=[SimulatedBackend(Script())]) as searcher:
        strategy = strategy_of("async", searcher, queries, None)
        with pytest.raises(InvalidSetting, match="memory_bytes"):
            await compile_graph(a_block(), strategy, queries, pipeline=Pipeline(), memory_bytes=memory_bytes)
    assert queries.count == 0


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", None])
def test_devices_are_counted_in_integers(count: Any) -> None:
    with pytest.raises(InvalidSetting, match="nodes"):
        Placement(nodes=count)
