"""What every test may use: the profiles of hypothesis, and `no_blocking`; and what all of them do: `lanes`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import HealthCheck, settings

# No deadlines: a busy machine is no bug. On CI each run tries the same examples, at a desk each run tries others.
settings.register_profile("desk", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("desk"), derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(scope="session")
def own_lanes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runtime directory of this run's own."""
    directory = tmp_path_factory.mktemp("runtime")
    directory.chmod(0o700)
    return directory


@pytest.fixture(autouse=True)
def lanes(own_lanes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes for a device here is no device of another run on this machine: who holds it there, behind a closed
    gate, would hold this one up."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own_lanes))


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Fails the test at any blocking call that algosearch makes in a thread where an event loop runs.

    Asked for by name and not for every test, because a test may block its own loop on purpose (a gate, a subprocess).
    """
    with blockbuster_ctx("algosearch") as detector:
        yield detector
