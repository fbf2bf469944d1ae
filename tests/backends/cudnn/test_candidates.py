"""Listings: which candidates, in which order, under which names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from algosearch.backends.cudnn.candidates import algorithm_of, engine_of, listing
from algosearch.backends.cudnn.convolution import ConvolutionGraph
from algosearch.backends.cudnn.enums import BehaviorNote, HeuristicMode, NumericalNote
from algosearch.backends.cudnn.handle import Handle
from algosearch.ops import ConvOp
from algosearch.records import InvalidAlgorithm
from tests.backends.cudnn.fake import FakeCudnn

PLAIN = ConvOp(input_shape=(2, 32, 40, 40), filter_shape=(32, 32, 3, 3))
STEM = ConvOp(input_shape=(2, 3, 40, 40), filter_shape=(32, 3, 7, 7))
OTHER = ConvOp(input_shape=(1, 8, 8, 8), filter_shape=(8, 1, 3, 3), groups=8)
VOLUME = ConvOp(input_shape=(1, 32, 18, 18, 18), filter_shape=(32, 32, 3, 3, 3))
DEPTHWISE = ConvOp(input_shape=(4, 8, 34, 34), filter_shape=(8, 1, 3, 3), groups=8)
FEW_CHANNELS = ConvOp(input_shape=(4, 8, 34, 34), filter_shape=(8, 8, 3, 3))
LARGE_STEM = ConvOp(input_shape=(64, 3, 118, 118), filter_shape=(32, 3, 7, 7))
LARGE = ConvOp(input_shape=(64, 24, 114, 114), filter_shape=(24, 24, 3, 3))
LARGE_DEPTHWISE = ConvOp(input_shape=(64, 64, 86, 86), filter_shape=(64, 1, 31, 31), groups=64)
LARGE_VOLUME = ConvOp(input_shape=(64, 32, 18, 58, 58), filter_shape=(32, 32, 3, 3, 3))
INT8 = ConvOp(
    input_shape=(1, 8, 8, 8),
    filter_shape=(8, 8, 3, 3),
    input_type="int8",
    filter_type="int8",
    output_type="int8",
    accumulate_type="int32",
)
Graphs = Callable[[ConvOp], ConvolutionGraph]


@pytest.fixture
def graph_of(fake: FakeCudnn) -> Iterator[Graphs]:
    handle, made = Handle(fake.library), list[ConvolutionGraph]()

    def make(op: ConvOp) -> ConvolutionGraph:
        made.append(ConvolutionGraph(handle, op))
        return made[-1]

    yield make
    for graph in made:
        graph.destroy()
    handle.destroy()


@pytest.fixture
def many(fake: FakeCudnn) -> FakeCudnn:
    """15 in INSTANT, two of its and three others in FALLBACK, all of these and four others in B."""
    fake.forget_engines()
    for engine in range(22):
        fake.engine(engine)
    for mode, engines in (
        (HeuristicMode.INSTANT, range(15)),
        (HeuristicMode.FALLBACK, range(13, 18)),
        (HeuristicMode.B, range(21, -1, -1)),
    ):
        for engine in engines:
            fake.config(engine, mode=mode, workspace_bytes=engine)
    return fake


ALL = [*range(18), 21, 20, 19, 18]


@pytest.mark.parametrize(
    ("op", "width", "engines", "complete"),
    [
        (PLAIN, 1, ALL[:4], False),
        (PLAIN, 10, ALL[:10], False),
        (PLAIN, 12, ALL[:12], False),
        (PLAIN, 15, ALL[:15], False),
        (PLAIN, 16, ALL[:18], False),
        (PLAIN, 19, ALL, True),
        (PLAIN, None, ALL, True),
        (STEM, 1, ALL[:15], False),
        (STEM, 16, ALL[:18], False),
        (STEM, None, ALL, True),
        (VOLUME, 1, ALL[:15], False),
        (VOLUME, 16, ALL[:18], False),
        (VOLUME, None, ALL, True),
        (OTHER, 1, ALL, True),
        (OTHER, None, ALL, True),
    ],
)
def test_how_many(
    many: FakeCudnn, graph_of: Graphs, op: ConvOp, width: int | None, engines: list[int], complete: bool
) -> None:
    found = listing(graph_of(op), op, width)
    assert [engine_of(candidate.algorithm)[0] for candidate in found.candidates] == engines
    assert [candidate.rank for candidate in found.candidates] == list(range(len(engines)))
    assert [candidate.workspace_bytes for candidate in found.candidates] == engines
    assert found.complete == complete
    assert found.look_at == {PLAIN: 4, VOLUME: 12, STEM: 12, OTHER: len(ALL)}[op]
    assert found.look_up_to == (len(ALL) if complete else None)


def test_a_plain_op_asks_for_no_more_than_it_needs(many: FakeCudnn, graph_of: Graphs) -> None:
    graph = graph_of(PLAIN)
    many.journal()
    listing(graph, PLAIN, 1)
    told = many.journal()
    before = many.live()
    listing(graph, PLAIN, 1)
    assert many.live() - before == 2 * 4  # each with its engine
    assert [line for line in told if line.startswith("set 4 200")] == ["set 4 200 8 1: 0"]


def test_what_fails_to_list_anything_lists_nothing(fake: FakeCudnn, graph_of: Graphs) -> None:
    fake.forget_engines()
    for width in (1, None):
        found = listing(graph_of(PLAIN), PLAIN, width)
        assert (found.candidates, found.complete) == ((), True)


def test_engines_that_want_another_order_of_the_filter_are_left_out(fake: FakeCudnn, graph_of: Graphs) -> None:
    fake.forget_engines()
    fake.engine(1, behavior=[BehaviorNote.REQUIRES_FILTER_INT8X32_REORDER])
    fake.engine(2, behavior=[BehaviorNote.REQUIRES_BIAS_INT8X32_REORDER])
    fake.engine(3)
    for engine in (1, 2, 3):
        fake.config(engine)
    found = listing(graph_of(INT8), INT8, 1)
    assert [candidate.algorithm for candidate in found.candidates] == ["cudnn/graph:3"]


@pytest.mark.parametrize(
    ("engine", "knobs", "name"),
    [
        (63, (), "cudnn/graph:63"),
        (1, ((2, 4), (13, 0), (27, -8)), "cudnn/graph:1?13=0&2=4&27=-8"),
        (0, ((0, 0),), "cudnn/graph:0?0=0"),
    ],
)
def test_names_go_there_and_back(engine: int, knobs: tuple[tuple[int, int], ...], name: str) -> None:
    assert str(algorithm_of(engine, knobs)) == name
    assert engine_of(name) == (engine, knobs)


@pytest.mark.parametrize(
    "name",
    [
        "cudnn/graph:im2col",
        "cudnn/graph:063",
        "cudnn/graph:9999999999",
        "cudnn/graph:1?tile=1",
        "cudnn/graph:1?02=1",
        "cudnn/legacy:1",
        "cudnn/graph:1#tensor_op",
        "cpu/graph:1",
        "nonsense",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidAlgorithm):
        engine_of(name)


@pytest.fixture
def mixed(fake: FakeCudnn) -> FakeCudnn:
    """12 in INSTANT, of which 0, 3 and 10 are compiled at run time, 1 and 8 have no tensor cores; 12 in FALLBACK and 13
    in B are compiled, too."""
    fake.forget_engines()
    for engine in range(14):
        fake.engine(
            engine,
            numerical=[] if engine in (1, 8) else [NumericalNote.TENSOR_CORE],
            behavior=[BehaviorNote.RUNTIME_COMPILATION] if engine in (0, 3, 10, 12, 13) else [],
        )
        modes = {12: HeuristicMode.FALLBACK, 13: HeuristicMode.B}
        fake.config(engine, mode=modes.get(engine, HeuristicMode.INSTANT))
    return fake


def test_what_cannot_win_in_a_stem_is_listed_last(mixed: FakeCudnn, graph_of: Graphs) -> None:
    """Behind six others what has no tensor cores; and what is compiled, even if the library names it first."""
    few = [engine_of(each.algorithm)[0] for each in listing(graph_of(STEM), STEM, 1).candidates]
    everything = [engine_of(each.algorithm)[0] for each in listing(graph_of(STEM), STEM, None).candidates]
    assert few == [1, 2, 4, 5, 6, 7, 9, 11]
    assert everything == [*few, 8, 0, 3, 10, 12, 13]


@pytest.mark.parametrize("op", [VOLUME, STEM], ids=lambda op: op.describe())
def test_where_there_are_few_others_what_can_wait_is_not_looked_at_instead(
    mixed: FakeCudnn, graph_of: Graphs, op: ConvOp
) -> None:
    """Neither at first nor later, however many are to be looked at of such an op; for a policy that lacks something."""
    few, everything = (listing(graph_of(op), op, width) for width in (1, None))
    assert (few.complete, few.look_up_to) == (False, None)
    kept = {STEM: 8, VOLUME: 11}[op]
    assert everything.complete
    assert (everything.look_at, everything.look_up_to) == (kept, kept)


def test_where_everything_can_wait_there_is_a_list_all_the_same(fake: FakeCudnn, graph_of: Graphs) -> None:
    fake.forget_engines()
    for engine in range(6):
        fake.engine(engine, numerical=[NumericalNote.TENSOR_CORE])
        fake.config(engine)
    found = listing(graph_of(DEPTHWISE), DEPTHWISE, 1)
    assert [engine_of(each.algorithm)[0] for each in found.candidates] == [*range(6)]
    assert (found.complete, found.look_at, found.look_up_to) == (True, 1, 0)


def test_of_a_plain_op_that_instant_lists_twice_no_more_is_forgotten(fake: FakeCudnn, graph_of: Graphs) -> None:
    """A wider list would not begin with a narrower one that goes on with FALLBACK too soon."""
    fake.forget_engines()
    for engine in range(8):
        fake.engine(engine)
    for engine in (0, 0, 1, 2, 3, 4, 5):
        fake.config(engine)
    for engine in (6, 7):
        fake.config(engine, mode=HeuristicMode.FALLBACK)
    for width in (1, 4, 5, 6, 7, 8, None):
        found = listing(graph_of(PLAIN), PLAIN, width)
        assert [engine_of(each.algorithm)[0] for each in found.candidates] == [*range(len(found.candidates))]
        assert len(found.candidates) >= (width or 8)


def test_a_plain_op_has_all_of_a_mode_that_begins_with_what_is_known(fake: FakeCudnn, graph_of: Graphs) -> None:
    """Of B the first few are INSTANT's: that no others are among those is not all of it."""
    fake.forget_engines()
    for engine in range(20):
        fake.engine(engine)
        fake.config(engine, mode=HeuristicMode.B)
    for engine in range(8):
        fake.config(engine)
    found = listing(graph_of(PLAIN), PLAIN, 9)
    assert (len(found.candidates), found.complete) == (20, True)


