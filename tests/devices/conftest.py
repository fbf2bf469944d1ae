"""Fixtures of this room."""

from __future__ import annotations

import pytest

from algosearch.devices import host
from algosearch.devices.remote import host as child_host


@pytest.fixture(autouse=True)
def nothing_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to end does so in good order, however busy the machine is with other tests, and is not given up
    before. That somebody is given up, a test shows by making it hang (`impatient`)."""
    for module in (host, child_host):
        monkeypatch.setattr(module, "END_S", 20.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, nothing_is_late: None) -> None:
    """For tests in which somebody does not end when told to."""
    for module in (host, child_host):
        monkeypatch.setattr(module, "END_S", 0.1)
