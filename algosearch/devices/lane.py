"""The exclusive right to run timed work on one physical device.

Two kernels that run at once inflate each other by up to 1.9 times, so whoever times, times alone. One lock for each
device *identity*, shared by every worker of the process, whatever engine owns it. Taken by the lane's thread (it
blocks), for one key's runs at a time. Between processes the same right is a file lock of the same name; its place is
here.
"""

from __future__ import annotations

import threading
from typing import Final

from algosearch.forks import renew_in_children


class _Lanes:
    """The locks by device identity. Never shrinks; a process sees few devices."""

    def __init__(self) -> None:
        self.renew_after_fork()

    def of(self, identity: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(identity, threading.Lock())

    def renew_after_fork(self) -> None:
        """Whoever held one is the parent's."""
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}


_LANES: Final = _Lanes()
"""Process-wide on purpose: a device is."""
renew_in_children(_LANES)


def lane_of(identity: str) -> threading.Lock:
    """The one lock of a physical device."""
    return _LANES.of(identity)
