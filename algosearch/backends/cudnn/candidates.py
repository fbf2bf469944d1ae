"""The candidates of a graph, in the library's order, and the names under which they are remembered."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Final

from algosearch.backends.cudnn import notes
from algosearch.backends.cudnn.graph import EngineConfig, Knobs, Mode, OperationGraph
from algosearch.backends.cudnn.legacy_norm import MODES, LegacyNorm
from algosearch.backends.cudnn.legacy_norm import Mode as LegacyMode
from algosearch.backends.cudnn.norm_graph import NormGraph
from algosearch.ops import ConvOp
from algosearch.records import Algorithm, Candidate, InvalidAlgorithm, Listing

BACKEND: Final = "cudnn"
GRAPH: Final = "graph"
LEGACY: Final = "legacy"

_PLAIN_WIDTH: Final = 4
"""The best of these is within 0.6 % of the best of all, in sum over ResNet-50 in float16 (6 of them: 0.35 %), and 0.02 %
in float32; MobileNet's within 0.06 %. A race looks at more where the second half of them is worth it."""
_STEM_WIDTH: Final = 12
"""The same of stems, whose best stands at place 7 in the worst case seen."""
_FEW: Final = 6
"""FALLBACK is asked where INSTANT has fewer, of plain ops and stems. Of ResNet-50's first convolution its engines, and
others that use no tensor cores, are 4 to 340 times slower than the best: one run of each is a tenth of a second."""
_LATE: Final = 8
"""Of other ops an engine that INSTANT or B lists behind so many and that is compiled at run time, a third of a second
for each choice of its knobs, was 3 to 15 times slower than the best in each of 92 cases."""
_USUAL_CHANNELS: Final = 32
_USUAL_TAPS: Final = 3
_STEM_TAPS: Final = 7
_USUAL_SIDE: Final = 512
_USUAL_POINTS: Final = 2048
"""Of the output, in all images: with fewer, engines that split the sum between blocks win, which INSTANT lists late or
not at all: by up to half."""
_ORDER: Final[tuple[Mode, ...]] = ("instant", "fallback", "b")
"""INSTANT lists what A does, at a third of the cost: the same list in each of 68 ops of ResNet-50 (9.19, 9.28) and 57
others of all kinds (9.28), so that A is not asked. FALLBACK's engines are slow but go everywhere. B adds up to twenty
knob choices for engines that INSTANT has named."""

_NORM_GRAPHS: Final = 2
"""Of the graph API's batch norm, for tensors in channels-last order: they differ by a tenth among themselves."""


def listing(graph: OperationGraph, op: ConvOp, width: int | None) -> Listing:
    """The candidates of a convolution: at least `width`, all if None. A wider list begins with the narrower.

    Raises:
        CudnnError: the heuristics cannot be asked.
    """
    plain, stem = is_plain(op), is_stem(op)
    usual = plain or stem
    enough = max(width or 0, _PLAIN_WIDTH if plain else _FEW)
    configs: dict[tuple[int, Knobs], EngineConfig] = {}
    held: list[EngineConfig] = []  # these come last
    complete = True
    for mode in _ORDER:
        if usual and width is not None and len(configs) + len(held) >= enough:
            complete = False
            break
        for config in graph.heuristics(mode, enough if plain and width is not None else None):
            if not notes.UNUSABLE.isdisjoint(config.notes):
                continue
            waits = _waits_in_a_stem if stem else _waits
            if not plain and waits(config, len(configs), mode):
                held.append(config)
            else:
                configs.setdefault((config.engine, config.knobs), config)
    first = len(configs)
    for config in held if complete else ():
        configs.setdefault((config.engine, config.knobs), config)

    return Listing(
        candidates=tuple(
            Candidate(
                algorithm=_name_of(config.engine, config.knobs),
                rank=rank,
                workspace_bytes=config.workspace_bytes,
                notes=config.notes,
            )
            for rank, config in enumerate(configs.values())
        ),
        complete=complete,
        look_at=_PLAIN_WIDTH if plain else _STEM_WIDTH if stem else max(1, first),
        steady=True,
    )


