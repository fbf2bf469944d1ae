"""`DeviceThreads`: an open session and the pinned threads from which it is called. Knows no loop.

*Prepare* lists and builds; the *lane* runs, times and checks, alone on the device. While the lane times one key,
prepare is at the next. *Compile* builds what is dear, up to a second each, and the others go on with other keys
meanwhile: one thread, for cuDNN compiles no faster in several, made when there is first something for it. A host in
this process and a child process are both this, told of what happens in another way.

Guarantees:
- A session's calls come from these threads only, one at a time on each; every one of them is announced as a `Step`, but
  for warming up.
- A search that is stopped, or caught by `close`, ends between two steps; a call that has begun is never interrupted,
  since a running kernel cannot be.
- Plans built for a search are destroyed, by the lane, whatever became of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TypeVar

from algosearch.backends import Backend, Device, Session
from algosearch.backends.base import WarmsUp
from algosearch.devices.blame import Blame
from algosearch.devices.job import FOR_EVER_S, Found, Job, Limits, SearchStopped, Side, Step, Worked
from algosearch.devices.lane import lane_of
from algosearch.devices.pause import Pause
from algosearch.devices.trip import Trip, worked
from algosearch.devices.yardstick import Yardstick
from algosearch.ops import Op
from algosearch.pinned import PinnedThread, as_exception
from algosearch.records import Environment, Listing

logger = logging.getLogger("algosearch.devices")

T = TypeVar("T")
Then = Callable[[T | None, BaseException | None], None]
"""Called in one of the threads with a result or an error. Must not raise."""


class DeviceThreads:
    """One device at work. Made closed; `open` it, and `close` it whatever happened.

    Args:
        slowest: as of `Yardstick`.
        on_step: told, in the thread, what it is about to do.
        on_rest: told that a side has nothing more to do now, and what it did, if that was a turn.
        on_lost: told that the device cannot be used any more, and whose fault it is. Once.
    """

    def __init__(
        self,
        backend: Backend,
        device: Device,
        *,
        limits: Limits,
        slowest: float,
        on_step: Callable[[Step], None],
        on_rest: Callable[[Side, Worked | None], None],
        on_lost: Callable[[Blame], None],
    ) -> None:
        self.device = device
        self.limits = limits
        self.yardstick = Yardstick(slowest)
        self.lane_right = lane_of(device.identity)
        self.pause = Pause(self.lane_right)
        self.closing = threading.Event()
        self.prepare = PinnedThread(f"algosearch-prepare-{device.name}")
        self.lane = PinnedThread(f"algosearch-lane-{device.name}")
        self._compile: PinnedThread | None = None
        self._making = threading.Lock()
        """Of the compile thread: none is made once it closes."""
        self.steps: dict[Side, Step] = {}
        """What each side is doing; a side that rests is not in it."""
        self._backend = backend
        self._session: Session | None = None
        self._on_step = on_step
        self._on_rest = on_rest
        self._on_lost = on_lost
        self._warmed_up = False
        """The prepare thread's alone."""
        self._lost = threading.Lock()
        """Taken by whoever is the first to find it spoilt."""

    def __repr__(self) -> str:
        state = "closing" if self.closing.is_set() else "open" if self._session else "not open"
        return f"<DeviceThreads of {self.device.name} {state}>"

    @property
    def session(self) -> Session:
        """The open session."""
        assert self._session is not None, f"{self!r} is used before it is open"
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    # -- what is asked of it, from any thread ------------------------------------------------------------------------

    def open(self, then: Then[Environment]) -> None:
        """Open the device, in the prepare thread."""

        def call() -> Environment:
            if not self.closing.is_set():
                self._session = self._backend.open(self.device)
            return self.session.environment

        self._do(self.prepare, call, then)

    def enumerate(self, number: int, op: Op, width: int | None, then: Then[Listing]) -> None:
        """The candidates of a canonical op, as `Session.enumerate`."""

        def call() -> Listing:
            began, waited = perf_counter(), 0.0
            try:
                with self.step(Step(side="prepare", deed="list", job=number, limit_s=self.limits.list_s)) as waited:
                    if self.closing.is_set():
                        raise SearchStopped
                    return self.listing_of(op, width)
            finally:
                self.rest("prepare", worked("prepare", op, began, waited))

        self._do(self.prepare, call, then)

    def search(self, number: int, job: Job, then: Then[Found], listed: Callable[[Listing], None]) -> Trip:
        """Race the candidates of a canonical op. `Trip.stop` ends it early; `listed` is told the candidates, in the
        prepare thread, if the job does not name them, and what it raises ends the search."""
        trip = Trip(self, number, job, then, listed=listed)
        trip.begin()
        return trip

    def close(self, then: Callable[[], None]) -> None:
        """Stop the threads and close the session, behind what they are doing; `then` is called in the lane. Once."""
        self.closing.set()
        self.pause.end()

        def close_session() -> None:
            # In the lane, behind what it has: nothing else may run beside it there.
            session, self._session = self._session, None
            if session is not None:
                try:
                    session.close()
                except BaseException:  # whatever it raises, who closes is to hear that it is over
                    logger.exception("closing %s failed", self.device.name)
            then()
            self.lane.stop()

        def stop_compiling() -> None:
            with self._making:
                thread = self._compile
            if thread is None:
                close_in_lane()
            else:
                thread.post(close_in_lane)
                thread.stop()

        def close_in_lane() -> None:
            if not self.lane.post(close_session):
                then()

        # Behind whatever prepare is doing, then behind what is being compiled, then behind what the lane is doing.
        self.prepare.post(stop_compiling)
        self.prepare.stop()

    # -- what its trips ask, in its threads --------------------------------------------------------------------------

    def post(self, side: Side, job: Callable[[], None], *, urgent: bool = False) -> bool:
        """Let a side do it, as `PinnedThread.post`; False if it closes."""
        if side == "compile":
            thread = self._compiler()
            return thread is not None and thread.post(job)
        return (self.prepare if side == "prepare" else self.lane).post(job, urgent=urgent)

    def _compiler(self) -> PinnedThread | None:
        with self._making:
            if self._compile is None and not self.closing.is_set():
                self._compile = PinnedThread(f"algosearch-compile-{self.device.name}")
            return self._compile

    def listing_of(self, op: Op, width: int | None) -> Listing:
        """As `Session.enumerate`, within a step. Behind the first one the session warms up."""
        listing = self.session.enumerate(op, width)
        if not self._warmed_up and isinstance(self.session, WarmsUp):
            self.post("compile", partial(self._warm_up, self.session))
        self._warmed_up = True
        return listing

    def _warm_up(self, session: WarmsUp) -> None:
        # As quiet wants it, but not announced: who runs at the same time is not to share its fault with this.
        self.pause.enter("compile", lambda: None)
        try:
            if not self.closing.is_set():
                session.warm_up()
        except BaseException:  # nobody waits for this who could be told
            logger.exception("warming %s up failed", self.device.name)
        finally:
            self.pause.leave("compile")

    @contextmanager
    def step(self, step: Step) -> Iterator[float]:
        """Around each call of the session. Yields the seconds that it waited, because somebody wanted quiet."""
        waited_s = self.pause.enter(step.side, lambda: self._stand_by(step))
        try:
            self.announce(step)
            yield waited_s
        finally:
            self.pause.leave(step.side)

    def _stand_by(self, step: Step) -> None:
        """This thread waits for the end of a quiet, and in the lane then for the device as well."""
        if step.side == "lane":
            self.announce(Step(side="lane", deed="wait", job=step.job, limit_s=FOR_EVER_S))
        else:
            self.rest(step.side)

    def announce(self, step: Step) -> None:
        """Say what this thread is about to do."""
        self.steps[step.side] = step
        self._on_step(step)

    def rest(self, side: Side, done: Worked | None = None) -> None:
        """A side has nothing more to do now; `done` is the turn that has just ended, if one has."""
        if self.steps.pop(side, None) is not None or done is not None:
            self._on_rest(side, done)

    def lose(self, blame: Blame) -> None:
        """The device cannot be used any more: every search in hand ends."""
        if self._lost.acquire(blocking=False):
            self._on_lost(blame)
            self.closing.set()

    def _do(self, thread: PinnedThread, call: Callable[[], T], then: Then[T]) -> None:
        def job() -> None:
            try:
                result = call()
            except BaseException as error:
                then(None, as_exception(error))
            else:
                then(result, None)

        if not thread.post(job):
            then(None, SearchStopped())
