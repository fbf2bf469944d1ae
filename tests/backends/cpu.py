"""What the tests of the CPU backend share: a session with an op loaded, and every candidate's results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from algosearch.backends.cpu import CpuBackend, CpuSession
from algosearch.ops import Op, canonical
from algosearch.records import Built, Burst, Candidate
from tests.backends.reference import Array


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
