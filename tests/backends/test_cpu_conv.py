"""Every convolution kernel of the CPU backend, against the definition, over generated shapes."""

from __future__ import annotations

from math import prod, sqrt
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch.backends.cpu import CpuBackend
from algosearch.errors import InvalidOp
from algosearch.ops import ConvOp, Direction, canonical
from tests.backends import reference
from tests.backends.cpu import BFLOAT16, agrees, loaded, results
from tests.strategies import DIRECTIONS, conv_ops

_EPS: Final = float(np.finfo(np.float32).eps)
_WRITTEN: Final = {"forward": "output", "backward_data": "input", "backward_filter": "filter"}


def _allowed(op: ConvOp) -> float:
    """Tens of rounding errors for √(numbers summed up) numbers of at most 1; int8 is exact."""
    if op.input_type == "int8":
        return 0.0
    taps = prod(op.filter_shape[2:])
    summed = {
        "forward": op.filter_shape[1] * taps,
        "backward_data": op.filter_shape[0] // op.groups * taps,
        "backward_filter": op.output_shape[0] * prod(op.output_shape[2:]),
    }[op.direction]
    eps = float(np.finfo(np.float64).eps) if op.input_type == "float64" else _EPS
    return 32 * eps * sqrt(summed)


def _listed(op: ConvOp) -> list[str]:
    backend = CpuBackend()
    listing = backend.open(backend.devices()[0]).enumerate(canonical(op), None)
    return sorted(candidate.algorithm for candidate in listing.candidates)


def _check(op: ConvOp) -> list[str]:
    """The names of the candidates, each of which was right."""
    op = canonical(op)
    names = []
    right = None
    for candidate, tensors in results(op):
        if right is None:
            right = reference.conv(op, tensors)
        found = tensors[_WRITTEN[op.direction]]
        assert agrees(found, right, _allowed(op)), f"{candidate.algorithm} is wrong for {op!r}"
        names.append(candidate.algorithm.removeprefix("cpu/numpy:").split("?")[0])
    return names


@pytest.mark.parametrize("direction", DIRECTIONS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_every_candidate_is_right(direction: Direction, data: st.DataObject) -> None:
    op = data.draw(
        conv_ops(
            directions=(direction,), spatial=(1, 2, 2, 3), input_types=("float16", "float32", "float64"), largest=7
        )
    )
    _check(op)


@settings(max_examples=40, deadline=None)
@given(conv_ops(directions=("forward",), spatial=(2,), input_types=("int8",), largest=7))
def test_int8_is_exact_and_saturates(op: ConvOp) -> None:
    assert _check(op)


def test_int8_is_exact_where_float32_is_not() -> None:
    # More products than float32 can add up without a rounding, if all of them are as large as they can be.
    op = ConvOp(
        input_shape=(1, 256, 3, 3),
        filter_shape=(2, 256, 3, 3),
        input_type="int8",
        filter_type="int8",
        output_type="float32",
        accumulate_type="int32",
    )
    with loaded(op) as (session, plans):
        buffers = session.buffers
        assert buffers is not None
        for name in ("input", "filter"):
            values = buffers.tensors[name].copy()
            values.fill(-127)
            buffers.tensors[name] = values
        buffers.tensors["filter"][0] = -126
        for _, plan in plans:
            session.launch(plan, None)
            assert buffers.tensors["output"].tolist() == [
                np.float32(127 * 127 * 256 * 9 - 127),
                np.float32(127 * 127 * 256 * 9),
            ]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "op",
    [
        ConvOp(input_shape=(2, 3, 5), filter_shape=(4, 3, 3), padding_low=(2,)),
        ConvOp(input_shape=(3, 4, 7, 6), filter_shape=(6, 2, 3, 2), groups=2, padding_low=(1, 0), padding_high=(0, 3)),
        ConvOp(input_shape=(1, 2, 1, 2), filter_shape=(2, 2, 2, 2), padding_low=(4, 5), padding_high=(1, 0)),
        ConvOp(input_shape=(2, 2, 4, 5, 3), filter_shape=(3, 2, 2, 3, 2), padding_low=(1, 1, 0), dilation=(2, 1, 2)),
    ],
    ids=["1-D", "groups, unequal padding", "padding beyond the input", "3-D, dilation"],
)
def test_all_families_do_what_has_no_stride(op: ConvOp, direction: Direction) -> None:
    names = _check(replace(op, direction=direction))
    assert set(names) == {"direct", "fft", "im2col"}


