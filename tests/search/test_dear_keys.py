"""Keys for which something dear is built: nobody waits behind them, and they are everybody's until it is their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import anyio
import pytest

from algosearch import Policy, open_searcher
from algosearch.backends.simulated import CandidateScript, Generated, ProblemScript, Script, SimulatedBackend
from algosearch.devices.places import DEAR_IN_HAND, IN_HAND
from algosearch.errors import RequestWithdrawn, SearcherClosed
from algosearch.ops import BatchNormOp, Op
from algosearch.records import Key
from algosearch.search import Searcher
from algosearch.stores.base import Claim
from tests.search.gated import GatedBackend
from tests.search.helpers import named, some_op, states, until
from tests.search.rivals import EXPIRY_S, Clock, Watched, rival

LIMIT_S = 30.0
DEAR: list[Op] = [some_op(n) for n in range(20)]
CHEAP = [some_op(100 + n) for n in range(10)]
DEADLY = some_op(200)
FURTHER = some_op(300)
PATIENT: list[Op] = [BatchNormOp(shape=(n + 1, 8, 6, 6)) for n in range(3)]
FUSED = BatchNormOp(shape=(4, 8, 6, 6), fusion="activation", layout="channels_last")


def _backend() -> GatedBackend:
    """One device; the gate of what is compiled is closed."""
    cheap = named("cheap", 50.0)
    compiled = named("compiled", 20.0, notes=("runtime_compiled",))
    fused = CandidateScript(algorithm="simulated/c:fused", time_us=9.0, reserve_bytes=77)
    scripts = (
        *(ProblemScript(op=op, candidates=(cheap, compiled)) for op in [*DEAR, *PATIENT]),
        *(ProblemScript(op=op, candidates=(cheap, named("other", 30.0))) for op in CHEAP),
        ProblemScript(op=FUSED, candidates=(fused,)),
        ProblemScript(op=FURTHER, candidates=(cheap, named("other", 30.0), compiled), look_at=2),
        ProblemScript(op=DEADLY, candidates=(cheap, compiled, named("other", 30.0, notes=("runtime_compiled",)))),
    )
    backend = GatedBackend(SimulatedBackend(Script(problems=scripts, generated=Generated(candidates=0))))
    backend.gates["compile"].close()
    return backend


@asynccontextmanager
async def _searcher(backend: GatedBackend) -> AsyncIterator[Searcher]:
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        try:
            with anyio.fail_after(LIMIT_S):
                yield searcher
        finally:
            backend.gates["compile"].open()


def _key(backend: GatedBackend, op: Op) -> Key:
    session = backend.open(backend.devices()[0])
    try:
        return Key.of(op, session.environment)
    finally:
        session.close()


async def _compiles(backend: GatedBackend) -> None:
    assert await asyncio.to_thread(backend.gates["compile"].reached.wait, LIMIT_S)


async def _queue_as_dear(searcher: Searcher, count: int) -> None:
    """Of so many dear keys, all but those in hand queue to be compiled; before they are listed they queue for the usual
    places."""
    queue = {"racing": DEAR_IN_HAND} | ({"queued": count - DEAR_IN_HAND} if count > DEAR_IN_HAND else {})
    await until(lambda: searcher.statistics().engine.listings == count and states(searcher) == queue)


@pytest.mark.parametrize("count", [3, len(DEAR)])
async def test_nobody_waits_behind_them(count: int) -> None:
    backend = _backend()
    async with _searcher(backend) as searcher:
        dear = [searcher.request(op) for op in DEAR[:count]]
        await _compiles(backend)
        cheap = await asyncio.gather(*(searcher.select(op) for op in CHEAP))
        assert {choice.algorithm for choice in cheap} == {"simulated/c:other"}
        guessed = await searcher.select(DEAR[-1], mode="heuristic")
        assert guessed.algorithm == "simulated/c:cheap"
        assert await searcher.request(FUSED).workspace() == {"simulated/c:fused": 0}
        assert (await searcher.select(FUSED)).reserve_bytes == 77
        assert not any(request.answered for request in dear)
        backend.gates["compile"].open()
        found = [await request.choice() for request in dear]
        assert {choice.algorithm for choice in found} == {"simulated/c:compiled"}


async def test_batch_norms_let_those_go_first_that_are_awaited_as_much() -> None:
    backend = _backend()
    begun: list[tuple[str, object]] = []
    backend.before = lambda call, subject: begun.append((call, subject)) if call in ("load", "compile") else None
    backend.gates["enumerate"].close()
    async with _searcher(backend) as searcher:
        backend.gates["compile"].open()
        requests = [searcher.request(op) for op in (*PATIENT, *CHEAP)]
        await until(lambda: states(searcher) == {"listing": IN_HAND, "queued": len(PATIENT) + len(CHEAP) - IN_HAND})
        backend.gates["enumerate"].open()
        await asyncio.gather(*(request.choice() for request in requests))
    first = begun.index(("compile", PATIENT[0]))
    raced_before = [subject for call, subject in begun[:first] if call == "load"]
    # All had their turn at the device before; the last ones may still be on their way to the lane.
    assert len(raced_before) >= len(CHEAP) - IN_HAND
    assert [subject for call, subject in begun if call == "compile"] == PATIENT


async def test_convolutions_begin_at_once_for_they_take_longest() -> None:
    backend = _backend()
    backend.gates["load"].close()
    async with _searcher(backend) as searcher:
        requests = [searcher.request(op) for op in (*DEAR[:3], *PATIENT, *CHEAP)]
        await _compiles(backend)
        # What is not dear has all of its places, and no search has come to an end.
        racing = {"racing": DEAR_IN_HAND + IN_HAND, "queued": 3 - DEAR_IN_HAND + len(PATIENT) + len(CHEAP) - IN_HAND}
        await until(lambda: states(searcher) == racing)
        backend.gates["load"].open()
        backend.gates["compile"].open()
        await asyncio.gather(*(request.choice() for request in requests))


async def test_who_is_awaited_most_comes_first_even_so() -> None:
    backend = _backend()
    order: list[object] = []
    backend.before = lambda call, subject: order.append(subject) if call == "compile" else None
    async with _searcher(backend) as searcher:
        requests = [searcher.request(op) for op in DEAR[:8]]
        await _queue_as_dear(searcher, 8)
        waits = asyncio.create_task(requests[6].choice())
        await until(lambda: sum(flight.awaited for flight in searcher.flights()) == 1)
        backend.gates["compile"].open()
        await waits
        await asyncio.gather(*(request.choice() for request in requests))
    assert order.index(DEAR[6]) == DEAR_IN_HAND


async def test_who_asks_for_one_that_queues_joins_it() -> None:
    backend = _backend()
    async with _searcher(backend) as searcher:
        requests = [searcher.request(op) for op in DEAR[:6]]
        await _queue_as_dear(searcher, 6)
        again = [searcher.request(op, Policy(deterministic=True)) for op in DEAR[:6]]
        backend.gates["compile"].open()
        await asyncio.gather(*(request.choice() for request in (*requests, *again)))
        engine = searcher.statistics().engine
        assert (engine.searched, engine.listings) == (6, 6)


async def test_what_is_withdrawn_is_not_compiled() -> None:
    backend = _backend()
    compiled: list[object] = []
    backend.before = lambda call, subject: compiled.append(subject) if call == "compile" else None
    async with _searcher(backend) as searcher:
        requests = [searcher.request(op) for op in DEAR[:6]]
        await _queue_as_dear(searcher, 6)
        for request in requests[DEAR_IN_HAND:]:
            request.withdraw()
        await until(lambda: len(searcher.flights()) == DEAR_IN_HAND)
        backend.gates["compile"].open()
        await asyncio.gather(*(request.choice() for request in requests[:DEAR_IN_HAND]))
    assert compiled == DEAR[:DEAR_IN_HAND]


async def test_what_was_withdrawn_while_it_raced_does_not_queue_to_be_compiled() -> None:
    """It comes to what is dear by looking further, when nobody waits for it any more."""
    backend = _backend()
    async with _searcher(backend) as searcher:
        requests = [searcher.request(op) for op in DEAR[:DEAR_IN_HAND]]
        await _queue_as_dear(searcher, DEAR_IN_HAND)
        launch = backend.gates["launch"]
        launch.close()
        last = searcher.request(FURTHER)
        assert await asyncio.to_thread(launch.reached.wait, LIMIT_S)
        last.withdraw()
        with pytest.raises(RequestWithdrawn):
            await last.choice()
        launch.open()
        await until(lambda: len(searcher.flights()) == DEAR_IN_HAND)
        assert searcher.statistics().engine.dropped == 1
        backend.gates["compile"].open()
        await asyncio.gather(*(request.choice() for request in requests))


async def test_closing_does_not_wait_for_what_is_compiled() -> None:
    backend = _backend()
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        requests = [searcher.request(op) for op in DEAR[:6]]
        await _compiles(backend)
        began = perf_counter()
    assert perf_counter() - began < 10.0
    for request in requests:
        with pytest.raises((SearcherClosed, RequestWithdrawn)):
            await request.choice()
    backend.gates["compile"].open()


# -- where others search the same ------------------------------------------------------------------------------------


async def test_only_those_that_are_compiled_are_claimed() -> None:
    """The others are anybody's who comes."""
    backend, store = _backend(), Watched()
    async with rival(store, backend) as searcher:
        requests = [searcher.request(op) for op in DEAR]
        await _queue_as_dear(searcher, len(DEAR))
        digests = [_key(backend, op).digest for op in DEAR]
        await until(lambda: store.count("release") == len(DEAR))
        held = [claim for claim in await store.holders(digests) if claim is not None]
        assert len(held) == DEAR_IN_HAND
        other = _backend()
        other.gates["compile"].open()
        async with rival(store, other) as second:
            with anyio.fail_after(LIMIT_S):
                await asyncio.gather(*(second.select(op) for op in DEAR[DEAR_IN_HAND:]))
            assert second.statistics().engine.searched == len(DEAR) - DEAR_IN_HAND
        backend.gates["compile"].open()
        with anyio.fail_after(LIMIT_S):
            await asyncio.gather(*(request.choice() for request in requests))
        assert searcher.statistics().engine.searched == DEAR_IN_HAND
    assert await store.holders(digests) == [None] * len(DEAR)


async def test_a_claim_that_tells_of_a_death_is_kept() -> None:
    """Given back and won again it would tell nothing, and the one that killed would be run once more."""
    backend, clock = _backend(), Clock()
    store = Watched(clock=clock)
    backend.gates["compile"].open()
    async with rival(store, backend) as searcher:
        await searcher.select(CHEAP[0])
        key = _key(backend, DEADLY)
        for name in ("first", "second"):
            await store.claim(key.digest, name, expiry_s=EXPIRY_S, trying="simulated/c:compiled")
            assert await store.renew(
                Claim(digest=key.digest, owner=name, trying="simulated/c:compiled"), expiry_s=EXPIRY_S
            )
            clock.lapse()
        store.calls.clear()
        choice = await searcher.select(DEADLY)
        assert choice.algorithm == "simulated/c:other", "the fastest is taken for what killed two processes"
    assert [call for call, subject in store.calls if call == "claim"] == ["claim"]
