"""JSON lines: what is read back is what was written, and what is no op is named by its line."""

from __future__ import annotations

from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algosearch.compiler import Node, jsonlines, write_lines
from algosearch.compiler.jsonlines import parse_lines, read_lines
from algosearch.errors import InvalidOp, UnreadableModel
from algosearch.ops import BatchNormOp, ConvOp, Op
from tests.strategies import ops

NORM = b'{"op":"batch_norm","shape":[2,3]}'
DEEP = b"[" * 100_000


@settings(deadline=None, max_examples=60)
@given(st.lists(ops(), min_size=1, max_size=5))
def test_what_is_written_is_read_back(written: list[Op]) -> None:
    nodes = [Node(name=f"n{number}", op=op) for number, op in enumerate(written)]
    read = parse_lines("f", write_lines(nodes))
    assert [node.op for node in read] == written
    assert [node.name for node in read] == [f"line {number}" for number in range(1, len(written) + 1)]
    assert all(node.needs_input_gradient for node in read)


def test_nothing_is_written_for_nothing() -> None:
    assert write_lines(()) == b""


def test_what_is_left_out_takes_the_default_of_the_op() -> None:
    (conv,) = parse_lines("f", b'{"op":"conv","input_shape":[1,3,8,8],"filter_shape":[4,3,3,3]}')
    assert conv.op == ConvOp(input_shape=(1, 3, 8, 8), filter_shape=(4, 3, 3, 3))


def test_blank_lines_and_foreign_line_ends_are_allowed_and_counted() -> None:
    read = parse_lines("f", b"\r\n  \n" + NORM + b"\r\n\n\t" + NORM)
    assert [node.name for node in read] == ["line 3", "line 5"]
    assert {node.op for node in read} == {BatchNormOp(shape=(2, 3))}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"op":"conv"}', "missing required field `input_shape`"),
        (b'{"shape":[2,3]}', "missing required field `op`"),
        (b'{"op":"pool","shape":[2,3]}', "'pool'"),
        (b'{"op":"batch_norm","shape":[2,3],"epsilon":1}', "unknown field `epsilon`"),
        (b'{"op":"batch_norm","shape":[2,3.0]}', "Expected `int`, got `float`"),
        (b'{"op":"batch_norm","shape":[2,true]}', "Expected `int`, got `bool`"),
        (b'{"op":"batch_norm","shape":"23"}', "got `str`"),
        (b'{"op":"batch_norm","shape":[2,3],"phase":"training"}', "'training'"),
        (b"[" + NORM + b"]", "got `array`"),
        (b"3", "got `int`"),
        (b"{", "is not one JSON object: "),
        (NORM + NORM, "is not one JSON object: "),
        (b"# an op", "is not one JSON object: "),
        (b'{"op":"\xff"}', "is not one JSON object: "),
        (b"\xff\xfe{}", "is not one JSON object: "),
        (b"\x00", "is not one JSON object: "),
        (b'{"x":' + DEEP + b',"op":"conv"}', "nested too deeply"),
    ],
)
def test_a_line_that_is_no_op_is_named_with_its_reason(line: bytes, reason: str) -> None:
    with pytest.raises(UnreadableModel) as caught:
        parse_lines("ops.jsonl", NORM + b"\n\n" + line + b"\n" + NORM)
    assert caught.value.source == "ops.jsonl"
    assert caught.value.reason.startswith("line 3")
    assert reason in caught.value.reason


def test_an_op_that_describes_no_computation_keeps_its_own_words() -> None:
    with pytest.raises(InvalidOp) as invalid:
        ConvOp(input_shape=(1, 3, 8, 8), filter_shape=(4, 2, 3, 3))
    with pytest.raises(UnreadableModel) as caught:
        parse_lines("f", b'{"op":"conv","input_shape":[1,3,8,8],"filter_shape":[4,2,3,3]}')
    assert caught.value.reason == f"line 1: {invalid.value}"


@pytest.mark.parametrize("text", [b"", b"\n", b" \r\n\t\n"])
def test_a_text_without_an_op_is_no_model(text: bytes) -> None:
    with pytest.raises(UnreadableModel, match="holds no op"):
        parse_lines("f", text)


def test_a_file_is_read_up_to_the_largest_size_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    text = NORM + b"\n" + NORM
    monkeypatch.setattr(jsonlines, "LARGEST_BYTES", len(text))
    assert len(read_lines("f", BytesIO(text))) == 2
    endless = BytesIO(text + b"\n" + NORM * 1000)
    with pytest.raises(UnreadableModel, match="more than"):
        read_lines("f", endless)
    assert endless.tell() == len(text) + 1


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes_are_ops_or_a_typed_error(text: bytes) -> None:
    try:
        read = parse_lines("f", text)
    except UnreadableModel:
        return
    assert read
