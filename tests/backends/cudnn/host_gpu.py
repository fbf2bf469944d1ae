"""`HostGpu`: a `Gpu` whose memory is the host's and whose clocks are counted, so that what a session does with a device
can be followed call by call. It and the real one pass the same tests (`gpu_contract.py`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from algosearch.backends.cudnn.gpu import (
    CHUNK_BYTES,
    MOST_CHUNKS,
    MOST_COPIES,
    CudaFault,
    OutOfDeviceMemory,
    RowCopy,
    Verdict,
)
from algosearch.ops import ELEMENT_BYTES

CAPACITY_BYTES: Final = 1 << 28
CALL_US: Final = 1.0
"""What the host takes to queue anything."""
ALIGNMENT_BYTES: Final = 512


def copy_rows(copy: RowCopy) -> None:
    """One of them, on the host."""
    source, target = (
        _rows_at(copy.source, copy.source_rows, copy.source_width, copy.element_bytes),
        _rows_at(copy.target, copy.target_rows, copy.target_width, copy.element_bytes),
    )
    if copy.widens:
        target[:] = 0
    rows, width = min(copy.source_rows, copy.target_rows), min(copy.source_width, copy.target_width)
    target[:rows, :width] = source[:rows, :width]


def check_copies(copies: Sequence[RowCopy]) -> None:
    """What the kernels rely on."""
    assert 1 <= len(copies) <= MOST_COPIES
    assert len({(each.widens, each.element_bytes) for each in copies}) == 1
    for each in copies:
        wide = (each.target, each.target_width) if each.widens else (each.source, each.source_width)
        narrow = each.source if each.widens else each.target
        assert wide[0] % CHUNK_BYTES == wide[1] * each.element_bytes % CHUNK_BYTES == 0
        assert narrow % each.element_bytes == 0
        assert each.chunks < MOST_CHUNKS


class HostBlock:
    """Memory that counts as taken until it is dropped."""

    def __init__(self, gpu: HostGpu, size_bytes: int) -> None:
        self._gpu = gpu
        self._memory = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
        self.address = -(-self._memory.ctypes.data // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.size_bytes = size_bytes
        gpu.taken_bytes += size_bytes

    def __del__(self) -> None:
        self._gpu.taken_bytes -= self.size_bytes


class HostGpu:
    """Everything that is queued is done at once; when it would have been done is what is counted.

    Args:
        executed_us: how long everything that the library executed so far took on the device.
    """

    def __init__(
        self, *, executed_us: Callable[[], float] = lambda: 0.0, capacity_bytes: int = CAPACITY_BYTES, l2_bytes: int = 0
    ) -> None:
        self.stream = 7
        self.l2_bytes = l2_bytes
        self.taken_bytes = 0
        self.host_us = 0.0
        self.slow_calls: dict[int, float] = {}
        """Calls of `record`, by their number from 1, before which the host is away for so many µs."""
        self.spins: list[float] = []
        self.entered: set[int] = set()
        self.fault: CudaFault | None = None
        """What the next call that waits, or asks whether it must, raises."""
        self.lost = False
        """Whether it runs nothing any more."""
        self.closed = False
        self.rows_prepared = False
        self.row_copies: list[tuple[int, tuple[RowCopy, ...]]] = []
        """What was queued by row copiers, with the stream's number."""
        self._capacity_bytes = capacity_bytes
        self._executed_us = executed_us
        self._seen_us = 0.0
        self._busy_until_us = 0.0
        self._records = 0
        self._reached_us: dict[int, float] = {}

    def run(self, run_us: float) -> int:
        """Queue something that takes the device so long, in a test of what times it."""
        self._queue(run_us)
        return 0

    def enter(self) -> None:
        import threading

        self.entered.add(threading.get_ident())

    def free_bytes(self) -> int:
        return self._capacity_bytes - self.taken_bytes

    def allocate(self, size_bytes: int) -> HostBlock:
        if size_bytes > self.free_bytes():
            raise OutOfDeviceMemory(size_bytes, f"of {self.free_bytes()} free bytes")
        return HostBlock(self, size_bytes)

    def trim(self, keep_bytes: int) -> None:
        pass

    def set_bytes(self, address: int, value: int, size_bytes: int) -> None:
        self._queue(0.0)
        ctypes.memset(address, value, size_bytes)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        self._queue(0.0)
        ctypes.memmove(target, source, size_bytes)

    def draw(self, address: int, element_type: str, count: int, *, low: float, high: float, seed: int) -> None:
        self._queue(0.0)
        drawn = low + (high - low) * np.random.default_rng(seed).random(count)
        if element_type == "bfloat16":
            values: npt.NDArray[Any] = (drawn.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        elif element_type == "int8":
            values = np.floor(drawn).astype(np.int8)
        else:
            values = drawn.astype(element_type)
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def prepare_rows(self) -> None:
        self.rows_prepared = True

    def row_copier(self, copies: Sequence[RowCopy], stream: c_void_p) -> Callable[[], None]:
        check_copies(copies)
        assert self.rows_prepared

        def launch() -> None:
            self._queue(0.0)
            self.row_copies.append((stream.value or 0, tuple(copies)))
            for each in copies:
                copy_rows(each)

        return launch

    def read(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        self.synchronize()
        return [ctypes.string_at(address, size) for address, size in places]

    def compare(
        self, found: int, other: int, element_type: str, count: int, *, absolute: float, relative: float
    ) -> Verdict:
        here, there = (
            _elements(raw, element_type)
            for raw in self.read([(at, count * ELEMENT_BYTES[element_type]) for at in (found, other)])
        )
        with np.errstate(all="ignore"):
            excess = np.abs(here - there) / (absolute + relative * np.abs(there))
        excess[here == there] = 0.0
        differs = ~(excess <= 1.0)
        if not differs.any():
            return Verdict(0, None)
        return Verdict(int(differs.sum()), int(np.argmax(np.where(np.isnan(excess), np.inf, excess))))

    def events(self, count: int) -> Sequence[int]:
        return range(1, count + 1)

    def record(self, event: int) -> None:
        self._records += 1
        self.host_us += self.slow_calls.get(self._records, 0.0)
        self._queue(0.0)
        self._reached_us[event] = self._busy_until_us

    def is_ready(self, event: int) -> bool:
        self._raise_fault()
        return self._reached_us[event] <= self.host_us

    def spin(self, hold_us: float) -> None:
        self.spins.append(hold_us)
        self._queue(hold_us)

    def elapsed_us(self, first: int, last: int) -> float:
        return self._reached_us[last] - self._reached_us[first]

    def clock_us(self) -> float:
        return self.host_us

    def synchronize(self) -> None:
        self._queue(0.0)
        self.host_us = max(self.host_us, self._busy_until_us)
        self._raise_fault()

    def _raise_fault(self) -> None:
        """What was queued has failed: whoever asks for it first is told."""
        if self.lost:
            raise CudaFault("synchronize", 700, "an illegal memory access was encountered")
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault

    def is_healthy(self) -> bool:
        try:
            self.synchronize()
        except CudaFault:
            return False
        return True

    def close(self) -> None:
        self.closed = True

    def _queue(self, run_us: float) -> None:
        """The host goes on; the device takes it, and what the library executed before it, as soon as it is free."""
        self.host_us += CALL_US
        executed_us = self._executed_us()
        run_us += executed_us - self._seen_us
        self._seen_us = executed_us
        self._busy_until_us = max(self._busy_until_us, self.host_us) + run_us


def _rows_at(address: int, rows: int, width: int, element_bytes: int) -> npt.NDArray[Any]:
    raw = (ctypes.c_ubyte * (rows * width * element_bytes)).from_address(address)
    found: npt.NDArray[Any] = np.ctypeslib.as_array(raw).view(f"u{element_bytes}").reshape(rows, width)
    return found


def _elements(raw: bytes, element_type: str) -> npt.NDArray[np.float64]:
    if element_type == "bfloat16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(raw, element_type).astype(np.float64)
