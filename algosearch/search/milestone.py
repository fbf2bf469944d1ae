"""`Milestone`: something that happens once, in the engine's thread, and is awaited in any loop or thread.

Guarantees:
- It is set or failed once; later attempts change nothing and say so.
- A waiter that is cancelled leaves no trace, and takes nothing from the others: each has a future of its own loop.
- Setting it costs one `call_soon_threadsafe` a waiting loop, not one a waiter (a self-pipe write is 5 µs, and a
  thousand tasks may wait). What happens within one turn of a loop that is `gathering` costs one for all together.
- An error is raised to each waiter as a fresh equal one (`AlgosearchError.again`), and not "never retrieved" if nobody
  waits.

Rejected: `asyncio.shield` of one shared future (twice the time, and futures belong to one loop), `anyio.Event` (the
same), `concurrent.futures.Future` (its callbacks run in the setting thread, one wake-up each).

asyncio is imported where it is used: the front door holds a milestone before anybody needs a loop.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from algosearch.errors import AlgosearchError, WouldBlockLoop

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

Callback = Callable[[], None]


class Milestone(Generic[T]):
    """One value or error, awaited by many.

    Args:
        lock: to be shared by thousands; each has its own if left out. One that a thread may take twice (an `RLock`):
            while it is held for one of them a garbage collection may begin, and close a coroutine that waited for
            another. Never for the same one, which keeps its waiters alive.
    """

    __slots__ = ("_blocked", "_callback", "_callbacks", "_error", "_happened", "_lock", "_loop", "_value", "waiting")

    def __init__(self, lock: threading.RLock | None = None) -> None:
        self._lock: threading.Lock | threading.RLock = threading.Lock() if lock is None else lock
        self._happened = False
        self._value: T | None = None
        self._error: AlgosearchError | None = None
        # What is not made, the garbage collector need not visit: most have one waiter in a loop, or none.
        self._callback: Callback | None = None
        """To be called in `_loop`, as long as there is one only."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callbacks: dict[Callback, asyncio.AbstractEventLoop] | None = None
        """All of them, from the second on."""
        self._blocked: list[threading.Event] | None = None
        self.waiting = 0
        """How many wait now, over all loops and threads. A plain number: the queue of a device compares thousands."""

    def __repr__(self) -> str:
        return f"<Milestone {'happened' if self._happened else 'ahead'}, {self.waiting} waiting>"

    @property
    def happened(self) -> bool:
        """True once set or failed, for good."""
        return self._happened

    def set(self, value: T) -> bool:
        """Let it happen with a value, from any thread. False if it had happened before."""
        return self._happen(value, None)

    def fail(self, error: AlgosearchError) -> bool:
        """Let it happen with an error, from any thread. False if it had happened before."""
        return self._happen(None, error)

    def result(self) -> T:
        """The value of a milestone that has happened.

        Raises:
            the error that it was failed with, afresh.
        """
        assert self._happened, "asked for the result of a milestone that is still ahead"
        if self._error is not None:
            raise self._error.again()
        return self._value  # type: ignore[return-value]  # None only if T admits it

    async def wait(self) -> T:
        """Its value, as soon as it has happened; at once, without a checkpoint, if it has.

        Raises:
            the error that it was failed with, afresh for each waiter.

        Cancellation: the waiter is forgotten; nobody else notices.
        """
        if not self._happened:
            import asyncio

            loop = asyncio.get_running_loop()
            gate: asyncio.Future[None] = loop.create_future()
            callback = partial(_open, gate)
            self.call_when_happened(loop, callback)
            try:
                await gate
            except BaseException:  # else it has happened, and nothing is left to be forgotten
                self.forget(callback)
                raise
        return self.result()

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        """Block this thread until it has happened, or for so long. True if it has happened."""
        if self.happened:  # looked at before the lock, which whoever held it at a fork holds for ever
            return True
        event = threading.Event()
        with self._lock:
            if self._happened:
                return True
            if self._blocked is None:
                self._blocked = []
            self._blocked.append(event)
            self.waiting += 1
        try:
            event.wait(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))
        finally:
            with self._lock:
                if self._blocked is not None and event in self._blocked:
                    self._blocked.remove(event)
                    self.waiting -= 1
        return self._happened

    def call_when_happened(self, loop: asyncio.AbstractEventLoop, callback: Callback) -> None:
        """Call back in `loop` once it has happened (soon, if it has); once, however often it is given.

        Callbacks must not raise.
        """
        with self._lock:
            if not self._happened:
                self._add(callback, loop)
                return
        loop.call_soon_threadsafe(callback)

    def forget(self, callback: Callback) -> None:
        """Take a callback back. Harmless if it was called or taken back already."""
        if self._happened:
            return
        with self._lock:
            if self._callbacks is not None:
                self.waiting -= self._callbacks.pop(callback, None) is not None
            elif self._callback is not None and self._callback == callback:
                self._callback = self._loop = None
                self.waiting -= 1

    def _add(self, callback: Callback, loop: asyncio.AbstractEventLoop) -> None:
        if self._callbacks is not None:
            before = len(self._callbacks)
            self._callbacks[callback] = loop
            self.waiting += len(self._callbacks) - before
        elif self._callback is None or self._loop is None:
            self._callback, self._loop = callback, loop
            self.waiting += 1
        elif self._callback != callback:
            self._callbacks = {self._callback: self._loop, callback: loop}
            self._callback = self._loop = None
            self.waiting += 1

    def _happen(self, value: T | None, error: AlgosearchError | None) -> bool:
        with self._lock:
            if self._happened:
                return False
            self._value, self._error = value, error
            self._happened = True
            callback, self._callback = self._callback, None
            loop, self._loop = self._loop, None
            callbacks, self._callbacks = self._callbacks, None
            blocked, self._blocked = self._blocked, None
            self.waiting = 0
        for event in blocked or ():
            event.set()
        if callbacks is not None:
            _wake_all(callbacks)
        elif callback is not None and loop is not None:
            _wake(loop, (callback,))
        return True


