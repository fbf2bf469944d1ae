"""Both batch norms of the CPU backend, against the definition, over generated shapes."""

from __future__ import annotations

from math import prod
from typing import Final, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algosearch.backends.cpu.catalogue import kernels
from algosearch.backends.cpu.norm import EPSILON, MOMENTUM
from algosearch.ops import BatchNormOp, NormType, Phase, canonical
from tests.backends import reference
from tests.backends.cpu import agrees, loaded, results
from tests.backends.reference import Array
from tests.strategies import batch_norm_ops

_TYPES: Final[tuple[NormType, ...]] = ("float16", "float32", "float64")
_PHASES: Final[tuple[Phase, ...]] = ("training_forward", "inference", "backward", "training")


def _right(op: BatchNormOp, tensors: dict[str, Array]) -> dict[str, Array]:
    return reference.batch_norm(op, tensors, epsilon=EPSILON, momentum=MOMENTUM)


def _gain(op: BatchNormOp, right: dict[str, Array], *, folded: bool) -> float:
    """By how much a rounding error is multiplied: by the inverse deviation (of a single element, 316), and in what is
    folded by mean² over variance as well."""
    if "saved_mean" not in right:
        return 1.0
    inverse = right["saved_inverse_deviation"]
    lost = (np.square(right["saved_mean"]) + 1) * np.square(inverse) if folded else np.zeros(1)
    gain = float(np.max(np.maximum(inverse, 1) * (1 + lost)))
    return gain if op.phase == "training_forward" else gain**2  # a pair's gradients are multiplied by it once more


@pytest.mark.parametrize("phase", _PHASES)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_both_ways_are_right(phase: Phase, data: st.DataObject) -> None:
    op = canonical(data.draw(batch_norm_ops(phases=(phase,), data_types=_TYPES)))
    eps = float(np.finfo(np.float64 if op.data_type == "float64" else np.float32).eps)
    names = set()
    for candidate, tensors in results(op):
        right = _right(op, tensors)
        assert right.keys() == op.output_shapes.keys()
        gain = _gain(op, right, folded="range_limited" in candidate.notes)
        for name, values in right.items():
            allowed = 16 * eps * gain * (float(np.max(np.abs(values))) + prod(op.shape) ** 0.5)
            assert agrees(tensors[name], values, allowed), f"{candidate.algorithm} is wrong in {name} of {op!r}"
        names.add(candidate.algorithm)
    assert names == {"cpu/numpy:centred", "cpu/numpy:folded"}


@pytest.mark.parametrize("channels", [1, 32])
@pytest.mark.parametrize(
    ("phase", "batch"),
    [("inference", 65535), ("inference", 65536), ("training_forward", 131070), ("training_forward", 131071)],
)
def test_no_batch_is_too_large(phase: Phase, batch: int, channels: int) -> None:
    """E06: where another library has a limit of its own."""
    op = canonical(BatchNormOp(shape=(batch, channels, 1, 1), phase=phase))
    names = set()
    for candidate, tensors in results(op):
        for name, values in _right(op, tensors).items():
            assert agrees(tensors[name], values, 1e-3), f"{candidate.algorithm} is wrong in {name}"
        names.add(candidate.algorithm)
    assert len(names) == 2


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("batch", [767, 768, 769, 1024])
@pytest.mark.parametrize("phase", ["training_forward", "backward"])
def test_a_batch_of_single_pixels_is_right_at_every_size(phase: Phase, batch: int, channels: int) -> None:
    """E09: where another library is wrong above 768 and for more than one channel."""
    op = canonical(BatchNormOp(shape=(batch, channels, 1, 1), phase=phase))
    eps = float(np.finfo(np.float32).eps)
    right: dict[str, Array] = {}
    for candidate, tensors in results(op):
        right = right or _right(op, tensors)
        gain = _gain(op, right, folded="range_limited" in candidate.notes)
        for name, values in right.items():
            allowed = 16 * eps * gain * (float(np.max(np.abs(values))) + prod(op.shape) ** 0.5)
            assert agrees(tensors[name], values, allowed), f"{candidate.algorithm} is wrong in {name}"


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("data_type", _TYPES)
@pytest.mark.parametrize("phase", _PHASES)
def test_both_ways_are_close_where_the_data_is_ample(
    phase: Phase, data_type: NormType, layout: Literal["channels_first", "channels_last"]
) -> None:
    op = BatchNormOp(
        shape=(4, 24, 17, 19),
        phase=phase,
        fusion="none" if phase == "inference" else "add_activation",
        layout=layout,
        data_type=data_type,
        parameter_type="float64" if data_type == "float64" else "float32",
    )
    eps = float(np.finfo(np.float64 if data_type == "float64" else np.float32).eps)
    for candidate, tensors in results(op):
        for name, values in _right(op, tensors).items():
            allowed = 32 * eps * float(np.max(np.abs(values)))
            assert agrees(tensors[name], values, allowed), f"{candidate.algorithm}: {name}"


