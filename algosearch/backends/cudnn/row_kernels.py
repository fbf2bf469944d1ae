"""`RowKernels`: rows copied into wider or narrower ones, by the kernels of `kernels.ptx`. For a search's device and for
the caller's own process.

Rejected: `cudaMemcpy2DAsync`, which is made for rows of kilobytes; a pixel of three channels has six bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_uint32, c_uint64, c_void_p
from importlib import resources
from typing import Any, Final

from algosearch.backends.cudnn.driver import Driver
from algosearch.backends.cudnn.gpu import MOST_COPIES, RowCopy

PTX: Final = resources.files(__package__).joinpath("kernels.ptx")
THREADS: Final = 256
"""Of a block."""
_BLOCKS_A_MULTIPROCESSOR: Final = 8


class _Rows(ctypes.Structure):
    """`Rows` of `kernels.cu`."""

    _fields_ = (
        ("source", c_uint64),
        ("target", c_uint64),
        ("source_rows", c_uint32),
        ("source_width", c_uint32),
        ("target_rows", c_uint32),
        ("target_width", c_uint32),
    )


class RowKernels:
    """Made with a module that holds the kernels, which it keeps."""

    def __init__(self, driver: Driver, module: Any, multiprocessors: int) -> None:
        self._driver, self._module = driver, module
        self._most_blocks = multiprocessors * _BLOCKS_A_MULTIPROCESSOR

    def copier(self, copies: Sequence[RowCopy], stream: c_void_p) -> Callable[[], None]:
        """As `CopiesRows.row_copier`."""
        (name,) = {f"{'widen' if each.widens else 'narrow'}_{each.element_bytes}" for each in copies}
        described = [
            _Rows(each.source, each.target, each.source_rows, each.source_width, each.target_rows, each.target_width)
            for each in copies
        ]
        wanted = max(-(-each.chunks // THREADS) for each in copies)
        return self._driver.launcher(
            int(self._module.get_function(name).ptr),
            stream,
            blocks=(min(self._most_blocks, wanted), len(copies)),
            threads=THREADS,
            arguments=(described * MOST_COPIES)[:MOST_COPIES],  # of one copy, the other is not looked at
        )
