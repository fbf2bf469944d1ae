"""What `warm` is run on, and what it reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from algosearch.backends import Backend, discover
from algosearch.backends.simulated import SimulatedBackend
from algosearch.ops import BatchNormOp, ConvOp, Op
from tests.cli.helpers import invoke, the_object, tiny_op
from tests.compiler.onnx_graphs import model, node, value, weight, write


def simulated_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A simulated device, and a store of this test's own, found through the environment."""
    use(monkeypatch, SimulatedBackend())
    for name in ("ALGOSEARCH_MODE", "ALGOSEARCH_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALGOSEARCH_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


OPS: list[Op] = [
    tiny_op(0),
    BatchNormOp(shape=(1, 2, 4, 4)),
    tiny_op(1),
    tiny_op(0),
    ConvOp(input_shape=(1, 2, 9), filter_shape=(2, 2, 3)),
]
"""Five, of which four are different."""


def use(monkeypatch: pytest.MonkeyPatch, backend: SimulatedBackend) -> None:
    """Let the command line find this backend and no other."""

    def only_this() -> tuple[Backend, ...]:
        return (backend,)

    monkeypatch.setattr(discover, "default_backends", only_this)


def warm(*args: str | Path, code: int = 0) -> dict[str, Any]:
    result = invoke("warm", *args, "--json")
    assert result.exit_code == code, result.stderr
    return the_object(result.stdout)


def counts(report: dict[str, Any]) -> dict[str, int]:
    """The counts that are not 0; they add up."""
    answers = ("hits", "searched", "heuristic", "failed", "unanswered")
    assert report["distinct"] == sum(report[name] for name in answers)
    assert report["failed"] == len(report["failures"])
    return {name: report[name] for name in ("operations", "distinct", *answers) if report[name]}


def with_open_dimensions(directory: Path) -> Path:
    """A model of one convolution whose batch and height have only names."""
    graph = model([node("Conv", ["x", "w"])], [value("x", ["N", 2, "height", 8])], [weight("w", [2, 2, 3, 3])])
    return write(directory, graph, "open.onnx")
