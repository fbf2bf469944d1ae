"""The short form of `bench/injected.py`, over the fake libcudnn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.cudnn.fake import compiled

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "injected.py"
CAPACITY_BYTES = 1 << 28


@pytest.mark.timeout(300)
def test_every_answer_is_right_whatever_candidates_and_a_neighbour_do(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.write_text(str(CAPACITY_BYTES))
    library = compiled(tmp_path / "libfakednn.so")
    environment = {
        **os.environ,
        "ALGOSEARCH_TEST_FAKE_CUDNN": str(library),
        "ALGOSEARCH_TEST_MEMORY": str(memory),
        "PYTHONPATH": str(ROOT),
    }
    file = tmp_path / "injected.json"
    command = [sys.executable, str(BENCH), "--ground", "tests.bench.host_ground", "--times", "1"]
    # It ends with a status that says whether it was quick as well, which on a busy machine it need not be.
    done = subprocess.run(
        [*command, "--scenarios", "released", "all", "--json", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    print(done.stdout, done.stderr)  # noqa: T201  (shown if it fails)
    figures = json.loads(file.read_text())
    for scenario in ("released", "all"):
        assert figures[f"{scenario}_right"] == figures["ops"] == 12
        assert figures[f"{scenario}_innocent"] == 0
        assert figures[f"{scenario}_out_of_memory"] > 0
    assert figures["all_struck"] == figures["all_accounted_for"] == 7
    assert figures["all_restarts"] >= 4, "two hung and two ran wild"
