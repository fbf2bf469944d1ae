"""A searcher keeps the generation of a record that it first saw, whatever becomes of the store meanwhile."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from algosearch import Policy, open_searcher
from algosearch.backends.simulated import TraceEvent, searches
from algosearch.records import Choice, Record, Trials
from algosearch.search import Searcher
from algosearch.stores import MemoryStore
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, SLOW, SMALL, scripted, some_op

EXCLUDING = Policy(exclude=(FAST, SMALL))
LITTLE = Policy(workspace_limit_bytes=1 << 20)


async def repair(store: MemoryStore) -> None:
    """What `verify --repair` would put into the store: another generation, in which SLOW is the fastest of all."""
    ((_, record),) = [each async for each in store.scan()]
    assert isinstance(record, Record)
    search = record.searches[0]
    trials = Trials.of(
        replace(trial, time_us=10.0, stage="final") if trial.algorithm == SLOW else trial for trial in search.trials
    )
    repaired = replace(record, searches=(replace(search, trials=trials),), generation=record.generation + 1)
    assert (await store.commit(repaired, after=0)).won


def seen(choice: Choice) -> tuple[str, int]:
    return choice.algorithm, choice.generation


async def test_later_picks_come_from_the_generation_that_was_seen() -> None:
    trace: list[TraceEvent] = []
    store = MemoryStore()
    backends = [scripted(some_op(), trace=trace)]
    async with open_searcher(store=store, backends=backends) as searcher:
        assert seen(await searcher.select(some_op())) == (FAST, 0)
        await repair(store)
        assert seen(await searcher.select(some_op(), LITTLE)) == (SMALL, 0)
        assert searches(trace) == 1
        # Not covered by what was seen: the store is asked, has another generation, and is left at that.
        assert seen(await searcher.select(some_op(), mode="exhaustive")) == (FAST, 0)
        assert searches(trace) == 2
        assert seen(await searcher.select(some_op(), EXCLUDING)) == (SLOW, 0)
        assert seen(await searcher.select(some_op(), LITTLE, mode="exhaustive")) == (SMALL, 0)
        assert seen(await searcher.select(some_op())) == (FAST, 0)
        assert searches(trace) == 2
        async with open_searcher(store=store, backends=backends) as another:  # it shares what this process saw
            assert seen(await another.select(some_op(), Policy(deterministic=True))) == (SMALL, 0)
    async with open_searcher(store=store, backends=backends) as after:
        assert seen(await after.select(some_op())) == (SLOW, 1)
        assert seen(await after.select(some_op(), LITTLE)) == (SLOW, 1)
    assert searches(trace) == 2


async def _replaced_meanwhile(searcher: Searcher, backend: GatedBackend, store: MemoryStore) -> Choice:
    """The store is repaired while a further search is under way, so that its commit meets another generation."""
    backend.gates["launch"].close()
    request = searcher.request(some_op(), mode="exhaustive")
    assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
    await repair(store)
    backend.gates["launch"].open()
    return await request.choice()


async def test_a_further_search_goes_on_from_what_was_seen() -> None:
    store = MemoryStore()
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store=store, backends=[backend]) as searcher:
        assert seen(await searcher.select(some_op())) == (FAST, 0)
        assert seen(await _replaced_meanwhile(searcher, backend, store)) == (FAST, 0)
        assert seen(await searcher.select(some_op(), LITTLE, mode="exhaustive")) == (SMALL, 0)
    ((_, record),) = [each async for each in store.scan()]
    assert isinstance(record, Record)
    assert (record.generation, record.revision) == (1, 1)


async def test_whoever_has_seen_nothing_takes_what_there_is() -> None:
    """A first search loses against a repaired record: nobody has an answer yet that it would have to fit to."""
    store = MemoryStore()
    backend = GatedBackend(scripted(some_op()))
    async with open_searcher(store=store, backends=[scripted(some_op())]) as searcher:
        await searcher.select(some_op())
    ((digest, before),) = [each async for each in store.scan()]
    assert isinstance(before, Record)
    await store.delete([digest])
    async with open_searcher(store=store, backends=[backend]) as searcher:
        backend.gates["launch"].close()
        request = searcher.request(some_op())
        assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
        await store.commit(before, after=0)
        await repair(store)
        backend.gates["launch"].open()
        assert seen(await request.choice()) == (SLOW, 1)
        assert seen(await searcher.select(some_op(), LITTLE)) == (SLOW, 1)
