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
    "looked_at.py": ("--networks", "--cases"),
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


COUNTS = {
    "batchnorm.py": ("--batch", "--times"),
    "busy_caller.py": ("--batch", "--keys", "--times"),
    "cold_search.py": ("--batches", "--times", "--peer-times"),
    "injected.py": ("--batch", "--leave-mib", "--times"),
    "looked_at.py": ("--batches", "--stride"),
    "offbeat.py": ("--stride", "--skip", "--gpus", "--times"),
    "quality.py": ("--batches", "--times"),
    "rebuild.py": ("--batches", "--times"),
    "two_gpus.py": ("--batch", "--times"),
}
"""Of each bench that needs a GPU those that say how many."""


@pytest.mark.parametrize("bench", COUNTS)
def test_none_is_no_number_of_what_is_measured(bench: str) -> None:
    for option in COUNTS[bench]:
        done = ended(bench, option, "0")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(f"error: argument {option}: must be a number of 1 or more, not '0'\n")


@pytest.mark.parametrize("bench", ["batchnorm.py", "looked_at.py", "offbeat.py"])
def test_what_is_no_time_to_measure_in_is_refused(bench: str) -> None:
    for seconds in ("0", "-5", "nan", "long"):
        done = ended(bench, f"--seconds={seconds}")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(f"argument --seconds: must be a number of seconds above 0, not {seconds!r}\n")


@pytest.mark.parametrize("bench", [*COUNTS, "seed_table.py"])
def test_without_a_gpu_it_says_so_in_one_line_before_anything_is_measured(bench: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    asked = ("--backend", "cudnn") if bench == "seed_table.py" else ()
    done = ended(bench, *asked, "--json", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{bench}: cudnn cannot be used: ")
    assert not file.exists()


def test_a_part_that_fails_ends_the_bench_with_what_it_was() -> None:
    code = "import apart; apart.told(['no such.py', '--sample', 'ours'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "bench", capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "-c: 'no such.py' --sample ours ended with exit status 2"
    assert "Traceback" not in done.stderr


def test_a_process_that_fails_takes_its_neighbour_with_it(tmp_path: Path) -> None:
    """Of two that share a store, the other one would wait for a start that never comes."""
    code = f"""
import subprocess, sys
from pathlib import Path
import two_gpus
started = [subprocess.Popen([sys.executable, "-c", what], stdout=subprocess.PIPE, text=True)
           for what in ("import signal; signal.pause()", "import sys; sys.exit(3)")]
try:
    two_gpus.told(started, Path({str(tmp_path)!r}))
finally:
    print(*(each.poll() for each in started))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "bench",
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "-9 3\n"), done.stderr
    assert done.stderr.splitlines()[-1].endswith("ended with exit status 3")


def ended(bench: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A bench in a process that sees no GPU."""
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / bench), *words],
        env={"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **variables},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
