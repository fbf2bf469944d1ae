"""`Trips`: what is asked of a directory while its thread is busy is done in one trip, and answered in one.

Beside a caller that computes, the store's thread waits up to 5 ms for the interpreter's lock after each statement that
gives it up, and the engine's loop as long for each answer. So whatever was asked meanwhile is taken together: what is
read in one statement, what is written in one transaction, and one wake-up tells all of them. Claims and what is read
come first, for a device waits for them; what is committed or given back only has to be done.

Invariant: calls about the same key are carried out in the order in which they were made.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from algosearch.pinned import PinnedThread, as_exception
from algosearch.records import Key

if TYPE_CHECKING:
    from algosearch.stores.shelf import Shelf

T = TypeVar("T")

Kind = Literal["read", "claim", "write", "other"]
"""`read`: records by their keys. `write`: in a transaction. `other`: looks at what it likes, and writes nothing."""
MOST_WRITES: Final = 64
"""In one transaction: another process that wants to write waits for it."""


class Ask:
    """One call on its way.

    Args:
        call: what to do with the shelf.
        kind: what sort of call.
        digests: what it is about.
        keys: of one that reads, instead of `call`.
    """

    __slots__ = ("answer", "call", "digests", "keys", "kind", "loop", "otherwise", "outcome")

    def __init__(
        self,
        call: Callable[[Shelf], Any],
        otherwise: object,
        *,
        kind: Kind = "other",
        digests: Sequence[str] = (),
        keys: Sequence[Key] = (),
    ) -> None:
        self.call = call
        self.otherwise = otherwise
        """The answer if there is no shelf."""
        self.kind = kind
        self.digests = frozenset(digests)
        self.keys = keys
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        self.outcome: tuple[object, Exception | None] = (otherwise, None)


class Trips:
    """The calls of one store's thread. `shelf` gives the shelf, in that thread, or None."""

    def __init__(self, thread: PinnedThread, shelf: Callable[[], Shelf | None]) -> None:
        self._thread = thread
        self._shelf = shelf
        self._lock = threading.Lock()
        self._waiting: list[Ask] = []

    async def make(self, ask: Ask) -> Any:
        """Have it carried out.

        Raises:
            what the call raises; RuntimeError if the thread was stopped.

        Cancellation: as `PinnedThread.run`.
        """
        with self._lock:
            self._waiting.append(ask)
            if len(self._waiting) == 1 and not self._thread.post(self._go):
                self._waiting.clear()
                raise RuntimeError(f"the thread {self._thread.name} was stopped")
        return await ask.answer

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _go(self) -> None:
        with self._lock:
            asks, self._waiting = self._waiting, []
        for together in in_order([ask for ask in asks if not ask.answer.cancelled()]):
            shelf = self._shelf()
            if shelf is not None:
                try:
                    _carry_out(shelf, together)
                except BaseException as error:  # whatever it is, nobody waits for ever
                    for ask in together:
                        ask.outcome = None, as_exception(error)
            _tell(together)


def in_order(asks: Sequence[Ask]) -> Iterator[list[Ask]]:
    """What is done together, in the order in which it is done."""
    written: set[str] = set()
    claims: list[Ask] = []
    reads: list[Ask] = []
    rest: list[Ask] = []
    for ask in asks:
        if ask.kind in ("claim", "read") and written.isdisjoint(ask.digests):
            (claims if ask.kind == "claim" else reads).append(ask)
            # A claim waits for nothing that is read, and what is read for no claim: neither changes the other.
        else:
            rest.append(ask)
            if ask.kind != "read":
                written |= ask.digests
    yield from _chunks(claims)
    if reads:
        yield reads
    for writes, some in groupby(rest, key=lambda ask: ask.kind in ("claim", "write")):
        if writes:
            yield from _chunks(list(some))
        else:
            yield from ([ask] for ask in some)


def _chunks(asks: list[Ask]) -> Iterator[list[Ask]]:
    for start in range(0, len(asks), MOST_WRITES):
        yield asks[start : start + MOST_WRITES]


def _carry_out(shelf: Shelf, asks: Sequence[Ask]) -> None:
    if len(asks) > 1 and asks[0].kind == "read":
        answers = iter(shelf.get_many([key for ask in asks for key in ask.keys]))
        for ask in asks:
            ask.outcome = [next(answers) for _ in ask.keys], None
        return

    def all_or_none() -> None:
        for ask in asks:
            ask.outcome = ask.call(shelf), None

    if len(asks) > 1 and shelf.together(all_or_none):
        return
    for ask in asks:
        try:
            ask.outcome = ask.call(shelf), None
        except BaseException as error:
            ask.outcome = None, as_exception(error)


def _tell(asks: Sequence[Ask]) -> None:
    """One wake-up for each loop."""
    loops = {ask.loop for ask in asks}
    for loop in loops:
        told = [ask for ask in asks if ask.loop is loop]
        with contextlib.suppress(RuntimeError):  # it was closed in the meantime, and nobody is left there
            loop.call_soon_threadsafe(_settle, told)


def _settle(asks: Sequence[Ask]) -> None:
    for ask in asks:
        result, error = ask.outcome
        if ask.answer.cancelled():
            continue
        if error is None:
            ask.answer.set_result(result)
        else:
            ask.answer.set_exception(error)
