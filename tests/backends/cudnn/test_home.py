"""The device in the caller's process: what is current is given back, and what CUDA refuses is told. With a driver and a
CuPy that are none."""

from __future__ import annotations

import sys
from ctypes import c_void_p
from threading import Thread, local
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

from algosearch.backends.arrays import HOST
from algosearch.backends.cudnn.cuda import translated
from algosearch.backends.cudnn.driver import CudaDevice, Driver
from algosearch.backends.cudnn.gpu import CudaFault, OutOfDeviceMemory
from algosearch.backends.cudnn.home import CupyHome

DEVICE: Final = CudaDevice(
    ordinal=1,
    name="None",
    uuid="GPU-1",
    compute_capability="9.0",
    multiprocessors=1,
    l2_bytes=1,
    memory_bytes=1,
)
CONTEXT: Final = 0x1001
"""Of device 1; 0x1000 is that of device 0."""


class Calls:
    """The driver's: a current context for each thread."""

    def __init__(self) -> None:
        self.thread = local()
        self.retained: list[int] = []
        self.refused = 0
        """What making a context current answers."""
        self.cuEventRecord = self.cuEventQuery = self.cuEventElapsedTime = lambda *_: 0

    def cuDeviceGet(self, target: Any, ordinal: int) -> int:
        target._obj.value = ordinal
        return 0

    def cuDevicePrimaryCtxRetain(self, target: Any, device: Any) -> int:
        self.retained.append(device.value)
        target._obj.value = 0x1000 + device.value
        return 0

    def cuCtxGetCurrent(self, target: Any) -> int:
        target._obj.value = getattr(self.thread, "context", None)
        return 0

    def cuCtxSetCurrent(self, context: c_void_p) -> int:
        if not self.refused:
            self.thread.context = context.value
        return self.refused

    def cuGetErrorString(self, status: int, target: Any) -> int:
        target._obj.value = b"told"
        return 0

    @property
    def current(self) -> int | None:
        context: int | None = getattr(self.thread, "context", None)
        return context


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"status {status}")


class CUDADriverError(CUDARuntimeError):
    """As CuPy's."""


class OutOfMemoryError(MemoryError):
    """As CuPy's: of its pools."""


class Runtime:
    """The part of `cupy.cuda.runtime` that a home uses."""

    CUDARuntimeError = CUDARuntimeError

    def __init__(self) -> None:
        self.status = 0

    def _check(self) -> None:
        if self.status:
            raise CUDARuntimeError(self.status)

    def streamIsCapturing(self, stream: int) -> int:
        self._check()
        return stream == 7

    def pointerGetAttributes(self, address: int) -> Any:
        self._check()
        return SimpleNamespace(device=address, type=2 if address < 8 else 1)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime()

    def memory(size_bytes: int) -> Any:
        runtime._check()
        return SimpleNamespace(ptr=512)

    cupy: Any = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(
        runtime=runtime,
        driver=SimpleNamespace(CUDADriverError=CUDADriverError),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        Memory=memory,
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return runtime


@pytest.fixture
def home(calls: Calls, runtime: Runtime) -> CupyHome:
    return CupyHome(Driver(calls), DEVICE)


@pytest.mark.parametrize("before", [None, CONTEXT, 0x1000, 0x7777])
def test_what_was_current_is_current_again(calls: Calls, home: CupyHome, before: int | None) -> None:
    assert calls.retained == [1]
    calls.thread.context = before
    with home.current():
        assert calls.current == CONTEXT
        with home.current():
            assert calls.current == CONTEXT
        assert calls.current == CONTEXT
    assert calls.current == before
    with pytest.raises(KeyError), home.current():
        raise KeyError
    assert calls.current == before


def test_it_is_current_in_a_thread_that_never_used_a_device(calls: Calls, home: CupyHome) -> None:
    seen: list[int | None] = []

    def work() -> None:
        with home.current():
            seen.append(calls.current)
        seen.append(calls.current)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [CONTEXT, None]


def test_a_device_that_cannot_be_made_current_is_told_of(calls: Calls, home: CupyHome) -> None:
    calls.refused = 700
    with pytest.raises(CudaFault, match=r"cuCtxSetCurrent: told \(700\)"), home.current():
        pytest.fail("it is not")


def test_what_is_captured_and_where_memory_is(home: CupyHome, runtime: Runtime) -> None:
    assert [home.is_capturing(stream) for stream in (2, 7)] == [False, True]
    assert [home.device_of(address) for address in (1, 9)] == [1, HOST]
    runtime.status = 906
    for default in (0, 1):
        assert not home.is_capturing(default), "it cannot be, and to ask while another is captured is an error"
    with pytest.raises(CudaFault, match=r"cudaStreamIsCapturing: status 906 \(906\)"):
        home.is_capturing(7)
    with pytest.raises(CudaFault, match="cudaPointerGetAttributes"):
        home.device_of(1)


def test_memory_that_is_not_there_is_told_from_what_broke(home: CupyHome, runtime: Runtime) -> None:
    assert home.allocate(512).address == 512
    runtime.status = 2
    with pytest.raises(OutOfDeviceMemory, match="512 bytes: status 2"):
        home.allocate(512)
    runtime.status = 700
    with pytest.raises(CudaFault, match=r"cudaMalloc: status 700 \(700\)"):
        home.allocate(512)


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("raised", "wanted_bytes", "expected"),
    [
        (CUDARuntimeError(700), None, CudaFault("call", 700, "status 700")),
        (CUDADriverError(2), None, CudaFault("call", 2, "status 2")),
        (CUDADriverError(2), 8, OutOfDeviceMemory(8, "status 2")),
        (OutOfMemoryError("of a pool"), 8, OutOfDeviceMemory(8, "of a pool")),
        (RuntimeError("another"), 8, RuntimeError("another")),
        (MemoryError("the host's"), 8, MemoryError("the host's")),
        (CudaFault("inner", 1, "told already"), 8, CudaFault("inner", 1, "told already")),
    ],
)
def test_what_cupy_raises_is_translated(raised: Exception, wanted_bytes: int | None, expected: Exception) -> None:
    with pytest.raises(type(expected)) as caught, translated("call", wanted_bytes=wanted_bytes):
        raise raised
    assert (type(caught.value), caught.value.args) == (type(expected), expected.args)
