"""`Gpu`: what a session asks of the device beside what it asks of cuDNN. `cuda.py` is the real one.

Addresses and events are numbers. Whatever is not said to block is queued on the device's one stream, the lane's; only
`enter`, `is_healthy` and `prepare_rows` may be called from another thread than the lane's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_void_p
from typing import Final, Protocol

import msgspec

from algosearch.errors import AlgosearchError


class CudaFault(AlgosearchError, RuntimeError):
    """A call of CUDA failed, or one that was queued before it did."""

    def __init__(self, call: str, status: int, message: str) -> None:
        self.call, self.status, self.message = call, status, message
        super().__init__(call, status, message)

    def __str__(self) -> str:
        return f"{self.call}: {self.message} ({self.status})"


class OutOfDeviceMemory(AlgosearchError, MemoryError):
    """There is not so much memory on the device."""

    def __init__(self, wanted_bytes: int, message: str) -> None:
        self.wanted_bytes, self.message = wanted_bytes, message
        super().__init__(wanted_bytes, message)

    def __str__(self) -> str:
        return f"{self.wanted_bytes} bytes: {self.message}"


class Verdict(msgspec.Struct, frozen=True):
    """What a comparison of two tensors found."""

    differing: int
    """Elements."""
    worst: int | None
    """The place of the element that differs most, relative to what was allowed; None if none differs."""


CHUNK_BYTES: Final = 16
"""What a thread copies at once: the wider one of a `RowCopy` is aligned to it, and so are its rows."""
MOST_CHUNKS: Final = 1 << 31
"""In the wider one: a kernel counts them in 32 bits."""
MOST_COPIES: Final = 2
"""In one launch."""


class RowCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of elements copied into as many rows of another width, or more, or fewer. What the target has and the source
    has not is filled with zeros. One of the two is at least as wide and has at least as many rows: the wider one."""

    source: int
    target: int
    element_bytes: int
    """2 or 4."""
    source_rows: int
    source_width: int
    """In elements."""
    target_rows: int
    target_width: int

    @property
    def widens(self) -> bool:
        """Whether the target is the wider one."""
        return self.target_width >= self.source_width and self.target_rows >= self.source_rows

    @property
    def chunks(self) -> int:
        """What there is to do, in the wider one's chunks."""
        width = self.target_width if self.widens else self.source_width
        return self.target_rows * width * self.element_bytes // CHUNK_BYTES


class CopiesRows(Protocol):
    """A device that copies rows, in whichever process."""

    def prepare_rows(self) -> None:
        """Load what copying rows takes, before anything is captured; in any thread, the device being current. Harmless
        if done twice.

        Raises:
            CudaFault: it cannot be loaded.
        """
        ...

    def row_copier(self, copies: Sequence[RowCopy], stream: c_void_p) -> Callable[[], None]:
        """A call that queues these copies, at most `MOST_COPIES` of one element size, all of them widening or none.
        Keeps the GIL.

        Args:
            stream: read at each call.

        Raises:
            CudaFault: so does the call, if it cannot be queued.
        """
        ...


class Block(Protocol):
    """Device memory, given back when it is dropped."""

    address: int
    size_bytes: int


class Gpu(CopiesRows, Protocol):
    """One open device."""

    stream: int
    """The lane's stream, for a library's handle."""
    l2_bytes: int

    def enter(self) -> None:
        """Make it this thread's device. Harmless if it is."""
        ...

    def free_bytes(self) -> int:
        """What could be allocated now, in one piece at best."""
        ...

    def allocate(self, size_bytes: int) -> Block:
        """Memory, aligned to 512 bytes, whose contents do not matter.

        Raises:
            OutOfDeviceMemory: there is not so much.
        """
        ...

    def trim(self, keep_bytes: int) -> None:
        """Give the memory that is in nobody's hands back to the device, if it is more than this."""
        ...

    def set_bytes(self, address: int, value: int, size_bytes: int) -> None:
        """Fill with a byte."""
        ...

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        """From device to device."""
        ...

    def draw(self, address: int, element_type: str, count: int, *, low: float, high: float, seed: int) -> None:
        """Fill with random elements, evenly from `low` up to `high`; the same ones each time. int8: whole numbers below
        `high`."""
        ...

    def read(self, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at each (address, size); blocks until all that was queued is done.

        Raises:
            CudaFault: something that was queued failed.
        """
        ...

    def compare(
        self, found: int, other: int, element_type: str, count: int, *, absolute: float, relative: float
    ) -> Verdict:
        """Which elements differ by more than `absolute + relative * |other|`; NaN differs from everything. Blocks, as
        `read`.

        Raises:
            CudaFault: something that was queued failed.
        """
        ...

    def events(self, count: int) -> Sequence[int]:
        """At least so many events, always the same ones."""
        ...

    def record(self, event: int) -> None:
        """Queue an event. Keeps the GIL."""
        ...

    def is_ready(self, event: int) -> bool:
        """Whether the device has come to where the event was queued. Keeps the GIL."""
        ...

    def spin(self, hold_us: float) -> None:
        """Keep the stream busy for so long, whatever happens. Keeps the GIL."""
        ...

    def elapsed_us(self, first: int, last: int) -> float:
        """Between two events that are ready."""
        ...

    def clock_us(self) -> float:
        """The host's clock, from wherever it begins."""
        ...

    def synchronize(self) -> None:
        """Block until all that was queued is done.

        Raises:
            CudaFault: something that was queued failed.
        """
        ...

    def is_healthy(self) -> bool:
        """Whether it still runs anything; blocks. After some faults a context never does again."""
        ...

    def close(self) -> None:
        """Give everything back; harmless if called twice."""
        ...
