"""What is measured in a process of its own: a bench runs itself, and prints what it found as JSON in the last line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def sample(bench: str, *what: object) -> dict[str, Any]:
    """One sample of a bench (its `__file__`), whose `--sample` says what to measure."""
    return told([bench, "--sample", *map(str, what)])


def told(line: Sequence[str]) -> dict[str, Any]:
    """What a script, with its arguments, has to tell."""
    done = subprocess.run([sys.executable, *line], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
