"""Hypothesis strategies for every noun of the foundation. All values are valid; small unless a test asks otherwise.

`conv_ops`, `batch_norm_ops`, `ops` · `environments`, `keys` · `algorithm_names`, `candidates`, `failures`, `trials`,
`searches`, `records` · `policies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from algosearch.ops import BatchNormOp, ConvOp, Direction, Fusion, Layout, NormStatistics, NormType, Op, Phase
from algosearch.records import (
    Algorithm,
    Candidate,
    Environment,
    Failure,
    FailureKind,
    Key,
    Policy,
    Provenance,
    Record,
    Search,
    SearchMode,
    Stage,
    Trial,
    Trials,
    packed,
)

DIRECTIONS: Final[tuple[Direction, ...]] = ("forward", "backward_data", "backward_filter")
LAYOUTS: Final[tuple[Layout, ...]] = ("channels_first", "channels_last")
NOTES: Final = (
    "nondeterministic",
    "tf32",
    "reduced_precision",
    "down_converts",
    "range_limited",
    "runtime_compiled",
    "tensor_core",
    "winograd",
    "unknown_7",
)
FAILURE_KINDS: Final[tuple[FailureKind, ...]] = (
    "not_supported",
    "build_failed",
    "wrong_result",
    "out_of_bounds",
    "out_of_memory",
    "timed_out",
    "crashed",
    "launch_failed",
)
# What a convolution may be made of: (input and filter, output, accumulate), and whether it is forward only.
CONV_TYPES: Final = (
    ("float16", "float16", "float32", False),
    ("float16", "float16", "float16", False),
    ("float16", "float32", "float32", True),
    ("bfloat16", "bfloat16", "float32", False),
    ("bfloat16", "float32", "float32", True),
    ("float32", "float32", "float32", False),
    ("float64", "float64", "float64", False),
    ("int8", "int8", "int32", True),
    ("int8", "float32", "int32", True),
)


@st.composite
def conv_axes(draw: DrawFn, *, largest: int = 9) -> tuple[int, int, int, int, int, int]:
    """Size, taps, stride, dilation, low and high padding of an axis whose window fits at least once."""
    taps = draw(st.integers(1, 4))
    dilation = draw(st.integers(1, 3))
    low, high = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    stride = draw(st.integers(1, 5))
    least = max(1, (taps - 1) * dilation + 1 - low - high)
    return draw(st.integers(least, max(least, largest))), taps, stride, dilation, low, high


@st.composite
def conv_ops(
    draw: DrawFn,
    *,
    directions: Sequence[Direction] = DIRECTIONS,
    spatial: Sequence[int] = (1, 2, 3),
    input_types: Sequence[str] = ("float16", "bfloat16", "float32", "float64", "int8"),
    layouts: Sequence[Layout] = LAYOUTS,
    largest: int = 9,
) -> ConvOp:
    """Any valid convolution of the given kinds; sizes up to `largest` (a little more where a filter needs it)."""
    axes = [draw(conv_axes(largest=largest)) for _ in range(draw(st.sampled_from(spatial)))]
    sizes, taps, stride, dilation, low, high = zip(*axes, strict=True)
    groups = draw(st.integers(1, 3))
    channels, filters = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    data, output, accumulate, forward_only = draw(
        st.sampled_from([each for each in CONV_TYPES if each[0] in input_types])
    )
    possible = [each for each in directions if each == "forward" or not forward_only]
    if not possible:  # these directions have no such type: take the one that every direction has
        data = output = accumulate = "float32"
        possible = list(directions)
    kinds: dict[str, Any] = {
        "direction": draw(st.sampled_from(possible)),
        "input_type": data,
        "filter_type": data,
        "output_type": output,
        "accumulate_type": accumulate,
    }
    return ConvOp(
        input_shape=(draw(st.integers(1, 3)), groups * channels, *sizes),
        filter_shape=(groups * filters, channels, *taps),
        stride=stride,
        dilation=dilation,
        padding_low=low,
        padding_high=high,
        groups=groups,
        input_layout=draw(st.sampled_from(layouts)),
        filter_layout=draw(st.sampled_from(layouts)),
        output_layout=draw(st.sampled_from(layouts)),
        alignment_bytes=1 << draw(st.integers(0, 12)),
        **kinds,
    )


@st.composite
def batch_norm_ops(
    draw: DrawFn,
    *,
    phases: Sequence[Phase] = ("training_forward", "inference", "backward", "training"),
    data_types: Sequence[NormType] = ("float16", "bfloat16", "float32", "float64"),
    largest: int = 6,
) -> BatchNormOp:
    """Any valid batch norm of the given kinds."""
    phase = draw(st.sampled_from(phases))
    pair = phase == "training"
    ways: tuple[NormStatistics, ...] = ("per_channel",) if pair else ("per_channel", "per_activation")
    statistics = draw(st.sampled_from(ways))
    fusions: tuple[Fusion, ...] = ("none",)
    if phase != "inference" and statistics == "per_channel":
        fusions = ("activation", "add_activation") if pair else ("none", "activation", "add_activation")
    data_type = draw(st.sampled_from(data_types))
    return BatchNormOp(
        shape=tuple(draw(st.lists(st.integers(1, largest), min_size=2, max_size=5))),
        phase=phase,
        fusion=draw(st.sampled_from(fusions)),
        statistics=statistics,
        layout=draw(st.sampled_from(LAYOUTS)),
        data_type=data_type,
        parameter_type="float64" if data_type == "float64" else "float32",
    )


def ops() -> SearchStrategy[Op]:
    """Either kind of op."""
    return st.one_of(conv_ops(), batch_norm_ops())


WORDS: Final = st.tuples(st.sampled_from("abz09"), st.text("abz09_.-", max_size=5)).map("".join)
TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=12)
"""Anything but lone surrogates, which have no bytes."""


@st.composite
def algorithms(draw: DrawFn) -> Algorithm:
    """Any algorithm."""
    knobs = draw(st.dictionaries(WORDS, st.integers(-(10**19) + 1, 10**19 - 1), max_size=4))
    return Algorithm(
        backend=draw(WORDS),
        source=draw(WORDS),
        engine=draw(WORDS),
        knobs=tuple(sorted(knobs.items())),
        math=draw(st.one_of(st.just(""), WORDS)),
    )


def algorithm_names() -> SearchStrategy[str]:
    """Canonical strings of algorithms."""
    return algorithms().map(str)


@st.composite
def environments(draw: DrawFn) -> Environment:
    """Any environment from which records may be stored."""
    facts = draw(st.dictionaries(TEXT, TEXT, max_size=3))
    return Environment(backend=draw(WORDS), device=draw(TEXT), facts=tuple(facts.items()))


@st.composite
def keys(draw: DrawFn) -> Key:
    """The key of any op in any environment."""
    return Key.of(draw(ops()), draw(environments()))


def note_sets(notes: Sequence[str] = NOTES) -> SearchStrategy[tuple[str, ...]]:
    """Sorted notes, each at most once."""
    return st.sets(st.sampled_from(notes), max_size=3).map(lambda chosen: tuple(sorted(chosen)))


WORKSPACES: Final = st.one_of(
    st.sampled_from((0, 1, 512, 2**31 - 1, 2**31, 4096 << 20, 2**33)),
    st.integers(0, 2**40),
)
TIMES_US: Final = st.floats(0.5, 1e6)


@st.composite
def candidates(draw: DrawFn, *, max_size: int = 6) -> tuple[Candidate, ...]:
    """A library's list, ranks counting up from 0."""
    names = draw(st.lists(algorithm_names(), max_size=max_size, unique=True))
    return tuple(
        Candidate(algorithm=name, rank=rank, workspace_bytes=draw(WORKSPACES), notes=draw(note_sets()))
        for rank, name in enumerate(names)
    )


