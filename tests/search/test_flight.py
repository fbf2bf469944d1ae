"""`Flight`: its table of states."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from algosearch.backends.simulated import SimulatedBackend
from algosearch.devices.pool import Pool
from algosearch.ops import canonical
from algosearch.records import Environment, Key
from algosearch.search.flight import Flight, State
from tests.search.helpers import some_op

STATES: tuple[State, ...] = get_args(State)
ENDS = {"landed", "failed", "dropped"}
STEPS = {
    ("reading", "queued"),
    ("queued", "elsewhere"),
    ("queued", "listing"),
    ("elsewhere", "queued"),
    ("listing", "racing"),
    ("racing", "committing"),
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
