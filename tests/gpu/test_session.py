"""The contract of all backends, on a real GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from algosearch.backends.base import Backend
from algosearch.backends.cudnn import CudnnBackend
from algosearch.ops import ConvOp, Op
from tests.backends.contract import BackendContract

pytestmark = pytest.mark.timeout(240)  # every candidate is built and run, some of them compiled at run time


class TestCudnnOnAGpu(BackendContract):
    def backend(self) -> Backend:
        return CudnnBackend()

    def ops(self) -> Sequence[Op]:
        halves: dict[str, Any] = {"input_type": "float16", "filter_type": "float16", "output_type": "float16"}
        last: dict[str, Any] = {f"{tensor}_layout": "channels_last" for tensor in ("input", "filter", "output")}
        return (
            ConvOp(input_shape=(4, 32, 14, 14), filter_shape=(32, 32, 3, 3), padding_low=(1, 1), **halves, **last),
            ConvOp(
                input_shape=(2, 16, 12, 12),
                filter_shape=(16, 16, 1, 1),
                stride=(2, 2),
                direction="backward_filter",
                **halves,
                **last,
            ),
        )
