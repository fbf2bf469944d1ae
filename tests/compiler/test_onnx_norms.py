"""Batch normalisation of every opset: whether it trains, and over what its statistics go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from algosearch.errors import UnreadableModel
from tests.compiler.onnx_graphs import model, node, only_norm, read, value, weight


def _norm(opset: int, outputs: tuple[str, ...] = ("y",), scale: tuple[int, ...] = (3,), **attributes: Any) -> Any:
    parameters = ("s", "b", "m", "v")
    return model(
        [node("BatchNormalization", ["x", *parameters], outputs, name="n1", **attributes)],
        [value("x", [2, 3, 4, 5])],
        [weight(each, scale) for each in parameters],
        opset=opset,
    )


@pytest.mark.parametrize(
    ("opset", "outputs", "attributes", "phase"),
    [
        (1, ("y",), {"is_test": 1}, "inference"),
        (1, ("y",), {"is_test": 0}, "training_forward"),
        (1, ("y",), {}, "training_forward"),
        (6, ("y", "a", "b", "c", "d"), {"is_test": 1}, "inference"),
        (6, ("y", "a", "b", "c", "d"), {"is_test": 0}, "training_forward"),
        *[
            (opset, outputs, {}, phase)
            for opset in (7, 8, 9, 13)
            for outputs, phase in (
                (("y",), "inference"),
                (("y", "", "", "", ""), "inference"),
                (("y", "a", "b"), "training_forward"),
                (("y", "a", "b", "c", "d"), "training_forward"),
            )
        ],
        (13, ("y",), {"is_test": 0, "training_mode": 1}, "inference"),
        *[
            (opset, outputs, {"training_mode": mode}, ("inference", "training_forward")[mode])
            for opset in (14, 15)
            for outputs in (("y",), ("y", "a", "b"))
            for mode in (0, 1)
        ],
        (15, ("y", "a", "b"), {}, "inference"),
    ],
)
def test_g10_each_opset_says_in_its_own_way_whether_it_trains(
    tmp_path: Path, opset: int, outputs: tuple[str, ...], attributes: dict[str, Any], phase: str
) -> None:
    assert only_norm(read(tmp_path, _norm(opset, outputs, **attributes))).phase == phase


def test_g10_epsilon_and_momentum_make_no_other_problem(tmp_path: Path) -> None:
    plain = only_norm(read(tmp_path, _norm(9)))
    assert only_norm(read(tmp_path, _norm(9, epsilon=0.5, momentum=0.1))) == plain


@pytest.mark.parametrize("opset", [1, 6, 7, 8, 9, 14, 15])
@pytest.mark.parametrize("spatial", [None, 0, 1])
@pytest.mark.parametrize("scale", [(3,), (3, 4, 5)])
def test_g09_statistics_follow_opset_attribute_and_parameters(
    tmp_path: Path, opset: int, spatial: int | None, scale: tuple[int, ...]
) -> None:
    attributes: dict[str, Any] = {} if spatial is None else {"spatial": spatial}
    found = read(tmp_path, _norm(opset, scale=scale, **attributes))
    asks_each = opset < 9 and spatial == 0
    agrees = (len(scale) == 3) == asks_each
    assert only_norm(found).statistics == ("per_activation" if asks_each and agrees else "per_channel")
    assert [(each.name, "contradiction" in each.reason) for each in found.skipped] == [("n1", True)] * (not agrees)


def test_parameters_that_fit_nothing_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableModel, match="'n1' has data of shape"):
        read(tmp_path, _norm(15, scale=(4,)))


def test_a_batch_norm_computes_in_no_int8(tmp_path: Path) -> None:
    found = read(tmp_path, _norm(15), data_type="int8")
    assert found.nodes == ()
    assert "int8" in found.skipped[0].reason
