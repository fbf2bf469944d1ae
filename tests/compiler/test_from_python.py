"""Compiling from Python: the page that says how is run as it stands."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from algosearch import compiler
from algosearch.backends import discover
from algosearch.backends.simulated import Script, SimulatedBackend
from tests.compiler.verifier import check_plan

PAGE = Path(__file__).parents[2] / "docs/compiling.md"


async def test_the_page_compiles_a_graph_made_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(discover, "default_backends", lambda: (SimulatedBackend(Script()),))
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    plan, queries = await runpy.run_path(str(tmp_path / "page.py"))["main"]()
    check_plan(plan.encoded())
    assert len(plan.devices) == 16
    assert {"conv", "batch_norm", "linear", "all_reduce", "update"} <= {task.kind for task in plan.tasks}
    assert {wait.stage for wait in queries.waits} == {"reserve", "task graph", "memory plan"}


def test_every_name_that_is_promised_is_there() -> None:
    assert set(dir(compiler)) == set(compiler.__all__)
    for name in compiler.__all__:
        assert getattr(compiler, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = compiler.nonsense  # type: ignore[attr-defined]


def test_importing_it_loads_neither_onnx_nor_numpy() -> None:
    code = "import sys, algosearch.compiler; print({'onnx', 'numpy'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "set()"
