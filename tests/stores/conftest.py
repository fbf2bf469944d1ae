"""Fixtures of this room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from algosearch.stores import access, directory, disk
from tests.stores.directories import DirectoryHome


@pytest.fixture(autouse=True)
def nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has a lock for a moment lets go of it, however busy the machine is with other tests, and is not given up
    before. That somebody is given up, a test shows by letting nobody go."""
    monkeypatch.setattr(access, "OPEN_S", 20.0)
    monkeypatch.setattr(disk, "BUSY_S", 20.0)
    monkeypatch.setattr(directory, "CLOSE_S", 20.0)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "algosearch-store":
            thread.join(20.0)
            assert not thread.is_alive()


@pytest.fixture
def home(tmp_path: Path) -> DirectoryHome:
    return DirectoryHome(tmp_path / "store")
