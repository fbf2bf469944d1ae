"""The candidates of a graph, in the library's order, and the names under which they are remembered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from msgspec.structs import replace

from algosearch.backends.cudnn import notes
from algosearch.backends.cudnn.graph import EngineConfig, Knobs, Mode, OperationGraph
from algosearch.backends.cudnn.kinds import Kind, fills_the_device, kind_of
from algosearch.backends.cudnn.legacy_norm import MODES, LegacyNorm
from algosearch.backends.cudnn.legacy_norm import Mode as LegacyMode
from algosearch.backends.cudnn.norm_graph import NormGraph
from algosearch.backends.cudnn.padding import Padding
from algosearch.ops import ConvOp
from algosearch.records import Algorithm, Candidate, InvalidAlgorithm, Listing
from algosearch.records.trial import RUNTIME_COMPILED

BACKEND: Final = "cudnn"
GRAPH: Final = "graph"
LEGACY: Final = "legacy"

_PLAIN_WIDTH: Final = 4
"""The best of these is within 0.6 % of the best of all, in sum over ResNet-50 in float16 (of six: 0.35 %), and 0.02 %
in float32; MobileNet's within 0.06 %. A race looks at more where the second half of them is worth it."""
_STEM_WIDTH: Final = 12
"""The same of stems, whose best stands at place 7 in the worst case seen."""
_VOLUME_WIDTH: Final = 12
"""The same of volumes: R3D-18's best within 0.01 % in sum, 5 % in the worst case; that of four is 8 % and 31 %."""
_WIDTHS: Final[dict[Kind, int]] = {"plain": _PLAIN_WIDTH, "volume": _VOLUME_WIDTH, "stem": _STEM_WIDTH}
"""So many are looked at first, and more where that pays; of other kinds everything. In either case only what cannot
wait (`_can_wait`), unless a policy lacks something."""
_FEW: Final = 6
"""FALLBACK is asked where INSTANT has fewer, or fewer than are asked for, of kinds that have a width. Of ResNet-50's
first convolution its engines, and others that use no tensor cores, are 4 to 340 times slower than the best: one run of
each is a tenth of a second."""
_LATE: Final = 8
"""Of other ops an engine that INSTANT or B lists behind so many and that is compiled at run time, a third of a second
for each choice of its knobs, was 3 to 15 times slower than the best in each case."""
_SIMPLE: Final = 0
"""The engine that computes the definition, and goes everywhere. It wins where there is hardly anything to compute, and
where each group has a channel to itself, in float32."""
_SIMPLE_FLOPS: Final = 1 << 31
"""Beyond, with more channels, it is hopeless: 0.04 to 0.8 million million multiply-adds a second were seen, so that it
takes milliseconds, and 10 s for one of R3D-18's."""
_READS_BEYOND: Final = 1
"""Of the filter gradient with unequal padding this engine reads where nothing is: of ten of Wavenet's, three ended with
an illegal access, which takes the process with it. Where it did not, it was 27 times slower than the best."""
_ORDER: Final[tuple[Mode, ...]] = ("instant", "fallback", "b")
"""INSTANT lists what A does, at a third of the cost: the same list in each of 68 ops of ResNet-50 (9.19, 9.28) and 57
others of all kinds (9.28), so that A is not asked. FALLBACK's engines are slow but go everywhere. B adds up to twenty
knob choices for engines that INSTANT has named."""

_PADDED: Final = 6
"""Of an op that is padded, so many of what the padded one has: of 108 measured, seven had their best at places 3 to 8,
those at 7 and 8 by 3 % and less."""
_PADDED_ASKED: Final = 12
_NOT_PADDED: Final = notes.UNUSABLE | {RUNTIME_COMPILED}
_PAD: Final = "pad"
"""The knob that says to which multiple channels are padded: no word of the library's, whose knobs are numbers."""

_NORM_GRAPHS: Final = 2
"""Of the graph API's batch norm, for tensors in channels-last order: they differ by a tenth among themselves."""


