"""`Key` and `Environment`: what tells two problems apart, and nothing else."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from algosearch import InvalidOp, UndecodableRecord
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical, searched_as
from algosearch.records import Environment, InvalidEnvironment, Key
from algosearch.records.key import KEY_SCHEMA, PROBLEM_INGREDIENTS
from tests.strategies import batch_norm_ops, conv_ops, environments, ops

HERE: Final = Environment(backend="simulated", device="Model 7", facts=(("library", "9.19"), ("memory", "140 GiB")))

CONV: Final = ConvOp(
    input_shape=(2, 4, 9, 9), filter_shape=(6, 2, 3, 3), groups=2, padding_low=(1, 1), input_layout="channels_last"
)
NORM: Final = BatchNormOp(shape=(2, 4, 9, 9))
HALF: Final = {"input_type": "float16", "filter_type": "float16", "output_type": "float16"}

# For every field: two ops that differ in it, and in what must follow it. A field that is added to an op and not here
# fails the tests below, and so does one whose change leaves the key as it was.
CONV_DIFFERENCES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "input_shape": ({}, {"input_shape": (2, 4, 9, 10)}),
    "filter_shape": ({}, {"filter_shape": (8, 2, 3, 3)}),
    "direction": ({}, {"direction": "backward_filter"}),
    "stride": ({}, {"stride": (1, 2)}),
    "dilation": ({}, {"dilation": (2, 1)}),
    "padding_low": ({"padding_high": (1, 1)}, {"padding_low": (0, 1), "padding_high": (1, 1)}),
    "padding_high": ({}, {"padding_high": (2, 1)}),
    "groups": ({"filter_shape": (8, 2, 3, 3)}, {"filter_shape": (8, 1, 3, 3), "groups": 4}),
    "input_layout": ({}, {"input_layout": "channels_first"}),
    "filter_layout": ({}, {"filter_layout": "channels_last"}),
    "output_layout": ({}, {"output_layout": "channels_last"}),
    "input_type": ({}, HALF),
    "filter_type": ({}, HALF),
    "output_type": (HALF, {**HALF, "output_type": "float32"}),
    "accumulate_type": (HALF, {**HALF, "accumulate_type": "float16"}),
    "alignment_bytes": ({}, {"alignment_bytes": 8}),
}
NORM_DIFFERENCES: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "shape": ({}, {"shape": (2, 4, 9, 10)}),
    "phase": ({}, {"phase": "backward"}),
    "fusion": ({}, {"fusion": "activation"}),
    "statistics": ({}, {"statistics": "per_activation"}),
    "layout": ({}, {"layout": "channels_last"}),
    "data_type": ({}, {"data_type": "float16"}),
    "parameter_type": ({}, {"data_type": "float64", "parameter_type": "float64"}),
}


@pytest.mark.parametrize("field", ConvOp.__struct_fields__)
def test_every_field_of_a_convolution_is_in_the_key(field: str) -> None:
    one, other = CONV_DIFFERENCES[field]
    _differ_by(field, replace(CONV, **one), replace(CONV, **other))


@pytest.mark.parametrize("field", BatchNormOp.__struct_fields__)
def test_every_field_of_a_batch_norm_is_in_the_key(field: str) -> None:
    one, other = NORM_DIFFERENCES[field]
    _differ_by(field, replace(NORM, **one), replace(NORM, **other))


def _differ_by(field: str, one: Op, other: Op) -> None:
    here, there = Key.of(one, HERE), Key.of(other, HERE)
    assert here.digest != there.digest
    assert f"problem.{field}" in {name for name, _, _ in here.difference(there)}


@given(ops())
def test_the_problem_is_every_field_and_no_more(op: Op) -> None:
    written = {name for name in Key.of(op, HERE).ingredients if name.startswith("problem.")}
    kind = "conv" if isinstance(op, ConvOp) else "batch_norm"
    assert written == {"problem.op", *(f"problem.{field}" for field in PROBLEM_INGREDIENTS[kind])}
    assert PROBLEM_INGREDIENTS[kind] == set(type(op).__struct_fields__)


@given(st.one_of(st.tuples(conv_ops(), conv_ops()), st.tuples(batch_norm_ops(), batch_norm_ops())), st.data())
def test_one_changed_field_is_another_key_unless_canonical_says_so(pair: tuple[Op, Op], data: st.DataObject) -> None:
    op, donor = pair
    field = data.draw(st.sampled_from(op.__struct_fields__))
    try:
        changed = replace(op, **{field: getattr(donor, field)})
    except InvalidOp:
        return
    one, other = Key.of(op, HERE), Key.of(changed, HERE)
    assert (one == other) == (searched_as(op) == searched_as(changed))
    assert (one == other) == (one.digest == other.digest) == (not one.difference(other))


@given(conv_ops())
def test_equal_descriptions_have_one_digest(op: ConvOp) -> None:
    def rewritten(kind: type, write: Callable[[Any], Any]) -> ConvOp:
        fields: dict[str, Any] = asdict(op)
        return ConvOp(**{name: write(value) if isinstance(value, kind) else value for name, value in fields.items()})

    descriptions = [
        msgspec.json.decode(msgspec.json.encode(op), type=ConvOp),
        rewritten(tuple, list),
        rewritten(tuple, np.array),
        rewritten(int, np.int64),
        rewritten(str, np.str_),
        canonical(op),
    ]
    assert {Key.of(each, HERE) for each in descriptions} == {Key.of(op, HERE)}
    assert {Key.of(each, HERE).digest for each in descriptions} == {Key.of(op, HERE).digest}


_DIGESTS = """
import msgspec, numpy
from algosearch.ops import BatchNormOp, ConvOp
from algosearch.records import Environment, Key
facts = set({"a": "1", "b": "2", "c": "3", "d": "4"}.items())
environment = Environment(backend="b", device="d", facts=tuple(facts))
literal = ConvOp(input_shape=(True, 2, 9), filter_shape=[4, 2, 3], padding_low=numpy.array([1]))
decoded = msgspec.json.decode(msgspec.json.encode(literal), type=ConvOp)
for op in (literal, decoded, BatchNormOp(shape=(2, 3))):
    print(Key.of(op, environment).digest)
