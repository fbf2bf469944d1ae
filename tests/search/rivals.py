"""Engines that share one store, as processes do, and stores that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from algosearch.backends import Backend
from algosearch.backends.simulated import Script, SimulatedBackend, TraceEvent
from algosearch.ops import ConvOp
from algosearch.records import Key, Record
from algosearch.search import FlightStatus, Searcher
from algosearch.search.claims import PATIENCE_S
from algosearch.search.engine import Engine
from algosearch.search.lineup import Lineup
from algosearch.stores import Claim, MemoryStore, Miss, Store
from tests.search.gated import GatedBackend
from tests.search.helpers import some_op, three_candidates

EXPIRY_S = 0.4
"""Of a claim, by the clock of the store, which stands still; and the measure of how often a living owner renews it."""


class Clock:
    """The store's. Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s

    def lapse(self) -> None:
        """Every claim lapses."""
        self.now_s += 10 * EXPIRY_S


class Watched(MemoryStore):
    """Writes down every call that it gets, and passes for one that outlives its process."""

    lasting = True

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.calls: list[tuple[str, Any]] = []
        self.before: Callable[[str], None] = lambda call: None
        """May raise."""

    def count(self, call: str) -> int:
        return sum(name == call for name, _ in self.calls)

    def _note(self, call: str, subject: Any = None) -> None:
        self.calls.append((call, subject))
        self.before(call)

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        self._note("get_many", tuple(keys))
        return await super().get_many(keys)

    async def commit(self, record: Record, **how: Any) -> Any:
        self._note("commit", record)
        return await super().commit(record, **how)

    async def claim(self, digest: str, owner: str, **how: Any) -> Any:
        self._note("claim", digest)
        return await super().claim(digest, owner, **how)

    async def renew(self, claim: Any, **how: Any) -> Any:
        self._note("renew", claim)
        return await super().renew(claim, **how)

    async def release(self, claim: Any) -> bool:
        self._note("release", claim)
        return await super().release(claim)

    async def holders(self, digests: Sequence[str]) -> Any:
        self._note("holders", tuple(digests))
        return await super().holders(digests)

    async def changes(self) -> Any:
        self._note("changes")
        return await super().changes()


@asynccontextmanager
async def rival(
    store: Store, backend: Backend, *, expiry_s: float = EXPIRY_S, patience_s: float = PATIENCE_S
) -> AsyncIterator[Searcher]:
    """A searcher with an engine of its own, as another process has."""
    lineup = Lineup([backend], None)
    engine = Engine(lineup, lambda: store, isolation="thread", expiry_s=expiry_s, patience_s=patience_s)
    engine.start()
    try:
        await engine.ready.wait()
        searcher = Searcher(engine, mode="race")
        yield searcher
        searcher.close()
    finally:
        engine.stop()
        await engine.ended.wait()


class Home:
    """One memory that all share, and the keys in it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.memory = MemoryStore(clock=self.clock)
        self.trace: list[TraceEvent] = []

    def handle(self) -> Watched:
        return Watched(beside=self.memory, clock=self.clock)

    def backend(self, *ops: ConvOp, machine: str = "here") -> GatedBackend:
        script = Script(problems=tuple(map(three_candidates, ops or (some_op(),))), machine=machine)
        return GatedBackend(SimulatedBackend(script, trace=self.trace))

    def key(self, op: ConvOp | None = None, backend: GatedBackend | None = None) -> Key:
        backend = self.backend() if backend is None else backend
        session = backend.open(backend.devices()[0])
        try:
            return Key.of(some_op() if op is None else op, session.environment)
        finally:
            session.close()

    async def record(self, key: Key) -> Record:
        (answer,) = await self.memory.get_many([key])
        assert isinstance(answer, Record)
        return answer

    async def holder(self, key: Key) -> Claim | None:
        (holder,) = await self.memory.holders([key.digest])
        return holder

    async def deaths(self, key: Key, *, of: Sequence[str]) -> None:
        """So many owners die one after the other, each with this about to be launched."""
        for n, trying in enumerate(of):
            assert (await self.memory.claim(key.digest, f"dead:{n}:x", expiry_s=EXPIRY_S, trying=trying)).lapses == n
            self.clock.lapse()


async def reach(searcher: Searcher, state: str) -> FlightStatus:
    """Until a flight is in this state."""
    for _ in range(4000):
        for flight in searcher.flights():
            if flight.state == state:
                return flight
        await asyncio.sleep(0.001)
    raise AssertionError(f"nobody is {state}: {searcher.flights()}")


async def reached(gate: Any) -> None:
    assert await asyncio.to_thread(gate.reached.wait, 20.0)
