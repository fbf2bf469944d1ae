"""The device itself: its kernels, its memory, and the gate on a real clock."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import pytest

from algosearch.backends.cudnn.cuda import CupyGpu
from algosearch.backends.cudnn.driver import Driver
from algosearch.backends.cudnn.gpu import Gpu
from tests.backends.cudnn.gpu_contract import GpuContract


@pytest.fixture(scope="module")
def opened() -> Iterator[CupyGpu]:
    driver = Driver.load()
    gpu = CupyGpu(driver, driver.devices()[0])
    yield gpu
    gpu.close()


class TestCupyGpu(GpuContract):
    @pytest.fixture
    def gpu(self, opened: CupyGpu) -> Gpu:
        opened.enter()
        return opened

    def lose_10_ms(self, gpu: Gpu) -> None:
        start = perf_counter()
        while perf_counter() - start < 0.01:
            pass
