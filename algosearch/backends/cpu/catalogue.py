"""Which kernels there are for an op, by name, in the order of what they are likely to cost.

The list is whole and cheap: making a kernel touches no memory, so every candidate is known at once, with its exact
workspace. Left out is only what cannot be done (bfloat16, which numpy does not have), what is absurd (`fft.applies`),
and what would be another under a second name: with filters of one tap, direct and FFT are im2col with more copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from algosearch.backends.cpu import fft
from algosearch.backends.cpu.direct import Direct
from algosearch.backends.cpu.im2col import Im2col
from algosearch.backends.cpu.kernel import Kernel
from algosearch.backends.cpu.norm import NormForward
from algosearch.backends.cpu.norm_backward import NormBackward
from algosearch.backends.cpu.norm_pair import NormPair
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import Algorithm, Candidate

BACKEND: Final = "cpu"
SOURCE: Final = "numpy"

Named = Iterator[tuple[Algorithm, Kernel]]
Catalogue = Callable[[Op], Named]
"""The kernels that can do an op, each with its name, in any order."""


def kernels(op: Op) -> Named:
    """This backend's own catalogue."""
    return _conv_kernels(op) if isinstance(op, ConvOp) else _norm_kernels(op)


def candidates(op: Op, catalogue: Catalogue) -> tuple[Candidate, ...]:
    """The catalogue's kernels as candidates, the one first that is likely to be fastest."""
    ordered = sorted(catalogue(op), key=lambda named: (named[1].cost.seconds, str(named[0])))
    return tuple(
        Candidate(algorithm=str(algorithm), rank=rank, workspace_bytes=kernel.workspace_bytes, notes=kernel.notes)
        for rank, (algorithm, kernel) in enumerate(ordered)
    )


def _conv_kernels(op: ConvOp) -> Named:
    if op.input_type == "bfloat16":
        return
    batch = op.input_shape[0]
    for samples in sorted({1, batch}):
        yield _name("im2col", chunk=samples), Im2col(op, samples)
    if set(op.filter_shape[2:]) == {1}:
        return
    yield _name("direct"), Direct(op)
    if fft.applies(op):
        yield _name("fft"), fft.Fft(op)


def _norm_kernels(op: BatchNormOp) -> Named:
    if op.data_type == "bfloat16":
        return
    for engine, centred in (("centred", True), ("folded", False)):
        if op.phase == "training":
            yield _name(engine), NormPair(op, centred=centred)
        elif op.phase == "backward":
            yield _name(engine), NormBackward(op, centred=centred)
        else:
            yield _name(engine), NormForward(op, centred=centred)


def _name(engine: str, **knobs: int) -> Algorithm:
    return Algorithm(backend=BACKEND, source=SOURCE, engine=engine, knobs=tuple(sorted(knobs.items())))
