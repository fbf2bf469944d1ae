"""One daemon thread that does one owner's blocking work: the seam between awaiting and blocking.

The prepare and the lane of a worker and the connection of a directory store each live in one of these.

Why a thread of our own, not `anyio.to_thread`, `asyncio.to_thread` or an executor: those join their threads
when the interpreter exits, so that one hung library call hangs the exit; and they take any idle thread, while
a SQLite connection, a cuDNN handle and CUDA's current device belong to *the* thread that made them.

Guarantees: jobs run one at a time, in the order they were posted, urgent ones before others; a job once begun is never
interrupted (a running kernel cannot be stopped), so cancelling the caller of `run` leaves it to finish by itself with
its result dropped; after `stop` what was queued still runs, and what is posted later is refused. What would end a task,
a loop or a program (`CancelledError`, `SystemExit`, `KeyboardInterrupt`) ends nothing when a call here raises it.

asyncio is imported where it is used: the front door holds such a thread before anybody needs a loop.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_HERE: Final = threading.local()


class PinnedThread:
    """A named daemon thread with a queue of calls. Owned by whoever made it, who must `stop` it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._turns: queue.SimpleQueue[None] = queue.SimpleQueue()
        """One for each job, whichever it will be."""
        self._urgent: deque[Callable[[], None]] = deque()
        self._jobs: deque[Callable[[], None] | None] = deque()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "running"
        return f"<PinnedThread {self.name} {state}, {self._turns.qsize()} queued>"

    @property
    def ident(self) -> int | None:
        """The thread's identifier, so that code can assert that it runs here."""
        return self._thread.ident

    def post(self, job: Callable[[], None], *, urgent: bool = False) -> bool:
        """Queue `job` from any thread; an urgent one before those that are not. False if the thread was stopped.

        Nobody hears what it returns. If it raises, that goes to `threading.excepthook`, and the next job begins.
        """
        with self._lock:
            if self._stopped:
                return False
            (self._urgent if urgent else self._jobs).append(job)
            self._turns.put(None)
            return True

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Do `call(*args)` in the thread and give its result to this task.

        Raises:
            whatever Exception the call raises; anything else as the cause of a `BrokenContract`;
            RuntimeError if the thread was stopped.

        Cancellation: the caller returns at once; a call that has not begun is skipped, one that has begun
        runs on and its result is dropped.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            if answer.cancelled():
                return
            try:
                result = call(*args)
            except BaseException as error:
                _tell(loop, answer, None, as_exception(error))
            else:
                _tell(loop, answer, result, None)

        if not self.post(job):
            raise RuntimeError(f"the thread {self.name} was stopped")
        return await answer

    def stop(self) -> None:
        """Take no more jobs and end when the queued ones are done. May be called twice, from any thread."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._jobs.append(None)
                self._turns.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end after `stop`. False if a job still runs; the daemon thread then dies with the process."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        _HERE.pinned = True
        while (job := self._next()) is not None:
            try:
                job()
            except BaseException as error:
                # As if the thread had died of it, except that whoever queued behind it does not wait for ever.
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, self._thread)),
                )
            del job  # else the last job's objects would live until the next one comes

    def _next(self) -> Callable[[], None] | None:
        self._turns.get()
        return self._urgent.popleft() if self._urgent else self._jobs.popleft()


def is_pinned() -> bool:
    """Whether this code runs in a pinned thread, whoever's."""
    return getattr(_HERE, "pinned", False)


class BrokenContract(RuntimeError):
    """Foreign code raised what only the interpreter, a loop or a signal may raise. The cause is what it raised."""


def as_exception(error: BaseException) -> Exception:
    """What a call into foreign code raised, as something that says so and does nothing else.

    A `CancelledError` would pass for the cancellation of whoever waits for the call, a `SystemExit` or
    `KeyboardInterrupt` would end the loop that it reaches, and no future can carry a `StopIteration`.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    text = f": {error}" if str(error) else ""
    contained = BrokenContract(f"it raised {type(error).__name__}{text}, which is not for it to raise")
    contained.__cause__ = error
    return contained


def _tell(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], result: object, error: Exception | None
) -> None:
    def settle() -> None:
        if answer.cancelled():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    # RuntimeError: the loop was closed in the meantime, and nobody is left to be told.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)
