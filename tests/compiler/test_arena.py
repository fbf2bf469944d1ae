"""The arena: nothing that lives at once overlaps, and it comes near to the bound."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algosearch.compiler import ReadOptions
from algosearch.compiler.arena import (
    ALIGNMENT_BYTES,
    Arena,
    Block,
    BlockKey,
    lay_out,
    lay_out_in_turns,
    lower_bound_bytes,
)
from algosearch.compiler.compile import Pipeline
from algosearch.compiler.graph import GraphBuilder
from algosearch.compiler.memory import blocks_of
from algosearch.compiler.read import read_graph
from algosearch.records import Choice
from tests.compiler.verifier import overlapping

_A: BlockKey = ("tensor", "a")
_B: BlockKey = ("tensor", "b")
_C: BlockKey = ("workspace", "a")

lifetimes = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)
blocks_of_a_step = st.lists(st.tuples(st.integers(0, 5000), lifetimes), max_size=40).map(
    lambda each: [Block(("tensor", f"b{i}"), size, first, last) for i, (size, (first, last)) in enumerate(each)]
)


@given(blocks_of_a_step)
def test_no_two_live_blocks_overlap_and_none_leaves_the_arena(blocks: list[Block]) -> None:
    arena = lay_out(blocks)
    placed = [block for block in blocks if block.bytes]
    assert set(arena.offsets) == {block.key for block in placed}
    assert all(arena.offsets[block.key] % ALIGNMENT_BYTES == 0 for block in placed)
    assert all(arena.offsets[block.key] + block.bytes <= arena.bytes for block in placed)
    assert not overlapping([(arena.offsets[b.key], b.bytes, b.first, b.last) for b in placed])


@given(blocks_of_a_step)
def test_the_bound_is_what_lives_at_the_worst_moment(blocks: list[Block]) -> None:
    bound, worst = lower_bound_bytes(blocks)
    alive = [sum(block.padded_bytes for block in blocks if block.first <= moment <= block.last) for moment in range(31)]
    assert bound == max(alive)
    assert alive[worst] == bound
    assert lay_out(blocks).bytes >= bound


@given(blocks_of_a_step, st.randoms())
def test_the_order_in_which_blocks_are_named_is_no_matter(blocks: list[Block], random: object) -> None:
    shuffled = list(blocks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert lay_out(shuffled) == lay_out(blocks)


def test_blocks_that_never_meet_share_their_memory() -> None:
    arena = lay_out([Block(_A, 1000, 0, 1), Block(_B, 1000, 2, 3), Block(_C, 10, 1, 2)])
    assert arena.offsets == {_A: 0, _B: 0, _C: 1024}
    assert arena.bytes == arena.lower_bound_bytes == 1280


def test_an_empty_step_needs_nothing() -> None:
    arena = lay_out([])
    assert (arena.bytes, arena.lower_bound_bytes, arena.offsets) == (0, 0, {})


@pytest.mark.parametrize("size", [1 << 20, 1 << 62])
def test_sizes_beyond_a_machine_s_integer_are_laid_out_alike(size: int) -> None:
    lives = [(0, 3), (1, 2), (2, 5), (4, 6), (5, 9), (7, 8)]
    blocks = [Block(("tensor", str(i)), size * (i + 1), first, last) for i, (first, last) in enumerate(lives)]
    arena = lay_out(blocks)
    units = {key: offset / size for key, offset in arena.offsets.items()}
    assert (units, arena.bytes / size) == (
        {key: offset / 1024 for key, offset in _in_kilobytes(lives).offsets.items()},
        _in_kilobytes(lives).bytes / 1024,
    )


def _in_kilobytes(lives: list[tuple[int, int]]) -> Arena:
    return lay_out([Block(("tensor", str(i)), 1024 * (i + 1), *life) for i, life in enumerate(lives)])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "r3d18", "vit_b16"])
def test_whatever_workspaces_are_asked_the_arena_is_near_the_bound(name: str, training: bool) -> None:
    """Those of the algorithms that a device happens to prefer are a matter of luck; these are of every size."""
    for batch in (1, 8):
        graph, _ = read_graph(name, ReadOptions(batch=batch))
        for _, make in Pipeline(training=training).passes:
            graph = make(graph, GraphBuilder(graph.name))
        for seed in range(3):
            chance = random.Random(seed)
            choices = {
                op: Choice(algorithm="a/b:c", workspace_bytes=int(op.bytes_moved * chance.random() ** seed))
                for op in dict.fromkeys(graph.ops)
            }
            arena = lay_out(blocks_of(graph, choices))
            assert arena.bytes <= 1.1 * arena.lower_bound_bytes, (batch, seed)


async def test_in_turns_it_is_the_same_and_others_have_theirs() -> None:
    chance = random.Random(1)
    starts = [chance.randrange(900) for _ in range(1000)]
    blocks = [
        Block(("tensor", str(i)), chance.randrange(1, 1 << 20), first, first + chance.randrange(100))
        for i, first in enumerate(starts)
    ]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(others())
    arena = await lay_out_in_turns(blocks)
    assert arena == lay_out(blocks)
    assert turns >= 7  # every 128 blocks
    laying_out = asyncio.ensure_future(lay_out_in_turns(blocks))
    await asyncio.sleep(0)
    laying_out.cancel()
    other.cancel()
    await asyncio.wait([laying_out, other])
    assert laying_out.cancelled()


def test_an_arena_that_has_to_fit_is_looked_for_longer() -> None:
    graph, _ = read_graph("vit_b16")
    for _, make in Pipeline(training=False).passes:
        graph = make(graph, GraphBuilder(graph.name))
    blocks = blocks_of(graph, {op: Choice(algorithm="a/b:c", workspace_bytes=0) for op in graph.ops})
    loose = lay_out(blocks)
    bound = loose.lower_bound_bytes
    assert bound < loose.bytes
    tight = lay_out(blocks, within_bytes=bound)
    assert tight.bytes == bound
    placed = [
        (tight.offsets[block.key], block.padded_bytes, block.first, block.last) for block in blocks if block.bytes
    ]
    assert not overlapping(placed)
    assert lay_out(blocks, within_bytes=loose.bytes) == loose
    assert lay_out(blocks, within_bytes=bound - 1) == loose  # no arena can be so small, and it is not looked for


def test_plenty_of_room_is_no_reason_to_waste_it() -> None:
    dice = random.Random(50)
    blocks = []
    for number in range(40):
        size, moments = dice.randint(1, 20_000), sorted((dice.randint(0, 20), dice.randint(0, 20)))
        blocks.append(Block(("tensor", f"b{number}"), size, *moments))
    assert lay_out(blocks, within_bytes=1 << 40) == lay_out(blocks)
