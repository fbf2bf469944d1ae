"""The fake device keeps the contract of the real one."""

from __future__ import annotations

import pytest

from algosearch.backends.cudnn.gpu import Gpu
from tests.backends.cudnn.gpu_contract import GpuContract
from tests.backends.cudnn.host_gpu import HostGpu


class TestHostGpu(GpuContract):
    @pytest.fixture
    def gpu(self) -> Gpu:
        return HostGpu()

    def lose_10_ms(self, gpu: Gpu) -> None:
        assert isinstance(gpu, HostGpu)
        gpu.host_us += 10_000.0
