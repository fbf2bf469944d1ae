"""`Host`: an open device wherever it lives, as its worker sees it from the engine's loop; and the one in this process.

A host lives as long as its session. When that is lost (spoilt, hung, crashed), every search in hand ends with
`HostLost`, which says to each what is known of its own part in it; the worker opens another host and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from algosearch.backends import Backend, Device
from algosearch.devices.blame import Blame
from algosearch.devices.job import Found, Job, Limits, Step, Worked
from algosearch.devices.threads import DeviceThreads
from algosearch.devices.trip import Trip
from algosearch.ops import Op
from algosearch.records import Environment, Failure, Listing

logger = logging.getLogger("algosearch.devices")
turns = logging.getLogger("algosearch.workers")

END_S: Final = 1.0
"""How long the end of a host waits for calls under way, before it goes on without them."""

T = TypeVar("T")
OnStep = Callable[[Step], None]
OnListed = Callable[[Listing], None]


class HostLost(Exception):
    """The session is gone, and with it every search in hand. One for each of them. Never reaches a caller."""

    def __init__(self, reason: str, suspected: Blame | None, *, alone: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.suspected = suspected
        """The part that this search may have had in it; None if it is innocent."""
        self.alone = alone
        """Whether nobody else is suspected."""

    @property
    def guilty(self) -> tuple[str, Failure] | None:
        """The candidate whose fault it was, and its failure; None if that is not certain."""
        if self.suspected is None or not self.alone or len(self.suspected.algorithms) != 1:
            return None
        return self.suspected.algorithms[0], self.suspected.failure

    @property
    def is_nobodys(self) -> bool:
        """Whether it was this search, and no candidate of it."""
        return self.suspected is not None and self.alone and not self.suspected.algorithms


class Host(Protocol):
    """What a worker asks of an open device. Used on one loop."""

    @property
    def environment(self) -> Environment:
        """What answers from here depend on."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it can be called; if not, another one is needed."""
        ...

    @property
    def broke(self) -> str | None:
        """Why its session was lost; None if it is open or was ended."""
        ...

    async def enumerate(self, op: Op, width: int | None) -> Listing:
        """As `Session.enumerate`.

        Raises:
            HostLost, and whatever the backend raises.

        Cancellation: what has begun ends by itself, its result dropped.
        """
        ...

    async def search(self, job: Job, on_step: OnStep, on_listed: OnListed) -> Found:
        """Race a key.

        Args:
            on_listed: told the candidates on the loop, at once, if the job does not name them.
            on_step: told of each step that is for it, before it is made: in the thread that makes it, which waits until
                it returns; from a child process on the loop, and nobody waits.

        Raises:
            HostLost; MustCompile, as `Job.compiles` says; and whatever the backend raises.

        Cancellation: the search stops between two steps.
        """
        ...

    async def hold(self) -> None:
        """Let no step begin, and return when none is under way; until `release`, which is harmless at any time.

        Cancellation: it stays held.
        """
        ...

    def release(self) -> None:
        """Go on."""
        ...

    def end(self) -> None:
        """Begin to close the session, behind what is under way. Harmless twice."""
        ...

    async def aclose(self) -> None:
        """`end` it and wait, about a second at most. To be shielded."""
        ...


