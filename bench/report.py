"""What every bench shares: the environment it ran in, its table, its JSON file."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

LIBRARIES = (
    "anyio",
    "msgspec",
    "numpy",
    "diskcache",
    "async-lru",
    "aiocache",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "torch",
    "jax",
)

LOAD = os.getloadavg()[0]
"""Of the minute before the bench began: what else the machine was doing."""


def environment() -> dict[str, Any]:
    """What the figures depend on, without a name of the machine or its user."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(LOAD, 2),
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the `--json FILE` that every bench has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, with the environment, to FILE")
    return parser


def report(
    figures: dict[str, Any], limits: dict[str, str], file: Path | None, raw: dict[str, Any] | None = None
) -> None:
    """Print a table of the figures beside what they should be, and write them to `file`."""
    width = max(map(len, figures))
    for name, value in figures.items():
        shown = f"{value:.3f}" if isinstance(value, float) else str(value)
        print(f"{name:<{width}}  {shown:>12}  {limits.get(name, '')}")
    if file is not None:
        write(file, {**figures, "environment": environment(), **({"raw": raw} if raw else {})})


def write(file: Path, content: dict[str, Any]) -> None:
    """Make a JSON file of it, and the folders that it is in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1, sort_keys=False) + "\n")


def some(text: str) -> int:
    """The type of an option that says how many: of none there is nothing to report.

    Raises:
        argparse.ArgumentTypeError: it is no such number.
    """
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a number of 1 or more, not {text!r}")
    return number


def how_long(text: str) -> float:
    """The type of an option that says for how long.

    Raises:
        argparse.ArgumentTypeError: it is no such number.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0.0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return number


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
