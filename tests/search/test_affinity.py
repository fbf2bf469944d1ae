"""Engines that search the same keys part the kinds of ops between them, so that each loads the code of its own."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from algosearch.backends.simulated import Script, SimulatedBackend
from algosearch.devices.places import IN_HAND
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.ops.conv import Direction
from algosearch.records import Key
from algosearch.search.affinity import FIRST, Affinity, Place, kind_of
from algosearch.stores import Claim, MemoryStore
from tests.search.gated import GatedBackend
from tests.search.helpers import three_candidates, until
from tests.search.rivals import EXPIRY_S, Clock, rival
from tests.search.test_lookout import Shared

DIRECTIONS: Final[tuple[Direction, ...]] = ("forward", "backward_data", "backward_filter")
SMALL, LARGE = "a:1:x", "b:2:y"


def op_of(direction: Direction, channels: int = 8, *, side: int = 8) -> ConvOp:
    return ConvOp(
        direction=direction,
        input_shape=(1, channels, side, side),
        filter_shape=(channels, channels, 3, 3),
        padding_low=(1, 1),
        padding_high=(1, 1),
    )


def order(affinity: Affinity, ops: list[ConvOp]) -> list[ConvOp]:
    return sorted(ops, key=lambda op: affinity.place(op, op.describe()).precedence)


OPS = [op_of(direction, channels) for channels in (64, 65, 66, 67) for direction in DIRECTIONS]


@given(st.text(max_size=20), st.permutations(OPS))
def test_one_kind_after_the_other_whatever_order_they_come_in(owner: str, ops: list[ConvOp]) -> None:
    affinity = Affinity(owner)
    kinds = [kind_of(op) for op in order(affinity, ops)]
    assert [kind for n, kind in enumerate(kinds) if kind not in kinds[:n]] == kinds[:: len(OPS) // len(DIRECTIONS)]
    assert order(affinity, ops) == order(Affinity(owner), OPS)


def test_each_engine_has_an_order_of_its_own() -> None:
    favourites = {kind_of(order(Affinity(f"host:{pid}:token"), OPS)[0]) for pid in range(40)}
    assert favourites == set(map(kind_of, OPS))
    one_kind = [op for op in OPS if op.direction == "forward"]
    assert len({tuple(order(Affinity(f"host:{pid}:token"), one_kind)) for pid in range(40)}) > 6


def test_in_a_kind_the_longest_search_comes_first() -> None:
    ops = [op_of("forward", channels) for channels in (4, 16, 64, 256)]
    assert order(Affinity(SMALL), ops) == ops[::-1]


def test_of_two_that_meet_the_one_with_the_smaller_name_stays() -> None:
    small, large = Affinity(SMALL), Affinity(LARGE)
    places = [large.place(op, op.describe()) for op in OPS]  # those that are queued already change with it
    favourite = order(large, OPS)[0]
    small.met(favourite, LARGE)
    large.met(favourite, SMALL)
    assert kind_of(order(small, OPS)[0]) == kind_of(order(Affinity(SMALL), OPS)[0])
    assert [kind_of(op) for op in order(large, OPS)[-4:]] == [kind_of(favourite)] * 4
    assert max(places, key=lambda place: place.precedence).precedence[0] == 1


def test_where_all_kinds_were_met_it_is_as_before() -> None:
    affinity, before = Affinity(LARGE), order(Affinity(LARGE), OPS)
    for op in OPS:
        affinity.met(op, SMALL)
    assert order(affinity, OPS) == before


def test_who_is_met_again_counts_once_and_the_fewest_are_joined() -> None:
    affinity = Affinity("z")
    forward, data, filters = (op_of(direction) for direction in DIRECTIONS)
    for owner in ("a", "a", "a"):
        affinity.met(forward, owner)
    for owner in ("a", "b"):
        affinity.met(data, owner)
    affinity.met(filters, "c")
    affinity.met(filters, "d")
    affinity.met(filters, "e")
    assert order(affinity, [filters, data, forward]) == [forward, data, filters]


def test_who_may_be_alone_keeps_the_order_in_which_they_come_until_somebody_is_met() -> None:
    affinity = Affinity(SMALL)
    places = [affinity.place(op, op.describe(), at_once=False) for op in OPS]
    assert {place.precedence for place in places} == {FIRST}
    affinity.met(OPS[0], LARGE)
    assert len({place.precedence for place in places}) == len(OPS)


def test_any_op_has_a_kind_and_who_is_alone_has_no_place() -> None:
    norm: Op = BatchNormOp(phase="inference", shape=(1, 4, 2, 2))
    assert isinstance(Affinity(SMALL).place(norm, "digest"), Place)
    assert len({kind_of(op) for op in [norm, *OPS]}) == 4
    assert len(FIRST) == len(Affinity(SMALL).place(norm, "digest").precedence)


class Haunted(Shared):
    """What is claimed first was claimed a moment before, by somebody whose name comes before all others."""

    def __init__(self, ghosts: MemoryStore, clock: Clock) -> None:
        super().__init__(beside=ghosts, clock=clock)
        self._ghosts = ghosts

    async def claim(self, digest: str, owner: str, **how: Any) -> Claim:
        if not self.count("claim"):
            await self._ghosts.claim(digest, "!ghost", expiry_s=EXPIRY_S)
        claim: Claim = await super().claim(digest, owner, **how)
        return claim


async def test_an_engine_leaves_the_kind_in_which_it_was_refused() -> None:
    clock = Clock()
    store = Haunted(MemoryStore(clock=clock), clock)
    backend = GatedBackend(SimulatedBackend(Script(problems=tuple(map(three_candidates, OPS)))))
    session = backend.open(backend.devices()[0])
    kinds = {Key.of(op, session.environment).digest: kind_of(op) for op in OPS}
    session.close()
    backend.gates["load"].close()
    async with rival(store, backend) as searcher:
        requests = asyncio.create_task(searcher.select_many(OPS))
        await until(lambda: store.count("claim") > IN_HAND)  # in place of the one that was refused
        backend.gates["load"].open()
        await until(lambda: len(searcher.flights()) == 1)
        clock.lapse()
        await requests
    claimed = [kinds[digest] for call, digest in store.calls if call == "claim"]
    assert claimed[:IN_HAND] == [claimed[0]] * IN_HAND
    assert claimed[0] not in claimed[IN_HAND : IN_HAND + 8]
    assert claimed[IN_HAND + 8 :] == [claimed[0]] * (len(OPS) - IN_HAND - 8 + 1)