def test_a_single_element_is_its_own_mean_and_has_no_variance() -> None:
    """E08."""
    op = BatchNormOp(shape=(1, 3, 1, 1))
    for candidate, tensors in results(op):
        if candidate.algorithm.endswith("centred"):
            assert tensors["output"] == pytest.approx(tensors["bias"], abs=1e-6)
        assert tensors["saved_mean"] == pytest.approx(tensors["input"])
        assert tensors["running_variance"] == pytest.approx(0.9 * tensors["previous_variance"], abs=1e-6)


def test_the_backward_of_a_single_element_passes_nothing_on() -> None:
    # Σ g is g itself, and with what the forward would have saved, x̂ is 0.
    op = BatchNormOp(shape=(1, 3, 1, 1), phase="backward")
    for candidate, tensors in results(op):
        right = _right(op, tensors)
        assert tensors["bias_gradient"] == pytest.approx(tensors["output_gradient"]), candidate.algorithm
        assert tensors["input_gradient"] == pytest.approx(right["input_gradient"], abs=1e-5), candidate.algorithm


def test_where_the_activation_let_nothing_pass_there_is_no_gradient() -> None:
    op = BatchNormOp(shape=(2, 3, 4, 5), phase="backward", fusion="add_activation")
    for candidate, tensors in results(op):
        stopped = tensors["output"] <= 0
        assert 0 < stopped.sum() < stopped.size
        assert not tensors["addend_gradient"][stopped].any(), candidate.algorithm
        assert np.array_equal(tensors["addend_gradient"][~stopped], tensors["output_gradient"][~stopped])


def test_the_backward_pass_of_a_pair_reads_what_its_forward_pass_has_written() -> None:
    pair = BatchNormOp(shape=(2, 3, 4, 5), phase="training", fusion="add_activation")
    forward, backward = pair.passes
    for candidate, tensors in results(pair):
        alone = next(found for each, found in results(forward) if each.algorithm == candidate.algorithm)
        for name in forward.output_shapes:
            assert np.array_equal(tensors[name], alone[name]), (candidate.algorithm, name)
        for name, values in _right(backward, tensors).items():
            assert agrees(tensors[name], values, 1e-4), (candidate.algorithm, name)


def test_a_pair_needs_the_workspace_of_its_larger_pass_and_costs_the_sum() -> None:
    pair = BatchNormOp(shape=(2, 3, 4, 5), phase="training", fusion="activation")
    halves = [{str(name): kernel for name, kernel in kernels(each)} for each in pair.passes]
    for name, kernel in kernels(pair):
        forward, backward = (half[str(name)] for half in halves)
        assert kernel.workspace_bytes == max(forward.workspace_bytes, backward.workspace_bytes) > 0
        assert kernel.cost.seconds == pytest.approx(forward.cost.seconds + backward.cost.seconds)
        assert kernel.notes == forward.notes == backward.notes


def test_running_statistics_are_made_afresh_by_every_run() -> None:
    """E15."""
    op = BatchNormOp(shape=(2, 3, 4, 5))
    with loaded(op) as (session, plans):
        assert session.buffers is not None
        running = [session.buffers.tensors[name] for name in ("running_mean", "running_variance")]
        for _, plan in plans:
            session.launch(plan, None)
            once = [row.tolist() for row in running]
            session.time([(plan, 3)], None)
            assert [row.tolist() for row in running] == once
