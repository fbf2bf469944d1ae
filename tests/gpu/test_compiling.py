"""What is compiled at run time, and what is built beside it meanwhile, on a real GPU."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from algosearch.backends.cudnn import CudnnBackend
from algosearch.ops import BatchNormOp, ConvOp, canonical
from algosearch.records import Built, Candidate
from tests.backends.driven import Driven

pytestmark = pytest.mark.timeout(240)

HALVES: dict[str, Any] = {f"{name}_type": "float16" for name in ("input", "filter", "output")}
LAST: dict[str, Any] = {f"{name}_layout": "channels_last" for name in ("input", "filter", "output")}
NORM = canonical(BatchNormOp(shape=(64, 320, 28, 28), data_type="float16", layout="channels_last"))
CONVS = [
    canonical(ConvOp(input_shape=(16, 64 + 8 * n, 28, 28), filter_shape=(64, 64 + 8 * n, 1, 1), **HALVES, **LAST))
    for n in range(12)
]


def test_convolutions_are_built_while_a_batch_norm_is_compiled() -> None:
    """In threads with a handle each; neither the interpreter's lock nor one of cuDNN's own makes one wait for the other
    as long as that takes."""
    backend = CudnnBackend()
    with Driven(backend, backend.devices()[0]) as driven:
        dear = [each for each in driven.enumerate(NORM).candidates if each.is_dear][:3]
        assert dear, "the graph API has engines for this one, and all of them are compiled"
        listed = [(op, driven.enumerate(op, 1).candidates) for op in CONVS]
        first = [(op, next(each for each in candidates if not each.is_dear)) for op, candidates in listed]
        assert isinstance(driven.build(*first.pop()), Built)  # the library's own parts are loaded now

        def build(which: list[tuple[Any, Candidate]]) -> float:
            built = [driven.session.build(op, candidate) for op, candidate in which]
            assert all(isinstance(each, Built) for each in built)
            return perf_counter()

        compiling = driven.in_compile(build, [(NORM, candidate) for candidate in dear])
        convolutions_built = driven.in_prepare(build, first)
        assert convolutions_built.result() < compiling.result()
