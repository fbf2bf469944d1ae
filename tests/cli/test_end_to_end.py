"""The main job as a user does it: warm a store on this machine's CPU, warm it again, and look at what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from algosearch.ops import BatchNormOp
from tests.cli.helpers import environ, run, the_object, tiny_op, write_ops
from tests.compiler.independent import LIGHT, count


def test_warm_twice_and_show(tmp_path: Path) -> None:
    file = write_ops(tmp_path / "ops.jsonl", [tiny_op(), BatchNormOp(shape=(1, 2, 4, 4)), tiny_op()])
    env = environ(ALGOSEARCH_STORE=str(tmp_path / "store"))

    first = run("warm", file, "--training", "--json", env=env)
    assert first.returncode == 0, first.stderr
    report = the_object(first.stdout)
    # The convolution in three directions, the batch norm in two phases.
    assert (report["operations"], report["distinct"], report["searched"]) == (8, 5, 5)
    assert report["gain"] > 0
    again = the_object(run("warm", file, "--training", "--json", env=env).stdout)
    assert (again["hits"], again["searched"], again["gain"]) == (5, 0, report["gain"])

    listed = the_object(run("show", "--json", env=env).stdout)["records"]
    assert len(listed) == 5
    assert all(record["backend"] == "cpu" and record["time_us"] > 0 for record in listed)
    shown = run("show", "backward_filter", env=env)
    header, line = shown.stdout.splitlines()
    assert header.startswith("key ")
    digest = line.split()[0]
    in_full = run("show", digest, env=env)
    assert in_full.returncode == 0
    assert in_full.stdout.startswith("backward_filter 1x2x6x6 * 2x2x3x3 float32\nrecord ")
    assert in_full.stderr == ""


@pytest.mark.parametrize("path", [path for path in LIGHT if path.stem == "light_squeezenet"])
def test_a_real_graph(path: Path, tmp_path: Path) -> None:
    ended = run("warm", path, "--mode", "heuristic", "--json", "--store", tmp_path / "store")
    assert ended.returncode == 0, ended.stderr
    report = the_object(ended.stdout)
    assert (report["operations"], report["distinct"]) == count(path)
    assert report["heuristic"] == report["distinct"]
