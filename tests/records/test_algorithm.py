"""`Algorithm`: its canonical string says everything, and nothing else is one."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from algosearch.records import Algorithm, InvalidAlgorithm, algorithm
from algosearch.records.algorithm import shared_names
from tests.strategies import algorithms

PLAIN: Final[dict[str, Any]] = {"backend": "cudnn", "source": "graph", "engine": "63"}


@given(algorithms())
def test_parse_and_str_are_inverse(algorithm: Algorithm) -> None:
    text = str(algorithm)
    assert Algorithm.parse(text) == algorithm
    assert str(Algorithm.parse(text)) == text
    assert hash(Algorithm.parse(text)) == hash(algorithm)


@given(algorithms(), algorithms())
def test_strings_tell_algorithms_apart(one: Algorithm, other: Algorithm) -> None:
    assert (str(one) == str(other)) == (one == other)


def test_the_documented_form() -> None:
    algorithm = Algorithm.parse("cudnn/graph:63?16=3&2=-1#tensor_op")
    assert algorithm == Algorithm(**PLAIN, knobs=(("16", 3), ("2", -1)), math="tensor_op")
    assert Algorithm.parse("cpu/numpy:im2col") == Algorithm(backend="cpu", source="numpy", engine="im2col")


HOSTILE: Final = [
    "",
    "cudnn",
    "cudnn/graph",
    "cudnn/graph:",
    "/graph:63",
    "cudnn/:63",
    "cudnn/graph:63?",
    "cudnn/graph:63#",
    "cudnn/graph:63?2",
    "cudnn/graph:63?2=",
    "cudnn/graph:63?=1",
    "cudnn/graph:63?2=1&",
    "cudnn/graph:63?2=1&2=1",
    "cudnn/graph:63?2=1&16=3",
    "cudnn/graph:63?2=01",
    "cudnn/graph:63?2=-0",
    "cudnn/graph:63?2=+1",
    "cudnn/graph:63?2=1.0",
    "cudnn/graph:63?2=\u0661",
    "cudnn/graph:63?2=" + "9" * 20,
    "cudnn/graph:63?2=" + "9" * 5000,
    "cudnn/graph:" + "6" * 5000,
    "cudnn/graph:63#a#b",
    "cudnn/graph:63#a?2=1",
    "cudnn/graph:63?2=1?3=1",
    "Cudnn/graph:63",
    "cudnn/graph:63 ",
    " cudnn/graph:63",
    "cudnn/graph:63\n",
    "cudnn\n/graph:63",
    "cudnn/../graph:63",
    "cudnn//graph:63",
    "-/graph:63",
    "cudnn/graph:\x00",
    "cudnn/graph:\x1b[31m",
    "cuდnn/graph:63",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_strings(text: str) -> None:
    for _ in range(2):
        with pytest.raises(InvalidAlgorithm) as caught:
            Algorithm.parse(text)
        assert len(str(caught.value)) < 400
        with pytest.raises(InvalidAlgorithm):
            shared_names(("cpu/numpy:fft", text))


def test_equal_names_are_shared() -> None:
    """However often a name was read, a process holds it once."""
    first, second = (shared_names(tuple(f"cpu/numpy:{engine}" for engine in ("fft", "im2col"))) for _ in range(2))
    assert first == second == ("cpu/numpy:fft", "cpu/numpy:im2col")
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_the_memo_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithm, "_MEMO_LIMIT", 3)
    for n in range(10):
        names = (f"cpu/numpy:a{n}", f"cpu/numpy:b{n}")
        assert shared_names(names) == names
        assert len(algorithm._canonical_names) <= 3 + len(names)


@given(st.text(st.sampled_from("a0/:?=&#-_.\n A"), max_size=14))
@example("a/a:a?a=0")
def test_what_parses_is_canonical(text: str) -> None:
    try:
        algorithm = Algorithm.parse(text)
    except InvalidAlgorithm:
        return
    assert str(algorithm) == text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"backend": "CUDNN"}, "backend"),
        ({"backend": ""}, "backend"),
        ({"source": "graph:1"}, "source"),
        ({"engine": "6 3"}, "engine"),
        ({"engine": ""}, "engine"),
        ({"engine": "63?a=1"}, "engine"),
        ({"engine": "63#tensor_op"}, "engine"),
        ({"engine": "63\n"}, "engine"),
        ({"math": "a?b=1"}, "math"),
        ({"engine": "a" * 600}, "name"),
        ({"engine": 63}, "engine"),
        ({"math": None}, "math"),
        ({"knobs": (("b", 1), ("a", 1))}, "knobs"),
        ({"knobs": (("a", 1), ("a", 1))}, "knobs"),
        ({"knobs": (("a", 1.0),)}, "knobs"),
        ({"knobs": (("a", "1"),)}, "knobs"),
        ({"knobs": ((1, 1),)}, "knobs"),
        ({"knobs": (("a",),)}, "knobs"),
        ({"knobs": (("a", 10**19),)}, "knobs"),
        ({"knobs": (("a", 10**5000),)}, "knobs"),
        ({"knobs": None}, "knobs"),
        ({"knobs": (("a=1&b", 1),)}, "knobs"),
    ],
)
def test_parts_that_no_string_could_carry(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidAlgorithm) as caught:
        Algorithm(**{**PLAIN, **changes})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"algorithm.{field} = ")


def test_knobs_are_made_plain() -> None:
    listed: Any = [["a", np.int64(3)], ("b", True)]
    written = Algorithm(**PLAIN, knobs=listed)
    assert written == Algorithm(**PLAIN, knobs=(("a", 3), ("b", 1)))
    assert [type(value) for _, value in written.knobs] == [int, int]
    assert str(written) == "cudnn/graph:63?a=3&b=1"
