"""`CupyGpu`: one device, through CuPy and a few kernels of our own.

CuPy gives the stream, the memory and the events; its arrays are not used. Whatever of CuPy is elementwise, random or a
conversion compiles at run time on first use and synchronises, which no search may. What a search needs of that kind is
in `kernels.ptx`, loaded when the device is opened.

CuPy is imported (0.3 s and more) when the first device is opened.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_void_p
from struct import unpack
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from algosearch.backends.cudnn.driver import CudaDevice, Driver
from algosearch.backends.cudnn.gpu import CudaFault, OutOfDeviceMemory, RowCopy, Verdict
from algosearch.backends.cudnn.row_kernels import PTX, THREADS, RowKernels
from algosearch.ops import ELEMENT_BYTES

_TO_HOST: Final = 2  # cudaMemcpyDeviceToHost
_ON_DEVICE: Final = 3  # cudaMemcpyDeviceToDevice
_NO_MEMORY: Final = 2  # cudaErrorMemoryAllocation, and the driver's CUDA_ERROR_OUT_OF_MEMORY
_LANDING_BYTES: Final = 1 << 20
"""Of pinned memory, where what is read from the device arrives."""
_BLOCKS_A_MULTIPROCESSOR: Final = 8
_MOST_COMPARED: Final = 1 << 32
"""Elements in one launch: a place is told in 32 bits."""


@contextmanager
def translated(call: str, *, wanted_bytes: int | None = None) -> Iterator[None]:
    """What CuPy raises where a call of CUDA fails, as `CudaFault`; where so many bytes were wanted and are not there,
    as `OutOfDeviceMemory`: its pools have an error of their own for that, beside the runtime's."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        found = _translation(error, call, wanted_bytes)
        if found is None:
            raise
        raise found from None


def _translation(error: Exception, call: str, wanted_bytes: int | None) -> CudaFault | OutOfDeviceMemory | None:
    """None if it is no error of CUDA's."""
    import cupy

    cuda: Any = cupy.cuda
    if isinstance(error, cuda.memory.OutOfMemoryError):
        return OutOfDeviceMemory(wanted_bytes or 0, str(error))
    if not isinstance(error, cuda.runtime.CUDARuntimeError | cuda.driver.CUDADriverError):
        return None
    if wanted_bytes is not None and error.status == _NO_MEMORY:
        return OutOfDeviceMemory(wanted_bytes, str(error))
    return CudaFault(call, int(error.status), str(error))


class CupyBlock:
    """A `Block` of whatever of CuPy's frees its memory when it is dropped: a pool's pointer, or the driver's memory."""

    def __init__(self, owner: Any, size_bytes: int) -> None:
        self._owner = owner
        self.address: int = owner.ptr
        self.size_bytes = size_bytes


