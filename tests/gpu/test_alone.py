"""A handle for each question costs what making one costs, and answers what the session answers."""

from __future__ import annotations

from time import perf_counter

import pytest

from algosearch.backends.cudnn.backend import CudnnBackend
from algosearch.backends.cudnn.library import Library
from algosearch.compiler.handles import HandleProbe
from algosearch.ops import BatchNormOp, searched_as

NORMS = [
    BatchNormOp(shape=(8, 64, 28, 28), data_type="float16", layout="channels_last", fusion="activation"),
    BatchNormOp(shape=(8, 64, 28, 28), data_type="float16", layout="channels_last", phase="backward"),
]


@pytest.mark.parametrize("op", NORMS, ids=["fused", "plain"])
async def test_it_answers_what_the_session_answers(op: BatchNormOp) -> None:
    Library.load()
    backend = CudnnBackend()
    device = backend.devices()[0]
    async with HandleProbe(backend, device) as probe:
        mine = await probe(op)  # loads the library, and makes the context
        began = perf_counter()
        for _ in range(20):
            assert await probe(op) == mine
        each_s = (perf_counter() - began) / 20
        assert probe.handles == 21
    session = backend.open(device)
    try:
        assert session.enumerate(searched_as(op), 1) == mine
    finally:
        session.close()
    assert each_s < 0.05, "more than a handle is made for each question"
