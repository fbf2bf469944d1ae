"""Two descriptions of one problem are one problem, and one description never becomes another problem."""

from __future__ import annotations

import sys
from enum import StrEnum
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from algosearch.ops import BatchNormOp, ConvOp, Op, canonical
from tests.ops.reference import convolved, normalised, numbered
from tests.strategies import LAYOUTS, batch_norm_ops, conv_ops, ops


def operands(op: ConvOp) -> tuple[int, int]:
    sizes = {
        "forward": (op.input_shape, op.filter_shape),
        "backward_data": (op.output_shape, op.filter_shape),
        "backward_filter": (op.input_shape, op.output_shape),
    }
    first, second = sizes[op.direction]
    return prod(first), prod(second)


def result(op: ConvOp, seed: int) -> list[float]:
    first, second = operands(op)
    flat: list[float] = convolved(op, numbered(seed, first), numbered(seed + 1, second)).tolist()
    return flat


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], *(size for size in shape[2:] if size != 1))


@given(ops())
def test_idempotent(op: Op) -> None:
    once = canonical(op)
    assert canonical(once) == once
    assert hash(canonical(once)) == hash(once)


@settings(max_examples=200)
@given(conv_ops(largest=5))
def test_convolution_computes_the_same_bytes(op: ConvOp) -> None:
    same = canonical(op)
    assert operands(same) == operands(op)
    assert result(same, 1) == result(op, 1)


@given(batch_norm_ops())
def test_batch_norm_computes_the_same_bytes(op: BatchNormOp) -> None:
    same = canonical(op)
    flat = numbered(3, prod(op.shape))
    np.testing.assert_allclose(normalised(same, flat), normalised(op, flat), rtol=1e-9, atol=1e-9)
    assert prod(same.parameter_shape) == prod(op.parameter_shape)
    assert (same.flops, same.bytes_moved) == (op.flops, op.bytes_moved)


@given(conv_ops())
def test_shapes_differ_by_dropped_axes_only(op: ConvOp) -> None:
    same = canonical(op)
    assert same.spatial_dimensions in (2, 3)
    assert without_ones(same.output_shape) == without_ones(op.output_shape)
    assert without_ones(same.result_shape) == without_ones(op.result_shape)
    assert (same.flops, same.bytes_moved) == (op.flops, op.bytes_moved)


@given(conv_ops(), st.data())
def test_what_no_window_sees_does_not_count(op: ConvOp, data: st.DataObject) -> None:
    """A description that differs in ways which the reference cannot see has the same canonical form."""
    axis = data.draw(st.integers(0, op.spatial_dimensions - 1))
    field = data.draw(st.sampled_from(("padding_high", "stride", "dilation")))
    changed = list(getattr(op, field))
    changed[axis] = data.draw(st.integers(0 if field == "padding_high" else 1, 12))
    try:
        other = replace(op, **{field: tuple(changed)})
    except ValueError:
        return
    if other.output_shape != op.output_shape:
        return
    visible = field == "dilation" and op.filter_shape[2 + axis] > 1
    visible |= field == "stride" and op.output_shape[2 + axis] > 1
    if not visible:
        assert canonical(other) == canonical(op)
    elif changed != list(getattr(op, field)):
        assert canonical(other) != canonical(op)


@given(conv_ops(), st.data())
def test_axes_that_do_nothing_do_not_count(op: ConvOp, data: st.DataObject) -> None:
    if op.spatial_dimensions == 3:
        return
    at = data.draw(st.integers(0, op.spatial_dimensions))

    def widened(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:at], value, *values[at:])

    wider = replace(
        op,
        input_shape=op.input_shape[:2] + widened(op.input_shape[2:], 1),
        filter_shape=op.filter_shape[:2] + widened(op.filter_shape[2:], 1),
        stride=widened(op.stride, data.draw(st.integers(1, 9))),
        dilation=widened(op.dilation, data.draw(st.integers(1, 9))),
        padding_low=widened(op.padding_low, 0),
        padding_high=widened(op.padding_high, 0),
    )
    assert canonical(wider) == canonical(op)


