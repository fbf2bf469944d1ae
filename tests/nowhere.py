"""A process whose current directory has been deleted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def nowhere(somewhere: Path) -> Iterator[None]:
    """Be in a deleted directory for the length of a block."""
    here = os.getcwd()
    gone = somewhere / "gone"
    gone.mkdir()
    os.chdir(gone)
    try:
        gone.rmdir()
        yield
    finally:
        os.chdir(here)
