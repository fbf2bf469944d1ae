"""`HostHome`: a `Home` whose device memory is the host's, and arrays that say that they lie in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_void_p
from typing import Any

import numpy.typing as npt

from algosearch.backends.cudnn.gpu import CudaFault, OutOfDeviceMemory, RowCopy
from tests.backends.cudnn.host_gpu import HostBlock, HostGpu

ORDINAL = 3


class HostHome:
    """Everything that is queued is done at once."""

    def __init__(self, *, capacity_bytes: int = 1 << 28) -> None:
        self.ordinal = ORDINAL
        self.stream = 5
        self.capturing: set[int] = set()
        self.elsewhere: dict[int, int] = {}
        """Addresses that are another device's, or the host's."""
        self.fault: CudaFault | None = None
        """What the next copy raises."""
        self.depth = 0
        self._memory = HostGpu(capacity_bytes=capacity_bytes)

    @contextmanager
    def current(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def usual_stream(self, *, of_torch: bool) -> int:
        assert not of_torch
        return self.stream

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    def device_of(self, address: int) -> int:
        return self.elsewhere.get(address, ORDINAL)

    def allocate(self, size_bytes: int) -> HostBlock:
        assert self.depth
        if size_bytes > self._memory.free_bytes():
            raise OutOfDeviceMemory(size_bytes, "the host has no more")
        return self._memory.allocate(size_bytes)

    @property
    def taken_bytes(self) -> int:
        """Allocated, and not yet given back."""
        return self._memory.taken_bytes

    def copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        assert self.depth
        if self.fault is not None:
            raise self.fault
        ctypes.memmove(target, source, size_bytes)

    def prepare_rows(self) -> None:
        assert self.depth
        self._memory.prepare_rows()

    def row_copier(self, copies: Sequence[RowCopy], stream: c_void_p) -> Callable[[], None]:
        assert self.depth
        queue = self._memory.row_copier(copies, stream)

        def launch() -> None:
            assert self.depth
            if self.fault is not None:
                raise self.fault
            queue()

        return launch

    @property
    def row_copies(self) -> list[tuple[int, tuple[RowCopy, ...]]]:
        """What was queued by row copiers, with the stream's number."""
        return self._memory.row_copies


class OnDevice:
    """An array of that memory, as CuPy's says what it is."""

    def __init__(self, array: npt.NDArray[Any], *, bfloat16: bool = False, read_only: bool = False) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": "<V2" if bfloat16 else array.dtype.str,
            "data": (array.ctypes.data, read_only),
            "strides": None if array.flags.c_contiguous else array.strides,
            "version": 3,
        }


def words_on_streams(journal: list[str]) -> list[str]:
    """What a fake cuDNN was told of streams and runs."""
    return [line.lstrip("+-") for line in journal if line.lstrip("+-").startswith(("stream", "execute on"))]
