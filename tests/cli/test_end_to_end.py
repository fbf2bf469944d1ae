"""The main job as a user does it: warm a store on this machine's CPU, warm it again, and look at what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from algosearch.ops import BatchNormOp
from tests.cli.helpers import environ, run, the_object, tiny_op, without_progress, write_ops
from tests.compiler.independent import LIGHT, count


@pytest.mark.timeout(300)
def test_warm_twice_and_show(tmp_path: Path) -> None:
    file = write_ops(tmp_path / "ops.jsonl", [tiny_op(), BatchNormOp(shape=(1, 2, 4, 4)), tiny_op()])
    env = environ(ALGOSEARCH_STORE=str(tmp_path / "store"))

    first = run("warm", file, "--training", "--json", env=env)
    assert first.returncode == 0, first.stderr
    report = the_object(first.stdout)
    # The convolution in three directions, the batch norm in two phases.
    assert (report["operations"], report["operations_with_gradients"]) == (3, 8)
    assert (report["distinct"], report["searched"]) == (5, 5)
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
    assert without_progress(in_full.stderr)[1] == []


SLOW = ("light_bvlc_alexnet", "light_vgg19", "light_zfnet512")
"""Few operations, but large: 10 to 25 s each on two cores, where each of the others takes 1 to 4. Beside others that
want the cores what was disturbed is timed again, and they have taken ten to sixty times as long."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else []) for path in LIGHT],
)
def test_a_real_graph_is_searched_and_then_known(path: Path, tmp_path: Path) -> None:
    args = ("warm", path, "--mode", "race", "--json", "--store", tmp_path / "store")
    operations, distinct = count(path)
    first, again = (run(*args, timeout_s=400) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    report = the_object(first.stdout)
    assert (report["operations"], report["distinct"]) == (operations, distinct)
    assert (report["searched"], report["hits"], report["failed"]) == (distinct, 0, 0)
    assert report["gain"] > 0
    known = the_object(again.stdout)
    assert (known["operations"], known["distinct"]) == (operations, distinct)
    assert (known["searched"], known["hits"], known["gain"]) == (0, distinct, report["gain"])
