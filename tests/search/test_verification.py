"""Verification: what has become of stored records is told apart, and repair replaces what has aged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from algosearch import open_searcher
from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Fault,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
)
from algosearch.errors import SearcherClosed, SearchFailed
from algosearch.records import Environment, Failure, Key, Policy, Record, Trial, Trials
from algosearch.search import Searcher, Verdict
from algosearch.stores import DirectoryStore, MemoryStore, Miss
from algosearch.stores.base import Committed, Store
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, SLOW, SMALL, some_op

OP = some_op()
FACTS = {"script": "one"}
"""The same for all scripts here, so that each is the environment of the others."""
TIMES = {SLOW: 300.0, FAST: 100.0, SMALL: 130.0}


def backend(
    times: dict[str, float] | None = None,
    *,
    trace: list[TraceEvent] | None = None,
    faults: dict[str, Fault] | None = None,
    facts: dict[str, str] | None = None,
    missing: str | None = None,
) -> SimulatedBackend:
    """A device on which the candidates of the one op take these times."""
    candidates = tuple(
        CandidateScript(algorithm=name, time_us=time_us, faults=(faults[name],) if faults and name in faults else ())
        for name, time_us in (TIMES if times is None else times).items()
    )
    devices = (DeviceScript(incomplete=missing),) if missing else (DeviceScript(),)
    script = Script(
        problems=(ProblemScript(op=OP, candidates=candidates),),
        facts=FACTS if facts is None else facts,
        devices=devices,
    )
    return SimulatedBackend(script, trace=trace)


async def made(store: Store | Path, mode: str = "race") -> Record:
    """The record of the one op, as a search on the device as it was leaves it."""
    async with open_searcher(store=store, backends=[backend()]) as searcher:
        await searcher.select(OP, mode=mode)  # type: ignore[arg-type]
    return await stored(store)


async def stored(store: Store | Path) -> Record:
    home = DirectoryStore(store) if isinstance(store, Path) else store
    await home.open()
    (record,) = [record async for _, record in home.scan()]
    if isinstance(store, Path):
        await home.aclose()
    assert isinstance(record, Record)
    return record


@asynccontextmanager
async def opened(store: Store | Path, device: SimulatedBackend | GatedBackend) -> AsyncIterator[Searcher]:
    async with open_searcher(store=store, backends=[device]) as searcher:
        yield searcher


def launched(trace: list[TraceEvent]) -> set[str]:
    return {event.algorithm for event in trace if event.call == "launch"}


async def test_a_record_that_is_as_it_was(tmp_path: Path) -> None:
    record = await made(tmp_path)
    trace: list[TraceEvent] = []
    async with opened(tmp_path, backend(trace=trace)) as searcher:
        verdict = await searcher.verify(record, repair=True)
    assert (verdict.finding, verdict.algorithm, verdict.best) == ("steady", FAST, FAST)
    assert verdict.now_us == pytest.approx(100.0)
    assert verdict.drift == pytest.approx(0.0)
    assert (verdict.digest, verdict.problem) == (record.key.digest, OP.describe())
    assert (verdict.repaired, verdict.generation) == (False, 0)
    assert FAST in launched(trace)
    assert "enumerate" not in {event.call for event in trace}  # a plan is rebuilt from its name
    assert await stored(tmp_path) == record


@pytest.mark.parametrize(("factor", "finding"), [(1.05, "steady"), (1.2, "drifted"), (0.8, "drifted")])
async def test_all_have_become_slower_alike(tmp_path: Path, factor: float, finding: str) -> None:
    record = await made(tmp_path)
    async with opened(tmp_path, backend({name: us * factor for name, us in TIMES.items()})) as searcher:
        verdict = await searcher.verify(record)
        assert (verdict.finding, verdict.best) == (finding, FAST)
        assert verdict.drift == pytest.approx(factor - 1)
        assert verdict.reason == {1.05: "", 1.2: "it takes 20.0% more", 0.8: "it takes 20.0% less"}[factor]
        assert (await searcher.verify(record, tolerance=0.01)).finding == "drifted"
        assert (await searcher.verify(record, tolerance=0.5)).finding == "steady"
    assert await stored(tmp_path) == record


async def test_another_is_faster_now(tmp_path: Path) -> None:
    record = await made(tmp_path)
    async with opened(tmp_path, backend({**TIMES, SMALL: 80.0})) as searcher:
        verdict = await searcher.verify(record)
    assert (verdict.finding, verdict.best) == ("beaten", SMALL)
    assert verdict.best_us == pytest.approx(80.0)
    assert verdict.reason == f"{SMALL} is faster now: the pick takes 25.0% more"
    assert verdict.drift == pytest.approx(0.0)
    assert await stored(tmp_path) == record


async def test_a_tie_is_no_defeat(tmp_path: Path) -> None:
    record = await made(tmp_path)
    async with opened(tmp_path, backend({**TIMES, SMALL: 99.9})) as searcher:
        assert (await searcher.verify(record)).finding == "steady"


async def test_the_pick_does_not_run_any_more(tmp_path: Path) -> None:
    record = await made(tmp_path)
    broken = {FAST: Fault(at="launch", does="launch_failed", message="no such kernel")}
    async with opened(tmp_path, backend(faults=broken)) as searcher:
        verdict = await searcher.verify(record)
        assert (verdict.finding, verdict.reason) == ("failed", "launch_failed: no such kernel")
        assert (verdict.now_us, verdict.best) == (None, SMALL)
        everything = {name: Fault(at="build", does="build_failed") for name in TIMES}
    async with opened(tmp_path, backend(faults=everything)) as searcher:
        verdict = await searcher.verify(record)
    assert (verdict.finding, verdict.best) == ("failed", None)


async def test_only_the_pick_and_its_nearest_rivals_are_run() -> None:
    names = [f"simulated/t:{n}" for n in range(9)]
    times = {name: 100.0 + 10 * n for n, name in enumerate(names)}
    store = MemoryStore()
    async with open_searcher(store=store, backends=[backend(times)]) as searcher:
        await searcher.select(OP, mode="exhaustive")
    record = await stored(store)
    trace: list[TraceEvent] = []
    async with opened(store, backend(times, trace=trace)) as searcher:
        assert (await searcher.verify(record)).finding == "steady"
    assert launched(trace) == set(names[:4])


async def test_the_pick_of_another_policy() -> None:
    store = MemoryStore()
    record = await made(store, "exhaustive")
    policy = Policy(exclude=(FAST,))
    async with opened(store, backend({**TIMES, FAST: 50.0})) as searcher:
        assert (await searcher.verify(record, policy)).algorithm == SMALL
        assert (await searcher.verify(record, policy)).finding == "steady"
        assert (await searcher.verify(record)).finding == "drifted"


async def test_what_its_searches_do_not_cover_is_not_run() -> None:
    store = MemoryStore()
    record = await made(store)
    partial = replace(record.searches[0], complete=False)
    trace: list[TraceEvent] = []
    async with opened(store, backend(trace=trace)) as searcher:
        verdict = await searcher.verify(replace(record, searches=(partial,)))
    assert (verdict.finding, verdict.algorithm) == ("uncovered", None)
    assert verdict.reason.startswith("only ")
    assert launched(trace) == set()


# -- other environments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (Environment(backend="simulated", device="Other"), "there is no Other of simulated here"),
        (Environment(backend="cudnn", device="Simulated"), "there is no Simulated of cudnn here"),
    ],
)
async def test_a_record_of_another_device_is_named_and_left_alone(environment: Environment, reason: str) -> None:
    store = MemoryStore()
    record = await made(store)
    foreign = replace(record, key=Key.of(OP, environment))
    trace: list[TraceEvent] = []
    async with opened(store, backend({**TIMES, SMALL: 1.0}, trace=trace)) as searcher:
        verdict = await searcher.verify(foreign, repair=True)
    assert (verdict.finding, verdict.reason, verdict.repaired) == ("foreign", reason, False)
    assert trace == []  # not even opened
    assert await stored(store) == record


async def test_a_record_of_another_library_names_the_difference() -> None:
    store = MemoryStore()
    record = await made(store)
    async with opened(store, backend(facts={"script": "two", "driver": "9"})) as searcher:
        verdict = await searcher.verify(record, repair=True)
    assert verdict.finding == "foreign"
    assert verdict.reason == "driver was unknown and is 9, script was one and is two"


async def test_a_device_that_cannot_be_opened_is_no_error() -> None:
    store = MemoryStore()
    record = await made(store)
    gone = Script(facts=FACTS, devices=(DeviceScript(unavailable="it is gone"),))
    async with opened(store, SimulatedBackend(gone)) as searcher:
        verdict = await searcher.verify(record)
    assert verdict.finding == "foreign"
    assert "it is gone" in verdict.reason


# -- repair ----------------------------------------------------------------------------------------------------------


async def test_repair_replaces_by_a_new_generation(tmp_path: Path) -> None:
    record = await made(tmp_path)
    now = backend({**TIMES, SMALL: 80.0})
    async with opened(tmp_path, now) as searcher:
        before = await searcher.select(OP)
        verdict = await searcher.verify(record, repair=True)
        assert (verdict.finding, verdict.repaired, verdict.generation) == ("beaten", True, 1)
        # A searcher keeps the generation that it first saw.
        assert await searcher.select(OP) == before
        assert (await searcher.select(OP, Policy(workspace_limit_bytes=1 << 40))).generation == 0
    repaired = await stored(tmp_path)
    assert (repaired.generation, repaired.revision, repaired.key) == (1, 1, record.key)
    async with opened(tmp_path, now) as searcher:
        choice = await searcher.select(OP)
        assert (choice.algorithm, choice.generation) == (SMALL, 1)
        assert (await searcher.verify(repaired, repair=True)).finding == "steady"


async def test_an_exhaustive_record_is_repaired_exhaustively() -> None:
    store = MemoryStore()
    record = await made(store, "exhaustive")
    async with opened(store, backend({name: us * 2 for name, us in TIMES.items()})) as searcher:
        assert (await searcher.verify(record, repair=True)).repaired
    assert [search.mode for search in (await stored(store)).searches] == ["exhaustive"]


async def test_what_was_hopeless_gets_another_chance() -> None:
    store = MemoryStore()
    record = await made(store)
    trials = Trials.of(
        Trial(algorithm=t.algorithm, rank=t.rank, workspace_bytes=0, failure=Failure("out_of_memory", "none left"))
        for t in record.searches[0].trials
    )
    hopeless = replace(record, searches=(replace(record.searches[0], trials=trials),))
    trace: list[TraceEvent] = []
    async with opened(store, backend(trace=trace)) as searcher:
        verdict = await searcher.verify(hopeless)
        assert (verdict.finding, verdict.algorithm, verdict.drift) == ("hopeless", None, None)
        assert "out_of_memory: none left" in verdict.reason
        assert launched(trace) == set()
        assert (await searcher.verify(hopeless, repair=True)).repaired
    repaired = await stored(store)
    assert Policy().pick(repaired).algorithm == FAST


async def test_somebody_else_has_repaired_it_already() -> None:
    store = MemoryStore()
    record = await made(store)
    theirs = replace(record, generation=1)
    await store.commit(theirs, after=0)
    async with opened(store, backend({**TIMES, SMALL: 80.0})) as searcher:
        verdict = await searcher.verify(record, repair=True)
    assert (verdict.finding, verdict.repaired, verdict.generation) == ("beaten", False, 1)
    assert "another process repaired it" in verdict.reason
    assert await stored(store) == theirs


class _Keeps(MemoryStore):
    """Keeps nothing of a repair, or breaks."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        self.breaks = breaks

    async def commit(self, record: Record, *, after: int) -> Committed:
        if record.generation == 0:
            return await super().commit(record, after=after)
        if self.breaks:
            raise ZeroDivisionError("a bug in a store")
        return Committed(record, won=True, kept=False)


