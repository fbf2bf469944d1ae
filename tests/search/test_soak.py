"""The short form of `bench/soak.py`, in a process of its own, so that what it counts is its own doing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "bench" / "soak.py"


@pytest.mark.timeout(180)  # a quarter of a minute on a machine that has nothing else to do
def test_requests_with_faults_of_every_kind_get_right_answers_and_leave_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, str(SOAK), "--requests", "5000", "--keys", "100", "--rounds", "10", "--deadly", "0.01"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "soak.json")], capture_output=True, text=True, timeout=170, check=False
    )
    figures = json.loads((tmp_path / "soak.json").read_text())
    assert figures["wrong"] == 0, done.stderr
    assert figures["requests"] >= 5000
    assert all(figures[what] > 0 for what in ("withdrawn", "cancelled", "store_faults", "deaths", "files_spoilt"))
    for what in ("tasks", "threads", "descriptors"):
        counts = figures["raw"][what]
        assert counts[-1] <= max(counts[:-1]), (what, counts)
    memory = figures["raw"]["rss_mib"]
    assert memory[-1] < 1.2 * memory[0], memory
