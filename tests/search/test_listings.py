"""Who does not wait for the race: what a policy admits is found, however late in the library's list it comes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from algosearch import Policy, open_searcher
from algosearch.backends import Device, Session
from algosearch.backends.simulated import CandidateScript, ProblemScript, Script, SimulatedBackend, TraceEvent
from algosearch.errors import NoAlgorithm
from algosearch.ops import Op
from algosearch.records import Key, Listing
from algosearch.search.listings import FIRST_LOOK
from algosearch.stores import MemoryStore
from tests.search.gated import GatedBackend
from tests.search.helpers import named, some_op
from tests.search.rivals import EXPIRY_S, Clock, Watched, rival

MANY = 60
NO_WORKSPACE = Policy(workspace_limit_bytes=0)


def many(*small: int, **more: Any) -> Script:
    """So many candidates, all of which but these need a workspace."""
    candidates: tuple[CandidateScript, ...] = tuple(
        named(str(rank), 10.0 + rank, workspace_bytes=0 if rank in small else 4096) for rank in range(MANY)
    )
    return Script(problems=(ProblemScript(op=some_op(), candidates=candidates, **more),))


async def killed_thrice(backend: SimulatedBackend, trying: str) -> Watched:
    """A store in which the key has cost three owners, the last of which was about to launch that."""
    clock = Clock()
    memory = MemoryStore(clock=clock)
    session = backend.open(backend.devices()[0])
    digest = Key.of(some_op(), session.environment).digest
    session.close()
    for n in range(3):
        assert (await memory.claim(digest, f"dead:{n}:x", expiry_s=EXPIRY_S, trying=trying)).lapses == n
        clock.lapse()
    return Watched(beside=memory, clock=clock)


def widths(trace: list[TraceEvent]) -> int:
    """How often the candidates were asked for."""
    return sum(event.call == "enumerate" for event in trace)


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("rank", [0, FIRST_LOOK - 1, FIRST_LOOK, 45, MANY - 1])
async def test_a_guess_is_found_however_late_it_is_listed(rank: int, isolation: Any) -> None:
    backend = SimulatedBackend(many(rank))
    async with open_searcher(store="memory:", backends=[backend], isolation=isolation) as searcher:
        choice = await searcher.select(some_op(), NO_WORKSPACE, mode="heuristic")
        assert (choice.algorithm, choice.provisional) == (f"simulated/c:{rank}", True)
        assert (await searcher.select(some_op(), mode="heuristic")).algorithm == "simulated/c:0"


async def test_that_there_is_none_is_said_when_the_whole_list_was_seen() -> None:
    trace: list[TraceEvent] = []
    async with open_searcher(store="memory:", backends=[SimulatedBackend(many(), trace=trace)]) as searcher:
        with pytest.raises(NoAlgorithm) as refusal:
            await searcher.select(some_op(), NO_WORKSPACE, mode="heuristic")
        assert f"and {MANY - 8} more" in str(refusal.value)
        assert searcher.flights() == ()
        assert widths(trace) == 4, "10, 20, 40 and all of them"
        assert searcher.statistics().engine.listings == widths(trace)


async def test_who_is_content_with_the_first_ones_asks_for_no_more() -> None:
    trace: list[TraceEvent] = []
    async with open_searcher(store="memory:", backends=[SimulatedBackend(many(3), trace=trace)]) as searcher:
        assert (await searcher.select(some_op(), NO_WORKSPACE, mode="heuristic")).algorithm == "simulated/c:3"
        assert widths(trace) == 1


class _Coy:
    """A session that calls no listing complete."""

    def __init__(self, inner: Session) -> None:
        self._inner = inner

    def enumerate(self, op: Op, width: int | None) -> Listing:
        return replace(self._inner.enumerate(op, width), complete=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class CoyBackend(GatedBackend):
    def open(self, device: Device) -> Session:
        return _Coy(super().open(device))


async def test_a_library_that_always_promises_more_is_not_asked_for_ever() -> None:
    trace: list[TraceEvent] = []
    backend = CoyBackend(SimulatedBackend(many(), trace=trace))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        with pytest.raises(NoAlgorithm):
            await searcher.select(some_op(), NO_WORKSPACE, mode="heuristic")
    assert widths(trace) == 5, "10, 20, 40, all of them, and no more"


async def test_a_deadline_gives_what_is_listed_late_while_the_device_is_busy() -> None:
    backend = GatedBackend(SimulatedBackend(many(45)))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        request = searcher.request(some_op(), NO_WORKSPACE)
        assert len(await request.workspace()) == FIRST_LOOK
        late = await request.choice(deadline_s=0.01)
        assert (late.algorithm, late.provisional) == ("simulated/c:45", True)
        again = await asyncio.gather(*(request.choice(deadline_s=0.01) for _ in range(3)))
        assert {choice.algorithm for choice in again} == {"simulated/c:45"}
        backend.gates["launch"].open()
        choice = await request.choice()
        assert (choice.algorithm, choice.provisional) == ("simulated/c:45", False)


async def test_a_deadline_gives_what_the_record_so_far_has_nothing_of() -> None:
    """The searches so far did not look where the policy asks: what they tried says nothing of what there is."""
    backend = GatedBackend(SimulatedBackend(many(45)))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        await searcher.select(some_op())
        backend.gates["launch"].close()
        late = await searcher.select(some_op(), NO_WORKSPACE, deadline_s=0.01)
        assert (late.algorithm, late.provisional) == ("simulated/c:45", True)
        backend.gates["launch"].open()
        assert not (await searcher.select(some_op(), NO_WORKSPACE)).provisional


async def test_a_deadline_is_refused_when_the_whole_list_has_nothing() -> None:
    backend = GatedBackend(SimulatedBackend(many()))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        busy = searcher.request(some_op())
        assert await asyncio.to_thread(backend.gates["launch"].reached.wait, 20)
        with pytest.raises(NoAlgorithm):
            await searcher.select(some_op(), NO_WORKSPACE, deadline_s=0.01)
        backend.gates["launch"].open()
        assert not (await busy.choice()).provisional


async def test_a_key_that_nobody_searches_is_answered_however_late_its_candidate_is_listed() -> None:
    backend = SimulatedBackend(many(45))
    store = await killed_thrice(backend, "simulated/c:0")
    async with rival(store, backend, expiry_s=1000.0) as searcher:
        choices = await asyncio.gather(
            searcher.select(some_op()), searcher.select(some_op(), NO_WORKSPACE), return_exceptions=True
        )
        assert [getattr(choice, "algorithm", choice) for choice in choices] == ["simulated/c:1", "simulated/c:45"]


async def test_a_suspect_is_taken_when_a_policy_leaves_nobody_else() -> None:
    backend = SimulatedBackend(many(45))
    store = await killed_thrice(backend, "simulated/c:45")
    async with rival(store, backend, expiry_s=1000.0) as searcher:
        assert (await searcher.select(some_op(), NO_WORKSPACE)).algorithm == "simulated/c:45"
        with pytest.raises(NoAlgorithm):
            await searcher.select(some_op(), Policy(exclude=("simulated/*",)))