def listing(graph: OperationGraph, op: ConvOp, width: int | None, *, padded: Sequence[Candidate] = ()) -> Listing:
    """The candidates of a convolution: at least `width`, all if None. A wider list begins with the narrower.

    Args:
        padded: those that compute it with more channels (`padded_candidates`). They stand behind the first few that the
            library lists, so that they are always looked at, and its own first answer comes first, if it can run at
            once.

    Raises:
        CudnnError: the heuristics cannot be asked.
    """
    kind = kind_of(op)
    enough = max(width or 0, _PLAIN_WIDTH if kind == "plain" else _FEW)
    configs: dict[tuple[int, Knobs], EngineConfig] = {}
    held: list[EngineConfig] = []  # these come last
    complete = True
    place: int | None = None  # of those that are padded: the same, however many are asked for
    for mode in _ORDER:
        # Those that are held back do not count: they come only at the end of a complete list.
        if kind in _WIDTHS and width is not None and len(configs) >= enough:
            complete = False
            break
        for config in _listed(graph, mode, enough if kind == "plain" and width is not None else None):
            if _can_wait(config, len(configs), op, kind, mode):
                held.append(config)
            else:
                configs.setdefault((config.engine, config.knobs), config)
        if place is None and configs:
            place = min(_FEW, len(configs))
    hopeful = len(configs) + len(padded)
    look_at = min(_WIDTHS.get(kind, hopeful), len(configs)) + len(padded)
    for config in sorted(held, key=lambda each: _cost(each, op)) if complete else ():
        configs.setdefault((config.engine, config.knobs), config)

    described = [(_name_of(each.engine, each.knobs), each.workspace_bytes, each.notes) for each in configs.values()]
    place = place or 0
    described[place:place] = [(each.algorithm, each.workspace_bytes, each.notes) for each in padded]
    return _listing(described, complete=complete, look_at=max(1, look_at), look_up_to=hopeful if complete else None)


def _listed(graph: OperationGraph, mode: Mode, enough: int | None) -> list[EngineConfig]:
    """What a mode lists and can be used, each once; no more than `enough` need be, if there are so many in INSTANT. If
    not, all of it, so that the next mode's do not stand where more of this one belong."""
    if enough is not None and mode == _ORDER[0]:
        some = _usable(graph.heuristics(mode, enough))
        if len(some) >= enough:
            return some
    return _usable(graph.heuristics(mode))


def _usable(configs: Iterable[EngineConfig]) -> list[EngineConfig]:
    """Those that can be used, each once."""
    found: dict[tuple[int, Knobs], EngineConfig] = {}
    for config in configs:
        if notes.UNUSABLE.isdisjoint(config.notes):
            found.setdefault((config.engine, config.knobs), config)
    return list(found.values())


def padded_candidates(graph: OperationGraph, padding: Padding) -> list[Candidate]:
    """The few best-listed of a padded op, as candidates of the op. Nothing that is compiled at run time, is hopeless or
    reads beyond its tensors; but also what has no note of tensor cores: one such was the best by a factor of 1.6. Their
    ranks are those among themselves.

    Raises:
        CudnnError: the heuristics cannot be asked.
    """
    op = padding.op
    usable = (
        config
        for config in graph.heuristics("instant", _PADDED_ASKED)
        if _NOT_PADDED.isdisjoint(config.notes) and not (_reads_beyond(config, op) or _is_hopeless(config, op))
    )
    return [
        padded_candidate(
            Candidate(
                algorithm=_name_of(config.engine, config.knobs),
                rank=rank,
                workspace_bytes=config.workspace_bytes,
                notes=config.notes,
            ),
            padding,
        )
        for rank, config in enumerate(islice(usable, _PADDED))
    ]


def padded_candidate(candidate: Candidate, padding: Padding) -> Candidate:
    """A candidate of the padded op as one of the op itself. Its copies are in its workspace."""
    return replace(
        candidate,
        algorithm=padded_name(candidate.algorithm, padding.multiple),
        workspace_bytes=padding.scratch_bytes + candidate.workspace_bytes,
    )


def norm_listing(legacy: LegacyNorm, graph: NormGraph | None, width: int | None) -> Listing:
    """The candidates of a batch norm: the legacy API's modes, then engines of the graph API. Those are compiled when
    they are built, up to a second each, and differ little: so only few, where they can win, unless all are asked for;
    and a race does not go on with the next ones because these were better.

    Args:
        legacy: the op, as the legacy API knows it.
        graph: the same as a graph, if there is such a one.
        width: as in `listing`.

    Raises:
        CudnnError: the library cannot be asked.
    """
    modes = legacy.candidates()
    few = _NORM_GRAPHS if legacy.op.layout == "channels_last" else 0
    configs = [] if graph is None else graph.heuristics("a")
    count = len(configs) if width is None else max(few, width - len(modes))
    complete = count >= len(configs)
    described = [
        *((str(legacy_algorithm(each.mode)), each.workspace_bytes, each.notes) for each in modes),
        *((_name_of(each.engine, each.knobs), each.workspace_bytes, each.notes) for each in configs[:count]),
    ]
    look_at = max(1, len(modes) + few)
    return _listing(described, complete=complete, look_at=look_at, look_up_to=look_at)


