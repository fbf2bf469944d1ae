"""What is searched when an op is asked about: the op itself, or the pair that it is a pass of."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec.structs import asdict, replace

from algosearch.ops import BatchNormOp, ConvOp, Fusion, Op, canonical, searched_as
from algosearch.records import Environment, Key
from tests.strategies import batch_norm_ops, conv_ops, ops

HERE = Environment(backend="b", device="d")
FUSED = BatchNormOp(shape=(4, 8, 5, 5), fusion="add_activation", data_type="float16", layout="channels_last")


@given(ops())
def test_what_is_searched_is_canonical_and_stands_for_itself(op: Op) -> None:
    searched = searched_as(op)
    assert canonical(searched) == searched
    assert searched_as(searched) == searched
    assert searched_as(canonical(op)) == searched


@given(conv_ops())
def test_a_convolution_is_searched_as_it_is(op: ConvOp) -> None:
    assert searched_as(op) == canonical(op)


@given(batch_norm_ops())
def test_a_batch_norm_is_searched_as_its_pair_if_it_is_fused_and_as_itself_if_not(op: BatchNormOp) -> None:
    searched = searched_as(op)
    if op.fusion == "none":
        assert searched == canonical(op)
    else:
        assert searched == replace(canonical(op), phase="training")
        assert {searched_as(each) for each in searched.passes} == {searched}


@given(batch_norm_ops())
def test_an_op_is_its_passes_one_after_the_other(op: BatchNormOp) -> None:
    assert op.bytes_moved == sum(each.bytes_moved for each in op.passes)
    assert op.flops == sum(each.flops for each in op.passes)
    names = [name for each in op.passes for name in each.output_shapes]
    assert len(set(names)) == len(names), "no tensor is a result of both"
    assert list(op.output_shapes) == names
    for each in op.passes:
        assert {name for name in names if op.pass_that_writes(name) == each} == set(each.output_shapes)
        assert {**asdict(each), "phase": op.phase} == asdict(op)


def test_forward_comes_first() -> None:
    pair = replace(FUSED, phase="training")
    assert [each.phase for each in pair.passes] == ["training_forward", "backward"]
    assert FUSED.passes == (FUSED,)
    with pytest.raises(StopIteration):
        pair.pass_that_writes("input")


@given(batch_norm_ops(phases=("training",)))
def test_both_passes_and_the_pair_have_one_key(pair: BatchNormOp) -> None:
    key = Key.of(pair, HERE)
    assert {Key.of(each, HERE) for each in pair.passes} == {key}
    assert key.problem == canonical(pair)


@pytest.mark.parametrize("fusion", ["activation", "add_activation"])
def test_fusions_have_keys_of_their_own(fusion: Fusion) -> None:
    keys = {Key.of(replace(FUSED, fusion=each), HERE).digest for each in ("none", fusion)}
    assert len(keys) == 2


def test_it_is_named_as_what_it_is() -> None:
    assert searched_as(FUSED).describe() == "batch_norm training 4x8x5x5 float16 +add_activation channels_last"
