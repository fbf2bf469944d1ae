"""Fixtures of this room."""

from __future__ import annotations

import pytest

from algosearch.search import desk, hold


@pytest.fixture(autouse=True)
def nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on its way comes, however busy the machine is with other tests; and whoever waits for it, waits. What is
    done without it, a test shows by making it never come."""
    monkeypatch.setattr(desk, "GRACE_S", 20.0)
    monkeypatch.setattr(hold, "WRITE_S", 20.0)
