"""`Turn`: a place at a device, or in the queue for one; `Line`: who queues, in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final, Protocol, TypeVar

from algosearch.backends import Device
from algosearch.devices.host import OnListed
from algosearch.devices.job import Found
from algosearch.devices.worker import Told, Worker, nobody_asked
from algosearch.errors import DeviceUnavailable
from algosearch.ops import Op
from algosearch.records import Failure, Listing, Policy, SearchMode

T = TypeVar("T")

_SORTING: Final = 20
"""But for those that have gone, lines are sorted at most once in so many times what that takes."""


class Awaited(Protocol):
    """What queues here."""

    @property
    def awaited(self) -> int:
        """How many wait for it now."""
        ...

    @property
    def precedence(self) -> tuple[int | bytes, ...]:
        """Who comes first among equally awaited ones: the least; among equals the oldest."""
        ...

    @property
    def is_dear(self) -> bool:
        """Whether it is known that something dear is built for it. Does not change while it queues."""
        ...

    @property
    def stands_back(self) -> bool:
        """Whether it is dear, and lets others go first that are awaited as much. Does not change either."""
        ...


class Places(Protocol):
    """Who gives places: a pool."""

    async def take(self, turn: Turn) -> None:
        """Wait for one."""
        ...

    def give_back(self, turn: Turn) -> None:
        """Give one up, at a device or in the queue."""
        ...


class Turn:
    """A place at a device, or in the queue for one. If its device is set aside it queues again, for another one."""

    __slots__ = ("_pool", "call", "is_dear", "stands_back", "who", "worker")

    def __init__(self, pool: Places, who: Awaited) -> None:
        self.who = who
        self.is_dear = who.is_dear
        """Which places it may have."""
        self.stands_back = who.stands_back
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
        compiles: bool = True,
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
                compiles=compiles,
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


class Sorting:
    """When a line may be sorted that need not be. One for all lines of a process: hundreds of engines can share it."""

    def __init__(self) -> None:
        self._not_before = 0.0
        """Of `perf_counter`."""

    @property
    def is_due(self) -> bool:
        """Whether it would take little of the time since one was sorted."""
        return perf_counter() >= self._not_before

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A line is sorted within this block. A short one does not bring the next long one's turn nearer."""
        began = perf_counter()
        yield
        ended = perf_counter()
        self._not_before = max(self._not_before, ended + (ended - began) * _SORTING)


_SORTED: Final = Sorting()


class Line:
    """Who queues. Most awaited first, then by precedence; a stable sort, so that among equals the oldest stays first.

    Who is awaited changes in the callers' threads, unannounced. A short line is sorted for every turn; a long one each
    time that a sixteenth of it has gone, and whenever sorting would take a twentieth of the time since one was sorted
    last: to look at thousands for each turn would cost more than it gains, and to let hundreds go before who is awaited
    now would be to forget it.
    """

    def __init__(self, sorting: Sorting = _SORTED) -> None:
        self._turns: dict[Turn, None] = {}
        """In order. Made anew when it is sorted, so that little of what has gone is left before the first."""
        self._sorted_for = 0
        """For so many more turns the order is taken as it is."""
        self._sorting = sorting

    def __len__(self) -> int:
        return len(self._turns)

    def append(self, turn: Turn) -> None:
        """One more."""
        self._turns[turn] = None

    def first(self) -> Turn | None:
        """Who is next; None if there is nobody."""
        if self._turns and (self._sorted_for <= 0 or self._sorting.is_due):
            with self._sorting.timed():
                order = sorted(self._turns, key=lambda turn: (-turn.who.awaited, turn.who.precedence))
            self._turns = dict.fromkeys(order)
            self._sorted_for = len(order) // 16
        return next(iter(self._turns), None)

    def remove(self, turn: Turn) -> None:
        """Its turn has come, or it waits no more. Harmless if it does not queue."""
        if turn in self._turns:
            del self._turns[turn]
            self._sorted_for -= 1

    def emptied(self) -> list[Turn]:
        """All who queued, taken out."""
        turns, self._turns = list(self._turns), {}
        return turns


def _nobody_comes(turn: Turn) -> bool:
    return False
