"""`bench/seed_table.py` on a simulated device: it runs to its end, counts right, and its text says what it found."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from algosearch import open_searcher
from algosearch.backends.simulated import Script, SimulatedBackend
from algosearch.compiler import ReadOptions
from algosearch.compiler.compile import Pipeline, compile_graph
from algosearch.compiler.handles import HandleProbe
from algosearch.compiler.passes import Placement
from algosearch.compiler.queries import Queries
from algosearch.compiler.read import read_graph
from algosearch.compiler.strategies import StrategyName, strategy_of
from algosearch.ops import searched_as

BENCH = Path(__file__).parents[2] / "bench"
pytestmark = pytest.mark.timeout(300)


def run(name: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(BENCH / name), *map(str, args)], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One table of few cells: eight compiles, and their searches alone."""
    file = tmp_path_factory.mktemp("seed") / "table.json"
    options = ["--backend", "simulated", "--workload", "r3d18", "--placements", "1", "--warm", "1"]
    run("seed_table.py", *options, "--json", file)
    return file


def test_the_table_has_every_cell_and_what_was_counted_there(found: Path) -> None:
    content: dict[str, Any] = json.loads(found.read_bytes())
    cells = content["raw"]["cells"]
    assert list(cells) == [
        f"1x1 {strategy} {state}" for strategy in ("naive", "fixed", "cached", "async") for state in ("cold", "warm")
    ]
    assert all(row["finished"] for row in cells.values())
    for name, row in cells.items():
        assert 0 < row["conv_query_s"] + row["batch_norm_query_s"] <= row["total_s"]
        assert row["us_per_query"] * row["queries"] == pytest.approx(
            (row["conv_query_s"] + row["batch_norm_query_s"]) * 1e6
        )
        assert (row["searched"] > 0) is name.endswith("cold")
        assert (row["trials"] > 0) is name.endswith("cold")
        assert (row["handles"] > 0) is (name.split()[1] in ("naive", "fixed"))
    graphs = runpy.run_path(str(BENCH / "seed_cell.py"))["graphs_of"](
        read_graph("r3d18", ReadOptions(batch=1))[0], Pipeline(half=False, channels_last=False)
    )
    of_last, of_all = ({searched_as(op) for graph in some for op in graph.ops} for some in (graphs[-1:], graphs))
    assert cells["1x1 cached cold"]["searched"] == len(of_last)
    # `async` may have begun with an op that a pass then replaced.
    assert len(of_last) <= cells["1x1 async cold"]["probes"] == content["async_cold_probes"][0] <= len(of_all)
    assert content["unfinished"] == 0
    assert content["cold_over_longer"] > 0


def test_the_text_has_the_figures_of_the_table(found: Path) -> None:
    text = run("seed_text.py", found).stdout
    for name, row in json.loads(found.read_bytes())["raw"]["cells"].items():
        place, strategy, state = name.split()
        assert f"| {place} | {strategy} | {state} | {row['total_s']:.3f} | {row['conv_query_s']:.3f} |" in text
    assert "What the queries explain" in text
    assert "What they do not explain" in text
    assert max(map(len, text.splitlines())) < 400


def test_what_did_not_come_to_its_end_says_so(tmp_path: Path) -> None:
    """A compile that is ended long before its end, and what it would have asked."""
    options = ["--backend", "simulated", "--workload", "r3d18", "--store", str(tmp_path / "store"), "--devices", "8"]
    row = json.loads(run("seed_cell.py", "naive", *options, "--nodes", "999", "--patience", "3").stdout)
    assert not row["finished"]
    assert 0 < row["queries"] < row["all_queries"]
    assert row["estimated_batch_norm_query_s"] > row["batch_norm_query_s"]
    warm = json.loads(run("seed_cell.py", "naive", *options, "--patience", "200").stdout)
    assert (warm["finished"], warm["searched"]) == (True, 0)


@pytest.mark.parametrize("name", ["naive", "fixed", "cached"])
async def test_what_a_compile_would_ask_is_counted_without_asking(name: StrategyName) -> None:
    counting = runpy.run_path(str(BENCH / "seed_cell.py"))
    pipeline = Pipeline(placement=Placement(nodes=2, devices_per_node=3))
    graph, _ = read_graph("r3d18", ReadOptions(batch=1))
    backend, queries = SimulatedBackend(Script()), Queries()
    probe = HandleProbe(backend, backend.devices()[0])
    async with probe, open_searcher(store="memory:", backends=[backend]) as searcher:
        await compile_graph(graph, strategy_of(name, searcher, queries, probe), queries, pipeline=pipeline)
    asked: Counter[str] = Counter()
    for line in queries.statistics():
        asked[line.kind] += line.queries
    assert counting["questions"](counting["graphs_of"](graph, pipeline), name, 6) == asked