class Pending:
    """The calls that wait for a host, by number, and what is known of who brought it down."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.lost: tuple[str, tuple[Blame, ...]] | None = None
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, on_step: OnStep | None = None, on_listed: OnListed | None = None) -> tuple[int, asyncio.Future[Any]]:
        """One more call: its number and its future.

        Raises:
            HostLost: nothing can be called any more. The caller is innocent.
        """
        if self.lost is not None:
            raise HostLost(self.lost[0], None, alone=False)
        number, future = next(self._numbers), self.loop.create_future()
        self._calls[number] = _Call(future, on_step, on_listed)
        return number, future

    def forget(self, number: int) -> None:
        """Nobody waits for it any more."""
        self._calls.pop(number, None)

    def note(self, step: Step) -> None:
        """A step begins: whoever waits for it is told."""
        call = self._calls.get(step.job)
        if call is not None and call.on_step is not None:
            call.on_step(step)

    def listed(self, number: int, listing: Listing) -> None:
        """Candidates are known: those that were asked for, or on the way of a search."""
        call = self._calls.get(number)
        if call is None or call.on_listed is None:
            self.settle(number, listing, None)
        else:
            call.on_listed(listing)

    def settle(self, number: int, result: object, error: BaseException | None) -> None:
        """A call has ended."""
        call = self._calls.pop(number, None)
        if call is None or call.future.done():
            return
        if error is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(error)

    def lose(self, reason: str, blamed: Sequence[Blame]) -> None:
        """Nothing comes back any more: every call ends with its own `HostLost`."""
        if self.lost is not None:
            return
        self.lost = reason, tuple(blamed)
        parts = {blame.job: blame for blame in blamed}
        for number in tuple(self._calls):
            self.settle(number, None, HostLost(reason, parts.get(number), alone=len(blamed) == 1))


class _Call(NamedTuple):
    """One that waits."""

    future: asyncio.Future[Any]
    on_step: OnStep | None
    on_listed: OnListed | None


class ThreadHost:
    """A device in threads of this process. Nothing can be done about what hangs or crashes there."""

    def __init__(self, backend: Backend, device: Device, limits: Limits, *, slowest: float) -> None:
        self._pending = Pending()
        self._environment: Environment | None = None
        self._closed: asyncio.Future[None] | None = None
        self._threads = DeviceThreads(
            backend,
            device,
            limits=limits,
            slowest=slowest,
            on_step=self._pending.note,  # in the device's thread: a table is looked up, which needs no lock
            on_rest=lambda side, done: tell(device, done),
            on_lost=lambda blame: self._post(partial(self._pending.lose, spoilt(blame), [blame])),
        )

    def __repr__(self) -> str:
        return f"<ThreadHost {self._threads!r}, {len(self._pending)} in hand>"

    @property
    def environment(self) -> Environment:
        """As `Host` says."""
        assert self._environment is not None, f"{self!r} is used before it is open"
        return self._environment

    @property
    def is_open(self) -> bool:
        """As `Host` says."""
        return self._environment is not None and self._pending.lost is None and self._closed is None

    @property
    def broke(self) -> str | None:
        """As `Host` says."""
        return None if self._pending.lost is None else self._pending.lost[0]

    async def open(self) -> None:
        """Open the device.

        Raises:
            DeviceUnavailable: with the reason and the remedy.

        Cancellation: the opening goes on; `aclose` closes what it brings.
        """
        number, future = self._pending.add()
        self._threads.open(partial(self._settle, number))
        self._environment = await future

    async def enumerate(self, op: Op, width: int | None) -> Listing:
        """As `Host` says."""
        number, future = self._pending.add()
        self._threads.enumerate(number, op, width, partial(self._settle, number))
        listing: Listing = await future
        return listing

    async def search(self, job: Job, on_step: OnStep, on_listed: OnListed) -> Found:
        """As `Host` says."""
        number, future = self._pending.add(on_step, on_listed)
        trip: Trip | None = None
        try:
            trip = self._threads.search(
                number,
                job,
                partial(self._settle, number),
                lambda listing: self._post(partial(self._pending.listed, number, listing)),
            )
            found: Found = await future
            return found
        finally:
            self._pending.forget(number)
            if trip is not None:
                trip.stop()

    async def hold(self) -> None:
        """As `Host` says."""
        held = self._pending.loop.create_future()
        self._threads.pause.hold(lambda: self._post(partial(_let_be, held)))
        await held

    def release(self) -> None:
        """As `Host` says."""
        self._threads.pause.release()

    def end(self) -> None:
        """As `Host` says."""
        if self._closed is None:
            self._closed = self._pending.loop.create_future()
            self._threads.close(lambda: self._post(partial(_let_be, self._closed)))

    async def aclose(self) -> None:
        """As `Host` says. What hangs is left to end by itself, and its session is closed then."""
        self.end()
        assert self._closed is not None
        try:
            await asyncio.wait_for(asyncio.shield(self._closed), END_S)
        except TimeoutError:
            logger.warning("%s is still busy; its threads are left to end by themselves", self._threads.device.name)

    def _settle(self, number: int, result: object, error: BaseException | None) -> None:
        self._post(partial(self._pending.settle, number, result, error))

    def _post(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime, and nobody is left there
            self._pending.loop.call_soon_threadsafe(call)


def spoilt(blame: Blame) -> str:
    """Why a session is lost whose device a candidate has left unusable."""
    return f"it was left unusable by {', '.join(blame.algorithms) or 'something'}: {blame.failure.message}"


def tell(device: Device, done: Worked | None) -> None:
    """A thread of a device has had a turn: logged for whoever draws it, with all its fields. In any thread."""
    if done is None or not turns.isEnabledFor(logging.DEBUG):
        return
    message, seconds = "%s %s: %s for %.6f s", done.ended_s - done.began_s
    with contextlib.suppress(Exception):  # what a listener raises must not end the search that it listens to
        turns.debug(message, device.name, done.side, done.problem, seconds, extra={"device": device, "turn": done})


def _let_be(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
