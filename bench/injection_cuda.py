"""The ground of `injection` that is a GPU: the misdeeds as kernels, and a neighbour's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from injection import Ground, Misdeeds
from networks import training_convs

from algosearch.backends.base import Backend
from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.cuda import translated
from algosearch.backends.cudnn.driver import Driver
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

// The clock is never 0.
.visible .entry forever()
{
    .reg .pred %again;
    .reg .b64 %now;
LOOP:
    mov.u64 %now, %globaltimer;
    setp.ne.u64 %again, %now, 0;
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

        self._session = session
        session._gpu.enter()
        self._module: Any = cupy.cuda.function.Module()
        with translated("cuModuleLoadData"):
            self._module.load(KERNELS)
        driver, stream = Driver.load(), session._gpu.stream
        self._where = ctypes.c_uint64(), ctypes.c_uint64()
        self._forever = driver.launcher(self._address("forever"), stream, blocks=1, threads=1, arguments=())
        self._write = driver.launcher(self._address("write"), stream, blocks=1, threads=1, arguments=self._where)

    def hang(self) -> None:
        self._forever()

    def overrun(self) -> None:
        buffers = self._session.buffers
        assert buffers is not None, "nothing is loaded"
        tensor = buffers.written[0]
        self._write_at(buffers.address(tensor) + tensor.bytes)

    def run_wild(self) -> None:
        self._write_at(NOBODYS)

    def _write_at(self, address: int) -> None:
        where, many = self._where
        where.value, many.value = address, BEYOND_BYTES
        self._write()

    def _address(self, name: str) -> int:
        return int(self._module.get_function(name).ptr)


def ground() -> Ground:
    """As `Ground` says."""
    return CudaGround()
