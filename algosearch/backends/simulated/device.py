"""The parts of a simulated device: its memory, its clock, and how its time passes for who calls it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from algosearch.backends.simulated.script import DeviceScript
from algosearch.forks import renew_in_children

_QUANTUM_S: Final = 0.001
"""Shorter sleeps are saved up: the system rounds each one up by tens of microseconds."""


class Memory:
    """The free memory of one device, which all its sessions share. Any thread may call."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.renew_after_fork()
        renew_in_children(self)

    def __repr__(self) -> str:
        return f"<Memory {self._free_bytes} of {self.total_bytes} bytes free>"

    def renew_after_fork(self) -> None:
        """What the parent's sessions have taken is taken in the parent."""
        self._lock = threading.Lock()
        self._free_bytes = self.total_bytes

    @property
    def free_bytes(self) -> int:
        """At this moment."""
        return self._free_bytes

    def take(self, needed_bytes: int) -> int | None:
        """Take so much; None if it was there, else what was free, and nothing is taken."""
        with self._lock:
            if needed_bytes > self._free_bytes:
                return self._free_bytes
            self._free_bytes -= needed_bytes
            return None

    def give_back(self, taken_bytes: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._free_bytes += taken_bytes
            assert self._free_bytes <= self.total_bytes, "more given back than taken"


class Clock:
    """How fast a device is just now: it comes to full speed while it runs. The lane's alone."""

    def __init__(self, device: DeviceScript) -> None:
        self._speed = device.speed
        self._start = device.clock_start
        self._ramp_us = device.clock_ramp_us
        self._busy_us = 0.0

    def rest(self) -> None:
        """Fall back to the clock of a device without work."""
        self._busy_us = 0.0

    def run(self, true_us: float) -> float:
        """Let something run that takes `true_us` at speed 1; what it takes now."""
        fraction = 1.0
        if self._busy_us < self._ramp_us:
            fraction = self._start + (1.0 - self._start) * self._busy_us / self._ramp_us
        taken_us = true_us / (self._speed * fraction)
        self._busy_us += taken_us
        return taken_us


class Pacer:
    """Lets the device's time pass for the calling thread: not at all, or asleep (the GIL given up) at some scale.

    Invariant: asleep or owed, the times add up. A sleep that took too long shortens the next ones.
    """

    def __init__(
        self,
        scale: float | None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scale = scale
        self._sleep = sleep
        self._clock = clock
        self._owed_s = 0.0

    def pass_us(self, us: float) -> None:
        """Let so much of the device's time pass."""
        if self._scale is None:
            return
        self._owed_s += us * 1e-6 * self._scale
        if self._owed_s >= _QUANTUM_S:
            begin = self._clock()
            self._sleep(self._owed_s)
            self._owed_s -= self._clock() - begin
