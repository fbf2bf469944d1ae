"""What is measured in a process of its own: a bench runs itself, and prints what it found as JSON in the last line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def failed(line: Sequence[str], status: int) -> str:
    """What is said of a process that ended like that."""
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"{Path(sys.argv[0]).name}: {shlex.join([Path(line[0]).name, *line[1:]])} ended with {how}"


def sample(
    bench: str, *what: object, gpu: str | None = None, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """One sample of a bench (its `__file__`), whose `--sample` says what to measure."""
    return told([bench, "--sample", *map(str, what)], gpu=gpu, variables=variables)


def told(line: Sequence[str], *, gpu: str | None = None, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a script, with its arguments, has to tell; as `printed`."""
    found: dict[str, Any] = json.loads(printed(line, gpu=gpu, variables=variables))
    return found


def printed(line: Sequence[str], *, gpu: str | None = None, variables: Mapping[str, str] | None = None) -> str:
    """The last line that a script, with its arguments, prints; with a GPU given, it sees no other one. If it fails,
    this bench ends, behind what that one had to say.

    Args:
        variables: of its environment, on top of this process's.
    """
    environment = {**os.environ, **(variables or {})} | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
    done = subprocess.run([sys.executable, *line], stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(failed(line, done.returncode))
    return done.stdout.splitlines()[-1]
