"""`Home`: the device in the caller's own process, as far as running a plan needs it: made current for a call and given
back as it was, some memory, and what is known of streams and addresses. `CupyHome` is that through CuPy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from ctypes import c_void_p
from typing import Any, Final, Protocol

from algosearch.backends.arrays import HOST
from algosearch.backends.cudnn.cuda import CupyBlock, translated
from algosearch.backends.cudnn.driver import CudaDevice, Driver
from algosearch.backends.cudnn.gpu import Block, CopiesRows, RowCopy
from algosearch.backends.cudnn.row_kernels import PTX, RowKernels

_ON_DEVICE: Final = 3  # cudaMemcpyDeviceToDevice
_IN_DEVICE_MEMORY: Final = (2, 3)  # cudaMemoryTypeDevice, cudaMemoryTypeManaged
_DEFAULT_STREAMS: Final = (0, 1)
"""The default one, and its other name, cudaStreamLegacy."""
PER_THREAD_STREAM: Final = 2
"""cudaStreamPerThread: one name for a stream of each thread's own."""

_row_kernels: dict[int, RowKernels] = {}
"""By device, loaded when the first plan is built that copies, and kept: to unload them could wait for the device, in
whatever thread collects garbage, and a CUDA graph may still need them."""


class Home(CopiesRows, Protocol):
    """One device."""

    ordinal: int

    def current(self) -> AbstractContextManager[None]:
        """Make it the thread's current device meanwhile; afterwards the thread has what it had, be it none."""
        ...

    def usual_stream(self, *, of_torch: bool) -> int:
        """The thread's current stream: PyTorch's, or CuPy's."""
        ...

    def is_capturing(self, stream: int) -> bool:
        """Whether what is queued there is recorded for a CUDA graph."""
        ...

    def device_of(self, address: int) -> int:
        """The ordinal of the device in whose memory an address is; `HOST` if it is in none."""
        ...

    def allocate(self, size_bytes: int) -> Block:
        """Memory that is free again when it is dropped, which waits for the device.

        Raises:
            OutOfDeviceMemory: there is not so much.
        """
        ...

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Queue a copy within the device's memory.

        Raises:
            CudaFault: it cannot be.
        """
        ...


class CupyHome:
    """A `Home` through CuPy, which is imported when one is made.

    Raises:
        ImportError: there is no CuPy, or it is broken.
        CudaFault: the device cannot be used.
    """

    def __init__(self, driver: Driver, device: CudaDevice) -> None:
        import cupy

        self.ordinal = device.ordinal
        self._multiprocessors = device.multiprocessors
        self._driver = driver
        self._cupy: Any = cupy.cuda
        self._runtime: Any = cupy.cuda.runtime
        self._context = driver.primary_context(device.ordinal)

    def __repr__(self) -> str:
        return f"<CupyHome {self.ordinal}>"

    def current(self) -> AbstractContextManager[None]:
        """As `Home` says."""
        return _Current(self._driver, self._context)

    def usual_stream(self, *, of_torch: bool) -> int:
        """As `Home` says."""
        if of_torch:
            return int(sys.modules["torch"].cuda.current_stream(self.ordinal).cuda_stream)
        return int(self._cupy.get_current_stream().ptr)

    def is_capturing(self, stream: int) -> bool:
        """As `Home` says. The default stream cannot be captured."""
        with translated("cudaStreamIsCapturing"):
            return stream not in _DEFAULT_STREAMS and bool(self._runtime.streamIsCapturing(stream))

    def device_of(self, address: int) -> int:
        """As `Home` says."""
        with translated("cudaPointerGetAttributes"):
            found = self._runtime.pointerGetAttributes(address)
        return int(found.device) if int(found.type) in _IN_DEVICE_MEMORY else HOST

    def allocate(self, size_bytes: int) -> Block:
        """As `Home` says: of the driver, not of a pool, which the caller may limit, empty or replace."""
        with translated("cudaMalloc", wanted_bytes=size_bytes):
            return CupyBlock(self._cupy.Memory(size_bytes), size_bytes)

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """As `Home` says."""
        with translated("cudaMemcpyAsync"):
            self._runtime.memcpyAsync(target, source, size_bytes, _ON_DEVICE, stream)

    def prepare_rows(self) -> None:
        """As `CopiesRows` says."""
        if self.ordinal not in _row_kernels:
            with translated("cuModuleLoadData"):
                module = self._cupy.function.Module()
                module.load(PTX.read_bytes())
            _row_kernels[self.ordinal] = RowKernels(self._driver, module, self._multiprocessors)

    def row_copier(self, copies: Sequence[RowCopy], stream: c_void_p) -> Callable[[], None]:
        """As `CopiesRows` says; the call, too, while the device is `current`."""
        with translated("cuModuleGetFunction"):
            return _row_kernels[self.ordinal].copier(copies, stream)


class _Current:
    """A context is the thread's meanwhile. By the driver, whose current context is the one that the runtime works in.

    Rejected: CuPy's `Device` as a context manager, which restores what CuPy was told last, not what was current
    (cupy/cupy#6867): a process that chose its device through PyTorch would be left on device 0. And `cudaSetDevice`,
    which makes a context on the default device to give it back to a thread that had none.
    """

    __slots__ = ("_before", "_context", "_driver")

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver, self._context = driver, context

    def __enter__(self) -> None:
        self._before = self._driver.context()
        if self._before != self._context:
            self._driver.make_current(self._context)

    def __exit__(self, *exc_info: object) -> None:
        if self._before != self._context:
            self._driver.make_current(self._before)
