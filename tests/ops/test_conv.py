"""`ConvOp`: shapes and counts by their definitions, normalising, and what is refused."""

from __future__ import annotations

import copy
import pickle
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from algosearch import InvalidOp
from algosearch.ops import ELEMENT_BYTES, ConvOp, Direction
from tests.ops.reference import windows
from tests.strategies import DIRECTIONS, conv_ops

TUPLES = ("input_shape", "filter_shape", "stride", "dilation", "padding_low", "padding_high")
NUMBERS = ("groups", "alignment_bytes")
PLAIN: dict[str, Any] = {"input_shape": (2, 4, 8, 8), "filter_shape": (6, 2, 3, 3), "groups": 2}


@given(conv_ops())
def test_output_shape_counts_windows(op: ConvOp) -> None:
    axes = zip(
        op.input_shape[2:],
        op.filter_shape[2:],
        op.stride,
        op.dilation,
        op.padding_low,
        op.padding_high,
        strict=True,
    )
    counted = tuple(windows(*axis) for axis in axes)
    assert op.output_shape == (op.input_shape[0], op.filter_shape[0], *counted)
    expected = {"forward": op.output_shape, "backward_data": op.input_shape, "backward_filter": op.filter_shape}
    assert op.result_shape == expected[op.direction]
    assert op.spatial_dimensions == len(counted)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_flops_of_known_convolutions(direction: Direction) -> None:
    """The published counts of multiply-adds: ResNet's first convolution, and a depthwise one of MobileNet."""
    first = ConvOp(
        input_shape=(1, 3, 224, 224),
        filter_shape=(64, 3, 7, 7),
        stride=(2, 2),
        padding_low=(3, 3),
        direction=direction,
    )
    assert first.flops == 2 * 118_013_952
    depthwise = ConvOp(
        input_shape=(1, 32, 112, 112), filter_shape=(32, 1, 3, 3), padding_low=(1, 1), groups=32, direction=direction
    )
    assert depthwise.flops == 2 * 3_612_672


@given(conv_ops())
def test_bytes(op: ConvOp) -> None:
    assert op.input_bytes == prod(op.input_shape) * ELEMENT_BYTES[op.input_type]
    assert op.filter_bytes == prod(op.filter_shape) * ELEMENT_BYTES[op.filter_type]
    assert op.output_bytes == prod(op.output_shape) * ELEMENT_BYTES[op.output_type]
    assert op.bytes_moved == op.input_bytes + op.filter_bytes + op.output_bytes


def test_sizes_are_exact_beyond_64_bits() -> None:
    n = 2**61 - 1
    op = ConvOp(input_shape=(n, n, n), filter_shape=(n, n, 1), input_type="float16", filter_type="float16",
                output_type="float16")  # fmt: skip
    assert op.input_bytes == 2 * n**3
    assert op.flops == 2 * n**4
    assert op.output_shape == (n, n, n)


def test_what_is_left_out() -> None:
    op = ConvOp(input_shape=(1, 2, 5, 5, 5), filter_shape=(2, 2, 1, 1, 1), padding_low=(0, 1, 2))
    assert (op.stride, op.dilation, op.padding_high) == ((1, 1, 1), (1, 1, 1), (0, 1, 2))
    explicit = replace(op, padding_high=(0, 0, 0))
    assert explicit.padding_high == (0, 0, 0)
    assert explicit != op


def _written(op: ConvOp, write: Any) -> ConvOp:
    fields = asdict(op)
    for field in TUPLES:
        fields[field] = write(fields[field])
    return ConvOp(**fields)


WAYS_TO_WRITE = [
    pytest.param(list, id="lists"),
    pytest.param(iter, id="iterators"),
    pytest.param(np.array, id="arrays"),
    pytest.param(lambda values: [np.int64(value) for value in values], id="int64"),
    pytest.param(lambda values: tuple(np.uint8(value) for value in values), id="uint8"),
    pytest.param(lambda values: tuple(bool(value) if value in (0, 1) else value for value in values), id="bools"),
]


@pytest.mark.parametrize("write", WAYS_TO_WRITE)
@given(op=conv_ops())
def test_equal_descriptions_are_equal_ops(write: Any, op: ConvOp) -> None:
    same = _written(op, write)
    assert same == op
    assert hash(same) == hash(op)
    for field in TUPLES:
        assert type(getattr(same, field)) is tuple
        assert {type(value) for value in getattr(same, field)} == {int}


def test_a_range_is_a_shape_and_hashes_as_one() -> None:
    """A range is hashable, unequal to the tuple, and the first hash of an op is cached."""
    op = ConvOp(input_shape=range(1, 5), filter_shape=(3, 2, 1, 1))  # type: ignore[arg-type]
    same = ConvOp(input_shape=(1, 2, 3, 4), filter_shape=(3, 2, 1, 1))
    assert op == same
    assert hash(op) == hash(same)
    assert op in {same}