@st.composite
def failures(draw: DrawFn, *, kinds: Sequence[FailureKind] = FAILURE_KINDS) -> Failure:
    """Any failure; trouble carries its circumstances."""
    failure = Failure(draw(st.sampled_from(kinds)), draw(TEXT))
    if failure.is_fact:
        return failure
    return Failure(failure.kind, failure.message, (("free_bytes", str(draw(st.integers(0, 2**40)))),))


@st.composite
def trials(draw: DrawFn, algorithm: str, rank: int) -> Trial:
    """What became of one candidate: never run, failed at some stage, or timed."""
    stage = draw(st.sampled_from(cast("tuple[Stage, ...]", ("listed", "screened", "coarse", "final"))))
    failure = draw(st.one_of(st.none(), st.none(), failures()))
    timed = stage != "listed" and (failure is None or draw(st.booleans()))
    samples = tuple(draw(st.lists(TIMES_US, min_size=1, max_size=4))) if timed else ()
    return Trial(
        algorithm=algorithm,
        rank=rank,
        workspace_bytes=draw(WORKSPACES),
        notes=draw(note_sets()),
        stage=stage,
        time_us=min(samples) if timed else None,
        error_us=draw(st.floats(0.0, 10.0)) if timed else None,
        samples=packed(samples),
        build_us=draw(st.one_of(st.none(), st.floats(0.0, 1e6))) if timed else None,
        timing=draw(st.sampled_from(("gated,warm", "wall,rotating", "virtual"))) if timed else "",
        failure=failure,
        reserve_bytes=draw(st.sampled_from((0, 0, 0, 1, 2**40))),
    )


@st.composite
def searches(draw: DrawFn, *, max_size: int = 6) -> Search:
    """One search of up to `max_size` candidates, its trials in any order."""
    names = draw(st.lists(algorithm_names(), max_size=max_size, unique=True))
    found = [draw(trials(name, rank)) for rank, name in enumerate(names)]
    return Search(
        mode=draw(st.sampled_from(cast("tuple[SearchMode, ...]", ("race", "exhaustive")))),
        complete=draw(st.booleans()),
        trials=Trials.of(draw(st.permutations(found))),
        provenance=Provenance(
            version=draw(TEXT),
            found_at_s=draw(st.integers(0, 2**33)),
            seconds=draw(st.floats(0.0, 1e6)),
            alone=draw(st.booleans()),
        ),
    )


@st.composite
def records(draw: DrawFn, *, max_size: int = 6, max_searches: int = 2) -> Record:
    """Any record that could be stored."""
    return Record(
        key=draw(keys()),
        searches=tuple(draw(st.lists(searches(max_size=max_size), min_size=1, max_size=max_searches))),
        generation=draw(st.integers(0, 3)),
    )


@st.composite
def policies(draw: DrawFn) -> Policy:
    """Any policy. Half of the patterns could match a generated algorithm."""
    patterns = st.lists(st.one_of(st.sampled_from(("*", "a*", "*/*:*#*", "[0-9]*", "?/*")), TEXT), max_size=2)
    return Policy(
        workspace_limit_bytes=draw(st.one_of(st.none(), WORKSPACES)),
        deterministic=draw(st.booleans()),
        allow_tf32=draw(st.booleans()),
        allow_reduced_precision=draw(st.booleans()),
        allow_down_conversion=draw(st.booleans()),
        allow_range_limited=draw(st.booleans()),
        allow_runtime_compiled=draw(st.booleans()),
        exclude=tuple(draw(patterns)),
        prefer=tuple(draw(patterns)),
    )