@pytest.mark.parametrize("op", [PLAIN, VOLUME, STEM, DEPTHWISE, OTHER], ids=lambda op: op.describe())
def test_a_list_has_what_was_asked_for_or_is_complete(mixed: FakeCudnn, graph_of: Graphs, op: ConvOp) -> None:
    """Of a list that names no more although it is asked for, a race believes that there is no more."""
    everything = listing(graph_of(op), op, None).candidates
    for width in range(1, len(everything) + 2):
        found = listing(graph_of(op), op, width)
        assert len(found.candidates) >= width or found.complete
        assert len(found.candidates) == len(everything) or not found.complete
        assert found.candidates == everything[: len(found.candidates)]


def test_of_other_ops_everything_is_looked_at_but_what_is_compiled_and_listed_late(
    mixed: FakeCudnn, graph_of: Graphs
) -> None:
    found = listing(graph_of(OTHER), OTHER, 1)
    assert [engine_of(each.algorithm)[0] for each in found.candidates] == [*range(10), 11, 12, 10, 13]
    assert (found.complete, found.look_at) == (True, 12)


def test_late_is_behind_eight_others(fake: FakeCudnn, graph_of: Graphs) -> None:
    fake.forget_engines()
    for engine in range(11):
        fake.engine(engine, behavior=[BehaviorNote.RUNTIME_COMPILATION] if engine in (7, 8, 9) else [])
        fake.config(engine)
    found = listing(graph_of(OTHER), OTHER, 1)
    assert [engine_of(each.algorithm)[0] for each in found.candidates] == [*range(8), 10, 8, 9]


