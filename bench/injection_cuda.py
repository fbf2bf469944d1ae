"""The ground of `injection` that is a GPU: the misdeeds as kernels, and a neighbour's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from injection import Ground, Misdeeds
from networks import training_convs

from algosearch.backends.base import Backend
from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.cuda import CupyGpu, translated
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.ops import ConvOp

NOBODYS: Final = 16
"""An address: the first page is mapped in no process."""
BEYOND_BYTES: Final = 256
PIECES: Final = tuple(1 << bits for bits in range(30, 20, -1))
"""In which memory is taken, the largest first."""
KERNELS: Final = b"""
.version 6.4
.target sm_70
.address_size 64

// Until the clock shows a time that is past.
.visible .entry forever(.param .u64 end)
{
    .reg .pred %again;
    .reg .b64 %now, %then;
    ld.param.u64 %then, [end];
LOOP:
    mov.u64 %now, %globaltimer;
    setp.ne.u64 %again, %now, %then;
    @%again bra LOOP;
    ret;
}

.visible .entry write(.param .u64 at, .param .u64 bytes)
{
    .reg .pred %more;
    .reg .b64 %to, %left;
    .reg .b16 %byte;
    ld.param.u64 %to, [at];
    ld.param.u64 %left, [bytes];
    mov.u16 %byte, 0;
LOOP:
    st.global.u8 [%to], %byte;
    add.u64 %to, %to, 1;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %more, %left, 0;
    @%more bra LOOP;
    ret;
}
"""


class CudaGround:
    """A `Ground`: the first GPU."""

    slack_bytes = 192 << 20

    def backend(self) -> Backend:
        return CudnnBackend()

    def ops(self, network: str, case: str, batch: int) -> list[ConvOp]:
        return training_convs(network, case, batch)

    def misdeeds(self, session: CudnnSession) -> Misdeeds:
        return Kernels(session)

    def take_memory(self, leave_bytes: int) -> Callable[[], None]:
        import cupy

        runtime: Any = cupy.cuda.runtime
        taken: list[int] = []
        for piece in PIECES:
            while runtime.memGetInfo()[0] - piece >= leave_bytes:
                try:
                    taken.append(runtime.malloc(piece))
                except runtime.CUDARuntimeError:  # no longer in one piece
                    break

        def give_back() -> None:
            while taken:
                runtime.free(taken.pop())

        return give_back


class Kernels:
    """`Misdeeds` of one session, on its stream."""

    def __init__(self, session: CudnnSession) -> None:
        import cupy

        gpu = session._gpu
        assert isinstance(gpu, CupyGpu)
        self._session = session
        gpu.enter()
        module: Any = cupy.cuda.function.Module()
        with translated("cuModuleLoadData"):
            module.load(KERNELS)
            self._forever: Any = module.get_function("forever")
            self._write: Any = module.get_function("write")
        self._stream: Any = gpu._stream

    def hang(self) -> None:
        self._queue(self._forever, 0)

    def overrun(self) -> None:
        buffers = self._session.buffers
        assert buffers is not None, "nothing is loaded"
        tensor = buffers.written[0]
        self._queue(self._write, buffers.address(tensor) + tensor.bytes, BEYOND_BYTES)

    def run_wild(self) -> None:
        self._queue(self._write, NOBODYS, BEYOND_BYTES)

    def _queue(self, kernel: Any, *numbers: int) -> None:
        with translated("cuLaunchKernel"):
            kernel((1,), (1,), tuple(map(np.uint64, numbers)), stream=self._stream)


def ground() -> Ground:
    """As `Ground` says."""
    return CudaGround()