_REPORTED: Final = {
    "E03": ConvOp(
        input_shape=(2, 2, 50, 55), filter_shape=(1, 2, 3, 3), stride=(1, 2), direction="backward_filter"
    ),
    "E04": ConvOp(
        input_shape=(2, 8, 2, 2), filter_shape=(16, 8, 1, 1), stride=(2, 2), direction="backward_data"
    ),
    "E11 kernel beyond the input": ConvOp(
        input_shape=(2, 3, 4, 4), filter_shape=(4, 3, 5, 5), padding_low=(1, 1), padding_high=(1, 1)
    ),
    "E11 one pixel": ConvOp(
        input_shape=(2, 3, 1, 1), filter_shape=(4, 3, 7, 7), padding_low=(3, 3), padding_high=(3, 3)
    ),
    "E12 behind": ConvOp(
        input_shape=(2, 3, 6, 7), filter_shape=(4, 3, 2, 2), padding_low=(0, 0), padding_high=(1, 1)
    ),
    "E12 before": ConvOp(
        input_shape=(2, 3, 6, 7), filter_shape=(4, 3, 2, 2), padding_low=(1, 1), padding_high=(0, 0)
    ),
    "E12 even, wide": ConvOp(
        input_shape=(2, 3, 7, 6), filter_shape=(4, 3, 4, 4), padding_low=(1, 1), padding_high=(2, 2)
    ),
    "E14": ConvOp(input_shape=(20, 1, 1297), filter_shape=(1, 1, 11)),
    "G14": ConvOp(
        input_shape=(1, 8, 9, 9), filter_shape=(64, 1, 3, 3), groups=8, stride=(2, 2), padding_low=(1, 1),
        padding_high=(1, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", _REPORTED)
def test_shapes_that_others_got_wrong(case: str, direction: Direction) -> None:
    """E03, E04, E11, E12, E14, G14: unequal strides, windows beyond the input, unequal padding, long lines, channel
    multipliers; in every direction."""
    assert _check(replace(_REPORTED[case], direction=direction))


def test_padding_before_and_behind_are_two_problems() -> None:
    """E12."""
    assert canonical(_REPORTED["E12 behind"]) != canonical(_REPORTED["E12 before"])


def test_a_window_larger_than_the_padded_input_is_refused() -> None:
    """E11: by name, before anything is tried."""
    with pytest.raises(InvalidOp, match="filter_shape"):
        replace(_REPORTED["E11 kernel beyond the input"], filter_shape=(4, 3, 7, 7))


def test_pixels_that_no_output_sees_have_no_gradient() -> None:
    # Windows of 2 at every third pixel: pixels 2 and 5 are between them, 7 and 8 behind the last.
    op = canonical(
        ConvOp(input_shape=(2, 2, 1, 9), filter_shape=(3, 2, 1, 2), stride=(1, 3), direction="backward_data")
    )
    unseen = [2, 5, 8]
    for candidate, tensors in results(op):
        gradient = reference.logical(tensors["input"], op.input_shape, op.input_layout)
        assert not gradient[..., unseen].any(), candidate.algorithm
        assert gradient[..., [0, 1, 3, 4, 6, 7]].all(), candidate.algorithm


def test_what_is_the_same_thing_is_listed_once() -> None:
    pointwise = ConvOp(input_shape=(2, 8, 6, 6), filter_shape=(4, 8, 1, 1))
    assert _listed(pointwise) == ["cpu/numpy:im2col?chunk=1", "cpu/numpy:im2col?chunk=2"]
    strided = ConvOp(input_shape=(1, 8, 6, 6), filter_shape=(4, 8, 3, 3), stride=(2, 2))
    assert _listed(strided) == ["cpu/numpy:direct", "cpu/numpy:im2col?chunk=1"]


def test_a_filter_blown_up_to_a_large_image_is_not_tried() -> None:
    op = ConvOp(input_shape=(1, 256, 112, 112), filter_shape=(256, 256, 2, 2))
    assert _listed(op) == ["cpu/numpy:direct", "cpu/numpy:im2col?chunk=1"]


def test_bfloat16_has_no_candidates() -> None:
    assert _listed(BFLOAT16) == []