def _listing(
    described: Sequence[tuple[str, int, tuple[str, ...]]],
    *,
    complete: bool,
    look_at: int,
    look_up_to: int | None,
) -> Listing:
    """Of (name, workspace in bytes, notes)."""
    candidates = tuple(
        Candidate(algorithm=name, rank=rank, workspace_bytes=workspace_bytes, notes=notes)
        for rank, (name, workspace_bytes, notes) in enumerate(described)
    )
    return Listing(candidates=candidates, complete=complete, look_at=look_at, look_up_to=look_up_to, steady=True)


def pair_listing(forward: LegacyNorm, backward: LegacyNorm) -> Listing:
    """The candidates for both passes of a fused batch norm: the modes that do both, in the order of the forward pass.

    The workspace of one is the larger of its two passes', which run one after the other; the reserve is the same for
    both, or the library contradicts itself and the larger is the one to have.

    Raises:
        CudnnError: the library cannot be asked.
    """
    other = {each.mode: each for each in backward.candidates()}
    both = [(each, other[each.mode]) for each in forward.candidates() if each.mode in other]
    return Listing(
        candidates=tuple(
            Candidate(
                algorithm=str(legacy_algorithm(first.mode)),
                rank=rank,
                workspace_bytes=max(first.workspace_bytes, second.workspace_bytes),
                notes=tuple(sorted({*first.notes, *second.notes})),
                reserve_bytes=max(first.reserve_bytes, second.reserve_bytes),
            )
            for rank, (first, second) in enumerate(both)
        ),
        complete=True,
        steady=True,
    )


def _can_wait(config: EngineConfig, before: int, op: ConvOp, kind: Kind, mode: Mode) -> bool:
    """Whether to list this one last, if so many come before it: because it takes up to a second to be compiled, or an
    eternity to run, and was never near the best (`kinds`). In a stem even where the library names it first (ResNet's in
    float32): half of that search would be waiting for it."""
    compiled = RUNTIME_COMPILED in config.notes
    tensor_core = notes.TENSOR_CORE in config.notes
    match kind:
        case "plain":
            return False
        case "stem":
            return compiled or _is_hopeless(config, op) or (before >= _FEW and not tensor_core)
        case "depthwise":
            return mode == "fallback" or tensor_core or (compiled and before >= _FEW)
        case "volume" | "other":
            if _reads_beyond(config, op) or _is_hopeless(config, op):
                return True
            return compiled and (fills_the_device(op) if mode == "fallback" else before >= _LATE)


def _cost(config: EngineConfig, op: ConvOp) -> tuple[bool, bool, bool]:
    """By which those are listed that can wait, for whoever has too few others: a run, then half a second of compiling,
    then seconds of running, and what may end the process behind all others."""
    return _reads_beyond(config, op), _is_hopeless(config, op), RUNTIME_COMPILED in config.notes


def _is_hopeless(config: EngineConfig, op: ConvOp) -> bool:
    return config.engine == _SIMPLE and op.filter_shape[1] > 1 and op.flops > _SIMPLE_FLOPS


def _reads_beyond(config: EngineConfig, op: ConvOp) -> bool:
    is_lopsided = op.direction == "backward_filter" and op.padding_low != op.padding_high
    return config.engine == _READS_BEYOND and is_lopsided


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
    is_ours = (parsed.backend, parsed.source, parsed.math) == (BACKEND, GRAPH, "") and all(map(_is_number, numbers))
    # ctypes would make another value of one beyond 64 bits, and so another algorithm.
    if not is_ours or not all(-(1 << 63) <= value < 1 << 63 for _, value in parsed.knobs):
        raise InvalidAlgorithm("name", algorithm, f"must look like {BACKEND}/{GRAPH}:63?2=1")
    return int(parsed.engine), tuple(sorted((int(name), value) for name, value in parsed.knobs))


def padded_name(algorithm: str, multiple: int) -> str:
    """The name of an algorithm of a padded op, as one of the op itself: `cudnn/graph:63?2=1&pad=8`."""
    parsed = Algorithm.parse(algorithm)
    return str(replace(parsed, knobs=(*parsed.knobs, (_PAD, multiple))))


def without_padding(algorithm: str) -> tuple[str, int | None]:
    """The algorithm of the padded op, and the multiple that its channels are padded to, for a name of `padded_name`;
    the name itself and None for any other.

    Raises:
        InvalidAlgorithm: it is no algorithm's name at all.
    """
    parsed = Algorithm.parse(algorithm)
    multiple = dict(parsed.knobs).get(_PAD)
    if multiple is None:
        return algorithm, None
    return str(replace(parsed, knobs=tuple(each for each in parsed.knobs if each[0] != _PAD))), multiple


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
