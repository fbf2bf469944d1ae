"""What a problem says of its results is what the definition says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from algosearch.backends.cudnn.norm import EPSILON, MOMENTUM, UIDS
from algosearch.backends.cudnn.problem import RESERVE_UID, problem_of
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical
from tests.backends import reference
from tests.strategies import batch_norm_ops, conv_ops


def drawn(op: Op) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors as they are for a trial, in float64 and by name."""
    problem, dice = problem_of(op), np.random.default_rng(1)
    found = {}
    for tensor in problem.tensors:
        limits = problem.range_of(tensor.name)
        found[tensor.name] = dice.uniform(limits.low, limits.high, int(np.prod(tensor.shape)))
    return found


@given(batch_norm_ops())
def test_a_batch_norms_values_at_a_few_places_are_the_definitions(op: BatchNormOp) -> None:
    op = canonical(op)
    problem, tensors = problem_of(op), drawn(op)
    right = reference.batch_norm(op, tensors, epsilon=EPSILON, momentum=MOMENTUM)
    for tensor in problem.tensors:
        if not tensor.written:
            continue
        size = int(np.prod(tensor.shape))
        places = problem.near(tensor, sorted({0, size // 3, size // 2, size - 1}))
        assert places
        np.testing.assert_allclose(problem.right(tensor.name, tensors, places), right[tensor.name][places], atol=1e-9)


@given(conv_ops(input_types=("float64",), largest=5))
def test_a_convolutions_values_at_a_few_places_are_the_definitions(op: ConvOp) -> None:
    op = canonical(op)
    problem, tensors = problem_of(op), drawn(op)
    (written,) = (tensor for tensor in problem.tensors if tensor.written)
    places = sorted({0, int(np.prod(written.shape)) // 2, int(np.prod(written.shape)) - 1})
    assert problem.near(written, places) == places
    found = problem.right(written.name, tensors, places)
    np.testing.assert_allclose(found, reference.conv(op, tensors)[places], atol=1e-9)


def test_few_statistics_are_looked_at_for_many_places() -> None:
    op = canonical(BatchNormOp(shape=(4, 64, 8, 8), layout="channels_last"))
    problem = problem_of(op)
    output = next(tensor for tensor in problem.tensors if tensor.name == "output")
    near = problem.near(output, list(range(200)))
    assert len({place % 64 for place in near}) == 3


@pytest.mark.parametrize("reserve_bytes", [0, 640])
def test_a_reserve_is_there_if_a_plan_needs_one_and_is_nobodys_result(reserve_bytes: int) -> None:
    op = canonical(BatchNormOp(shape=(4, 8, 4, 4), fusion="activation", data_type="float16", layout="channels_last"))
    reserve = [tensor for tensor in problem_of(op, reserve_bytes).tensors if tensor.uid == RESERVE_UID]
    assert [(tensor.bytes, tensor.written) for tensor in reserve] == ([(reserve_bytes, False)] if reserve_bytes else [])


def test_a_fused_backward_pass_has_its_forward_passes_tensors_and_one_training_pass_is_copied_into() -> None:
    described: dict[str, Any] = {"shape": (4, 8, 4, 4), "fusion": "add_activation", "data_type": "float16"}
    backward = problem_of(canonical(BatchNormOp(**described, phase="backward")))
    there = {tensor.name: tensor.written for tensor in backward.tensors}
    assert {"addend", "previous_mean", "running_variance", "output"} <= set(there)
    assert {name for name, written in there.items() if written} == {
        "input_gradient",
        "scale_gradient",
        "bias_gradient",
        "addend_gradient",
    }
    forward = problem_of(canonical(BatchNormOp(**described)))
    assert (UIDS["previous_mean"], UIDS["running_mean"]) in forward.copied
    assert backward.copied == ()
