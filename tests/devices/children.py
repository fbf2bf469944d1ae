"""What processes there are: so that no test leaves one behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

MARK: Final = b"algosearch.devices.remote"
_LIMIT_S: Final = 20.0


def children(parent: int | None = None) -> set[int]:
    """The device processes, dead and not buried included, that a process has started; of all processes if 0."""
    found = set()
    parent = os.getpid() if parent is None else parent
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            stat = (directory / "stat").read_text()
            line = (directory / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        state, its_parent = stat.rpartition(")")[2].split()[:2]
        is_child = int(its_parent) == parent if parent else state != "Z"
        if is_child and (MARK in line or (state == "Z" and parent)):
            found.add(int(directory.name))
    return found


def no_child_is_left() -> None:
    """Assert that this process has no device process, and nobody who is dead and not buried."""
    wait_until_gone(children)


def wait_until_gone(left: Callable[[], set[int]]) -> None:
    """Assert that `left()` is empty, soon."""
    deadline = time.monotonic() + _LIMIT_S
    while left():
        assert time.monotonic() < deadline, f"still there: {left()}"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether a process is there and not just waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
