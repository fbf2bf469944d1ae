"""Was this process kept waiting for a processor while something was timed?

BLAS gives each core a share of a product and waits for the slowest. If another process has one of the cores, the
product waits until the scheduler gives it back: 4 ms, for a product of 0.1. Such a time says nothing about the kernel.
Linux counts, for each thread, how long it was ready to run and did not; on a quiet machine that is next to nothing.

Only the lane's own thread and those that are not Python's count: they are BLAS's. That others had to wait is no matter.

Rejected: the load average (a minute old); processor time against wall time (BLAS waits by spinning); to look only when
some thread was made to yield (a thread of BLAS that slept, and woke where another process runs, waits without that:
under load, 3 bursts in 100 were several times too long and seemed undisturbed).
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Final

SHARE: Final = 0.02
"""Of a burst's time: what its threads may have waited, in all, before it is called disturbed. Bursts scatter by
two to five per cent without that; and a run of a tenth of a second or more is never without a little of it."""

_THREADS: Final = Path("/proc/self/task")


class Watch:
    """Watches one burst after the other, in one thread. 5 µs a burst: the files are kept open, until `close`."""

    def __init__(self) -> None:
        self._files: list[int] = []
        self._entries = -1
        """Of the directory of threads, when the files were opened."""
        self._waited_ns = 0

    def begin(self) -> None:
        """Before a burst."""
        try:
            entries = os.stat(_THREADS).st_nlink
        except OSError:  # not on Linux: nothing counts as disturbed there
            return
        if entries != self._entries:
            self.close()
            self._files, self._entries = _opened(), entries
        self._waited_ns = self._read_ns()

    def end(self, burst_ns: int) -> str | None:
        """After it: how it was disturbed, in words; None if it was not."""
        waited_ns = self._read_ns() - self._waited_ns
        if waited_ns <= SHARE * burst_ns:
            return None
        return f"its threads waited {waited_ns / 1e3:.0f} µs for a processor"

    def close(self) -> None:
        """Give the files back. Harmless if called twice; it may be used again."""
        files, self._files, self._entries = self._files, [], -1
        for file in files:
            os.close(file)

    def _read_ns(self) -> int:
        """How long the threads have been ready to run and did not, in all."""
        total = 0
        for file in self._files:
            # A thread may end while it is looked at; what it waited is then gone from both sums.
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += int(os.pread(file, 64, 0).split()[1])
        return total


def _opened() -> list[int]:
    """The counts of this thread and of all that are not Python's."""
    mine = threading.get_native_id()
    others = {str(thread.native_id) for thread in threading.enumerate() if thread.native_id != mine}
    files = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(_THREADS):
            if thread not in others:
                with contextlib.suppress(OSError):
                    files.append(os.open(_THREADS / thread / "schedstat", os.O_RDONLY | os.O_CLOEXEC))
    return files
