"""The gate: a kernel of known length holds the stream while a round's launches are queued.

Without it a burst of short kernels measures how fast the host launches: launch gaps, not the GPU, are the noise. A
burst proves itself: when the last of its launches had been queued, the device had not yet come to its first. (The first
event of the burst was not ready.) Then nothing inside it waited for the host. If one burst of a round cannot prove
that, the round is thrown away and the gate doubled.

So the gate need not hold until everything is queued: behind long kernels the host is ahead by itself. How long it must
hold is worked out from what queueing takes and what the kernels took before. A burst whose proof still fails after
`TRIES` is handed out as disturbed.

Rejected: a gate that waits for a flag of the host's (the first launch behind it that must load code waits for the
device, which waits for the host: a dead-lock), and one of fixed length (too short beside a busy thread, and hundreds of
milliseconds of waiting in a search elsewhere).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from algosearch.backends.cudnn.gpu import Gpu

TRIES: Final = 6
MOST_QUEUED: Final = 480
"""Launches and events behind one gate. The driver's queue holds about a thousand kernels, and a run may take several;
when it is full, launching waits for the device."""
LEAST_HOLD_US: Final = 15.0
MOST_HOLD_US: Final = 50_000.0
_START_US: Final = 5.0
"""What queueing one launch is taken for, until it has been seen."""
_LEARN: Final = 0.25
_MARGIN: Final = 1.4
_RELAX: Final = 0.9
_TRUST: Final = 0.8
"""Of the kernels' expected time: they may be faster than they were."""
OPENED_EARLY: Final = "the gate opened before it was queued"


class Burst(msgspec.Struct, frozen=True):
    """Some runs, one behind the other, between two events."""

    launches: tuple[Callable[[], int], ...]
    """Each queues one run, gives a status, and keeps the GIL."""
    expected_us: float
    """What one run took before; 0 if that is not known."""
    entries: int = 1
    """Of a run, in the stream's queue."""

    @property
    def queued(self) -> int:
        """Entries in the stream's queue: the runs and two events."""
        return len(self.launches) * self.entries + 2


class Timed(msgspec.Struct, frozen=True):
    """What became of a burst."""

    burst_us: float
    """Between its events; 0.0 if a launch failed."""
    status: int
    """Of the first launch that failed, the library's; 0 if none did."""
    disturbed: str | None


class Gate:
    """How long to hold, learned as it goes along. Pure: no device, no clock."""

    def __init__(self) -> None:
        self.rounds = 0
        """That proved themselves."""
        self.thrown_away = 0
        """That did not."""
        self._queue_us = _START_US
        self._factor = 1.0

    def __repr__(self) -> str:
        learned = f"{self._queue_us:.1f} µs a launch, × {self._factor:.2f}"
        return f"<Gate {learned}, {self.thrown_away} of {self.rounds + self.thrown_away} rounds thrown away>"

    def hold_us(self, bursts: Sequence[Burst]) -> float:
        """For a round of these: so that none of them is reached before it is queued whole."""
        queued_us = running_us = longest = 0.0
        for burst in bursts:
            queued_us += self._queue_us * burst.queued
            longest = max(longest, _MARGIN * self._factor * queued_us - running_us)
            running_us += _TRUST * burst.expected_us * len(burst.launches)
        return min(MOST_HOLD_US, max(LEAST_HOLD_US * self._factor, longest))

    def held(self, queued: int, took_us: float) -> None:
        """A round proved itself; to queue so many entries took the host so long."""
        self.rounds += 1
        self._queue_us += _LEARN * (took_us / queued - self._queue_us)
        self._factor = max(1.0, self._factor * _RELAX)

    def opened_early(self) -> None:
        """A round did not prove itself."""
        self.thrown_away += 1
        self._factor *= 2


def groups(bursts: Sequence[Burst], most: int = MOST_QUEUED) -> Iterator[list[Burst]]:
    """The bursts in their order, as many together as may be queued behind one gate; at least one."""
    group: list[Burst] = []
    queued = 0
    for burst in bursts:
        if group and queued + burst.queued > most:
            yield group
            group, queued = [], 0
        group.append(burst)
        queued += burst.queued
    if group:
        yield group


def run(gpu: Gpu, gate: Gate, bursts: Sequence[Burst]) -> list[Timed]:
    """Time bursts one after the other, behind as few gates as they need; blocks. Nothing must be loaded by a launch.

    Raises:
        CudaFault: something that was queued failed.
    """
    timed: list[Timed] = []
    for group in groups(bursts):
        timed += _run_group(gpu, gate, group)
    return timed


def _run_group(gpu: Gpu, gate: Gate, bursts: Sequence[Burst]) -> list[Timed]:
    events = gpu.events(2 * len(bursts))
    queued = sum(burst.queued for burst in bursts)
    for _ in range(TRIES):
        hold_us = gate.hold_us(bursts)
        start_us = gpu.clock_us()
        gpu.spin(hold_us)
        statuses, early = _queue(gpu, bursts, events)
        took_us = gpu.clock_us() - start_us
        gpu.synchronize()
        if any(statuses):
            break  # not for the gate to judge: the caller leaves the failed ones out
        if not any(early):
            gate.held(queued, took_us)
            break
        gate.opened_early()
    return [
        Timed(
            0.0 if status else gpu.elapsed_us(events[2 * number], events[2 * number + 1]),
            status,
            OPENED_EARLY if early[number] else None,
        )
        for number, status in enumerate(statuses)
    ]


def _queue(gpu: Gpu, bursts: Sequence[Burst], events: Sequence[int]) -> tuple[list[int], list[bool]]:
    """Queue everything, and look at each burst's first event right after its last launch."""
    statuses: list[int] = []
    early: list[bool] = []
    record, is_ready = gpu.record, gpu.is_ready
    for number, burst in enumerate(bursts):
        first = events[2 * number]
        record(first)
        status = 0
        for launch in burst.launches:
            status = status or launch()
        record(events[2 * number + 1])
        early.append(is_ready(first))
        statuses.append(status)
    return statuses, early
