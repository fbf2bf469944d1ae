"""Every candidate that a search would run gives the right result, every element of it, on problems of many kinds: or
the library has a bug there, which the check finds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pytest

from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.candidates import engine_of, without_padding
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


def is_known(op: ConvOp, candidate: Candidate) -> bool:
    """Where cuDNN 9.19 gets filter gradients wrong: engines 1 and 20 with more padding behind than before, and engine
    70, which leaves elements unwritten, there and with wide unpadded filters."""
    engine, _ = engine_of(without_padding(candidate.algorithm)[0])
    unequal = op.padding_low != op.padding_high
    return op.direction == "backward_filter" and (engine == 70 or (unequal and engine in (1, 20)))


def what_is_wrong(driven: Driven, op: ConvOp, candidates: Sequence[Candidate] | None = None) -> tuple[int, list[str]]:
    """How many candidates ran, of these or of those that a search would run, and what is wrong with which."""
    session = driven.session
    assert isinstance(session, CudnnSession)
    if candidates is None:
        candidates = wanted(driven.enumerate(op, 1).candidates)
    built = [(each, driven.build(op, each)) for each in candidates]
    plans = [(each, outcome.plan) for each, outcome in built if isinstance(outcome, Built)]
    if not plans:
        return 0, []
    driven.load_for(op, plans)
    buffers = session.buffers
    assert buffers is not None
    (result,) = buffers.written
    right = conv(op, {each.name: driven.in_lane(buffers.contents, each).result() for each in buffers.tensors})
    ran, found, passed = 0, [], None
    for candidate, plan in plans:
        if not isinstance(driven.launch(plan), Burst):
            continue
        ran += 1
        failure = driven.check(plan, passed)  # leaves the result of one run behind
        passed = plan if failure is None else passed
        allowance = conv_allowance(op, candidate.notes)
        values = driven.in_lane(buffers.contents, result).result().astype(np.float64)
        excess = np.abs(values - right) / (allowance.absolute + allowance.relative * np.abs(right) + 1e-300)
        is_right = bool((excess <= 1.0).all())
        if is_right != (failure is None) or not (is_right or is_known(op, candidate)):
            worst = float(np.max(np.where(np.isnan(excess), np.inf, excess)))
            found.append(f"{op.describe()}: {candidate.algorithm} {candidate.notes} off by {worst:.3g}, {failure}")
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
