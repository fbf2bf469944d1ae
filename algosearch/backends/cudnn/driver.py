"""The CUDA driver by ctypes, for what CuPy has no call for that suits: to look for devices without importing CuPy or
making a context, and to queue work without giving the GIL up.

The GIL decides about launches: a thread that gives it up for each of 60 launches must win it back 60 times, and beside
one busy Python thread that takes 60 ms. `PyDLL` keeps it. Nothing that is called here waits for the device.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Sequence
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_uint, c_void_p, create_string_buffer
from typing import Any, Final

import msgspec

from algosearch.backends.cudnn.gpu import CudaFault

_LIBRARY: Final = "libcuda.so.1"
_ELSE: Final = "or ask another backend (`--device cpu`)"
_NOT_READY: Final = 600  # CUDA_ERROR_NOT_READY, cuda.h
_NO_DEVICE: Final = 100  # CUDA_ERROR_NO_DEVICE

# CUdevice_attribute, cuda.h
_MULTIPROCESSORS: Final = 16
_L2_BYTES: Final = 38
_MAJOR: Final = 75
_MINOR: Final = 76


class DriverMissing(Exception):
    """There is no driver or no device; says why, and what to do about it. Never reaches a caller."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(reason, remedy)


class CudaDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of a device, no context needed."""

    ordinal: int
    name: str
    uuid: str
    compute_capability: str
    """Such as `9.0`."""
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int


class Driver:
    """The driver's calls. Loaded by `load`; nothing to close."""

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        # Told beforehand, numbers go as they are: these are called a hundred times behind a gate.
        calls.cuEventRecord.argtypes = (c_void_p, c_void_p)
        calls.cuEventQuery.argtypes = (c_void_p,)
        calls.cuEventElapsedTime.argtypes = (ctypes.POINTER(c_float), c_void_p, c_void_p)
        self._record, self._query, self._elapsed = calls.cuEventRecord, calls.cuEventQuery, calls.cuEventElapsedTime

    @classmethod
    def load(cls) -> Driver:
        """Load and initialise it.

        Raises:
            DriverMissing: there is none, or it has no device.
        """
        try:
            calls = ctypes.PyDLL(_LIBRARY)
        except OSError:
            raise DriverMissing("there is no NVIDIA driver (libcuda.so.1)", f"install the driver, {_ELSE}") from None
        try:
            status = calls.cuInit(0)
            driver = cls(calls)
        except AttributeError as error:
            raise DriverMissing(f"{_LIBRARY} is no driver: {error}", f"install the driver, {_ELSE}") from error
        if status == _NO_DEVICE:
            raise DriverMissing("the driver finds no GPU", f"look at CUDA_VISIBLE_DEVICES and nvidia-smi, {_ELSE}")
        if status:
            raise DriverMissing(f"the driver cannot begin: cuInit answers {status}", f"look at nvidia-smi, {_ELSE}")
        return driver

    def devices(self) -> tuple[CudaDevice, ...]:
        """Those that this process may see, by their ordinals."""
        count = c_int()
        self._check("cuDeviceGetCount", byref(count))
        return tuple(self._device(ordinal) for ordinal in range(count.value))

    def launcher(
        self, function: int, stream: c_void_p, *, blocks: tuple[int, int], threads: int, arguments: Sequence[Any]
    ) -> Callable[[], None]:
        """A call that queues a kernel with these ctypes values on this stream, both read when it is called. Made once,
        called often."""
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        shape = (*(c_uint(each) for each in (*blocks, 1, threads, 1, 1)), c_uint(0))
        call, where = self._calls.cuLaunchKernel, (c_void_p(function), *shape, stream, pointers, None)
        kept = arguments  # `pointers` does not keep them alive

        def launch() -> None:
            status = call(*where)
            if status:
                raise self._fault("cuLaunchKernel", status) from None
            _ = kept

        return launch

    def primary_context(self, ordinal: int) -> int:
        """The context that CUDA's runtime uses for a device, made if need be. It is never given back: nobody can tell
        who else of this process uses it."""
        device, found = c_int(), c_void_p()
        self._check("cuDeviceGet", byref(device), ordinal)
        self._check("cuDevicePrimaryCtxRetain", byref(found), device)
        return found.value or 0

    def context(self) -> int:
        """The thread's current context; 0 if it has none."""
        found = c_void_p()
        self._check("cuCtxGetCurrent", byref(found))
        return found.value or 0

    def make_current(self, context: int) -> None:
        """Make a context the thread's; 0 leaves it with none."""
        self._check("cuCtxSetCurrent", c_void_p(context))

    def record(self, event: int, stream: int) -> None:
        """Queue an event."""
        status = self._record(event, stream)
        if status:
            raise self._fault("cuEventRecord", status)

    def is_ready(self, event: int) -> bool:
        """Whether the device has come to where it was queued."""
        status = self._query(event)
        if status not in (0, _NOT_READY):
            raise self._fault("cuEventQuery", status)
        return bool(status == 0)

    def elapsed_us(self, first: int, last: int) -> float:
        """Between two events that are ready."""
        milliseconds = c_float()
        status = self._elapsed(byref(milliseconds), first, last)
        if status:
            raise self._fault("cuEventElapsedTime", status)
        return milliseconds.value * 1e3

    def _device(self, ordinal: int) -> CudaDevice:
        device = c_int()
        self._check("cuDeviceGet", byref(device), ordinal)
        name, identity, memory = create_string_buffer(256), (c_char * 16)(), ctypes.c_size_t()
        self._check("cuDeviceGetName", name, len(name), device)
        # The second version tells the parts of a divided GPU (MIG) from each other.
        self._check("cuDeviceGetUuid_v2", identity, device)
        self._check("cuDeviceTotalMem_v2", byref(memory), device)
        return CudaDevice(
            ordinal=ordinal,
            name=name.value.decode(errors="replace"),
            uuid=f"GPU-{uuid.UUID(bytes=bytes(identity))}",
            compute_capability=f"{self._attribute(_MAJOR, device)}.{self._attribute(_MINOR, device)}",
            multiprocessors=self._attribute(_MULTIPROCESSORS, device),
            l2_bytes=self._attribute(_L2_BYTES, device),
            memory_bytes=memory.value,
        )

    def _attribute(self, number: int, device: c_int) -> int:
        value = c_int()
        self._check("cuDeviceGetAttribute", byref(value), number, device)
        return value.value

    def _check(self, call: str, *arguments: Any) -> None:
        status = getattr(self._calls, call)(*arguments)
        if status:
            raise self._fault(call, status)

    def _fault(self, call: str, status: int) -> CudaFault:
        text = c_char_p()
        self._calls.cuGetErrorString(status, byref(text))
        return CudaFault(call, status, (text.value or b"unknown error").decode(errors="replace"))
