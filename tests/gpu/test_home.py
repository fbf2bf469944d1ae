"""Whatever device is current in a thread, a plan runs on its own, and leaves the thread as it was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from algosearch import Searcher, open_searcher
from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.driver import Driver
from algosearch.ops import ConvOp
from tests.gpu.arrays import OnDevice, with_cupy, with_torch

pytestmark = pytest.mark.timeout(120)
OP: Final = ConvOp(input_shape=(2, 8, 12, 12), filter_shape=(8, 8, 3, 3), padding_low=(1, 1))


async def test_a_thread_without_a_context_has_none_afterwards(searcher: Searcher) -> None:
    choice = await searcher.select(OP)
    with await searcher.build(OP, choice) as plan:
        there = OnDevice(plan, with_cupy)
        driver = Driver.load()

        def work() -> tuple[int, int]:
            before = driver.context()
            plan(**there.arrays, stream=0)
            return before, driver.context()

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(work).result() == (0, 0)
        there.check()


async def test_the_device_that_pytorch_chose_stays_current() -> None:
    import cupy
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("takes two GPUs")
    async with open_searcher(store="memory:", backends=[CudnnBackend()], isolation="thread") as searcher:
        choice = await searcher.select(OP)
        for ordinal in (0, 1):
            with await searcher.build(OP, choice, device=f"cudnn:{ordinal}") as plan:
                for current in (0, 1):
                    torch.cuda.set_device(ordinal)
                    there = OnDevice(plan, with_torch)
                    torch.cuda.set_device(current)
                    plan(**there.arrays)
                    assert torch.cuda.current_device() == cupy.cuda.runtime.getDevice() == current
                    torch.cuda.synchronize(ordinal)
                    torch.cuda.set_device(ordinal)
                    there.check()
    torch.cuda.set_device(0)
