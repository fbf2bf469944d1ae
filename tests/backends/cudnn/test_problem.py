"""What a problem says of its results is what the definition says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from algosearch.backends.cudnn.norm import EPSILON, MOMENTUM, UIDS
from algosearch.backends.cudnn.problem import RESERVE_UID, problem_of
from algosearch.ops import BatchNormOp, ConvOp, Op, Phase, canonical, searched_as
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
def test_a_reserve_is_there_if_a_plan_needs_one_and_is_written(reserve_bytes: int) -> None:
    op = searched_as(BatchNormOp(shape=(4, 8, 4, 4), fusion="activation", data_type="float16", layout="channels_last"))
    reserve = [tensor for tensor in problem_of(op, reserve_bytes).tensors if tensor.uid == RESERVE_UID]
    assert [(tensor.bytes, tensor.written) for tensor in reserve] == ([(reserve_bytes, True)] if reserve_bytes else [])


def test_a_pair_has_the_results_of_both_passes_and_its_gradients_follow_from_what_forward_wrote() -> None:
    op = canonical(BatchNormOp(shape=(4, 8, 4, 4), fusion="add_activation", data_type="float16", phase="training"))
    problem = problem_of(op, 64)
    there = {tensor.name: tensor.written for tensor in problem.tensors}
    assert {name for name, written in there.items() if written} == {
        *("output", "running_mean", "running_variance", "saved_mean", "saved_inverse_deviation"),
        *("input_gradient", "scale_gradient", "bias_gradient", "addend_gradient", "reserve"),
    }
    assert {name for name, written in there.items() if not written} == {
        *("input", "scale", "bias", "addend", "previous_mean", "previous_variance", "output_gradient"),
    }
    assert set(problem.read_for("output")) == {
        *("input", "scale", "bias", "addend", "previous_mean", "previous_variance"),
    }
    assert set(problem.read_for("input_gradient")) == {
        *("input", "scale", "bias", "output", "output_gradient", "saved_mean", "saved_inverse_deviation"),
    }
    assert (UIDS["previous_mean"], UIDS["running_mean"]) in problem.copied


def test_everything_of_a_convolution_follows_from_what_is_read() -> None:
    problem = problem_of(canonical(ConvOp(input_shape=(1, 8, 5, 5), filter_shape=(8, 8, 3, 3))))
    assert list(problem.read_for("output")) == ["input", "filter"]


@pytest.mark.parametrize("phase", ["inference", "backward"])
def test_nothing_is_copied_where_no_running_statistics_are_written(phase: Phase) -> None:
    assert problem_of(canonical(BatchNormOp(shape=(4, 8, 4, 4), phase=phase))).copied == ()
