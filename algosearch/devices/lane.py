"""The exclusive right to run timed work on one physical device.

Two kernels that run at once inflate each other by up to 1.9 times, so whoever times, times alone. One lock for each
device *identity*, shared by every worker of the process, whatever engine owns it. Taken by the lane's thread (it
blocks), for one key's runs at a time. Between processes the same right is a file lock of the same name; its place is
here.
"""

from __future__ import annotations

import threading

_GUARD = threading.Lock()
_LANES: dict[str, threading.Lock] = {}
"""Process-wide on purpose: a device is. Never shrinks; a process sees few devices."""


def lane_of(identity: str) -> threading.Lock:
    """The one lock of a physical device."""
    with _GUARD:
        return _LANES.setdefault(identity, threading.Lock())
