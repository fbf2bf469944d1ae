"""`Pool`: the devices of one kind, and whose turn it is.

Devices of one kind share every answer, so they share one queue; whichever is free takes the key that most wait for
(then the one that came first). A device holds few keys at a time: one in the lane, one ready for it, one in the making.
What waits here has begun nothing and can still be withdrawn, or be found by somebody else.

Keys for which something dear is built queue by themselves, and have places of their own at a device: they go through
another thread of it, one after the other, and nobody else waits behind them. They have those places at once, for what
takes longest is to begin soon. But who stands back (a batch norm: up to a second for each engine, and a network has
twenty of them) has one when nobody queues that is awaited as much; where somebody dear does, nobody of those; or after
a hundred others: whoever asks again and again would keep it for ever. Whether a key is dear is seen when it is listed
(`MustCompile`); then it queues again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.abc import TaskGroup

from algosearch.backends import Backend, Device
from algosearch.devices.places import DEAR_IN_HAND, IN_HAND
from algosearch.devices.quiet import Quiet
from algosearch.devices.turn import Awaited, Line, Turn
from algosearch.devices.worker import Worker, WorkerRules
from algosearch.errors import AlgosearchError, DeviceUnavailable
from algosearch.ops import Op
from algosearch.records import Environment, Listing
from algosearch.settings import Isolation

__all__ = ("Awaited", "Pool", "Turn")

logger = logging.getLogger("algosearch.devices")

MOST_LET_GO: Final = 100
"""So many others, however awaited, who stands back lets go before; then one of those has the next of their places."""


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
        """Open workers, and how many keys each has in hand that are not known to be dear."""
        self._dear_in_hand: Counter[Worker] = Counter()
        """The same of those that are."""
        self._newcomers: list[Worker] = []
        """Workers that are being opened."""
        self._retired: list[Worker] = []
        """Workers that were set aside."""
        self._queue = Line()
        self._dear = Line()
        """Of keys for which something dear is built,"""
        self._patient = Line()
        """and of those of them who stand back."""
        self._let_go = 0
        """How many others had a turn since one of these had."""
        self._environment: Environment | None = None
        self._opening_first = anyio.Lock()
        self._opening_more = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {self.kind}: {len(self._workers)} of {len(self.devices)} open, {self._queued} queued>"

    @property
    def _queued(self) -> int:
        return sum(map(len, (self._queue, self._dear, self._patient)))

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
            while self._queued and self._unopened:
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
        self._line_of(turn).append(turn)
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
        self._line_of(turn).append(turn)
        self._call_next()
        await called.wait()
        if turn.worker is None:
            raise self._nobody_left()

    def give_back(self, turn: Turn) -> None:
        """Give a place up, at a device or in the queue."""
        worker, turn.worker = turn.worker, None
        if worker is None:
            self._line_of(turn).remove(turn)
        else:
            self._count(turn, worker, -1)
            if worker.set_aside is not None:
                self._retire(worker)
        self._call_next()  # who stood back for one that queued, too

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
        """How many keys it may hold now, beside those that are dear."""
        return self._share(len(self._queue), worker.in_hand, least=IN_HAND)

    def _dear_to_hold(self) -> int:
        """How many of those that are dear a worker may hold now."""
        return self._share(len(self._dear) + len(self._patient), DEAR_IN_HAND, least=1)

    def _share(self, queued: int, most: int, *, least: int) -> int:
        """Where others could take what queues, a worker holds less and less as the queue runs short: in the end nobody
        shall have a pile while another has nothing. Each takes half of its share, again and again."""
        takers = len(self._workers) * (2 if self._rivals() else 1)
        return most if takers == 1 else min(most, max(least, queued // (2 * takers)))

    def _load(self, worker: Worker) -> float:
        """How much of what it may hold at once a worker holds."""
        return self._workers[worker] / worker.in_hand

    def _retire(self, worker: Worker) -> None:
        """It was set aside. The pool goes on without it."""
        if self._workers.pop(worker, None) is not None:
            del self._dear_in_hand[worker]
            self._retired.append(worker)

    def _nobody_left(self) -> AlgosearchError:
        set_aside = [worker.set_aside for worker in self._retired if worker.set_aside is not None]
        return set_aside[-1].again()

    def _line_of(self, turn: Turn) -> Line:
        if turn.stands_back:
            return self._patient
        return self._dear if turn.is_dear else self._queue

    def _count(self, turn: Turn, worker: Worker, change: int) -> None:
        if worker not in self._workers:
            return
        if turn.is_dear:
            self._dear_in_hand[worker] += change
        else:
            self._workers[worker] += change

    def _call_next(self) -> None:
        """Give whoever is next a free place; see to it that there will be more, or tell them that there are none."""
        while self._workers and not self._closed and (following := self._next()) is not None:
            turn, worker = following
            self._line_of(turn).remove(turn)
            self._count(turn, worker, 1)
            turn.worker = worker
            if turn.call(turn):
                self._let_go = self._let_go + 1 if self._patient and not turn.stands_back else 0
            else:
                self._count(turn, worker, -1)
                turn.worker = None
        if not self._queued or self._closed or self._opening_more:
            return
        if self._unopened:
            self._opening_more = True
            self._tasks.start_soon(self._open_more)
        elif not self._workers:
            for turn in (*self._queue.emptied(), *self._dear.emptied(), *self._patient.emptied()):
                turn.call(turn)

    def _next(self) -> tuple[Turn, Worker] | None:
        """Whose turn it is, and where; None if there is nobody, or no place. Who has no place does not keep those of
        the other kind from theirs."""
        usual = self._queue.first()
        dear = self._next_dear(usual)
        if dear is not None:
            worker = min(self._workers, key=self._dear_in_hand.__getitem__)
            if self._dear_in_hand[worker] < self._dear_to_hold():
                return dear, worker
        if usual is not None:
            worker = min(self._workers, key=self._load)
            if self._workers[worker] < self._in_hand(worker):
                return usual, worker
        return None

    def _next_dear(self, usual: Turn | None) -> Turn | None:
        """Who has the next place of those that are dear; None if nobody may yet. Where one of them has it in any case,
        it is the one that is awaited most: to stand back for who is not dear would help only others of them."""
        dear, patient = self._dear.first(), self._patient.first()
        before = usual if dear is None else dear
        if patient is None or (
            before is not None and patient.who.awaited <= before.who.awaited and self._let_go < MOST_LET_GO
        ):
            return dear
        return patient

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
