"""The engine's event loop: asyncio's, turned and woken without giving the interpreter's lock up.

From the end of a search to the next one's arrival a loop turns some five times. Asyncio's gives the lock up in each
turn, to ask what is ready; who wakes it from another thread gives it up as well, and then waits behind it. Both wait
as long as others may keep the lock, 5 ms each time, beside a caller that computes or beside a device's threads.

So here is asked first in a way that keeps the lock, and it is given up only where there is nothing to do; and who wakes
the loop sends one byte in the same way, once for all that comes before the loop is awake.

Where that is not available (`algosearch.unyielding`), it is asyncio's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import selectors
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVarTuple, Unpack
from weakref import finalize

from algosearch.unyielding import AVAILABLE, ReadyFiles, UnyieldingSocket, sender

_PIECE_BYTES: Final = 1 << 10
_MOST_BREAKS: Final = 100
"""Times that a loop is turned again which somebody has ended."""

Arguments = TypeVarTuple("Arguments")


def run(main: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`, on such a loop. If somebody else's task or callback ends the loop (`SystemExit`), `main` is
    cancelled and comes to its end all the same, however often that happens meanwhile; then what ended it is raised."""
    with asyncio.Runner(loop_factory=EngineLoop if AVAILABLE else None) as runner:
        loop = runner.get_loop()
        serving = loop.create_task(main)
        try:
            loop.run_until_complete(serving)
        except BaseException:
            serving.cancel()  # once: a second time it would be in the middle of closing
            for _ in range(_MOST_BREAKS):
                if not serving.done():
                    with contextlib.suppress(BaseException):
                        loop.run_until_complete(serving)
            raise


class EngineLoop(asyncio.SelectorEventLoop):
    """Guarantees: what is posted from any thread runs once, in the order in which it was posted, whoever rings at
    the same time; what is posted to a closed loop is refused with a RuntimeError, as ever."""

    def __init__(self) -> None:
        super().__init__(_Selector() if sys.platform == "linux" else None)
        self._inner, outer = UnyieldingSocket.pair()
        self._send = sender(outer)
        self._rung = False
        """A byte is on its way, or is being read."""
        # Not closed with the loop: a thread may be about to send, and its byte must not go to whatever file has the
        # number then. Rejected: a lock, which a fork may find taken, and a signal in whoever has it. Only the number is
        # kept, for at exit nothing is finalized, and a socket would complain.
        finalize(self, os.close, outer.detach()).atexit = False
        self.add_reader(self._inner, self._wake)

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Arguments]], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        """As `asyncio`'s."""
        if self.get_debug():  # where `call_soon` is for this thread alone
            return super().call_soon_threadsafe(callback, *args, context=context)
        handle = self.call_soon(callback, *args, context=context)
        # Only now: a loop that was rung for before this call may be past it, but not one that is rung for after it.
        if not self._rung:
            self._ring()
        return handle

    def close(self) -> None:
        """As `asyncio`'s."""
        if not self.is_closed() and not self.is_running():
            self.remove_reader(self._inner)
            self._inner.close()
        super().close()

    def _ring(self) -> None:
        try:
            self._rung = True
            self._send(b"\0")  # if it is full, it wakes the loop all the same; or nobody is left there
        except BaseException:  # a signal's, raised in here: others rely on the byte already, and would wait for ever
            self._rung = False
            self._send(b"\0")
            raise

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._inner.recv(_PIECE_BYTES)
        self._rung = False


if sys.platform == "linux":

    class _Selector(selectors.EpollSelector):
        """Gives the interpreter's lock up only if nothing is ready."""

        def __init__(self) -> None:
            super().__init__()
            self._ready_files = ReadyFiles(self.fileno())

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """As `selectors`' own."""
            keys = self.get_map()
            ready = []
            for file, events in self._ready_files():
                key = keys.get(file)
                if key is not None:  # an error or the other end's end is for whoever reads or writes
                    reads = 0 if events == select.EPOLLOUT else selectors.EVENT_READ
                    writes = 0 if events == select.EPOLLIN else selectors.EVENT_WRITE
                    ready.append((key, (reads | writes) & key.events))
            if ready or (timeout is not None and timeout <= 0):
                return ready
            return super().select(timeout)