class CupyGpu:
    """A `Gpu`. Opened in whichever thread; then each thread that uses it calls `enter` first.

    Raises:
        ImportError: there is no CuPy, or it is broken.
        CudaFault, OutOfDeviceMemory: the device cannot be opened.
    """

    def __init__(self, driver: Driver, device: CudaDevice) -> None:
        import cupy

        self._cupy: Any = cupy.cuda
        self._runtime: Any = cupy.cuda.runtime
        self.l2_bytes = device.l2_bytes
        self._driver = driver
        self._device = device
        self._cupy_device: Any = self._cupy.Device(device.ordinal)
        self._closed = False
        with translated("opening the device"):
            self.enter()
            self._stream: Any = self._cupy.Stream(non_blocking=True)
            self.stream: int = self._stream.ptr
            # A pool of our own: the caller's process may have its own ideas of CuPy's default one.
            self._pool: Any = self._cupy.MemoryPool()
            self._landing: Any = self._cupy.alloc_pinned_memory(_LANDING_BYTES)
            self._landed = np.frombuffer(self._landing, np.uint8, _LANDING_BYTES)
            self._verdict = self.allocate(16)
            self._events: list[Any] = []
            self._event_numbers: list[int] = []
            module = self._cupy.function.Module()
            module.load(PTX.read_bytes())
            self._kernels = _Kernels(driver, module, c_void_p(self.stream), device.multiprocessors)
            self._rows = RowKernels(driver, module, device.multiprocessors)

    def __repr__(self) -> str:
        return f"<CupyGpu {self._device.name} {self._device.ordinal}{', closed' if self._closed else ''}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        """The lane's stream by CUDA's stream protocol: its version, and the stream."""
        return 0, self.stream

    def enter(self) -> None:
        """As `Gpu` says."""
        with translated("cudaSetDevice"):
            self._cupy_device.use()
            self._runtime.free(0)  # makes the context this thread's: until then the driver's own calls would find none

    # -- memory ------------------------------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        """As `Gpu` says: the device's, and what the pool has at hand."""
        with translated("cudaMemGetInfo"):
            return int(self._runtime.memGetInfo()[0] + self._pool.free_bytes())

    def allocate(self, size_bytes: int) -> CupyBlock:
        """As `Gpu` says."""
        # Within the stream: the pool keeps what is free for each one by itself.
        with translated("cudaMalloc", wanted_bytes=size_bytes), self._stream:
            return CupyBlock(self._pool.malloc(size_bytes), size_bytes)

    def trim(self, keep_bytes: int) -> None:
        """As `Gpu` says."""
        if self._pool.free_bytes() > keep_bytes:
            with translated("cudaFree"):
                self._pool.free_all_blocks()

    def set_bytes(self, address: int, value: int, size_bytes: int) -> None:
        """As `Gpu` says."""
        with translated("cudaMemsetAsync"):
            self._runtime.memsetAsync(address, value, size_bytes, self.stream)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """As `Gpu` says."""
        with translated("cudaMemcpyAsync"):
            self._runtime.memcpyAsync(target, source, size_bytes, _ON_DEVICE, self.stream)

    def read(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """As `Gpu` says. What does not fit into the landing comes in pieces."""
        found: list[list[bytes]] = [[] for _ in places]
        pieces = [
            (number, start, min(_LANDING_BYTES, size - start))
            for number, (_, size) in enumerate(places)
            for start in range(0, size, _LANDING_BYTES)
        ]
        while pieces:
            at, taken = 0, 0
            with translated("cudaMemcpyAsync"):
                for number, start, size in pieces:
                    if at + size > _LANDING_BYTES:
                        break
                    self._runtime.memcpyAsync(
                        self._landing.ptr + at, places[number][0] + start, size, _TO_HOST, self.stream
                    )
                    at, taken = at + size, taken + 1
            self.synchronize()
            at = 0
            for number, _, size in pieces[:taken]:
                found[number].append(self._landed[at : at + size].tobytes())
                at += size
            del pieces[:taken]
        return [each[0] if len(each) == 1 else b"".join(each) for each in found]

    # -- kernels -----------------------------------------------------------------------------------------------------

    def draw(self, address: int, element_type: str, count: int, *, low: float, high: float, seed: int) -> None:
        """As `Gpu` says."""
        self._kernels.fill(element_type, address, count, low, high, seed)

    def compare(
        self, found: int, other: int, element_type: str, count: int, *, absolute: float, relative: float
    ) -> Verdict:
        """As `Gpu` says."""
        differing, worst_excess, worst = 0, -1, None
        size = ELEMENT_BYTES[element_type]
        for start in range(0, count, _MOST_COMPARED):
            here = min(_MOST_COMPARED, count - start)
            self.set_bytes(self._verdict.address, 0, 16)
            self._kernels.compare(
                element_type,
                found + start * size,
                other + start * size,
                here,
                absolute,
                relative,
                self._verdict.address,
            )
            (raw,) = self.read([(self._verdict.address, 16)])
            many, place, excess = unpack("<QII", raw)
            differing += many
            if many and excess > worst_excess:
                worst_excess, worst = excess, start + place
        return Verdict(differing, worst)

    def prepare_rows(self) -> None:
        """As `CopiesRows` says: with the others, when the device was opened."""

    def row_copier(self, copies: Sequence[RowCopy], stream: c_void_p) -> Callable[[], None]:
        """As `CopiesRows` says."""
        with translated("cuModuleGetFunction"):
            return self._rows.copier(copies, stream)

    def spin(self, hold_us: float) -> None:
        """As `Gpu` says."""
        self._kernels.spin(hold_us)

    # -- events ------------------------------------------------------------------------------------------------------

    def events(self, count: int) -> Sequence[int]:
        """As `Gpu` says."""
        with translated("cudaEventCreate"):
            while len(self._events) < count:
                self._events.append(self._cupy.Event())
                self._event_numbers.append(self._events[-1].ptr)
        return self._event_numbers

    def record(self, event: int) -> None:
        """As `Gpu` says."""
        self._driver.record(event, self.stream)

    def is_ready(self, event: int) -> bool:
        """As `Gpu` says."""
        return self._driver.is_ready(event)

    def elapsed_us(self, first: int, last: int) -> float:
        """As `Gpu` says."""
        return self._driver.elapsed_us(first, last)

    def clock_us(self) -> float:
        """As `Gpu` says."""
        return perf_counter_ns() / 1e3

    def synchronize(self) -> None:
        """As `Gpu` says."""
        with translated("cudaStreamSynchronize"):
            self._runtime.streamSynchronize(self.stream)

    def is_healthy(self) -> bool:
        """As `Gpu` says."""
        try:
            self.spin(0.0)
            self.synchronize()
        except CudaFault:
            return False
        return True

    def close(self) -> None:
        """As `Gpu` says."""
        if self._closed:
            return
        self._closed = True
        del self._verdict
        self._events.clear()
        self._event_numbers.clear()
        self._pool.free_all_blocks()


class _Kernels:
    """The kernels of `kernels.ptx` that fill and compare, each with its arguments in place."""

    def __init__(self, driver: Driver, module: Any, stream: c_void_p, multiprocessors: int) -> None:
        self._module = module
        self._driver, self._stream = driver, stream
        self._blocks = multiprocessors * _BLOCKS_A_MULTIPROCESSOR
        self._made: dict[str, tuple[tuple[Any, ...], Callable[[], None]]] = {}
        self._hold_ns = ctypes.c_uint64()
        self._spin = driver.launcher(
            self._address("spin"), stream, blocks=(1, 1), threads=1, arguments=(self._hold_ns,)
        )

    def spin(self, hold_us: float) -> None:
        self._hold_ns.value = round(hold_us * 1e3)
        self._spin()

    def fill(self, element_type: str, address: int, count: int, low: float, high: float, seed: int) -> None:
        kinds = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float, ctypes.c_float, ctypes.c_uint32)
        self._launch(f"fill_{element_type}", kinds, (address, count, low, high, seed))

    def compare(
        self, element_type: str, found: int, other: int, count: int, absolute: float, relative: float, verdict: int
    ) -> None:
        kinds = (*(ctypes.c_uint64,) * 3, ctypes.c_double, ctypes.c_double, ctypes.c_uint64)
        self._launch(f"compare_{element_type}", kinds, (found, other, count, absolute, relative, verdict))

    def _launch(self, name: str, kinds: tuple[Any, ...], values: tuple[float, ...]) -> None:
        made = self._made.get(name)
        if made is None:
            arguments = tuple(kind() for kind in kinds)
            launch = self._driver.launcher(
                self._address(name), self._stream, blocks=(self._blocks, 1), threads=THREADS, arguments=arguments
            )
            made = self._made[name] = arguments, launch
        arguments, launch = made
        for argument, value in zip(arguments, values, strict=True):
            argument.value = value
        launch()

    def _address(self, name: str) -> int:
        return int(self._module.get_function(name).ptr)