def test_of_a_depthwise_one_only_what_suits_it_is_looked_at(fake: FakeCudnn, graph_of: Graphs) -> None:
    """What uses tensor cores, what FALLBACK names, and behind six others what is compiled, comes last."""
    fake.forget_engines()
    for engine in range(12):
        fake.engine(
            engine,
            numerical=[NumericalNote.TENSOR_CORE] if engine in (1, 11) else [],
            behavior=[BehaviorNote.RUNTIME_COMPILATION] if engine in (0, 7, 8) else [],
        )
        mode = HeuristicMode.FALLBACK if engine == 9 else HeuristicMode.B if engine > 9 else HeuristicMode.INSTANT
        fake.config(engine, mode=mode)
    found = listing(graph_of(DEPTHWISE), DEPTHWISE, 1)
    kept = [0, 2, 3, 4, 5, 6, 10]
    assert [engine_of(each.algorithm)[0] for each in found.candidates] == [*kept, 1, 9, 11, 7, 8]
    assert (found.complete, found.look_at, found.look_up_to) == (True, len(kept), len(kept))


@pytest.mark.parametrize(
    ("op", "last"),
    [
        (OTHER, []),
        (FEW_CHANNELS, [2]),
        (LARGE, [2, 0]),
        (LARGE_VOLUME, [2, 0]),
        (LARGE_DEPTHWISE, []),
        (LARGE_STEM, [2, 0]),
        (replace(FEW_CHANNELS, padding_high=(1, 0)), [2]),
        (replace(FEW_CHANNELS, padding_high=(1, 0), direction="backward_filter"), [2, 1]),
        (replace(FEW_CHANNELS, padding_low=(1, 0), padding_high=(1, 0), direction="backward_filter"), [2]),
        (replace(LARGE, padding_high=(1, 0), direction="backward_filter"), [2, 0, 1]),
    ],
    ids=[
        "few points",
        "filling",
        "large",
        "large, of three dimensions",
        "large, depthwise",
        "large, of three channels",
        "unequal",
        "unequal, filter gradient",
        "equal, filter gradient",
        "unequal, filter gradient, large",
    ],
)
def test_what_is_hopeless_or_reads_beyond_comes_last(
    fake: FakeCudnn, graph_of: Graphs, op: ConvOp, last: list[int]
) -> None:
    """Of a dense op with points enough what FALLBACK has, compiled at run time; engine 0 where there is much to
    compute; and behind all others engine 1 of a filter gradient with unequal padding."""
    fake.forget_engines()
    for engine in range(4):
        fake.engine(engine, behavior=[BehaviorNote.RUNTIME_COMPILATION] if engine == 2 else [])
        fake.config(engine, mode=HeuristicMode.FALLBACK if engine == 2 else HeuristicMode.INSTANT)
    found = listing(graph_of(op), op, 1)
    first = [engine for engine in (0, 1, 3, 2) if engine not in last]
    assert [engine_of(each.algorithm)[0] for each in found.candidates] == [*first, *last]
    assert (found.complete, found.look_at, found.look_up_to) == (True, len(first), len(first))


def test_its_times_are_steady(many: FakeCudnn, graph_of: Graphs) -> None:
    assert listing(graph_of(PLAIN), PLAIN, 1).steady