def test_an_integer_enumeration_is_an_integer() -> None:
    class Size(IntEnum):
        TWO = 2

    op = ConvOp(input_shape=(1, Size.TWO, 5), filter_shape=(1, 2, 3))
    assert msgspec.json.encode(op) == msgspec.json.encode(ConvOp(input_shape=(1, 2, 5), filter_shape=(1, 2, 3)))


@given(conv_ops())
def test_copies_are_equal(op: ConvOp) -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(op), type=ConvOp)
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(op), type=ConvOp)
    for same in (decoded, packed, copy.deepcopy(op), pickle.loads(pickle.dumps(op)), replace(op)):
        assert same == op
        assert hash(same) == hash(op)


def test_ops_are_frozen() -> None:
    with pytest.raises(AttributeError):
        ConvOp(**PLAIN).groups = 1  # type: ignore[misc]


# None of these is a whole number, although most equal one and hash like it.
IMPOSTORS = [
    pytest.param(float, id="float"),
    pytest.param(np.float64, id="float64"),
    pytest.param(np.float16, id="float16"),
    pytest.param(complex, id="complex"),
    pytest.param(Decimal, id="Decimal"),
    pytest.param(Fraction, id="Fraction"),
    pytest.param(str, id="str"),
    pytest.param(lambda value: np.bool_(True), id="numpy.bool"),
    pytest.param(lambda value: None, id="None"),
    pytest.param(lambda value: [value], id="nested"),
]


@pytest.mark.parametrize("impostor", IMPOSTORS)
@given(op=conv_ops(), data=st.data())
def test_no_impostor_passes_after_its_equal(impostor: Any, op: ConvOp, data: st.DataObject) -> None:
    """The valid op exists, so its equal is remembered: the impostor is refused all the same, and leaves no trace."""
    field = data.draw(st.sampled_from(TUPLES + NUMBERS))
    value = getattr(op, field)
    if field in NUMBERS:
        corrupt = impostor(value)
    else:
        at = data.draw(st.integers(0, len(value) - 1))
        corrupt = (*value[:at], impostor(value[at]), *value[at + 1 :])
    for _ in range(2):
        with pytest.raises(InvalidOp) as caught:
            replace(op, **{field: corrupt})
        assert caught.value.field == field
    again = ConvOp(**asdict(op))
    assert again == op
    assert msgspec.json.encode(again) == msgspec.json.encode(op)


@given(conv_ops(), st.sampled_from(TUPLES + NUMBERS), st.sampled_from((-1, -(2**70), 2**63, 2**64, 10**40, 10**5000)))
def test_numbers_out_of_range(op: ConvOp, field: str, number: int) -> None:
    value = getattr(op, field)
    corrupt = number if field in NUMBERS else (*value[:-1], number)
    with pytest.raises(InvalidOp) as caught:
        replace(op, **{field: corrupt})
    assert caught.value.field == field
    assert len(str(caught.value)) < 400


@given(conv_ops(), st.sampled_from(TUPLES), st.booleans())
def test_wrong_lengths(op: ConvOp, field: str, longer: bool) -> None:
    value = getattr(op, field)
    with pytest.raises(InvalidOp):
        replace(op, **{field: (*value, 1) if longer else (value[:-1] or (1, 1, 1, 1))})


