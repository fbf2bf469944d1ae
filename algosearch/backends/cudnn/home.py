"""`Home`: the device in the caller's own process, as far as running a plan needs it: made current for a call and given
back as it was, some memory, and what is known of streams and addresses. `CupyHome` is that through CuPy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from ctypes import c_void_p
from typing import Any, Protocol

from algosearch.backends.arrays import HOST
from algosearch.backends.cudnn.cuda import translated
from algosearch.backends.cudnn.driver import NO_CONTEXT, CudaDevice, Driver
from algosearch.backends.cudnn.gpu import Block, CopiesRows, CudaFault, OutOfDeviceMemory, RowCopy
from algosearch.backends.cudnn.row_kernels import PTX, RowKernels

_NO_MEMORY = 2  # cudaErrorMemoryAllocation
_ON_DEVICE = 3  # cudaMemcpyDeviceToDevice
_IN_DEVICE_MEMORY = (2, 3)  # cudaMemoryTypeDevice, cudaMemoryTypeManaged

_row_kernels: dict[int, RowKernels] = {}
"""By device, loaded when the first plan is built that copies, and kept: to unload them could wait for the device, in
whatever thread collects garbage, and a CUDA graph may still need them."""


class Home(CopiesRows, Protocol):
    """One device."""

    ordinal: int

    def current(self) -> AbstractContextManager[None]:
        """Make it the thread's current device meanwhile."""
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
        self._device: Any = cupy.cuda.Device(device.ordinal)
        with self.current(), translated("making a context"):
            self._runtime.free(0)
            self._context = driver.context()

    def __repr__(self) -> str:
        return f"<CupyHome {self.ordinal}>"

    def current(self) -> AbstractContextManager[None]:
        """As `Home` says."""
        return self._device  # type: ignore[no-any-return]

    def usual_stream(self, *, of_torch: bool) -> int:
        """As `Home` says."""
        if of_torch:
            return int(sys.modules["torch"].cuda.current_stream(self.ordinal).cuda_stream)
        return int(self._cupy.get_current_stream().ptr)

    def is_capturing(self, stream: int) -> bool:
        """As `Home` says. The default stream cannot be captured."""
        return stream != 0 and bool(self._runtime.streamIsCapturing(stream))

    def device_of(self, address: int) -> int:
        """As `Home` says."""
        with translated("cudaPointerGetAttributes"):
            found = self._runtime.pointerGetAttributes(address)
        return int(found.device) if int(found.type) in _IN_DEVICE_MEMORY else HOST

    def allocate(self, size_bytes: int) -> Block:
        """As `Home` says: of the driver, not of a pool, which the caller may limit, empty or replace."""
        try:
            with translated("cudaMalloc"):
                return _Block(self._cupy.Memory(size_bytes), size_bytes)
        except CudaFault as fault:
            if fault.status == _NO_MEMORY:
                raise OutOfDeviceMemory(size_bytes, fault.message) from None
            raise

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """As `Home` says."""
        with translated("cudaMemcpyAsync"):
            self._runtime.memcpyAsync(target, source, size_bytes, _ON_DEVICE, stream)

    def prepare_rows(self) -> None:
        """As `CopiesRows` says."""
        if self.ordinal not in _row_kernels:
            with translated("cuModuleLoadData"):
                self._runtime.free(0)  # gives the thread a context
                module = self._cupy.function.Module()
                module.load(PTX.read_bytes())
            _row_kernels[self.ordinal] = RowKernels(self._driver, module, self._multiprocessors)

    def row_copier(self, copies: Sequence[RowCopy], stream: c_void_p) -> Callable[[], None]:
        """As `CopiesRows` says. In any thread: one in which nothing of CUDA's runtime was called yet has no context,
        without which the driver queues nothing."""
        with translated("cuModuleGetFunction"):
            queue = _row_kernels[self.ordinal].copier(copies, stream)

        def launch() -> None:
            try:
                queue()
            except CudaFault as fault:
                if fault.status != NO_CONTEXT:
                    raise
                self._driver.make_current(self._context)
                queue()

        return launch


class _Block:
    """It is freed when it is dropped."""

    def __init__(self, memory: Any, size_bytes: int) -> None:
        self._memory = memory
        self.address: int = memory.ptr
        self.size_bytes = size_bytes
