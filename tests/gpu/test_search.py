"""Whole searches on a real GPU."""

from __future__ import annotations

import pytest

import algosearch
from algosearch.backends.cudnn import CudnnBackend
from algosearch.ops import ConvOp
from tests.gpu.ops import generated_ops

pytestmark = pytest.mark.timeout(300)
OPS = 12


def ops() -> list[ConvOp]:
    return [op for op in generated_ops(200, seed=3) if op.spatial_dimensions == 2 and op.input_type == "float16"][:OPS]


async def search(backend: CudnnBackend) -> list[algosearch.Choice]:
    async with algosearch.open_searcher(store="memory:", backends=[backend], devices=["cudnn:0"]) as searcher:
        return list(await searcher.select_many(ops()))


async def test_every_op_gets_an_answer_that_was_timed_behind_a_gate() -> None:
    choices = await search(CudnnBackend())
    assert len(choices) == OPS
    for choice in choices:
        assert choice.time_us is not None
        assert choice.time_us > 0.5
        assert choice.algorithm.startswith("cudnn/")


async def test_a_second_identical_search_adds_nothing_to_device_memory() -> None:
    from algosearch.backends.cudnn.cuda import CupyGpu  # noqa: F401  (CuPy's own memory is taken before the first look)

    free = []
    for _ in range(3):
        await search(CudnnBackend())
        free.append(_free_bytes())
    assert free[2] >= free[1] - (1 << 20), f"free after each search: {free}"


def _free_bytes() -> int:
    import cupy

    return int(cupy.cuda.runtime.memGetInfo()[0])
