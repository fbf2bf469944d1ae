"""cuDNN's notes on an engine, in the words of `algosearch.records`.

TF32 has no note of its own in cuDNN: an engine that multiplies float32 in tensor cores rounds it to TF32. A note that
this package does not know is kept under its number, as `unknown_numerical_12` or `unknown_behavior_7`, which a policy
takes as "worse".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from algosearch.backends.cudnn.enums import BehaviorNote, NumericalNote
from algosearch.records import trial

TENSOR_CORE: Final = "tensor_core"
REORDERED_FILTER: Final = "reordered_filter"
REORDERED_BIAS: Final = "reordered_bias"
UNUSABLE: Final = frozenset({REORDERED_FILTER, REORDERED_BIAS})
"""Such an engine reads a tensor in an order of its own, which no op describes."""

_NUMERICAL: Final[dict[int, str]] = {
    NumericalNote.TENSOR_CORE: TENSOR_CORE,
    NumericalNote.DOWN_CONVERT_INPUTS: trial.DOWN_CONVERTS,
    NumericalNote.REDUCED_PRECISION_REDUCTION: trial.REDUCED_PRECISION,
    NumericalNote.FFT: "fft",
    NumericalNote.NONDETERMINISTIC: trial.NONDETERMINISTIC,
    NumericalNote.WINOGRAD: "winograd",
    NumericalNote.WINOGRAD_TILE_4X4: "winograd_4x4",
    NumericalNote.WINOGRAD_TILE_6X6: "winograd_6x6",
    NumericalNote.WINOGRAD_TILE_13X13: "winograd_13x13",
    NumericalNote.STRICT_NAN_PROP: "strict_nan",
}
_BEHAVIOR: Final[dict[int, str]] = {
    BehaviorNote.RUNTIME_COMPILATION: trial.RUNTIME_COMPILED,
    BehaviorNote.REQUIRES_FILTER_INT8X32_REORDER: REORDERED_FILTER,
    BehaviorNote.REQUIRES_BIAS_INT8X32_REORDER: REORDERED_BIAS,
    BehaviorNote.SUPPORTS_CUDA_GRAPH_NATIVE_API: "cuda_graph_native",
    BehaviorNote.CUBLASLT_DEPENDENCY: "cublaslt",
}


def words(numerical: Iterable[int], behavior: Iterable[int], *, float32: bool) -> tuple[str, ...]:
    """The sorted words for an engine's notes. `float32`: whether that is the type of what it multiplies."""
    found = {_NUMERICAL.get(note, f"unknown_numerical_{note}") for note in numerical}
    found |= {_BEHAVIOR.get(note, f"unknown_behavior_{note}") for note in behavior}
    if float32 and TENSOR_CORE in found:
        found.add(trial.TF32)
    return tuple(sorted(found))
