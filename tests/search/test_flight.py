"""`Flight`: its table of states, and whom it is searched for."""

from __future__ import annotations

import asyncio
import itertools
from typing import get_args

import pytest

from algosearch import open_searcher
from algosearch.backends.simulated import SimulatedBackend
from algosearch.devices.places import IN_HAND
from algosearch.devices.pool import Pool
from algosearch.ops import canonical
from algosearch.records import Environment, Key
from algosearch.search.flight import Flight, State
from tests.search.gated import GatedBackend
from tests.search.helpers import scripted, some_op, some_ops, until

STATES: tuple[State, ...] = get_args(State)
ENDS = {"landed", "failed", "dropped"}
STEPS = {
    ("reading", "queued"),
    ("queued", "elsewhere"),
    ("queued", "listing"),
    ("elsewhere", "queued"),
    ("listing", "racing"),
    ("listing", "queued"),
    ("racing", "committing"),
    ("racing", "queued"),
}


def flight_in(state: State) -> Flight:
    backend = SimulatedBackend()
    op = canonical(some_op())
    pool = Pool(backend, backend.devices(), tasks=None)  # type: ignore[arg-type]
    flight = Flight(Key.of(op, Environment(backend="simulated", device="d")), op, pool, storable=True)
    flight.state = state
    return flight


@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, STATES)))
def test_what_may_follow_what(before: State, after: State) -> None:
    flight = flight_in(before)
    if (before, after) in STEPS or (after in ENDS and before not in ENDS):
        flight.move(after)
        assert flight.state == after
        assert flight.ended == (after in ENDS)
    else:
        with pytest.raises(AssertionError, match="cannot become"):
            flight.move(after)
        assert flight.state == before


def test_a_trial_that_has_begun_is_finished_for_nobody() -> None:
    for state in STATES:
        flight = flight_in(state)
        if state not in ENDS:
            dropped = flight.leave(object())  # type: ignore[arg-type]
            assert dropped == (state not in ("racing", "committing"))


async def test_who_joins_while_it_is_listed_out_of_turn_is_searched_for_in_its_turn() -> None:
    ops = some_ops(IN_HAND + 1)
    backend = GatedBackend(scripted(*ops))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        backend.gates["launch"].close()
        before = [searcher.request(op) for op in ops[:IN_HAND]]
        await asyncio.gather(*(request.workspace() for request in before))
        backend.gates["enumerate"].close()
        hurried = asyncio.create_task(searcher.select(ops[-1], deadline_s=0.001))
        assert await asyncio.to_thread(backend.gates["enumerate"].reached.wait, 20)
        first = searcher.request(ops[-1])
        backend.gates["launch"].open()
        await asyncio.gather(*(request.choice() for request in before))
        tower = searcher._engine._tower
        assert tower is not None
        await until(lambda: len(tower._flights) == 1)
        (flight,) = tower._flights.values()
        await until(lambda: flight.scope is not None)
        joined = searcher.request(ops[-1], mode="exhaustive")
        await until(lambda: len(flight._inquiries) == 2)
        backend.gates["enumerate"].open()
        await asyncio.gather(first.choice(), joined.choice(), hurried)
        assert searcher.statistics().engine.searched == IN_HAND + 1
