"""Whole searches on a real GPU."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import algosearch
from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.candidates import engine_of, legacy_mode_of
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.legacy_norm import LegacyNorm
from algosearch.backends.cudnn.library import Library
from algosearch.devices.worker import Worker
from algosearch.ops import BatchNormOp, ConvOp, Fusion, NormType, searched_as
from algosearch.records import Listing, Trial
from algosearch.records.trial import RUNTIME_COMPILED
from algosearch.settings import Isolation
from tests.gpu.ops import generated_ops

pytestmark = pytest.mark.timeout(300)
OPS = 12
MIB = 1 << 20


def ops() -> list[ConvOp]:
    return [op for op in generated_ops(200, seed=3) if op.spatial_dimensions == 2 and op.input_type == "float16"][:OPS]


async def search(backend: CudnnBackend, isolation: Isolation | None = None) -> list[algosearch.Choice]:
    async with algosearch.open_searcher(
        store="memory:", backends=[backend], devices=["cudnn:0"], isolation=isolation
    ) as searcher:
        return list(await searcher.select_many(ops()))


async def test_every_op_gets_an_answer_that_was_timed_behind_a_gate() -> None:
    choices = await search(CudnnBackend())
    assert len(choices) == OPS
    for choice in choices:
        assert choice.time_us is not None
        assert choice.time_us > 0.5
        assert choice.algorithm.startswith("cudnn/")


async def test_a_batch_norm_is_searched_too() -> None:
    plain = BatchNormOp(shape=(16, 64, 28, 28), layout="channels_last", data_type="float16")
    norms = [plain, replace(plain, phase="backward"), replace(plain, phase="backward", fusion="add_activation")]
    async with algosearch.open_searcher(store="memory:", backends=[CudnnBackend()]) as searcher:
        for choice in await searcher.select_many(norms):
            assert choice.time_us is not None
            assert choice.algorithm.startswith("cudnn/")


@pytest.mark.parametrize("data_type", ["float16", "bfloat16"])
@pytest.mark.parametrize("fusion", ["activation", "add_activation"])
@pytest.mark.parametrize("shape", [(16, 64, 28, 28), (32, 256, 14, 14), (8, 512, 7, 7)])
async def test_the_passes_of_a_fused_batch_norm_are_one_search_and_its_time_is_theirs(
    shape: tuple[int, ...], fusion: Fusion, data_type: NormType
) -> None:
    fused = BatchNormOp(shape=shape, fusion=fusion, layout="channels_last", data_type=data_type)
    pair = searched_as(fused)
    forward, backward = pair.passes
    async with algosearch.open_searcher(store="memory:", backends=[CudnnBackend()], devices=["cudnn:0"]) as searcher:
        choices = await searcher.select_many([forward, backward, pair])
        statistics = searcher.statistics()
    assert choices[0] == choices[1] == choices[2]
    assert statistics.engine.searched == 1
    choice = choices[0]
    assert choice.time_us is not None
    assert choice.reserve_bytes > 0 or fusion == "activation", "what was negative can be read off the output"
    # Neither pass can move what it must in less than it takes at the memory's full speed, which no GPU has: 20 TB/s.
    assert choice.time_us > (forward.tensor_bytes + backward.tensor_bytes) / 20e6
    times = {each.algorithm: each.time_us for each in choice.candidates if isinstance(each, Trial) and each.time_us}
    assert choice.time_us <= min(times.values()) * (1 + choice.tie_window)
    assert (choice.workspace_bytes, choice.reserve_bytes) == _queried(pair, choice.algorithm)


def _queried(pair: BatchNormOp, algorithm: str) -> tuple[int, int]:
    """The larger workspace and the reserve of both passes, as the library says through another handle."""
    handle = Handle(Library.load())
    mode = legacy_mode_of(algorithm)
    found = [each for op in pair.passes for each in LegacyNorm(handle, op).candidates() if each.mode == mode]
    handle.destroy()
    assert len(found) == 2
    assert found[0].reserve_bytes == found[1].reserve_bytes
    return max(each.workspace_bytes for each in found), found[0].reserve_bytes


async def test_an_engine_that_is_wrong_is_not_picked() -> None:
    """cuDNN 9.19: engines 1 and 20 get this filter gradient wrong."""
    op = ConvOp(
        input_shape=(1, 16, 8, 8),
        filter_shape=(8, 16, 1, 1),
        direction="backward_filter",
        padding_low=(0, 0),
        padding_high=(0, 1),
        input_type="float16",
        filter_type="float16",
        output_type="float16",
    )
    async with algosearch.open_searcher(store="memory:", backends=[CudnnBackend()]) as searcher:
        choice = await searcher.select(op)
        assert engine_of(choice.algorithm)[0] not in (1, 20)


async def test_a_second_identical_search_adds_nothing_to_device_memory() -> None:
    """On a device that stays open. All candidates are run each time, so that it is the same code that is loaded."""
    backend = CudnnBackend()
    worker = Worker(backend, backend.devices()[0], isolation="thread")
    await worker.open()
    free = []
    try:
        listings = [(op, _without_compiling(await worker.enumerate(op, 1))) for op in ops()]
        for _ in range(3):
            for op, listing in [*listings, listings[0]]:  # the lane destroys one search's plans before the next's runs
                found = await worker.search(op, listing, policies=(), mode="exhaustive")
                assert any(trial.time_us for trial in found.trials)
            free.append(_free_bytes())
    finally:
        await worker.aclose()
    assert free[1] >= free[0] - MIB, f"free after each search: {free}"
    assert free[2] >= free[1] - MIB, f"free after each search: {free}"


async def test_a_searcher_that_closes_gives_the_devices_memory_back() -> None:
    free = []
    for _ in range(5):
        await search(CudnnBackend(), isolation="thread")
        free.append(_free_bytes())
    # Which candidates are run, and so which code is loaded, may differ a little.
    assert free[-1] >= free[1] - 8 * MIB, f"free after each search: {free}"


def _without_compiling(listing: Listing) -> Listing:
    few = [each for each in listing.candidates if RUNTIME_COMPILED not in each.notes]
    return Listing(candidates=tuple(replace(each, rank=rank) for rank, each in enumerate(few)), complete=True)


def _free_bytes() -> int:
    import cupy

    return int(cupy.cuda.runtime.memGetInfo()[0])
