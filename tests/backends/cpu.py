"""What the tests of the CPU backend share: ops, a session with one loaded, every candidate's results, bad kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from algosearch.backends.cpu import CpuBackend, CpuSession
from algosearch.backends.cpu.arena import Run
from algosearch.backends.cpu.catalogue import Named, kernels
from algosearch.backends.cpu.kernel import Cost, Kernel, Tensors
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical
from algosearch.records import Algorithm, Built, Burst, Candidate
from tests.backends.reference import Array

CONV = ConvOp(input_shape=(2, 8, 14, 14), filter_shape=(16, 8, 3, 3), padding_low=(1, 1))
STRIDED = ConvOp(
    input_shape=(3, 6, 9, 8),
    filter_shape=(8, 3, 3, 2),
    groups=2,
    stride=(2, 1),
    direction="backward_filter",
    input_layout="channels_last",
)
TRANSPOSED = ConvOp(input_shape=(1, 4, 12, 12), filter_shape=(8, 4, 2, 2), stride=(2, 2), direction="backward_data")
NORM = BatchNormOp(shape=(4, 8, 7, 7), fusion="add_activation")
HALF_NORM = BatchNormOp(shape=(4, 8, 7, 7), phase="backward", data_type="float16", layout="channels_last")
BFLOAT16 = ConvOp(
    input_shape=(1, 2, 3, 3),
    filter_shape=(2, 2, 1, 1),
    input_type="bfloat16",
    filter_type="bfloat16",
    output_type="bfloat16",
)
BAD: Final = "cpu/numpy:bad"
"""The bad kernel's name."""


@contextmanager
def loaded(op: Op, backend: CpuBackend | None = None) -> Iterator[tuple[CpuSession, list[tuple[Candidate, int]]]]:
    """A session, `op` loaded, and every candidate with its plan."""
    op = canonical(op)
    backend = backend or CpuBackend()
    session = backend.open(backend.devices()[0])
    candidates = session.enumerate(op, None).candidates
    plans = []
    for candidate in candidates:
        built = session.build(op, candidate)
        assert isinstance(built, Built)
        plans.append((candidate, built.plan))
    assert session.load(op, max((each.workspace_bytes for each in candidates), default=0)) is None
    try:
        yield session, plans
    finally:
        session.close()


def results(op: Op) -> Iterator[tuple[Candidate, dict[str, Array]]]:
    """Each candidate with all of the op's tensors, as dense rows, after one run of it into results full of NaN."""
    with loaded(op) as (session, plans):
        assert plans, f"no candidate for {op.describe()}"
        buffers = session.buffers
        assert buffers is not None
        for candidate, plan in plans:
            buffers.spoil(candidate.workspace_bytes)
            assert isinstance(session.launch(plan, None), Burst)
            yield candidate, buffers.tensors


def agrees(found: Array, right: Array, allowed: float | Array) -> bool:
    """Whether two rows are the same but for rounding to the type of `found`, and for `allowed` before that."""
    spacing = 0.0 if found.dtype == np.int8 else 2 * float(np.finfo(found.dtype).eps)
    return bool(np.all(np.abs(found.astype(np.float64) - right) <= allowed + spacing * np.abs(right)))


class _Bad:
    """A kernel that does as another, and then something that it must not."""

    notes: Final = ()
    cost: Final = Cost(calls=1)

    def __init__(self, kernel: Kernel, then: Callable[[Tensors, Array], None]) -> None:
        self._kernel = kernel
        self._then = then
        self.workspace_bytes = kernel.workspace_bytes

    def bind(self, tensors: Tensors, workspace: Array) -> Run:
        run = self._kernel.bind(tensors, workspace)

        def bad() -> None:
            run()
            self._then(tensors, workspace)

        return bad


def with_bad(then: Callable[[Tensors, Array], None], *, alone: bool = False) -> CpuBackend:
    """A backend with one bad kernel more."""

    def catalogue(op: Op) -> Named:
        named = list(kernels(op))
        if not alone:
            yield from named
        yield Algorithm.parse(BAD), _Bad(max((kernel for _, kernel in named), key=_hunger), then)

    return CpuBackend(catalogue=catalogue)


def _hunger(kernel: Kernel) -> int:
    return kernel.workspace_bytes
