"""`Patience`: so many seconds of the time in which this process runs.

Whatever stops this process (a scheduler that suspends a job, a container that is paused) has stopped its children as
well, and when they all go on nobody is late. So a long wait is cut into pieces of a second, and one that took longer
than it was to is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

PULSE_S: Final = 1.0
"""A piece."""
LOST_S: Final = 0.5
"""Less than this is a busy loop's everyday lateness."""


class Patience:
    """One wait, piece by piece, until what is waited for is there or nothing is `left`."""

    def __init__(self, limit_s: float, *, clock: Callable[[], float] = monotonic) -> None:
        self._left_s = limit_s
        self._clock = clock

    @property
    def left(self) -> bool:
        """Whether to go on waiting."""
        return self._left_s > 0

    @contextmanager
    def piece(self) -> Iterator[float]:
        """For the length of one piece of the wait: the seconds that it may take."""
        limit_s, began = min(self._left_s, PULSE_S), self._clock()
        yield limit_s
        took_s = self._clock() - began
        if took_s < limit_s + LOST_S:
            self._left_s -= took_s
