"""Every candidate that a search would run gives the right result, every element of it, on problems of many kinds: or
the library has a bug there, which the check finds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pytest

from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.contents import conv_allowance
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.ops import ConvOp
from algosearch.records import Built, Burst, Candidate, Failure
from algosearch.records.trial import RUNTIME_COMPILED
from tests.backends.driven import Driven
from tests.gpu.ops import generated_ops
from tests.gpu.reference import conv

OPS: Final = int(os.environ.get("ALGOSEARCH_TEST_OPS", "320"))
LEAST_SHARE: Final = 0.8
"""Of the problems that the library must take, or the generator makes too many that it does not."""
MOST_WRONG: Final = 0.02
"""Of the candidates may be wrong: more than that is not the library's fault."""
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


def verdict(excess: np.ndarray[Any, np.dtype[np.float64]], failure: Failure | None) -> str | None:
    """What is wrong with what was found of a result, each element's distance from the right one in allowances: a wrong
    result was let pass, or a right one not. The check compares with another candidate's result, which may be as far
    from the right one, on the other side."""
    worst = float(np.max(np.where(np.isnan(excess), np.inf, excess)))
    if failure is None:
        return None if worst <= 2.0 else f"off by {worst:.3g}, and passed"
    return None if worst > 1.0 else f"off by {worst:.3g} at most, and {failure}"


def what_is_wrong(
    driven: Driven, op: ConvOp, candidates: Sequence[Candidate] | None = None
) -> tuple[Counter[str], list[str]]:
    """How many candidates ran, of these or of those that a search would run, and were caught at being wrong; and what
    is to be said against which."""
    session = driven.session
    assert isinstance(session, CudnnSession)
    if candidates is None:
        candidates = wanted(driven.enumerate(op, 1).candidates)
    built = [(each, driven.build(op, each)) for each in candidates]
    plans = [(each, outcome.plan) for each, outcome in built if isinstance(outcome, Built)]
    if not plans:
        return Counter(), []
    driven.load_for(op, plans)
    buffers = session.buffers
    assert buffers is not None
    (result,) = buffers.written
    right = conv(op, {each.name: driven.in_lane(buffers.contents, each).result() for each in buffers.tensors})
    count, found, passed = Counter[str](), list[str](), None
    for candidate, plan in plans:
        if not isinstance(driven.launch(plan), Burst):
            continue
        failure = driven.check(plan, passed)  # leaves the result of one run behind
        passed = plan if failure is None else passed
        allowance = conv_allowance(op, candidate.notes)
        values = driven.in_lane(buffers.contents, result).result().astype(np.float64)
        excess = np.abs(values - right) / (allowance.absolute + allowance.relative * np.abs(right) + 1e-300)
        count.update(candidates=1, wrong=failure is not None)
        wrong = verdict(excess, failure)
        if wrong is not None:
            found.append(f"{op.describe()}: {candidate.algorithm} {candidate.notes} {wrong}")
    driven.unload()
    driven.destroy([plan for _, plan in plans])
    return count, found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_candidate_is_right_in_every_element(driven: Driven) -> None:
    ran = Counter[str]()
    bad: list[str] = []
    for op in generated_ops(OPS):
        count, found = what_is_wrong(driven, op)
        bad += found
        ran += count
        ran["taken" if count else "refused"] += 1
    print(dict(ran))  # noqa: T201  (shown with -rP)
    assert not bad, "\n".join(bad)
    assert ran["taken"] >= LEAST_SHARE * OPS, ran
    assert ran["wrong"] <= MOST_WRONG * ran["candidates"], ran
