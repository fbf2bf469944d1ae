"""How large the numbers of a trial are, and how far off a right result may be."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from algosearch.backends.cudnn.contents import conv_allowance, conv_range, summed
from algosearch.ops import ConvOp, canonical
from tests.backends.reference import conv
from tests.strategies import conv_ops


@given(conv_ops())
def test_no_sum_of_products_can_leave_float16_and_no_int8_is_out_of_range(op: ConvOp) -> None:
    drawn = conv_range(op)
    if op.input_type == "int8":
        assert drawn.low == int(drawn.low) >= -2
        assert drawn.high == int(drawn.high) == 1 - drawn.low
    else:
        assert drawn.low == -drawn.high
        if op.input_type == "float16":
            assert summed(op) * drawn.high**2 <= np.finfo(np.float16).max / 2
            assert drawn.high >= 2**-12, "its square must be a normal number"


def test_a_filter_gradient_of_a_large_batch_stays_finite() -> None:
    op = ConvOp(
        input_shape=(256, 64, 112, 112),
        filter_shape=(64, 64, 1, 1),
        direction="backward_filter",
        input_type="float16",
        filter_type="float16",
        output_type="float16",
    )
    assert summed(op) == 256 * 112 * 112
    assert 0.0 < summed(op) * conv_range(op).high ** 2 < 2**15


def halves(**changes: Any) -> ConvOp:
    described: dict[str, Any] = {
        "input_shape": (4, 64, 9, 9),
        "filter_shape": (32, 64, 3, 3),
        "input_type": "float16",
        "filter_type": "float16",
        "output_type": "float16",
    }
    return canonical(ConvOp(**described | changes))


def rounded(op: ConvOp, *, inputs: type | None = None, missing: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A result as a kernel makes it that sums in float32, and the exact one. `missing`: one of its products is not."""
    dice, drawn = np.random.default_rng(5), conv_range(op)
    tensors = {
        name: dice.uniform(drawn.low, drawn.high, np.prod(shape)).astype(op.input_type)
        for name, shape in (("input", op.input_shape), ("filter", op.filter_shape), ("output", op.output_shape))
    }
    right = conv(op, tensors)
    if inputs is not None:
        tensors = {name: values.astype(inputs).astype(op.input_type) for name, values in tensors.items()}
    if missing:
        weights = tensors["filter"].reshape(op.filter_shape).copy()
        weights[:, 0, 1, 1] = 0
        tensors["filter"] = weights.ravel()
    return conv(op, tensors).astype(op.output_type).astype(np.float64), right


@pytest.mark.parametrize(
    ("op", "notes", "inputs"),
    [
        (halves(), (), None),
        (halves(input_type="float32", filter_type="float32", output_type="float32"), ("tf32",), np.float16),
        (halves(input_type="float32", filter_type="float32", output_type="float32"), (), None),
        (
            halves(input_type="float64", filter_type="float64", output_type="float64", accumulate_type="float64"),
            (),
            None,
        ),
    ],
    ids=["float16", "tf32", "float32", "float64"],
)
def test_rounding_is_allowed_and_a_missing_product_is_not(
    op: ConvOp, notes: Collection[str], inputs: type | None
) -> None:
    allowance = conv_allowance(op, notes)
    found, right = rounded(op, inputs=inputs)
    margin = allowance.absolute + allowance.relative * np.abs(right)
    assert (np.abs(found - right) <= margin).all()
    wrong, right = rounded(op, inputs=inputs, missing=True)
    assert (np.abs(wrong - right) > margin).any()


def test_int8_is_exact() -> None:
    op = halves(input_type="int8", filter_type="int8", output_type="int8", accumulate_type="int32")
    assert conv_allowance(op, ("tensor_core",)).absolute == 0.0


def test_coarser_arithmetic_is_allowed_more() -> None:
    op = halves(input_type="float32", filter_type="float32", output_type="float32")
    plain, tf32, winograd = (conv_allowance(op, notes) for notes in ((), ("tf32",), ("winograd",)))
    assert plain.absolute < winograd.absolute < tf32.absolute
    narrow = conv_allowance(halves(accumulate_type="float16"), ())
    assert narrow.absolute > conv_allowance(halves(), ()).absolute
    assert plain.twice().absolute == 2 * plain.absolute