@given(conv_ops(), st.sampled_from(("input", "filter", "output")))
def test_layouts_count_where_the_bytes_lie_elsewhere(op: ConvOp, tensor: str) -> None:
    shape = op.output_shape if tensor == "output" else getattr(op, f"{tensor}_shape")
    field = f"{tensor}_layout"
    other = replace(op, **{field: next(layout for layout in LAYOUTS if layout != getattr(op, field))})
    told_apart = shape[1] > 1 and prod(shape[2:]) > 1
    assert (canonical(other) != canonical(op)) == told_apart


@given(batch_norm_ops(), st.integers(2, 5))
def test_batch_norm_axes_of_one_do_not_count(op: BatchNormOp, at: int) -> None:
    if len(op.shape) < 5:
        wider = replace(op, shape=(*op.shape[:at], 1, *op.shape[at:]))
        assert canonical(wider) == canonical(op)


@pytest.mark.parametrize(
    ("spatial", "taps"),
    [
        pytest.param((9,), (3,), id="1-D"),
        pytest.param((9, 1), (3, 1), id="2-D of width 1"),
        pytest.param((1, 9, 1), (1, 3, 1), id="a line in 3-D"),
    ],
)
def test_a_line_is_a_row(spatial: tuple[int, ...], taps: tuple[int, ...]) -> None:
    op = canonical(ConvOp(input_shape=(1, 2, *spatial), filter_shape=(3, 2, *taps)))
    assert op == ConvOp(input_shape=(1, 2, 1, 9), filter_shape=(3, 2, 1, 3))


def test_padding_is_symmetric_where_it_can_be() -> None:
    op = ConvOp(
        input_shape=(1, 1, 8, 8), filter_shape=(1, 1, 3, 3), stride=(2, 2), padding_low=(1, 1), padding_high=(0, 0)
    )
    assert canonical(op).padding_high == (1, 1)


def test_padding_beyond_the_last_window_is_trimmed_to_none() -> None:
    op = ConvOp(
        input_shape=(1, 1, 11, 10), filter_shape=(1, 1, 3, 3), stride=(8, 8), padding_low=(0, 0), padding_high=(7, 8)
    )
    assert op.output_shape == (1, 1, 2, 2)
    assert canonical(op).padding_high == (0, 1)


def test_a_single_window_at_the_largest_sizes_stays_valid() -> None:
    op = ConvOp(
        input_shape=(1, 1, 2**62 - 1),
        filter_shape=(1, 1, 1),
        stride=(2**63 - 1,),
        padding_low=(2**62,),
        padding_high=(0,),
    )
    assert op.output_shape == (1, 1, 1)
    same = canonical(op)
    assert same.output_shape == (1, 1, 1, 1)
    assert same.padding_high == (0, 0)  # symmetric would need a stride beyond 2**63 - 1
    assert canonical(same) == same


def test_words_become_plain_strings() -> None:
    class Way(StrEnum):
        FORWARD = "forward"

    plain = ConvOp(input_shape=(1, 2, 5, 5), filter_shape=(2, 2, 3, 3), input_layout="channels_last")
    fancy = ConvOp(
        input_shape=(1, 2, 5, 5),
        filter_shape=(2, 2, 3, 3),
        direction=Way.FORWARD,  # type: ignore[arg-type]
        input_layout=np.str_("channels_last"),  # type: ignore[arg-type]
        output_type=np.str_("float32"),  # type: ignore[arg-type]
    )
    assert fancy == plain
    assert {type(value) for value in asdict(canonical(fancy)).values()} == {str, int, tuple}


def test_words_of_a_batch_norm_become_plain_strings() -> None:
    fancy = BatchNormOp(
        shape=(2, 3, 4, 4),
        phase=np.str_("backward"),  # type: ignore[arg-type]
        statistics=np.str_("per_activation"),  # type: ignore[arg-type]
        layout=np.str_("channels_last"),  # type: ignore[arg-type]
    )
    assert {type(value) for value in asdict(canonical(fancy)).values()} == {str, tuple}


@given(conv_ops())
def test_the_short_cut_and_the_rules_agree(op: ConvOp) -> None:
    """What is seen to be canonical at a glance is what the rules would have made of it."""
    room = sys.modules["algosearch.ops.canonical"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_is_plain", lambda op: False)
        by_the_rules = room._canonical_conv(op)
    assert room._canonical_conv(op) == by_the_rules