class _Wakeups:
    """Whom to wake at the end of this turn."""

    def __init__(self, turning: asyncio.AbstractEventLoop) -> None:
        self._turning = turning
        self._callbacks: dict[asyncio.AbstractEventLoop, list[Callback]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, callbacks: Sequence[Callback]) -> None:
        if self._turning.is_closed():  # in mid-turn: there is no end of it to come
            _call_soon(loop, callbacks)
            return
        if not self._callbacks:
            self._turning.call_soon(self.flush)
        self._callbacks.setdefault(loop, []).extend(callbacks)

    def flush(self) -> None:
        gathered, self._callbacks = self._callbacks, {}
        for loop, callbacks in gathered.items():
            _call_soon(loop, callbacks)


_GATHERED = threading.local()


@contextlib.contextmanager
def gathering() -> Iterator[None]:
    """Within this block, the milestones that happen in this thread wake their waiters once a turn of its loop."""
    import asyncio

    _GATHERED.wakeups = wakeups = _Wakeups(asyncio.get_running_loop())
    try:
        yield
    finally:
        _GATHERED.wakeups = None
        wakeups.flush()


def _wake_all(callbacks: dict[Callback, asyncio.AbstractEventLoop]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Callback]] = {}
    for callback, loop in callbacks.items():
        by_loop.setdefault(loop, []).append(callback)
    for loop, waiting in by_loop.items():
        _wake(loop, waiting)


def _wake(loop: asyncio.AbstractEventLoop, callbacks: Sequence[Callback]) -> None:
    """At the end of this turn, if this thread's loop is gathering; else at once."""
    wakeups: _Wakeups | None = getattr(_GATHERED, "wakeups", None)
    if wakeups is None:
        _call_soon(loop, callbacks)
    else:
        wakeups.add(loop, callbacks)


def _call_soon(loop: asyncio.AbstractEventLoop, callbacks: Sequence[Callback]) -> None:
    # RuntimeError: that loop was closed with its waiters, and nobody is left there.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_call_all, callbacks)


def _open(gate: asyncio.Future[None]) -> None:
    if not gate.done():
        gate.set_result(None)


def _call_all(callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        callback()


async def wait_for_all(milestones: list[Milestone[T]]) -> None:
    """Return when every one has happened, with a value or an error. One future in all, not one each.

    Cancellation: forgets every one of them.
    """
    ahead = list({id(milestone): milestone for milestone in milestones if not milestone.happened}.values())
    if not ahead:
        return
    import asyncio

    loop = asyncio.get_running_loop()
    gate: asyncio.Future[None] = loop.create_future()
    left = len(ahead)

    def one_less() -> None:
        nonlocal left
        left -= 1
        if not left:
            _open(gate)

    for milestone in ahead:
        milestone.call_when_happened(loop, one_less)
    try:
        await gate
    except BaseException:  # nobody else opens it: otherwise all have happened, and nothing is left to be forgotten
        for milestone in ahead:
            milestone.forget(one_less)
        raise


async def happens_within(milestone: Milestone[T], timeout_s: float) -> bool:
    """Wait until it has happened, or for so long. True if it has; its error is not raised here.

    Cancellation: as `Milestone.wait`.
    """
    import asyncio

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await wait_for_all([milestone])
    return milestone.happened


def refuse_in_loop(call: str, instead: str) -> None:
    """Raises WouldBlockLoop if an event loop runs in this thread: what blocks must not be called from there."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WouldBlockLoop(call, instead)
