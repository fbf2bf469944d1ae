"""`Blame`: who is suspected of having brought a device down."""

from __future__ import annotations

from typing import Final

import msgspec

from algosearch.devices.job import Deed, Side, Step
from algosearch.records import Failure

HARMLESS: Final = frozenset({"not_supported", "wrong_result"})
"""Failures that say nothing of the device."""
_RUNS: Final[frozenset[Deed]] = frozenset({"launch", "time", "check"})


class Blame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is suspected of having brought a device down."""

    job: int
    """The number of the search, or of the listing."""
    algorithms: tuple[str, ...]
    """One of these; empty if it was no candidate."""
    failure: Failure
    """What became of it."""


class DeviceSpoilt(Exception):
    """A candidate has left the device unusable for everybody in this session. Never reaches a caller."""


def whose_fault(mine: Blame, side: Side, sick: Failure, *, running: Step | None) -> Blame:
    """Something has failed, and the device was found spoilt: then whatever fails in this session from now on says
    nothing of who fails.

    Only what runs can spoil a device. What fails to be built while the lane has something running fails for the reason
    that this one is about to give.

    Args:
        mine: what has failed, and how.
        side: where.
        sick: why the device cannot be used.
        running: what the lane does.
    """
    if side != "lane" and running is not None and running.deed in _RUNS:
        return Blame(job=running.job, algorithms=running.algorithms, failure=sick)
    failure = mine.failure
    told = Failure(failure.kind, failure.message, (*failure.circumstances, ("device_spoilt", sick.message)))
    return Blame(job=mine.job, algorithms=mine.algorithms, failure=told)
