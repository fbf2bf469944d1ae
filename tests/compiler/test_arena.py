"""The arena: nothing that lives at once overlaps, and it comes near to the bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from algosearch.compiler.arena import ALIGNMENT_BYTES, Block, BlockKey, lay_out, lower_bound_bytes
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
