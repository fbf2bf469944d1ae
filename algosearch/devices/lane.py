"""The exclusive right to run timed work on one physical device.

Two kernels that run at once inflate each other by up to 1.9 times, so whoever times, times alone. One right for each
device *identity*, taken by the lane's thread (it blocks), for one key's runs at a time: between the threads of a
process, whatever engine owns them, it is a lock of theirs; between processes a lock on a file.

Guarantees:
- Who is killed while it has the right gives it back: the system unlocks the file.
- A fork has no part in the right of its parent, and keeps it from nobody.
- Where no file can be locked, processes disturb each other and are told so once; nothing else is lost.

Rejected: a lock that is polled for (measured: the longest wait 1.4 s in place of 13 ms, and the same process wins again
and again), and removing the file afterwards (two processes would lock two files of one name).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import threading
from typing import Final

from algosearch.devices.runtime import runtime_directory
from algosearch.forks import renew_in_children
from algosearch.locked import LockedFile

logger = logging.getLogger("algosearch.devices")


class Lane:
    """The right, to be taken and given back by one thread: `with lane:`."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._name = f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.lane"
        self._lock = threading.Lock()
        self._file = LockedFile()
        """Open while it is locked, or its lock waited for."""
        self._warned = False

    def __repr__(self) -> str:
        return f"<Lane of {self._identity}, {'taken' if self._lock.locked() else 'free'}>"

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *error: object) -> None:
        self.give_back()

    def take(self) -> None:
        """Wait for the right, however long that takes."""
        self._lock.acquire()
        try:
            self._lock_file()
        except OSError as error:
            self._file.close()
            if not self._warned:
                self._warned = True
                logger.warning("processes may disturb each other's timing on %s: %s", self._identity, error)
        except BaseException:
            self.give_back()
            raise

    def give_back(self) -> None:
        """Let the next one have it."""
        self._file.close()
        self._lock.release()

    def _lock_file(self) -> None:
        if sys.platform == "win32":  # no such locks there
            return
        path = runtime_directory() / self._name
        while True:
            self._file.open(path)
            self._file.lock()
            # While this one waited, somebody may have tidied up, and the name may now be another file's.
            with contextlib.suppress(FileNotFoundError):
                if self._file.is_at(path):
                    return
            self._file.close()


class _Lanes:
    """The rights by device identity. Never shrinks; a process sees few devices."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._lanes: dict[str, Lane] = {}

    def of(self, identity: str) -> Lane:
        with self._guard:
            return self._lanes.setdefault(identity, Lane(identity))

    def renew_after_fork(self) -> None:
        """Whoever held one is the parent's."""
        self._guard = threading.Lock()
        self._lanes = {}


_LANES: Final = _Lanes()
"""Process-wide on purpose: a device is."""
renew_in_children(_LANES)


def lane_of(identity: str) -> Lane:
    """The one right of a physical device."""
    return _LANES.of(identity)
