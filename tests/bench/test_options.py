"""A bench measures what was asked for, or nothing: a word that it does not know is refused before anything begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = {
    "batchnorm.py": ("--types", "--layouts"),
    "busy_caller.py": ("--backend", "--case"),
    "cold_search.py": ("--networks", "--cases", "--peers"),
    "fleet.py": ("--only",),
    "injected.py": ("--network", "--case", "--scenarios"),
    "offbeat.py": ("--list", "--against"),
    "quality.py": ("--networks", "--cases", "--peers", "--how"),
    "rebuild.py": ("--networks", "--cases"),
    "seed_cell.py": ("--backend",),
    "seed_table.py": ("--backend",),
    "two_gpus.py": ("--network", "--case"),
}
"""Of each bench those that name one of a few things, or some of them."""


@pytest.mark.parametrize("bench", OPTIONS)
def test_a_word_that_names_nothing_is_refused(bench: str) -> None:
    started = {
        option: subprocess.Popen(
            [sys.executable, ROOT / "bench" / bench, option, "torch"],
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for option in OPTIONS[bench]
    }
    for option, each in started.items():
        out, errors = each.communicate(timeout=50)
        assert (each.returncode, out) == (2, ""), errors
        assert f"argument {option}: invalid choice: 'torch' (choose from " in errors


def test_a_strategy_that_nobody_has_is_refused() -> None:
    line = [sys.executable, str(ROOT / "bench" / "seed_cell.py"), "torch", "--store", "memory:"]
    done = subprocess.run(line, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 2
    assert "argument strategy: invalid choice: 'torch' (choose from " in done.stderr


def test_a_sample_of_nobody_is_refused() -> None:
    """Not measured as somebody else's, and told under that name."""
    line = [
        sys.executable,
        str(ROOT / "bench" / "cold_search.py"),
        "--sample",
        "torch",
        "resnet50",
        "fp16_nhwc",
        "64",
        "0",
    ]
    done = subprocess.run(line, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert "nobody is called torch" in done.stderr