@pytest.mark.parametrize("breaks", [True, False])
async def test_a_store_that_does_not_keep_the_repair(breaks: bool) -> None:
    store = _Keeps(breaks=breaks)
    record = await made(store)
    async with opened(store, backend({**TIMES, SMALL: 80.0})) as searcher:
        verdict = await searcher.verify(record, repair=True)
    assert (verdict.finding, verdict.repaired) == ("beaten", False)
    assert verdict.reason.endswith("not repaired: the store did not keep it")


async def test_where_nothing_may_be_stored_nothing_is_repaired() -> None:
    store = MemoryStore()
    record = await made(store)
    async with opened(store, backend({**TIMES, SMALL: 80.0}, missing="a part is not there")) as searcher:
        verdict = await searcher.verify(record, repair=True)
    assert (verdict.finding, verdict.repaired) == ("beaten", False)
    assert verdict.reason.endswith("not repaired: a part is not there")
    assert await stored(store) == record


# -- trouble ---------------------------------------------------------------------------------------------------------


async def test_a_backend_that_breaks_its_contract() -> None:
    store = MemoryStore()
    record = await made(store)
    gated = GatedBackend(backend())

    def breaks(call: str, subject: object) -> None:
        if call == "load":
            raise ZeroDivisionError("a bug in the backend")

    gated.before = breaks
    async with opened(store, gated) as searcher:
        with pytest.raises(SearchFailed, match="ZeroDivisionError: a bug in the backend"):
            await searcher.verify(record)
        gated.before = lambda call, subject: None
        assert (await searcher.verify(record)).finding == "steady"


