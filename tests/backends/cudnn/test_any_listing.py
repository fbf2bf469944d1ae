"""What is true of the listing of any convolution, whatever a library lists for it."""

from __future__ import annotations

from typing import Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from algosearch.backends.cudnn.candidates import engine_of, listing
from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.enums import BehaviorNote, HeuristicMode, NumericalNote
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.kinds import Kind, kind_of
from algosearch.ops import ConvOp
from algosearch.records import Candidate, Listing
from tests.backends.cudnn.fake import FakeCudnn

OPS: Final[list[tuple[Kind, ConvOp]]] = [
    ("plain", ConvOp(input_shape=(2, 32, 40, 40), filter_shape=(32, 32, 3, 3))),
    ("volume", ConvOp(input_shape=(1, 32, 18, 18, 18), filter_shape=(32, 32, 3, 3, 3))),
    ("volume", ConvOp(input_shape=(64, 32, 18, 58, 58), filter_shape=(32, 32, 3, 3, 3))),
    ("stem", ConvOp(input_shape=(2, 3, 40, 40), filter_shape=(32, 3, 7, 7))),
    ("depthwise", ConvOp(input_shape=(4, 8, 34, 34), filter_shape=(8, 1, 3, 3), groups=8)),
    ("other", ConvOp(input_shape=(1, 8, 8, 8), filter_shape=(8, 8, 3, 3))),
    ("other", ConvOp(input_shape=(64, 24, 114, 114), filter_shape=(24, 24, 3, 3))),
    (
        "other",
        ConvOp(input_shape=(4, 8, 34, 34), filter_shape=(8, 8, 3, 3), padding_high=(1, 0), direction="backward_filter"),
    ),
]
MODES: Final = (HeuristicMode.INSTANT, HeuristicMode.FALLBACK, HeuristicMode.B)
ENGINES: Final = 28
WIDTHS: Final = (1, 4, 5, 9, 10, 12, 13, 20, 40)

Notes = tuple[bool, bool, bool]
"""Whether an engine uses tensor cores, is compiled at run time, and is unusable."""
PLAIN_ENGINE: Final[Notes] = (False, False, False)
usual = st.tuples(st.booleans(), st.booleans(), st.sampled_from([False] * 5 + [True]))
lists = st.lists(st.integers(0, ENGINES - 1), max_size=30)


def told(fake: FakeCudnn, notes: list[Notes], modes: tuple[list[int], ...]) -> None:
    fake.reset()
    fake.forget_engines()
    for engine, (tensor_core, compiled, unusable) in enumerate(notes):
        behavior = [BehaviorNote.RUNTIME_COMPILATION] * compiled
        behavior += [BehaviorNote.REQUIRES_FILTER_INT8X32_REORDER] * unusable
        fake.engine(engine, numerical=[NumericalNote.TENSOR_CORE] * tensor_core, behavior=behavior)
    for mode, engines in zip(MODES, modes, strict=True):
        for engine in engines:
            fake.config(engine, mode=mode)


def require(found: Listing, everything: Listing, width: int) -> None:
    names = [each.algorithm for each in found.candidates]
    assert names == [each.algorithm for each in everything.candidates][: len(names)]
    assert len(set(names)) == len(names)
    assert not found.complete or len(names) == len(everything.candidates)
    assert found.complete or len(names) >= width
    assert found.look_up_to == (everything.look_up_to if found.complete else None)
    assert found.look_at is not None
    assert everything.look_up_to is not None
    assert 1 <= found.look_at <= max(1, everything.look_up_to)
    if not found.complete:  # then it ends before all that can wait
        assert len(names) <= everything.look_up_to


@settings(max_examples=60)
@given(
    kind_and_op=st.sampled_from(OPS),
    notes=st.lists(usual, min_size=ENGINES, max_size=ENGINES),
    modes=st.tuples(lists, lists, lists),
    padded=st.sampled_from([0, 3]),
)
@example(kind_and_op=OPS[0], notes=[PLAIN_ENGINE] * ENGINES, modes=([0, 0, 1, 2, 3, 4, 5], [6, 7], []), padded=0)
@example(kind_and_op=OPS[0], notes=[PLAIN_ENGINE] * ENGINES, modes=([*range(8)], [], [*range(20)]), padded=0)
@example(kind_and_op=OPS[4], notes=[(True, True, False)] * ENGINES, modes=([*range(8)], [], []), padded=3)
def test_a_wider_list_begins_with_a_narrower_one_and_what_can_wait_comes_last(
    fake_session: FakeCudnn,
    kind_and_op: tuple[Kind, ConvOp],
    notes: list[Notes],
    modes: tuple[list[int], ...],
    padded: int,
) -> None:
    kind, op = kind_and_op
    assert kind_of(op) == kind
    told(fake_session, notes, modes)
    # No plain op has channels that could be filled up.
    also = [
        Candidate(algorithm=f"cudnn/graph:{ENGINES + number}", rank=number, workspace_bytes=0, notes=())
        for number in range(0 if kind == "plain" else padded)
    ]
    handle = Handle(fake_session.library)
    graph = ConvolutionGraph(handle, op)
    try:
        everything = listing(graph, op, None, padded=also)
        for width in WIDTHS:
            require(listing(graph, op, width, padded=also), everything, width)
        usable = {engine for engines in modes for engine in engines if not notes[engine][2]}
        engines = [engine_of(each.algorithm)[0] for each in everything.candidates]
        assert set(engines) == usable | {engine_of(each.algorithm)[0] for each in also}
        behind = engines[everything.look_up_to :]
        assert set(behind) <= usable
        assert kind != "plain" or not behind
        assert kind in ("stem", "depthwise") or all(engine in (0, 1) or notes[engine][1] for engine in behind)
    finally:
        graph.destroy()
        handle.destroy()
        fake_session.reset()
