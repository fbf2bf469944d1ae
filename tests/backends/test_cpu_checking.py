"""What checks the results of CPU kernels: it finds every bad one, and no good one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from algosearch.backends.cpu.arena import Array
from algosearch.backends.cpu.kernel import Tensors
from algosearch.backends.cpu.tensors import tensors_of
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical
from algosearch.records import FailureKind
from tests.backends.cpu import BAD, CONV, HALF_NORM, NORM, STRIDED, TRANSPOSED, loaded, with_bad


def _one_off(tensors: Tensors, workspace: Array) -> None:
    tensors["output"][77] += np.float32(0.01)


def _one_unwritten(tensors: Tensors, workspace: Array) -> None:
    tensors["output"][-1] = np.nan


def _beyond(array: Array) -> Array:
    """The memory that an array is a part of, from the array's end on."""
    whole = array.base
    assert isinstance(whole, np.ndarray)
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    start = array.ctypes.data - whole.ctypes.data + array.nbytes
    return whole.view(np.uint8)[start:]


def _beyond_the_workspace(tensors: Tensors, workspace: Array) -> None:
    _beyond(workspace)[100] = 1


def _beyond_the_output(tensors: Tensors, workspace: Array) -> None:
    _beyond(tensors["output"])[0] = 1


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "against another"])
@pytest.mark.parametrize(
    ("then", "kind"),
    [
        (_one_unwritten, "wrong_result"),
        (_beyond_the_workspace, "out_of_bounds"),
        (_beyond_the_output, "out_of_bounds"),
    ],
)
def test_what_a_kernel_must_not_do_is_found_out(
    then: Callable[[Tensors, Array], None], kind: FailureKind, alone: bool
) -> None:
    with loaded(CONV, with_bad(then)) as (session, plans):
        plan_of = {candidate.algorithm: plan for candidate, plan in plans}
        bad = plan_of.pop(BAD)
        failure = session.check(bad, None if alone else next(iter(plan_of.values())))
        assert failure is not None
        assert failure.kind == kind
        for plan in plan_of.values():
            assert session.check(plan, bad) is None


def _with_another_mean(tensors: Tensors, workspace: Array) -> None:
    for name in ("output", "saved_mean", "saved_inverse_deviation", "scale_gradient", "input_gradient"):
        tensors[name][:] *= np.float32(1.5)


def test_a_pairs_gradients_are_held_against_what_its_own_forward_pass_wrote() -> None:
    """Not against what the plan that it is compared with has left in the buffers since."""
    pair = BatchNormOp(shape=(3, 4, 5, 5), phase="training", fusion="activation")
    with loaded(pair, with_bad(_with_another_mean)) as (session, plans):
        plan_of = {candidate.algorithm: plan for candidate, plan in plans}
        bad = plan_of.pop(BAD)
        for plan in plan_of.values():
            assert session.check(plan, bad) is None
        failure = session.check(bad, next(iter(plan_of.values())))
        assert failure is not None
        assert failure.kind == "wrong_result"


def test_one_wrong_element_of_many_is_found_and_named() -> None:
    with loaded(CONV, with_bad(_one_off)) as (session, plans):
        plan_of = {candidate.algorithm: plan for candidate, plan in plans}
        failure = session.check(plan_of[BAD], plan_of["cpu/numpy:direct"])
        assert failure is not None
        assert failure.message.startswith("output[77] is ")


@pytest.mark.parametrize(
    "op",
    [
        CONV,
        STRIDED,
        TRANSPOSED,
        NORM,
        HALF_NORM,
        BatchNormOp(shape=(3, 4, 5, 5), statistics="per_activation", layout="channels_last"),
        BatchNormOp(shape=(3, 4, 5, 5), phase="backward", fusion="add_activation"),
        BatchNormOp(shape=(3, 4, 5, 5), phase="training", fusion="add_activation"),
        BatchNormOp(shape=(3, 4, 5, 5), phase="training", fusion="activation", data_type="float16"),
        BatchNormOp(shape=(1, 4, 1, 1)),
        BatchNormOp(shape=(2, 4, 3, 3), phase="inference", data_type="float64", parameter_type="float64"),
        ConvOp(
            input_shape=(2, 64, 5, 5),
            filter_shape=(4, 64, 3, 3),
            input_type="int8",
            filter_type="int8",
            output_type="int8",
            accumulate_type="int32",
            padding_low=(1, 1),
            input_layout="channels_last",
        ),
    ],
    ids=lambda op: op.describe(),
)
def test_every_result_is_looked_at_and_right_ones_pass(op: Op) -> None:
    for name in _written(op):

        def spoil(tensors: Tensors, workspace: Array, name: str = name) -> None:
            tensors[name][0] = tensors[name][0] ^ 1 if tensors[name].dtype == np.int8 else tensors[name][0] * 3 + 1

        with loaded(op, with_bad(spoil)) as (session, plans):
            for candidate, plan in plans:
                for other in (None, *(each for _, each in plans)):
                    failure = session.check(plan, other)
                    if candidate.algorithm == BAD and other != plan:
                        assert failure is not None, f"nobody saw {name}"
                        assert failure.kind == "wrong_result"
                        assert failure.message.startswith(f"{name}[0] is ")
                    elif candidate.algorithm != BAD:
                        assert failure is None, failure


def _written(op: Op) -> list[str]:
    return [tensor.name for tensor in tensors_of(op) if tensor.written]


def test_a_kernel_cannot_write_what_is_only_read() -> None:
    def greedy(tensors: Tensors, workspace: Array) -> None:
        tensors["input"][0] = 1

    with loaded(CONV, with_bad(greedy, alone=True)) as (session, plans), pytest.raises(ValueError, match="read-only"):
        session.launch(plans[0][1], None)


def test_what_has_passed_is_not_run_again_for_the_others() -> None:
    runs = []

    def count(tensors: Tensors, workspace: Array) -> None:
        runs.append(1)

    with loaded(CONV, with_bad(count)) as (session, plans):
        counted = next(plan for candidate, plan in plans if candidate.algorithm == BAD)
        others = [plan for _, plan in plans if plan != counted]
        assert session.check(counted, others[0]) is None
        assert [session.check(plan, counted) for plan in others] == [None] * len(others)
        assert len(runs) == 1
        session.unload()
        session.load(canonical(CONV), max(candidate.workspace_bytes for candidate, _ in plans))
        assert session.check(others[0], counted) is None
        assert len(runs) == 2


def test_what_was_wrong_is_nobodys_measure() -> None:
    def spoil(tensors: Tensors, workspace: Array) -> None:
        tensors["output"][0] += 1

    with loaded(CONV, with_bad(spoil)) as (session, plans):
        bad = next(plan for candidate, plan in plans if candidate.algorithm == BAD)
        right = next(plan for _, plan in plans if plan != bad)
        assert session.check(bad, right) is not None
        assert session.check(right, bad) is None
