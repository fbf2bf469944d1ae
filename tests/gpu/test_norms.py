"""Batch norms on a real GPU: every mode and the first engines of the graph API, every element of every result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pytest

from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.contents import norm_allowance
from algosearch.backends.cudnn.norm import EPSILON, MOMENTUM
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.ops import BatchNormOp, canonical
from algosearch.records import Built, Burst, Candidate, Failure
from algosearch.records.trial import RUNTIME_COMPILED
from tests.backends import reference
from tests.backends.driven import Driven
from tests.gpu.ops import generated_norms

pytestmark = pytest.mark.timeout(120)
OPS: Final = 60
LEAST_SHARE: Final = 0.8
"""Of the generated ones that the library must take."""


@pytest.fixture(scope="module")
def opened() -> Iterator[Driven]:
    backend = CudnnBackend()
    with Driven(backend, backend.devices()[0]) as driven:
        yield driven


@pytest.fixture
def driven(opened: Driven) -> Iterator[Driven]:
    yield opened
    opened.unload()


def ops() -> list[BatchNormOp]:
    described: list[dict[str, Any]] = [
        {"shape": (8, 32, 14, 14), "phase": phase, "layout": layout, "data_type": data_type}
        for phase in ("training_forward", "inference", "backward")
        for layout in ("channels_first", "channels_last")
        for data_type in ("float16", "bfloat16", "float32")
    ]
    described += [
        {"shape": shape, "phase": "training", "fusion": fusion, "layout": "channels_last", "data_type": data_type}
        for shape in ((8, 64, 9, 9), (4, 16, 20, 12))
        for fusion in ("activation", "add_activation")
        for data_type in ("float16", "bfloat16")
    ]
    described += [
        {"shape": (16, 40), "statistics": "per_activation", "phase": phase}
        for phase in ("training_forward", "inference", "backward")
    ]
    described += [
        {"shape": shape, "statistics": "per_activation", "phase": phase, "layout": layout, "data_type": data_type}
        for shape in ((32, 17, 7, 5), (33, 8, 3, 4, 5))
        for phase in ("training_forward", "inference", "backward")
        for layout in ("channels_first", "channels_last")
        for data_type in ("float16", "float32")
    ]
    described.append({"shape": (2, 8, 4, 5, 6), "data_type": "float64", "parameter_type": "float64"})
    return [canonical(BatchNormOp(**each)) for each in described]


@pytest.mark.parametrize("op", ops(), ids=BatchNormOp.describe)
def test_every_result_is_right(driven: Driven, op: BatchNormOp) -> None:
    candidates = driven.enumerate(op, 1).candidates
    if not candidates:
        pytest.skip("the library does no such batch norm")
    assert held_against_the_definition(driven, op, candidates)


@pytest.mark.slow
def test_generated_ones_too(driven: Driven) -> None:
    """Without what is compiled at run time, a second each."""
    ran = Counter[str]()
    for op in generated_norms(OPS):
        candidates = [each for each in driven.enumerate(op, 1).candidates if RUNTIME_COMPILED not in each.notes]
        count = held_against_the_definition(driven, op, candidates) if candidates else 0
        ran["taken" if count else "refused"] += 1
        ran["candidates"] += count
        driven.unload()
    print(dict(ran))  # noqa: T201  (shown with -rP)
    assert ran["taken"] >= LEAST_SHARE * OPS, ran


def held_against_the_definition(driven: Driven, op: BatchNormOp, candidates: Sequence[Candidate]) -> int:
    """Run these candidates and look at every element of every result; how many ran."""
    session = driven.session
    assert isinstance(session, CudnnSession)
    built = [(each, driven.build(op, each)) for each in candidates]
    plans = [(each, outcome.plan) for each, outcome in built if isinstance(outcome, Built)]
    if not plans:
        return 0
    driven.load_for(op, plans)
    buffers = session.buffers
    assert buffers is not None
    first = {plan: driven.launch(plan) for _, plan in plans}
    plans = [(candidate, plan) for candidate, plan in plans if isinstance(first[plan], Burst)]
    # The library tells the sizes of some fused modes that it then refuses to run.
    assert all(each.kind == "not_supported" for each in first.values() if isinstance(each, Failure)), first
    for candidate, plan in plans:
        failure = driven.check(plan, plans[0][1])
        assert failure is None, f"{op.describe()}: {candidate.algorithm}: {failure}"
        # What the check leaves behind: the result of one run.
        tensors = {each.name: driven.in_lane(buffers.contents, each).result() for each in buffers.tensors}
        right = reference.batch_norm(op, tensors, epsilon=EPSILON, momentum=MOMENTUM)
        for name, expected in right.items():
            allowance = norm_allowance(op, name)
            gap = np.abs(tensors[name].astype(np.float64) - expected)
            excess = gap / (allowance.absolute + allowance.relative * np.abs(expected))
            assert (excess <= 1.0).all(), (candidate.algorithm, name, float(np.nanmax(excess)))
            if np.abs(expected).max() > 0:
                assert allowance.absolute < 0.2 * np.abs(expected).max(), "an allowance that would let anything pass"
    driven.destroy([plan for _, plan in plans])
    return len(plans)