"""


def test_one_digest_in_every_process() -> None:
    """A10."""
    printed = [
        subprocess.run(
            [sys.executable, "-c", _DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        ).stdout.split()
        for seed in ("0", "1")
    ]
    assert printed[0] == printed[1]
    conv, decoded, norm = printed[0]
    assert conv == decoded != norm
    here = Environment(backend="b", device="d", facts=(("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")))
    assert conv == Key.of(ConvOp(input_shape=(1, 2, 9), filter_shape=(4, 2, 3), padding_low=(1,)), here).digest


@given(ops(), environments())
def test_the_text_holds_everything(op: Op, environment: Environment) -> None:
    key = Key.of(op, environment)
    assert Key.from_text(key.text) == key
    assert key.problem == searched_as(op)
    assert key.environment == environment
    assert key.digest == hashlib.sha256(key.text.encode()).hexdigest()
    assert key.ingredients["schema"] == str(KEY_SCHEMA)


def test_a_difference_is_told_by_name() -> None:
    key = Key.of(CONV, HERE)
    newer = replace(HERE, facts=(("compiler", "present"), ("library", "9.20"), ("memory", "140 GiB")))
    assert key.difference(Key.of(CONV, newer)) == (
        ("facts.compiler", None, "present"),
        ("facts.library", "9.19", "9.20"),
    )
    assert key.difference(Key.of(replace(CONV, stride=(2, 2)), replace(HERE, device="Model 8"))) == (
        ("device", "Model 7", "Model 8"),
        ("problem.stride", "[1,1]", "[2,2]"),
    )
    other_kind = {name: (here, there) for name, here, there in key.difference(Key.of(NORM, HERE))}
    assert other_kind["problem.op"] == ("conv", "batch_norm")
    assert other_kind["problem.phase"] == (None, "training_forward")
    assert key.difference(key) == ()


# For every field of an environment: a change of it, and whether that is another key.
ENVIRONMENT_CHANGES: Final[dict[str, tuple[dict[str, Any], bool]]] = {
    "backend": ({"backend": "cpu"}, True),
    "device": ({"device": "Model 8"}, True),
    "facts": ({"facts": ()}, True),
    "incomplete": ({"incomplete": "no compiler"}, False),
}


@pytest.mark.parametrize("field", Environment.__struct_fields__)
def test_every_field_of_the_environment_is_accounted_for(field: str) -> None:
    change, other = ENVIRONMENT_CHANGES[field]
    assert (Key.of(CONV, HERE) != Key.of(CONV, replace(HERE, **change))) == other


@given(environments(), st.randoms(use_true_random=False))
def test_the_order_of_facts_is_no_matter(environment: Environment, random: Any) -> None:
    facts = list(environment.facts)
    random.shuffle(facts)
    same = Environment(backend=environment.backend, device=environment.device, facts=tuple(facts))
    assert same == environment
    assert same.facts == tuple(sorted(facts))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"facts": (("a", "1"), ("a", "2"))}, "must name each fact once"),
        ({"facts": (("a", "1"), ("a", "1"))}, "must name each fact once"),
        ({"facts": (("compute_capability", 90),)}, "must be text"),
        ({"facts": ((90, "compute_capability"),)}, "must be text"),
        ({"device": None}, "must be text"),
    ],
)
def test_an_environment_that_no_key_could_carry(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidEnvironment, match=rule) as caught:
        Environment(**{"backend": "b", "device": "d", **changes})
    assert "environment.facts" in str(caught.value)


KEY: Final = Key.of(CONV, HERE)
PAIR_KEY: Final = Key.of(replace(NORM, phase="training", fusion="activation"), HERE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        (KEY.text[:-1], "cannot be read"),
        # A pass of a pair, as it was searched alone before pairs were: nobody asks for it any more.
        (PAIR_KEY.text.replace('"phase":"training"', '"phase":"backward"'), "not in canonical form"),
        (PAIR_KEY.text.replace('"phase":"training"', '"phase":"training_forward"'), "not in canonical form"),
        (PAIR_KEY.text.replace('"fusion":"activation"', '"fusion":"none"'), "cannot be read"),
        (KEY.text + " ", "not in canonical form"),
        (KEY.text.replace('"schema":1', '"schema":2'), "schema 2; this algosearch reads 1"),
        ('{"schema":7,"tensors":[]}', "schema 7; this algosearch reads 1"),
        (KEY.text.replace('"schema":1', '"schema":true'), "cannot be read"),
        (KEY.text.replace('"device"', '"owner":"","device"'), "cannot be read"),
        (KEY.text.replace("[2,4,9,9]", "[2,4,9]"), "cannot be read"),
        (KEY.text.replace("[2,4,9,9]", "[ 2,4,9,9]"), "not in canonical form"),
        (KEY.text.replace('"padding_high":[1,1]', '"padding_high":[1.0,1]'), "cannot be read"),
        (KEY.text.replace('"library":"9.19"', '"library":"9.18","library":"9.19"'), "not in canonical form"),
        (KEY.text.replace("Model 7", "\\ud800"), "cannot be read"),
        ('{"schema":1,"problem":' + "[" * 100_000, "cannot be read"),
        # Valid, and not how the problem is written: high padding that no window reaches.
        (KEY.text.replace('"stride":[1,1]', '"stride":[2,2]').replace("[1,1],\"padding_low\"", "[2,1],\"padding_low\""),
         "not in canonical form"),
    ],
)  # fmt: skip
def test_text_that_is_no_key(text: str, reason: str) -> None:
    with pytest.raises(UndecodableRecord, match=reason):
        Key.from_text(text)
