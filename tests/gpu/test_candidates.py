"""Every candidate that a search would run gives the right result, every element of it, on problems of many kinds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
import pytest

from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.contents import conv_allowance
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.ops import ConvOp
from algosearch.records import Built, Burst, Candidate
from algosearch.records.trial import RUNTIME_COMPILED
from tests.backends.driven import Driven
from tests.gpu.ops import generated_ops
from tests.gpu.reference import conv

OPS: Final = int(os.environ.get("ALGOSEARCH_TEST_OPS", "320"))
LEAST_SHARE: Final = 0.8
"""Of the problems that the library must take, or the generator makes too many that it does not."""
COMPILED: Final = 1
"""Candidates a problem that are compiled at run time: each takes up to a second."""


@pytest.fixture(scope="module")
def driven() -> Iterator[Driven]:
    backend = CudnnBackend()
    with Driven(backend, backend.devices()[0]) as driven:
        yield driven


def wanted(candidates: tuple[Candidate, ...]) -> list[Candidate]:
    compiled = [each for each in candidates if RUNTIME_COMPILED in each.notes]
    return [each for each in candidates if each not in compiled[COMPILED:]]


def what_is_wrong(driven: Driven, op: ConvOp) -> tuple[int, list[str]]:
    """How many candidates ran, and what is wrong with which."""
    session = driven.session
    assert isinstance(session, CudnnSession)
    built = [(each, driven.build(op, each)) for each in wanted(driven.enumerate(op).candidates)]
    plans = [(each, outcome.plan) for each, outcome in built if isinstance(outcome, Built)]
    if not plans:
        return 0, []
    driven.load_for(op, plans)
    buffers = session.buffers
    assert buffers is not None
    read = [each for each in buffers.tensors if not each.written]
    (result,) = buffers.written
    tensors = {each.name: driven.in_lane(buffers.contents, each).result() for each in read}
    right = conv(op, tensors)
    ran, found = 0, []
    for candidate, plan in plans:
        first = driven.launch(plan)
        if not isinstance(first, Burst):
            continue
        driven.in_lane(buffers.spoil, candidate.workspace_bytes).result()
        assert isinstance(driven.launch(plan), Burst)
        allowance = conv_allowance(op, candidate.notes)
        values = driven.in_lane(buffers.contents, result).result().astype(np.float64)
        excess = np.abs(values - right) / (allowance.absolute + allowance.relative * np.abs(right) + 1e-300)
        trespassed = driven.in_lane(buffers.is_trespassed, candidate.workspace_bytes).result()
        ran += 1
        if trespassed or not (excess <= 1.0).all():
            worst = float(np.nanmax(np.where(np.isnan(excess), np.inf, excess)))
            found.append(f"{op.describe()}: {candidate.algorithm} {candidate.notes} off by {worst:.3g}, {trespassed=}")
    driven.unload()
    driven.destroy([plan for _, plan in plans])
    return ran, found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_candidate_is_right_in_every_element(driven: Driven) -> None:
    ran = Counter[str]()
    wrong: list[str] = []
    for op in generated_ops(OPS):
        count, found = what_is_wrong(driven, op)
        wrong += found
        ran["taken" if count else "refused"] += 1
        ran["candidates"] += count
    print(dict(ran))  # noqa: T201  (shown with -rP)
    assert not wrong, "\n".join(wrong)
    assert ran["taken"] >= LEAST_SHARE * OPS, ran
