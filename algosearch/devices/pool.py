"""`Pool`: the devices of one kind, and whose turn it is.

Devices of one kind share every answer, so they share one queue; whichever is free takes the key that most wait for
(then the one that came first). A device holds few keys at a time: one in the lane, one ready for it, one in the making.
What waits here has begun nothing and can still be withdrawn, or be found by somebody else.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from algosearch.backends import Backend, Device
from algosearch.devices.host import OnListed
from algosearch.devices.quiet import Quiet
from algosearch.devices.worker import IN_HAND, Found, Told, Worker, WorkerRules, nobody_asked
from algosearch.errors import AlgosearchError, DeviceUnavailable
from algosearch.ops import Op
from algosearch.records import Environment, Failure, Listing, Policy, SearchMode
from algosearch.settings import Isolation

logger = logging.getLogger("algosearch.devices")

T = TypeVar("T")


class Awaited(Protocol):
    """What queues here."""

    @property
    def awaited(self) -> int:
        """How many wait for it now."""
        ...

    @property
    def precedence(self) -> tuple[int, bytes]:
        """Who comes first among equally awaited ones: the least; among equals the oldest."""
        ...


class Turn:
    """A place at a device, or in the queue for one. If its device is set aside it queues again, for another one."""

    __slots__ = ("_pool", "call", "who", "worker")

    def __init__(self, pool: Pool, who: Awaited) -> None:
        self.who = who
        self.worker: Worker | None = None
        self.call: Callable[[Turn], bool] = _nobody_comes
        """Called when its turn has come, or when there is nobody left; False if it is not used."""
        self._pool = pool

    def __repr__(self) -> str:
        return f"<Turn at {self.worker!r}>"

    @property
    def device(self) -> Device:
        """Whose turn it is; another one, if that was set aside meanwhile."""
        assert self.worker is not None, "used outside its block"
        return self.worker.device

    @property
    def survives_crashes(self) -> bool:
        """As `Worker.survives_crashes`."""
        assert self.worker is not None, "used outside its block"
        return self.worker.survives_crashes

    async def enumerate(self, op: Op, width: int | None) -> Listing:
        """As `Worker.enumerate`."""
        return await self._carry_out(lambda worker: worker.enumerate(op, width))

    async def search(
        self,
        op: Op,
        listing: Listing | None,
        *,
        width: int | None = None,
        policies: Sequence[Policy],
        mode: SearchMode,
        failed: Mapping[str, Failure] | None = None,
        on_trying: Told = nobody_asked,
        on_launch: Told = nobody_asked,
        on_listed: OnListed = nobody_asked,
    ) -> Found:
        """As `Worker.search`. At another device it is listed again, and `on_listed` told again."""
        return await self._carry_out(
            lambda worker: worker.search(
                op,
                listing,
                width=width,
                policies=policies,
                mode=mode,
                failed=failed,
                on_trying=on_trying,
                on_launch=on_launch,
                on_listed=on_listed,
            )
        )

    async def _carry_out(self, call: Callable[[Worker], Awaitable[T]]) -> T:
        while True:
            assert self.worker is not None, "used outside its block"
            try:
                return await call(self.worker)
            except DeviceUnavailable:
                if self.worker.set_aside is None:
                    raise
            self._pool.give_back(self)
            await self._pool.take(self)


class Pool:
    """The workers of one kind. Lives on the engine's loop; whoever makes it calls `aclose`.

    Args:
        isolation: where the devices' sessions live; left out, what the backend says.
        quiet: that of the engine.
        rivals: whether others may take what queues here.
    """

    def __init__(
        self,
        backend: Backend,
        devices: Sequence[Device],
        tasks: TaskGroup,
        *,
        isolation: Isolation | None = None,
        quiet: Quiet | None = None,
        rules: WorkerRules | None = None,
        rivals: Callable[[], bool] = lambda: False,
    ) -> None:
        self.devices = tuple(devices)
        self._backend = backend
        self._tasks = tasks
        self._isolation = isolation
        self._rules = rules
        self._rivals = rivals
        self._quiet = Quiet() if quiet is None else quiet
        self._unopened = list(devices)
        self._workers: dict[Worker, int] = {}
        """Open workers, and how many keys each has in hand."""
        self._newcomers: list[Worker] = []
        """Workers that are being opened."""
        self._retired: list[Worker] = []
        """Workers that were set aside."""
        self._queue: list[Turn] = []
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
        worker = Worker(self._backend, device, isolation=self._isolation, rules=self._rules, quiet=self._quiet)
        self._newcomers.append(worker)
        opened = False
        try:
            environment = await worker.open()
            if self._environment is None:
                self._environment = environment
            opened = environment == self._environment
            if not opened:
                logger.warning("%s is left out: it is not like the other devices of its kind", device.name)
        except anyio.get_cancelled_exc_class():
            self._unopened.insert(0, device)
            raise
        finally:
            self._newcomers.remove(worker)
            if not opened:
                with anyio.CancelScope(shield=True):
                    await worker.aclose()
        if opened:
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
        self._call_next()

    def line_up(self, who: Awaited, call: Callable[[Turn], bool]) -> Turn:
        """Queue without waiting, which thousands can do that have no task yet. Once a device has been opened.

        Args:
            call: called with it, perhaps at once, when its turn has come, or when there is nobody left: then it has no
                worker. True if it is used, by `turn`; False if it passes to the next. Nothing is lined up or given
                back within it.
        """
        turn = Turn(self, who)
        turn.call = call
        self._queue.append(turn)
        self._call_next()
        return turn

    @asynccontextmanager
    async def turn(self, who: Awaited, turn: Turn | None = None) -> AsyncIterator[Turn]:
        """Wait for a place at a device and hold it for the length of the block.

        Args:
            turn: the one that was lined up, and called; left out, this one queues now.

        Raises:
            DeviceUnavailable: none can be opened, or the last one was set aside.

        Cancellation: while waiting, the place in the queue is given up; a place that was just given passes to the next.
        """
        lined_up = turn is not None
        if turn is None:
            await self.environment()
            turn = Turn(self, who)
        try:
            if not lined_up:
                await self.take(turn)
            elif turn.worker is None:
                raise self._nobody_left()
            yield turn
        finally:
            self.give_back(turn)

    async def take(self, turn: Turn) -> None:
        """Wait for a place."""
        called = anyio.Event()

        def call(turn: Turn) -> bool:
            called.set()
            return True

        turn.call = call
        self._queue.append(turn)
        self._call_next()
        await called.wait()
        if turn.worker is None:
            raise self._nobody_left()

    def give_back(self, turn: Turn) -> None:
        """Give a place up, at a device or in the queue."""
        worker, turn.worker = turn.worker, None
        if worker is None:
            if turn in self._queue:
                self._queue.remove(turn)
            return
        if worker in self._workers:
            self._workers[worker] -= 1
        if worker.set_aside is not None:
            self._retire(worker)
        self._call_next()

    async def enumerate(self, op: Op, width: int | None) -> Listing:
        """The candidates of a canonical op, from the device with the least in hand, out of turn.

        Raises:
            DeviceUnavailable: none can be opened, or the last one was set aside; and what `Worker.enumerate` raises.

        Cancellation: as `Worker.enumerate`.
        """
        await self.environment()
        while True:
            while not self._workers:
                if not self._unopened:
                    raise self._nobody_left()
                await self._open_next()
            worker = min(self._workers, key=self._load)
            try:
                return await worker.enumerate(op, width)
            except DeviceUnavailable:
                if worker.set_aside is None:
                    raise
                self._retire(worker)

    def _in_hand(self, worker: Worker) -> int:
        """How many keys it may hold now. Where others could take what queues, less and less as the queue runs short: in
        the end nobody shall have a pile while another has nothing. Each takes half of its share, again and again."""
        takers = len(self._workers) * (2 if self._rivals() else 1)
        if takers == 1:
            return worker.in_hand
        return min(worker.in_hand, max(IN_HAND, len(self._queue) // (2 * takers)))

    def _load(self, worker: Worker) -> float:
        """How much of what it may hold at once a worker holds."""
        return self._workers[worker] / worker.in_hand

    def _retire(self, worker: Worker) -> None:
        """It was set aside. The pool goes on without it."""
        if self._workers.pop(worker, None) is not None:
            self._retired.append(worker)

    def _nobody_left(self) -> AlgosearchError:
        set_aside = [worker.set_aside for worker in self._retired if worker.set_aside is not None]
        return set_aside[-1].again()

    def _call_next(self) -> None:
        """Give whoever is next a free place; see to it that there will be more, or tell them that there are none."""
        while self._queue and self._workers and not self._closed:
            worker = min(self._workers, key=self._load)
            if self._workers[worker] >= self._in_hand(worker):
                break
            self._sort()
            turn = self._queue.pop(0)
            self._workers[worker] += 1
            turn.worker = worker
            if not turn.call(turn):
                self._workers[worker] -= 1
                turn.worker = None
        if not self._queue or self._closed or self._opening_more:
            return
        if self._unopened:
            self._opening_more = True
            self._tasks.start_soon(self._open_more)
        elif not self._workers:
            queue, self._queue = self._queue, []
            for turn in queue:
                turn.call(turn)

    def _sort(self) -> None:
        """Most awaited first, then by precedence; a stable sort, so that among equals the oldest stays first.

        Who is awaited changes in the callers' threads, unannounced. A short queue is sorted for every turn; a long one
        each time that a sixteenth of it has gone: to look at thousands for each turn would cost more than it gains.
        """
        self._sorted_for -= 1
        if self._sorted_for <= 0:
            self._queue.sort(key=lambda turn: (-turn.who.awaited, turn.who.precedence))
            self._sorted_for = len(self._queue) // 16

    async def aclose(self) -> None:
        """Close every worker, all at once. To be shielded by the caller."""
        self._closed = True
        async with anyio.create_task_group() as tasks:
            for worker in (*self._workers, *self._retired):
                tasks.start_soon(worker.aclose)

    async def rest(self) -> None:
        """Return when no device has anything under way; nothing begins until `resume`. Called while quiet is wanted.

        Cancellation: they go on resting.
        """
        async with anyio.create_task_group() as tasks:
            for worker in (*self._workers, *self._newcomers):
                tasks.start_soon(worker.rest)

    def resume(self) -> None:
        """Go on: quiet is not wanted any more."""
        for worker in (*self._workers, *self._newcomers):
            worker.resume()


def _nobody_comes(turn: Turn) -> bool:
    return False
