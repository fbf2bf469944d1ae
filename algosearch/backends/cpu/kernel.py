"""`Kernel`: one way to do one op, made without touching memory; and what all kernels share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Final, Protocol

import msgspec
import numpy as np

from algosearch.backends.cpu.arena import Array, Run
from algosearch.ops import ConvOp

Tensors = Mapping[str, Array]
"""An op's tensors by name, each as one dense row of elements in memory order."""

# A core or two of a server. Only their ratios matter, and they only order the candidates before anything is timed.
_FLOPS_A_SECOND: Final = 150e9
_BYTES_A_SECOND: Final = 15e9
_PIECES_A_SECOND: Final = 80e6
_CALLS_A_SECOND: Final = 600e3

_BUFFERED_ELEMENTS: Final = 1024

# Products of int8 are at most 2**14, and float32 counts to 2**24 without a gap, float64 to 2**53.
_EXACT_INT8_SUM: Final = 1 << 10


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a run will do, roughly."""

    flops: float = 0.0
    """In matrix products."""
    moved_bytes: float = 0.0
    """Read and written by everything else."""
    pieces: float = 0.0
    """Rows without a gap in what is moved: short rows are slow."""
    calls: float = 0.0
    """Of numpy."""

    @property
    def seconds(self) -> float:
        """An estimate that orders candidates. No promise."""
        return (
            self.flops / _FLOPS_A_SECOND
            + self.moved_bytes / _BYTES_A_SECOND
            + self.pieces / _PIECES_A_SECOND
            + self.calls / _CALLS_A_SECOND
        )


class Kernel(Protocol):
    """A built candidate. Immutable; any number of runs may be bound to it."""

    @property
    def workspace_bytes(self) -> int:
        """Exactly what a run uses."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """As in `Candidate.notes`."""
        ...

    @property
    def cost(self) -> Cost:
        """For the order of the listing."""
        ...

    def bind(self, tensors: Tensors, workspace: Array) -> Run:
        """A run over these tensors, in a workspace of `workspace_bytes` bytes whose contents do not matter.

        All views are made here, so that a run does nothing but compute. It writes every element of every output, reads
        none of what it has not written, and may be called again and again.
        """
        ...


def product_flops(count: float, *sizes: int) -> float:
    """`count` flops in matrix products whose three sizes are these: with a small one, they take longer."""
    return count * prod(1 + 8 / size for size in sizes)


@contextmanager
def running() -> Iterator[None]:
    """Runs are made in this context, in which numpy allocates next to nothing and does not warn.

    numpy gathers short rows in buffers of 8192 elements for each operand. With an eighth of that a run takes as long,
    and what it allocates beside its workspace is a few tens of kB at most, whatever the op. Overflow in float16 is a
    matter of the data, not of the kernel.
    """
    with np.errstate(all="ignore"):  # on leaving, it gives the size of the buffers back as well
        np.setbufsize(_BUFFERED_ELEMENTS)
        yield


def compute_type(op: ConvOp) -> str:
    """The type that products and sums are made in: at least as wide as the op's accumulate type, and exact for int8.

    float16 is computed in float32 even where the op would allow less: no processor's BLAS does halves.
    """
    if op.input_type == "float64":
        return "float64"
    if op.input_type == "int8" and op.filter_shape[1] * prod(op.filter_shape[2:]) > _EXACT_INT8_SUM:
        return "float64"
    return "float32"


def contract(left: Array, right: Array, out: Array) -> None:
    """The matrix product [.., m, k] × [.., k, n]. A contraction over one element is an outer product, which numpy does
    a hundred times faster as one multiplication than as many tiny matrix products (depthwise convolutions)."""
    if left.shape[-1] == 1:
        np.multiply(left, right, out=out)
    else:
        np.matmul(left, right, out=out)


def store(values: Array, out: Array) -> None:
    """Copy computed values to where they belong, converted. int8 saturates, as in every library; `values` is spoiled
    by that."""
    if out.dtype == np.int8:
        np.clip(values, -128, 127, out=values)
        np.copyto(out, values, casting="unsafe")
    else:
        np.copyto(out, values, casting="same_kind")
