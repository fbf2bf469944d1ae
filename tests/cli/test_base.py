"""`--base`: a store that is only read, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from algosearch.backends import Backend, discover
from algosearch.backends.simulated import SimulatedBackend
from tests.cli.helpers import invoke, the_object, tiny_op, write_ops


@pytest.fixture(autouse=True)
def _one_simulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimulatedBackend()

    def only_this() -> tuple[Backend, ...]:
        return (backend,)

    monkeypatch.setattr(discover, "default_backends", only_this)
    for name in ("ALGOSEARCH_MODE", "ALGOSEARCH_STORE", "ALGOSEARCH_BASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base that knows two of three ops."""
    ops = write_ops(tmp_path / "two.jsonl", [tiny_op(0), tiny_op(1)])
    assert invoke("warm", ops, "--store", tmp_path / "base").exit_code == 0
    return tmp_path / "base"


def test_warm_searches_what_neither_knows(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = write_ops(tmp_path / "ops.jsonl", [tiny_op(n) for n in range(3)])
    own = tmp_path / "own"
    result = invoke("warm", ops, "--store", own, "--base", base, "--json")
    report = the_object(result.stdout)
    assert (report["hits"], report["searched"], report["misses"]) == (2, 1, {"absent": 1})
    assert (report["store"], report["base"]) == (str(own), str(base))
    assert f"base         {base}" in [line.rstrip() for line in result.stderr.splitlines()]
    assert len(the_object(invoke("show", "--store", own, "--json").stdout)["records"]) == 1
    assert len(the_object(invoke("show", "--store", base, "--json").stdout)["records"]) == 2
    monkeypatch.setenv("ALGOSEARCH_BASE", str(base))
    assert the_object(invoke("warm", ops, "--store", own, "--json").stdout)["hits"] == 3
    monkeypatch.delenv("ALGOSEARCH_BASE")
    report = the_object(invoke("warm", ops, "--store", own, "--json").stdout)
    assert (report["hits"], report["searched"], report["base"]) == (1, 2, None)


def test_an_explanation_looks_into_both(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = write_ops(tmp_path / "ops.jsonl", [tiny_op(1), tiny_op(2)])
    args = ("show", "--explain", f"@{ops}", "--store", tmp_path / "own", "--json")
    known, other = the_object(invoke(*args, "--base", base).stdout)["explained"]
    assert (known["hit"], other["hit"]) == (True, False)
    assert other["nearest"]["problem"] in (tiny_op(0).describe(), tiny_op(1).describe())
    assert [each["hit"] for each in the_object(invoke(*args).stdout)["explained"]] == [False, False]
    monkeypatch.setenv("ALGOSEARCH_BASE", str(base))
    assert the_object(invoke(*args).stdout)["explained"][0]["hit"] is True


def test_show_alone_looks_into_one_store(base: Path) -> None:
    result = invoke("show", "--base", base)
    assert result.exit_code == 2
    assert "goes with --explain" in result.stderr
