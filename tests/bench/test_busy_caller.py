"""The short form of `bench/busy_caller.py`, on a simulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "busy_caller.py"
KEYS = 12


@pytest.mark.timeout(180)
def test_a_busy_caller_gets_the_quiet_ones_answers(tmp_path: Path) -> None:
    file = tmp_path / "busy_caller.json"
    command = [sys.executable, str(BENCH), "--backend", "simulated", "--keys", str(KEYS), "--times", "1"]
    subprocess.run(
        [*command, "--json", str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=170,
        check=True,
    )
    figures = json.loads(file.read_text())
    assert figures["keys"] == figures["quiet_final"] == figures["busy_final"] == KEYS
    assert figures["raw"]["quiet"][0]["picks"] == figures["raw"]["busy"][0]["picks"]
    assert figures["regret"] == 0.0
    assert figures["busy_share"] > 0.0 == figures["raw"]["quiet"][0]["share"]
