"""`CpuRunner`: kernels that were picked, bound to a caller's numpy arrays.

A kernel is immutable and a run is bound anew for each call, so that one may be called from any number of threads at
once; a workspace that the caller gives is one call's at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_uint8
from typing import Final

import numpy as np

from algosearch.backends.arrays import HOST, Seen
from algosearch.backends.cpu.arena import ALIGNMENT_BYTES, Array
from algosearch.backends.cpu.catalogue import Catalogue
from algosearch.backends.cpu.kernel import Kernel, running
from algosearch.backends.cpu.norm import EPSILON, MOMENTUM
from algosearch.backends.cpu.tensors import tensors_of
from algosearch.errors import InvalidCall, RunFailed
from algosearch.ops import ELEMENT_BYTES, ConvOp, Op, canonical
from algosearch.records import Algorithm, Environment, Failure

_CONSTANTS: Final = {"epsilon": EPSILON, "momentum": MOMENTUM}
_CLOSED: Final = "its plan was closed"


class CpuRunner:
    """A `Runner` of this machine's processor. Made by `CpuBackend.runner`."""

    def __init__(self, environment: Environment, catalogue: Catalogue) -> None:
        self.environment = environment
        self._catalogue = catalogue

    def build(self, op: Op, algorithm: str) -> CpuExecutable | Failure:
        """As the contract says."""
        wanted, op = Algorithm.parse(algorithm), canonical(op)
        for name, kernel in self._catalogue(op):
            if name == wanted:
                return CpuExecutable(op, algorithm, kernel)
        return Failure("not_supported", f"no {algorithm} for {op.describe()}")

    def close(self) -> None:
        """As the contract says."""


class CpuExecutable:
    """An `Executable`: a kernel."""

    reserve_bytes = 0
    workspace_alignment_bytes = ALIGNMENT_BYTES

    def __init__(self, op: Op, algorithm: str, kernel: Kernel) -> None:
        self.workspace_bytes = kernel.workspace_bytes
        self.names: tuple[tuple[str, bool], ...] = tuple((each.name, each.written) for each in tensors_of(op))
        self.alignment_bytes = op.alignment_bytes if isinstance(op, ConvOp) else ELEMENT_BYTES[op.parameter_type]
        self._types = {each.name: each.data_type for each in tensors_of(op)}
        self._problem, self._algorithm = op.describe(), algorithm
        self._kernel: Kernel | None = kernel

    def run(
        self,
        tensors: Mapping[str, Seen],
        *,
        numbers: Mapping[str, float],
        workspace: Seen | None,
        stream: object,
    ) -> None:
        """As the contract says. It is over when this returns, and allocates its workspace if it is given none."""
        kernel = self._kernel
        if kernel is None:
            raise RunFailed(self._problem, self._algorithm, _CLOSED)
        if stream is not None:
            raise InvalidCall("stream", stream, "must be left out: the processor has none")
        for name, value in numbers.items():
            if value != _CONSTANTS[name]:
                raise InvalidCall(name, value, f"must be {_CONSTANTS[name]}: the CPU backend knows no other")
        rows = {name: _row(name, array, self._types[name]) for name, array in tensors.items()}
        try:
            room = _aligned(self.workspace_bytes) if workspace is None else _row("workspace", workspace, "uint8")
            with running():
                kernel.bind(rows, room[: self.workspace_bytes])()
        except MemoryError as error:
            raise RunFailed(self._problem, self._algorithm, f"out of memory: {error}") from error

    def close(self) -> None:
        """As the contract says."""
        self._kernel = None


def _row(name: str, array: Seen, data_type: str) -> Array:
    """The memory of a dense array of the host as one row; whoever called keeps it alive."""
    if array.device != HOST:
        raise InvalidCall(name, f"device {array.device}", "must be in the host's memory")
    memory = np.ctypeslib.as_array((c_uint8 * array.size_bytes).from_address(array.address))
    return memory.view(data_type)


def _aligned(size_bytes: int) -> Array:
    memory = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[start : start + size_bytes]
