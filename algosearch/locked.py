"""`LockedFile`: a lock on a file, between processes, in which no fork has a part.

The system's lock belongs to the open file, and a fork has a copy of that: as long as it lives, the lock is kept from
everybody although its owner has closed the file. So the child closes its copy at once. For that it must know of it,
and opening and closing a file give the interpreter's lock up: a fork in another thread, between the file being open and
somebody having its number, would leave a copy that nobody knows. So a fork waits until none is being opened or closed,
and none is while it goes on.

Rejected: locks of a process (`lockf`), which a fork has no part in: the system takes two threads of two processes that
wait for each other's devices for a deadlock. And `filelock`, which keeps forks off in the same way (4.3), but asks for
a lock again and again: who waits for a device is to have it as soon as it is free.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from algosearch.forks import hold_during_forks, renew_in_children

if sys.platform != "win32":
    import fcntl


class LockedFile:
    """Made closed. Used by one thread at a time; blocking."""

    def __init__(self) -> None:
        self._file: int | None = None
        renew_in_children(self)

    def __repr__(self) -> str:
        return f"<LockedFile {'closed' if self._file is None else 'open'}>"

    def open(self, path: str | os.PathLike[str]) -> None:
        """Open it, made if it is not there, for this user alone; not locked yet.

        Raises:
            OSError: it cannot be, or is a link.
        """
        assert self._file is None, f"{self!r} is opened twice"
        with _FORKING.kept_off():
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def lock(self, *, wait: bool = True) -> None:
        """Lock what was opened.

        Raises:
            BlockingIOError: another has locked it, and it is not to be waited for.
            OSError: it cannot be locked.
        """
        if sys.platform != "win32":
            fcntl.flock(self._opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether a name leads to what was opened. Raises OSError if it leads to nothing."""
        return os.path.samestat(os.fstat(self._opened), os.stat(path, follow_symlinks=False))

    def close(self) -> None:
        """Unlock and close it. Harmless if it is closed."""
        with _FORKING.kept_off():
            self._close()

    def renew_after_fork(self) -> None:
        """As `Renewable`: the child's copy."""
        self._close()

    @property
    def _opened(self) -> int:
        assert self._file is not None, f"{self!r} is used before it is open"
        return self._file

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class _Forking:
    """Who opens or closes a file, and who forks: many at once of the one or of the other."""

    def __init__(self) -> None:
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        """As `Renewable`."""
        self._changed = threading.Condition()
        self._at_work = 0
        self._forks = 0

    @contextmanager
    def kept_off(self) -> Iterator[None]:
        """Nobody forks within this block; it is put off for as long as somebody does."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forks)
            self._at_work += 1
        try:
            yield
        finally:
            with self._changed:
                self._at_work -= 1
                self._changed.notify_all()

    def hold(self, timeout_s: float) -> None:
        """As `hold_during_forks`."""
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._at_work, timeout_s)

    def let_go(self) -> None:
        """As `hold_during_forks`."""
        with self._changed:
            self._forks = max(0, self._forks - 1)
            self._changed.notify_all()


_FORKING: Final = _Forking()
hold_during_forks(_FORKING.hold, _FORKING.let_go)
renew_in_children(_FORKING)