def norm_listing(
    legacy: LegacyNorm, graph: NormGraph | None, width: int | None, *, other: LegacyNorm | None = None
) -> Listing:
    """The candidates of a batch norm: the legacy API's modes, then engines of the graph API. Those are compiled when
    they are built, up to a second each, and differ little: so only few, where they can win, unless all are asked for.

    Args:
        legacy: the op, as the legacy API knows it.
        graph: the same as a graph, if there is such a one.
        width: as in `listing`.
        other: of a fused op the other pass of training. The backward pass reads what the forward pass of the same mode
            wrote, so that only modes are listed which do both.

    Raises:
        CudnnError: the library cannot be asked.
    """
    modes = legacy.candidates()
    if other is not None:
        both = {each.mode for each in other.candidates()}
        modes = [each for each in modes if each.mode in both]
    few = _NORM_GRAPHS if legacy.op.layout == "channels_last" else 0
    configs = [] if graph is None else graph.heuristics("a")
    count = len(configs) if width is None else max(few, width - len(modes))
    complete = count >= len(configs)
    described = [
        *((str(legacy_algorithm(each.mode)), each.workspace_bytes, each.notes, each.reserve_bytes) for each in modes),
        *((_name_of(each.engine, each.knobs), each.workspace_bytes, each.notes, 0) for each in configs[:count]),
    ]
    return Listing(
        candidates=tuple(
            Candidate(
                algorithm=name, rank=rank, workspace_bytes=workspace_bytes, notes=words, reserve_bytes=reserve_bytes
            )
            for rank, (name, workspace_bytes, words, reserve_bytes) in enumerate(described)
        ),
        complete=complete,
        look_at=None if complete else max(1, len(modes) + few),
        steady=True,
    )


def is_plain(op: ConvOp) -> bool:
    """Whether the library's order can be trusted to have a good one among the first: what networks are mostly made of,
    and what its heuristics were made for. Of all others everything that it has is looked at: its first six were up to
    60 % slower there than the best, which mode B or FALLBACK listed."""
    return (
        _is_usual(op)
        and max(op.filter_shape[2:]) <= _USUAL_TAPS
        and all(channels >= _USUAL_CHANNELS and channels % 8 == 0 for channels in op.filter_shape[:2])
    )


def is_stem(op: ConvOp) -> bool:
    """Whether it is like the first convolution of most networks for images of three colours: then mode INSTANT has a
    good one somewhere, and what FALLBACK has and what is compiled at run time is not."""
    filters, channels, *taps = op.filter_shape
    return _is_usual(op) and max(taps) <= _STEM_TAPS and channels == 3 and filters >= _USUAL_CHANNELS


def _is_usual(op: ConvOp) -> bool:
    images, points = op.output_shape[0], op.output_shape[2:]
    return (
        op.spatial_dimensions == 2
        and op.input_type != "int8"
        and op.groups == 1
        and set(op.dilation) == {1}
        and op.padding_low == op.padding_high
        and len(set(op.filter_shape[2:])) == 1
        and images * prod(points) >= _USUAL_POINTS
        and max(points) <= _USUAL_SIDE
    )


def _waits_in_a_stem(config: EngineConfig, before: int, mode: Mode) -> bool:
    """Whether to list this one of a stem last, if so many come before it: it takes up to a second to be compiled, or an
    eternity to run."""
    return (before > 0 and "runtime_compiled" in config.notes) or (before >= _FEW and "tensor_core" not in config.notes)


def _waits(config: EngineConfig, before: int, mode: Mode) -> bool:
    """The same of what is neither plain nor a stem. What FALLBACK has of that kind wins in small and dilated ones."""
    return before >= _LATE and mode != "fallback" and "runtime_compiled" in config.notes


def algorithm_of(engine: int, knobs: Knobs) -> Algorithm:
    """The name of an engine configuration: the numbers are the library's own."""
    return Algorithm(
        backend=BACKEND,
        source=GRAPH,
        engine=str(engine),
        knobs=tuple(sorted((str(kind), value) for kind, value in knobs)),
    )


@lru_cache(maxsize=4096)  # the ops of one network share most of their engine configurations
def _name_of(engine: int, knobs: Knobs) -> str:
    return str(algorithm_of(engine, knobs))


def engine_of(algorithm: str) -> tuple[int, Knobs]:
    """The engine and knobs that a name of `algorithm_of` stands for.

    Raises:
        InvalidAlgorithm: it is no such name.
    """
    parsed = Algorithm.parse(algorithm)
    numbers = (parsed.engine, *(name for name, _ in parsed.knobs))
    if (parsed.backend, parsed.source, parsed.math) != (BACKEND, GRAPH, "") or not all(map(_is_number, numbers)):
        raise InvalidAlgorithm("name", algorithm, f"must look like {BACKEND}/{GRAPH}:63?2=1")
    return int(parsed.engine), tuple(sorted((int(name), value) for name, value in parsed.knobs))


def legacy_algorithm(mode: LegacyMode) -> Algorithm:
    """The name of a mode of the legacy batch norm."""
    return Algorithm(backend=BACKEND, source=LEGACY, engine=mode)


def legacy_mode_of(algorithm: str) -> LegacyMode | None:
    """The mode that a name of `legacy_algorithm` stands for; None if it is another algorithm's.

    Raises:
        InvalidAlgorithm: it is no algorithm's name at all.
    """
    parsed = Algorithm.parse(algorithm)
    return next((mode for mode in MODES if legacy_algorithm(mode) == parsed), None)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 10 and str(int(word)) == word
