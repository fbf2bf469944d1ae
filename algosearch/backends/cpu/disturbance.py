"""Was this process kept waiting for a processor while something was timed?

BLAS gives each core a share of a product and waits for the slowest. If another process has one of the cores, the
product waits until the scheduler gives it back: 4 ms, for a product of 1.4. Such a time says nothing about the kernel.
Linux counts, for each thread, how long it was ready to run and did not; on a quiet machine that is next to nothing.

Rejected: the load average (a minute old), and processor time against wall time (BLAS waits by spinning).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

try:
    from resource import RUSAGE_SELF, getrusage
except ImportError:  # Windows has no such count: nothing counts as disturbed there
    _SWITCHES = False
else:
    _SWITCHES = True

SHARE: Final = 0.02
"""Of a burst's time: what its threads may have waited, in all, before it is called disturbed. Others scatter by two to
five per cent without that; and a run of a tenth of a second or more is never without a little."""

_THREADS: Final = Path("/proc/self/task")


class Watch:
    """Watches one burst after the other, in one thread."""

    def __init__(self) -> None:
        self._switches = -1
        self._waited_ns = 0

    def begin(self) -> None:
        """Before a burst. Free of system calls worth mentioning, unless something happened since the last one."""
        switches = _involuntary_switches()
        if switches != self._switches:
            self._switches, self._waited_ns = switches, _waited_ns()

    def end(self, burst_ns: int) -> str | None:
        """After it: how it was disturbed, in words; None if it was not."""
        switches = _involuntary_switches()
        if switches == self._switches:
            return None
        before_ns, self._switches, self._waited_ns = self._waited_ns, switches, _waited_ns()
        waited_ns = self._waited_ns - before_ns
        if waited_ns <= SHARE * burst_ns:
            return None
        return f"its threads waited {waited_ns / 1e3:.0f} µs for a processor"


def _involuntary_switches() -> int:
    """How often a thread of this process had to make way for another one: less than a microsecond to ask."""
    return getrusage(RUSAGE_SELF).ru_nivcsw if _SWITCHES else 0


def _waited_ns() -> int:
    """How long the threads of this process have been ready to run and did not, in all. Tens of microseconds to ask."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in _THREADS.iterdir():
            # A thread may end while it is looked at; what it waited is then gone from both sums.
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += int((thread / "schedstat").read_text(encoding="ascii").split()[1])
    return total
