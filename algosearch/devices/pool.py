"""`Pool`: the devices of one kind, and whose turn it is.

Devices of one kind share every answer, so they share one queue; whichever is free takes the key that most wait for
(then the one that came first). A device holds few keys at a time: one in the lane, one ready for it, one in the making.
What waits here has begun nothing and can still be withdrawn, or be found by somebody else.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup

from algosearch.backends import Backend, Device
from algosearch.devices.worker import Worker
from algosearch.errors import AlgosearchError
from algosearch.records import Environment

logger = logging.getLogger("algosearch.devices")

IN_HAND: Final = 3
"""Keys a device holds at once. With two, the lane would idle whenever a key takes longer to prepare than to time."""


class Awaited(Protocol):
    """What queues here."""

    @property
    def awaited(self) -> int:
        """How many wait for it now."""
        ...


class _Turn:
    """One place in the queue."""

    __slots__ = ("called", "who", "worker")

    def __init__(self, who: Awaited) -> None:
        self.who = who
        self.called = anyio.Event()
        self.worker: Worker | None = None


class Pool:
    """The workers of one kind. Lives on the engine's loop; whoever makes it calls `aclose`."""

    def __init__(self, backend: Backend, devices: Sequence[Device], tasks: TaskGroup) -> None:
        self.devices = tuple(devices)
        self._backend = backend
        self._tasks = tasks
        self._unopened = list(devices)
        self._workers: dict[Worker, int] = {}
        """Open workers, and how many keys each has in hand."""
        self._queue: list[_Turn] = []
        self._sorted_for = 0
        """For so many more turns the order of the queue is taken as it is."""
        self._environment: Environment | None = None
        self._opening_first = anyio.Lock()
        self._opening_more = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {self.kind}: {len(self._workers)} of {len(self.devices)} open, {len(self._queue)} queued>"

    @property
    def kind(self) -> str:
        """The maker's name of the model."""
        return self.devices[0].kind

    @property
    def known_environment(self) -> Environment | None:
        """The environment, if a device of the pool has been opened; without waiting."""
        return self._environment

    async def environment(self) -> Environment:
        """What answers from these devices depend on; opens the first one if none is open.

        Raises:
            DeviceUnavailable: none of them can be opened; the first one's reason.
        """
        if self._environment is None:
            async with self._opening_first:
                if self._environment is None and not self._unopened:  # all failed when asked before: try again
                    self._unopened = list(self.devices)
                first_error: AlgosearchError | None = None
                while self._environment is None and self._unopened:
                    try:
                        await self._open_next()
                    except AlgosearchError as error:
                        first_error = first_error or error
                if self._environment is None:
                    assert first_error is not None
                    raise first_error
        return self._environment

    async def _open_next(self) -> None:
        device = self._unopened.pop(0)
        worker = Worker(self._backend, device)
        opened = False
        try:
            environment = await worker.open()
            if self._environment is None:
                self._environment = environment
            opened = environment == self._environment
            if not opened:
                logger.warning("%s is left out: it is not like the other devices of its kind", device.name)
        finally:
            if not opened:
                with anyio.CancelScope(shield=True):
                    await worker.aclose()
        self._workers[worker] = 0
        self._call_next()

    async def _open_more(self) -> None:
        """Open the other devices while there is work for them. A device that cannot be opened is left out."""
        try:
            while self._queue and self._unopened:
                try:
                    await self._open_next()
                except Exception as error:
                    logger.warning("going on without a device: %s", error)
        finally:
            self._opening_more = False

    @asynccontextmanager
    async def turn(self, who: Awaited) -> AsyncIterator[Worker]:
        """Wait for a place at a device and hold it for the length of the block.

        Cancellation: while waiting, the place in the queue is given up; a place that was just given passes to the next.
        """
        await self.environment()
        turn = _Turn(who)
        self._queue.append(turn)
        self._call_next()
        try:
            if self._queue and self._unopened and not self._opening_more:
                self._opening_more = True
                self._tasks.start_soon(self._open_more)
            await turn.called.wait()
            assert turn.worker is not None
            yield turn.worker
        finally:
            if turn.worker is None:
                self._queue.remove(turn)
            else:
                self._workers[turn.worker] -= 1
                self._call_next()

    def any_worker(self) -> Worker:
        """The open worker with the least in hand, for a probe that should not queue behind searches."""
        return min(self._workers, key=self._in_hand)

    @property
    def _in_hand(self) -> Callable[[Worker], int]:
        return self._workers.__getitem__

    def _call_next(self) -> None:
        while self._queue and self._workers and not self._closed:
            worker = min(self._workers, key=self._in_hand)
            if self._workers[worker] >= IN_HAND:
                return
            self._sort()
            turn = self._queue.pop(0)
            self._workers[worker] += 1
            turn.worker = worker
            turn.called.set()

    def _sort(self) -> None:
        """Most awaited first; a stable sort, so that among equals the oldest stays first.

        Who is awaited changes in the callers' threads, unannounced. A short queue is sorted for every turn; a long one
        each time that a sixteenth of it has gone: to look at thousands for each turn would cost more than it gains.
        """
        self._sorted_for -= 1
        if self._sorted_for <= 0:
            self._queue.sort(key=lambda turn: -turn.who.awaited)
            self._sorted_for = len(self._queue) // 16

    async def aclose(self) -> None:
        """Close every worker, all at once. To be shielded by the caller."""
        self._closed = True
        async with anyio.create_task_group() as tasks:
            for worker in self._workers:
                tasks.start_soon(worker.aclose)
