"""`Pause`: holds the threads of a device between two steps, and tells when all rest."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter

from algosearch.devices.job import Side
from algosearch.devices.lane import Lane


class Pause:
    """Entered and left by the threads around everything that they do with a device.

    Who waits here with the right to the lane gives it back meanwhile: quiet may last long, and nothing is timed in it.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane_taken = False
        """Whether this device's lane thread has the right. That thread's alone."""
        self._lane = lane
        self._changed = threading.Condition()
        self._held = False
        self._ended = False
        self._busy: set[Side] = set()
        self._on_rest: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Pause {'held' if self._held else 'not held'}, busy: {', '.join(sorted(self._busy)) or 'nobody'}>"

    def enter(self, side: Side, resting: Callable[[], None]) -> float:
        """A step begins: now, or once it is held no longer. `resting` is called first if it has to wait.

        Returns the seconds that it waited.
        """
        with self._changed:
            if not self._must_wait():
                self._busy.add(side)
                return 0.0
        begin = perf_counter()
        resting()
        yielded = side == "lane" and self.lane_taken
        if yielded:
            self._lane.give_back()
        try:
            with self._changed:
                while self._must_wait():
                    self._changed.wait()
        finally:
            if yielded:
                self._lane.take()
        # It may have been held again while the lane was taken, and the right must not be kept meanwhile.
        return perf_counter() - begin + self.enter(side, resting)

    def leave(self, side: Side) -> None:
        """The step is over."""
        with self._changed:
            self._busy.discard(side)
            told = self._told()
        for call in told:
            call()

    def hold(self, on_rest: Callable[[], None]) -> None:
        """No step begins from now on. `on_rest` is called, in any thread, once none is under way."""
        with self._changed:
            self._held = True
            self._on_rest.append(on_rest)
            told = self._told()
        for call in told:
            call()

    def release(self) -> None:
        """Go on. Harmless if nothing is held."""
        with self._changed:
            self._held = False
            self._on_rest.clear()
            self._changed.notify_all()

    def end(self) -> None:
        """The device is being closed: nobody waits here any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _must_wait(self) -> bool:
        return self._held and not self._ended

    def _told(self) -> list[Callable[[], None]]:
        if self._busy or not self._held:
            return []
        told, self._on_rest = self._on_rest, []
        return told
