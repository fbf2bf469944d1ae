"""The real graphs that the onnx package carries, against a count that shares nothing with the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from algosearch.compiler.model import ReadOptions
from algosearch.compiler.onnx_reader import read_onnx
from algosearch.compiler.read import read_model
from algosearch.errors import UnreadableModel
from tests.compiler import independent


def test_there_are_nine() -> None:
    assert len(independent.LIGHT) == 9


@pytest.mark.parametrize("path", independent.LIGHT, ids=lambda path: path.stem)
def test_operations_and_distinct_equal_the_independent_count(path: Path) -> None:
    found = read_onnx(path, ReadOptions())
    assert found.skipped == ()
    assert (found.operations, len(found.distinct)) == independent.count(path)


@pytest.mark.parametrize("path", independent.LIGHT, ids=lambda path: path.stem)
def test_a_training_step_equals_the_independent_count(path: Path) -> None:
    found = read_model(path, ReadOptions(training=True))
    assert found.operations == independent.count(path)[0]
    assert (len(found.nodes), len(found.distinct)) == independent.count_training(path)


@pytest.mark.parametrize("path", independent.LIGHT, ids=lambda path: path.stem)
def test_another_batch_is_another_batch_everywhere_or_refused(path: Path) -> None:
    if path.stem == "light_shufflenet":  # its shuffles state their whole shape, batch included
        with pytest.raises(UnreadableModel, match="leave out --batch"):
            read_onnx(path, ReadOptions(batch=4))
        return
    found = read_onnx(path, ReadOptions(batch=4))
    assert {each.op.output_shape[0] for each in found.nodes} == {4}
    assert found.operations == independent.count(path)[0]