async def test_given_up_in_the_middle_it_stops_and_writes_nothing(tmp_path: Path) -> None:
    record = await made(tmp_path)
    gated = GatedBackend(backend({**TIMES, SMALL: 80.0}))
    gate = gated.gates["launch"]
    gate.close()
    async with opened(tmp_path, gated) as searcher:
        task = asyncio.create_task(searcher.verify(record, repair=True))
        assert await asyncio.to_thread(gate.reached.wait, 10.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        # Whoever comes next finds the device free.
        assert (await searcher.verify(record)).finding == "beaten"
    assert await stored(tmp_path) == record


async def test_given_up_before_its_turn_it_takes_none() -> None:
    store = MemoryStore()
    record = await made(store)
    gated = GatedBackend(backend())
    gate = gated.gates["build"]
    gate.close()
    async with opened(store, gated) as searcher:
        tasks = [asyncio.create_task(searcher.verify(record)) for _ in range(6)]
        assert await asyncio.to_thread(gate.reached.wait, 10.0)
        for task in tasks[1:]:
            task.cancel()
        gate.open()
        verdicts = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(verdicts[0], Verdict)
    assert all(isinstance(verdict, asyncio.CancelledError) for verdict in verdicts[1:])


async def test_the_end_of_the_engine_fails_what_is_open() -> None:
    store = MemoryStore()
    record = await made(store)
    gated = GatedBackend(backend())
    gate = gated.gates["launch"]
    gate.close()
    async with opened(store, gated) as searcher:
        task = asyncio.create_task(searcher.verify(record))
        assert await asyncio.to_thread(gate.reached.wait, 10.0)
        task.add_done_callback(lambda _: gate.open())  # not before: it might be decided
    with pytest.raises(SearcherClosed):
        await task
    with pytest.raises(SearcherClosed):
        await searcher.verify(record)


async def test_many_at_once_beside_searches() -> None:
    store = MemoryStore()
    record = await made(store)
    async with opened(store, backend()) as searcher:
        verdicts, choices = await asyncio.gather(
            asyncio.gather(*(searcher.verify(record) for _ in range(20))),
            searcher.select_many([some_op(n) for n in range(1, 10)]),
        )
    assert {verdict.finding for verdict in verdicts} == {"steady"}
    assert len(choices) == 9


async def test_a_record_that_is_nowhere_stored_is_verified_all_the_same() -> None:
    record = await made(MemoryStore())
    async with opened(MemoryStore(), backend()) as searcher:
        assert (await searcher.verify(record)).finding == "steady"
        assert isinstance((await MemoryStore().get_many([record.key]))[0], Miss)
