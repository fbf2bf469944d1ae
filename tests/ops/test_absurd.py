"""Whatever is put into a field of an op: a typed error that names it, or an op of nothing but plain values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from algosearch import InvalidOp
from algosearch.errors import InvalidValue
from algosearch.ops import BatchNormOp, ConvOp, Op
from tests.absurd import Agreeing, AgreeingWord, RaisingWord, absurd

PLAIN: dict[type[Op], dict[str, Any]] = {
    ConvOp: {"input_shape": (1, 8, 12, 12), "filter_shape": (8, 8, 3, 3)},
    BatchNormOp: {"shape": (1, 8, 12, 12)},
}
FIELDS = [(kind, field) for kind in PLAIN for field in kind.__struct_fields__]


@pytest.mark.parametrize(("kind", "field"), FIELDS)
@given(value=absurd() | st.none() | st.floats() | st.text().map("~".__add__) | st.binary())
def test_no_absurd_value_passes(kind: type[Op], field: str, value: Any) -> None:
    kind(**PLAIN[kind])  # so that the memo of valid ops knows what an impostor could pass for
    with pytest.raises(InvalidOp) as caught:
        kind(**{**PLAIN[kind], field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"op.{field} = ")
    assert isinstance(caught.value, InvalidValue)


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_what_passes_for_the_right_value_does_not_pass(kind: type[Op], field: str) -> None:
    """Equal to it, with its hash: the memo of valid ops must not be asked first."""
    right = asdict(kind(**PLAIN[kind]))
    with pytest.raises(InvalidOp) as caught:
        kind(**{**right, field: Agreeing(right[field])})
    assert caught.value.field == field


@pytest.mark.parametrize("word", [AgreeingWord, RaisingWord, np.str_])
@pytest.mark.parametrize(
    ("kind", "field"), [each for each in FIELDS if isinstance(asdict(each[0](**PLAIN[each[0]]))[each[1]], str)]
)
def test_a_word_is_taken_at_what_it_holds(kind: type[Op], field: str, word: type[str]) -> None:
    plain = kind(**PLAIN[kind])
    same = kind(**{**PLAIN[kind], field: word(asdict(plain)[field])})
    assert same == plain
    assert hash(same) == hash(plain)
    assert type(asdict(same)[field]) is str


@pytest.mark.parametrize(("kind", "field"), FIELDS)
@pytest.mark.parametrize("value", [np.array([1, 8, 12, 12]), np.array("float32"), np.array([]), np.array(3)])
def test_arrays(kind: type[Op], field: str, value: Any) -> None:
    """A one-dimensional array of integers is a shape; in any other place an array is refused by name."""
    try:
        op = kind(**{**PLAIN[kind], field: value})
    except InvalidOp as error:
        assert error.field in PLAIN[kind] or error.field == field  # noqa: PT017 - either outcome is right
    else:
        assert {type(each) for each in asdict(op).values()} <= {str, int, tuple}