@pytest.mark.parametrize("field", TUPLES)
@pytest.mark.parametrize("value", [3, None, "33", b"\x03\x03", {3}, frozenset({3}), {3: 3}, object()])
def test_no_sequence_of_integers(field: str, value: object) -> None:
    with pytest.raises(InvalidOp, match="must be a sequence of integers") as caught:
        ConvOp(**{**PLAIN, field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    "field",
    ["direction", "input_layout", "filter_layout", "output_layout", "input_type", "filter_type", "output_type",
     "accumulate_type"],
)  # fmt: skip
@pytest.mark.parametrize("word", ["sideways", "", None, 1, [], {}, b"forward", "FORWARD"])
def test_unknown_words(field: str, word: object) -> None:
    with pytest.raises(InvalidOp) as caught:
        ConvOp(**{**PLAIN, field: word})
    assert (caught.value.field, caught.value.value) == (field, word)


HALF = {"input_type": "float16", "filter_type": "float16", "output_type": "float16"}
BYTE = {"input_type": "int8", "filter_type": "int8", "output_type": "int8", "accumulate_type": "int32"}


@pytest.mark.parametrize(
    ("changes", "field", "value", "rule"),
    [
        ({"input_shape": (2, 4), "filter_shape": (6, 2)}, "input_shape", (2, 4), "1 to 3 spatial dimensions"),
        ({"input_shape": (1,) * 6}, "input_shape", (1,) * 6, "1 to 3 spatial dimensions"),
        ({"input_shape": ()}, "input_shape", (), "1 to 3 spatial dimensions"),
        ({"input_shape": (2, 0, 8, 8)}, "input_shape", 0, "from 1 to"),
        ({"filter_shape": (6, 2, 3)}, "filter_shape", (6, 2, 3), "must have 4 dimensions"),
        ({"stride": (1,)}, "stride", (1,), "must have 2 entries"),
        ({"stride": (1, 0)}, "stride", 0, "from 1 to"),
        ({"dilation": (0, 1)}, "dilation", 0, "from 1 to"),
        ({"padding_low": (0, -1)}, "padding_low", -1, "from 0 to"),
        ({"groups": 4}, "filter_shape", (6, 2, 3, 3), "(2 * 4) must be the 4 input channels"),
        ({"filter_shape": (5, 2, 3, 3)}, "groups", 2, "must divide the 5 filters"),
        ({"groups": 0}, "groups", 0, "from 1 to"),
        ({"dilation": (4, 1)}, "filter_shape", (6, 2, 3, 3), "does not fit into the padded input: output (2, 6, 0, 6)"),
        ({"alignment_bytes": 24}, "alignment_bytes", 24, "a power of two"),
        ({"alignment_bytes": 8192}, "alignment_bytes", 8192, "a power of two from 1 to 4096"),
        ({"alignment_bytes": 0}, "alignment_bytes", 0, "from 1 to"),
        ({"filter_type": "float16"}, "filter_type", "float16", "must equal input_type, float32"),
        ({"output_type": "float64"}, "output_type", "float64", "must equal input_type, float32"),
        ({"accumulate_type": "float16"}, "accumulate_type", "float16", "must be one of float32"),
        ({**HALF, "accumulate_type": "float64"}, "accumulate_type", "float64", "must be one of float32, float16"),
        ({**HALF, "output_type": "float32", "direction": "backward_data"}, "output_type", "float32", "must equal"),
        ({**BYTE, "direction": "backward_filter"}, "direction", "backward_filter", "int8 is forward only"),
        ({**BYTE, "output_type": "float16"}, "output_type", "float16", "must be one of int8, float32"),
        (
            {"input_shape": (1, 4, 2**62, 8), "padding_low": (2**62, 0), "padding_high": (2**63 - 1, 0)},
            "padding_high",
            (2**63 - 1, 0),
            "beyond 2**63 - 1",
        ),
    ],
)
def test_each_rule_is_named(changes: dict[str, Any], field: str, value: object, rule: str) -> None:
    with pytest.raises(InvalidOp) as caught:
        ConvOp(**{**PLAIN, **changes})
    assert (caught.value.field, caught.value.value) == (field, value)
    assert rule in caught.value.rule
    assert field in str(caught.value)
    assert rule in str(caught.value)


def test_decoding_validates() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"op\.input_shape = \(1,\)"):
        msgspec.json.decode(b'{"op":"conv","input_shape":[1],"filter_shape":[1]}', type=ConvOp)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"op":"conv","input_shape":[1,1,1],"filter_shape":[1,1,1],"x":1}', type=ConvOp)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"input_shape": (64, 3, 224, 224), "filter_shape": (64, 3, 7, 7), "stride": (2, 2), "padding_low": (3, 3)},
            "forward 64x3x224x224 * 64x3x7x7 /2 pad 3 float32",
        ),
        (
            {
                "input_shape": (8, 8, 8),
                "filter_shape": (8, 1, 3),
                "groups": 8,
                "dilation": (2,),
                "padding_low": (4,),
                "padding_high": (0,),
                "input_layout": "channels_last",
            },
            "forward 8x8x8 * 8x1x3 dilation 2 pad 4..0 groups 8 float32 channels_last/channels_first",
        ),
        (
            {
                **BYTE,
                "output_type": "float32",
                "input_shape": (1, 1, 9, 9),
                "filter_shape": (1, 1, 1, 1),
                "stride": (1, 2),
            },
            "forward 1x1x9x9 * 1x1x1x1 /1x2 int8/float32",
        ),
    ],
)  # fmt: skip
def test_describe(fields: dict[str, Any], text: str) -> None:
    assert ConvOp(**fields).describe() == text


def test_plain_tuples_are_kept_as_they_are() -> None:
    """Ops that are built from one constant share it, and are compared in half the time; whatever else is rewritten."""
    shape, taps = (913, 2, 9, 9), (3, 2, 3, 3)
    op = ConvOp(input_shape=shape, filter_shape=taps)
    assert op.input_shape is shape
    assert op.filter_shape is taps
    flagged = ConvOp(input_shape=(914, 2, 9, 9), filter_shape=taps, stride=(True, True))
    assert [type(step) for step in flagged.stride] == [int, int]
    assert type(ConvOp(input_shape=Sizes(915, 2, 9, 9), filter_shape=taps).input_shape) is tuple


class Sizes(NamedTuple):
    """A tuple of another class."""

    batch: int
    channels: int
    height: int
    width: int
