"""What is measured in a process of its own: a bench runs itself, and prints what it found as JSON in the last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def sample(
    bench: str, *what: object, gpu: str | None = None, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """One sample of a bench (its `__file__`), whose `--sample` says what to measure."""
    return told([bench, "--sample", *map(str, what)], gpu=gpu, variables=variables)


def told(line: Sequence[str], *, gpu: str | None = None, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a script, with its arguments, has to tell; with a GPU given, it sees no other one.

    Args:
        variables: of its environment, on top of this process's.
    """
    environment = {**os.environ, **(variables or {})} | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
    done = subprocess.run([sys.executable, *line], stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
