"""The candidates of a graph, in the library's order, and the names under which they are remembered."""

from __future__ import annotations

from functools import lru_cache
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

_PLAIN_WIDTH: Final = 6
"""On plain ops the best of these is within 0.5 % of the best of all."""
_NEAR_WIDTH: Final = 12
"""The same of nearly plain ops, whose best stands at place 7 in the worst case seen."""
_FEW: Final = 6
"""FALLBACK is asked where INSTANT has fewer, of ops that are plain or nearly so. Of ResNet-50's first convolution its
engines, and others that use no tensor cores, are 4 to 340 times slower than the best: one run of each is a tenth of a
second."""
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
    plain, near = is_plain(op), is_nearly_plain(op)
    enough = max(width or 0, _PLAIN_WIDTH if plain else _FEW if near else 1)
    configs: dict[tuple[int, Knobs], EngineConfig] = {}
    held: list[EngineConfig] = []  # these come last
    complete = True
    for mode in _ORDER:
        if width is not None and len(configs) + len(held) >= enough and (near or mode == "b"):
            complete = False
            break
        for config in graph.heuristics(mode, enough if plain and width is not None else None):
            if not notes.UNUSABLE.isdisjoint(config.notes):
                continue
            if near and _can_wait(config, len(configs)):
                held.append(config)
            else:
                configs.setdefault((config.engine, config.knobs), config)
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
        look_at=_PLAIN_WIDTH if plain else _NEAR_WIDTH if near else None,
        steady=True,
    )


def norm_listing(legacy: LegacyNorm, graph: NormGraph | None, width: int | None) -> Listing:
    """The candidates of a batch norm: the legacy API's modes, then engines of the graph API. Those are compiled when
    they are built, up to a second each, and differ little: so only few, where they can win, unless all are asked for.

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
    return Listing(
        candidates=tuple(
            Candidate(algorithm=name, rank=rank, workspace_bytes=workspace_bytes, notes=words)
            for rank, (name, workspace_bytes, words) in enumerate(described)
        ),
        complete=complete,
        look_at=None if complete else max(1, len(modes) + few),
        steady=True,
    )


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


def is_plain(op: ConvOp) -> bool:
    """Whether the library's order can be trusted to have a good one among the first ten: what networks are mostly
    made of, and what its heuristics were made for."""
    return is_nearly_plain(op) and op.filter_shape[0] % 8 == 0 and op.filter_shape[1] % 8 == 0


def _can_wait(config: EngineConfig, before: int) -> bool:
    """Whether to list this one of a nearly plain op last, if so many come before it: it takes up to a second to be
    compiled, or an eternity to run."""
    return (before > 0 and "runtime_compiled" in config.notes) or (before >= _FEW and "tensor_core" not in config.notes)


def is_nearly_plain(op: ConvOp) -> bool:
    """Whether it is plain but for its numbers of channels, like the first convolution of most networks: then mode
    INSTANT has a good one somewhere, and what FALLBACK has and what is compiled at run time is not."""
    return op.spatial_dimensions == 2 and op.input_type != "int8" and op.groups == 1 and set(op.dilation) == {1}


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
