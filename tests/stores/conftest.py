"""Fixtures of this room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.directories import DirectoryHome


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "algosearch-store":
            thread.join(2.0)
            assert not thread.is_alive()


@pytest.fixture
def home(tmp_path: Path) -> DirectoryHome:
    return DirectoryHome(tmp_path / "store")
