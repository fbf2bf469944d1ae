"""Every candidate that a search would run gives the right result on problems too large for the definition: what is
right says an engine of the library's that computes in float32 without tensor cores, on the same data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.buffers import Buffers
from algosearch.backends.cudnn.contents import conv_allowance
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.ops import ConvOp, canonical
from algosearch.records import Built, Burst, Candidate
from tests.backends.driven import Driven
from tests.gpu.ops import large_ops
from tests.gpu.test_candidates import MOST_WRONG, verdict, wanted

Array = npt.NDArray[Any]

OPS: Final = 40
LEAST_SHARE: Final = 0.5
"""Of the problems of which there must be both a reference and candidates: most have three dimensions, a few int8."""
EXACT: Final = frozenset({"strict_nan", "nondeterministic", "cuda_graph_native"})
"""The notes that a reference may have: of whatever else there is, something is rounded, transformed or compiled."""
_TO_DEVICE: Final = 1  # cudaMemcpyHostToDevice


@pytest.fixture(scope="module")
def driven() -> Iterator[Driven]:
    backend = CudnnBackend()
    with Driven(backend, backend.devices()[0]) as driven:
        yield driven


def session_of(driven: Driven) -> CudnnSession:
    assert isinstance(driven.session, CudnnSession)
    return driven.session


def buffers_of(driven: Driven) -> Buffers:
    buffers = session_of(driven).buffers
    assert buffers is not None
    return buffers


def read(driven: Driven) -> dict[str, Array]:
    """What an op reads, as rows of memory."""
    buffers = buffers_of(driven)
    return {each.name: driven.in_lane(buffers.contents, each).result() for each in buffers.tensors if not each.written}


def write(driven: Driven, rows: Mapping[str, Array]) -> None:
    """Let what is loaded read this."""
    import cupy

    buffers, gpu = buffers_of(driven), session_of(driven)._gpu

    def copy() -> None:
        gpu.synchronize()  # it is still being filled
        for tensor in buffers.tensors:
            if not tensor.written:
                row = np.ascontiguousarray(rows[tensor.name], tensor.element_type)
                assert row.nbytes == tensor.bytes
                cupy.cuda.runtime.memcpy(buffers.address(tensor), row.ctypes.data, row.nbytes, _TO_DEVICE)

    driven.in_lane(copy).result()


def result(driven: Driven) -> Array:
    """What the latest run has written."""
    buffers = buffers_of(driven)
    (written,) = buffers.written
    return driven.in_lane(buffers.contents, written).result().astype(np.float64)


def plain(op: ConvOp) -> ConvOp:
    """The same in float32."""
    types = dict.fromkeys(("input_type", "filter_type", "output_type", "accumulate_type"), "float32")
    same = canonical(replace(op, **types))
    assert (same.input_shape, same.filter_shape) == (op.input_shape, op.filter_shape)
    assert (same.input_layout, same.filter_layout, same.output_layout) == (
        op.input_layout,
        op.filter_layout,
        op.output_layout,
    )
    return same


def by_float32(driven: Driven, op: ConvOp, rows: Mapping[str, Array]) -> Array | None:
    """The right result; None if the library has no such engine."""
    same = plain(op)
    for candidate in driven.enumerate(same, None).candidates:
        built = driven.build(same, candidate) if EXACT.issuperset(candidate.notes) else None
        if not isinstance(built, Built):
            continue

        driven.load_for(same, [(candidate, built.plan)])
        write(driven, rows)
        # A few of its elements are held against the definition.
        is_right = isinstance(driven.launch(built.plan), Burst) and driven.check(built.plan, None) is None
        right = result(driven) if is_right else None
        driven.unload()
        driven.destroy([built.plan])
        if right is not None:
            return np.clip(right, -128, 127) if op.output_type == "int8" else right

    return None


def what_is_wrong(
    driven: Driven, op: ConvOp, plans: Sequence[tuple[Candidate, int]], right: Array
) -> tuple[Counter[str], list[str]]:
    """How many of the candidates ran, and were caught at being wrong; and what is to be said against which."""
    count, found, passed = Counter[str](), list[str](), None
    for candidate, plan in plans:
        if not isinstance(driven.launch(plan), Burst):
            continue

        failure = driven.check(plan, passed)  # leaves the result of one run behind
        passed = plan if failure is None else passed
        allowance, its = conv_allowance(op, candidate.notes), conv_allowance(plain(op), ())
        allowed = allowance.absolute + its.absolute + (allowance.relative + its.relative) * np.abs(right)
        excess = np.abs(result(driven) - right) / (allowed + 1e-300)
        count.update(candidates=1, wrong=failure is not None)
        wrong = verdict(excess, failure)
        if wrong is not None:
            found.append(f"{op.describe()}: {candidate.algorithm} {candidate.notes} {wrong}")
    return count, found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_candidate_agrees_with_a_float32_engine(driven: Driven) -> None:
    ran = Counter[str]()
    bad: list[str] = []
    for op in large_ops(OPS):
        built = [(each, driven.build(op, each)) for each in wanted(driven.enumerate(op, 1).candidates)]
        plans = [(each, outcome.plan) for each, outcome in built if isinstance(outcome, Built)]
        if not plans:
            ran["refused"] += 1
            continue

        driven.load_for(op, plans)
        rows = read(driven)
        driven.unload()
        right = by_float32(driven, op, rows)
        if right is None:
            ran["without a reference"] += 1
        else:
            driven.load_for(op, plans)  # the same data again
            count, found = what_is_wrong(driven, op, plans, right)
            driven.unload()
            bad += found
            ran += count
            ran["taken"] += bool(count)
        driven.destroy([plan for _, plan in plans])
    print(dict(ran))  # noqa: T201  (shown with -rP)
    assert not bad, "\n".join(bad)
    assert ran["taken"] >= LEAST_SHARE * OPS, ran
    assert ran["wrong"] <= MOST_WRONG * ran["candidates"], ran
