"""What every test of the command line may rely on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_time_goes_by() -> Iterator[None]:
    """For what a verb in this process says of its progress: nothing, where it is said only of what takes longer than a
    second; on a slow machine that may be anything."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("progress", "doctor"):
            patch.setattr(f"algosearch.cli.{module}.perf_counter", lambda: 0.0)
        yield
