"""The candidates of a graph, in the library's order, and the names under which they are remembered."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from algosearch.backends.cudnn import notes
from algosearch.backends.cudnn.graph import EngineConfig, Knobs, Mode, OperationGraph
from algosearch.ops import ConvOp
from algosearch.records import Algorithm, Candidate, InvalidAlgorithm, Listing

BACKEND: Final = "cudnn"
GRAPH: Final = "graph"

_PLAIN_WIDTH: Final = 10
"""On plain ops the best of these is within 0.6 % of the best of all."""
_ORDER: Final[tuple[Mode, ...]] = ("instant", "fallback", "b")
"""INSTANT lists what A does, at a third of the cost: the same list in each of 68 ops of ResNet-50 (9.19, 9.28) and 57
others of all kinds (9.28), so that A is not asked. FALLBACK's engines are slow but go everywhere. B adds up to twenty
knob choices for engines that INSTANT has named."""


def listing(graph: OperationGraph, op: ConvOp, width: int | None) -> Listing:
    """The candidates of a convolution: at least `width`, all if None. A wider list begins with the narrower.

    Raises:
        CudnnError: the heuristics cannot be asked.
    """
    plain = is_plain(op)
    enough = max(width or 0, _PLAIN_WIDTH if plain else 1)
    configs: dict[tuple[int, Knobs], EngineConfig] = {}
    complete = True
    for mode in _ORDER:
        if width is not None and len(configs) >= enough and (plain or mode == "b"):
            complete = False
            break
        for config in graph.heuristics(mode, enough if plain and width is not None else None):
            if notes.UNUSABLE.isdisjoint(config.notes):
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
        look_at=_PLAIN_WIDTH if plain else None,
    )


def is_plain(op: ConvOp) -> bool:
    """Whether the library's order can be trusted to have a good one among the first ten: what networks are mostly
    made of, and what its heuristics were made for."""
    return (
        op.spatial_dimensions == 2
        and op.input_type != "int8"
        and op.groups == 1
        and set(op.dilation) == {1}
        and op.filter_shape[0] % 8 == 0
        and op.filter_shape[1] % 8 == 0
    )


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


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 10 and str(int(word)) == word
