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
_PLAIN_ORDER: Final[tuple[Mode, ...]] = ("instant", "a", "fallback")
_WHOLE_ORDER: Final[tuple[Mode, ...]] = ("a", "fallback")
"""INSTANT begins as A does, at a third of the cost, but asking both for everything is asking twice. FALLBACK's engines
are slow but go everywhere."""


def listing(graph: OperationGraph, op: ConvOp, width: int | None) -> Listing:
    """The candidates of a convolution: at least `width`, all if None. A wider list begins with the narrower.

    Raises:
        CudnnError: the heuristics cannot be asked.
    """
    plain = is_plain(op)
    wanted = None if width is None or not plain else max(width, _PLAIN_WIDTH)
    configs: dict[tuple[int, Knobs], EngineConfig] = {}
    complete = True
    for mode in _PLAIN_ORDER if plain else _WHOLE_ORDER:
        asked = graph.heuristics(mode, wanted)
        for config in asked:
            if notes.UNUSABLE.isdisjoint(config.notes):
                configs.setdefault((config.engine, config.knobs), config)

        if wanted is not None and len(asked) == wanted:
            complete = False
            break

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
