"""`ChildHost`: a device in a child process, as its worker sees it.

Everything is watched from the engine's loop: what the child is about to do, for how long it may, and its end. So it
does not matter what callers do meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Final, TypeVar

from algosearch.backends import Device, Recipe
from algosearch.devices.blame import Blame
from algosearch.devices.host import END_S, OnListed, OnStep, Pending, spoilt, tell
from algosearch.devices.job import Found, Job, Limits, MustCompile, Step
from algosearch.devices.remote.patience import Patience
from algosearch.devices.remote.process import ChildProcess, Exit, close_after_fork
from algosearch.devices.remote.protocol import (
    TO_PARENT,
    Began,
    Broke,
    Close,
    Ended,
    Enumerate,
    Frames,
    Hold,
    Listed,
    MustWait,
    Open,
    Opened,
    ProtocolError,
    Release,
    Resting,
    Rests,
    Returned,
    Search,
    Spoilt,
    Stop,
    ToChild,
    ToParent,
    Unavailable,
    frame,
)
from algosearch.devices.remote.watch import Watch
from algosearch.errors import DeviceUnavailable
from algosearch.ops import Op
from algosearch.records import Environment, Failure, Listing
from algosearch.unyielding import UnyieldingSocket

logger = logging.getLogger("algosearch.devices")

T = TypeVar("T")

_LAST_WORDS_S: Final = 0.5
"""After the end of a child its last messages come at once, if nobody else holds the other end of the socket."""


class BrokeInChild(RuntimeError):
    """An exception in a child: what came out of its backend. The note has its traceback."""

    def __init__(self, message: Broke) -> None:
        super().__init__(f"{message.kind}: {message.text}")
        self.add_note(message.traceback)


class ChildHost(asyncio.Protocol):
    """A `Host` in a child process. Used on the loop that it was made on."""

    def __init__(self, recipe: Recipe, device: Device, limits: Limits, *, slowest: float) -> None:
        self._device = device
        self._limits = limits
        self._slowest = slowest
        self._recipe = recipe
        self._pending = Pending()
        self._environment: Environment | None = None
        self._frames = Frames(TO_PARENT)
        self._transport: asyncio.WriteTransport | None = None
        self._process: ChildProcess | None = None
        self._ending = False
        self._broke: str | None = None
        self._gone: asyncio.Future[None] = self._pending.loop.create_future()
        self._opened: asyncio.Future[Environment] = self._pending.loop.create_future()
        self._exit: Exit | None = None
        self._held = False
        self._watch = Watch(
            self._pending.loop,
            limits.other_s,
            owes=lambda: len(self._pending) > 0 and not self._held,
            on_overdue=self._give_up,
        )

    def __repr__(self) -> str:
        return f"<ChildHost of {self._device.name}, {self._process!r}, {len(self._pending)} in hand>"

    @property
    def pid(self) -> int | None:
        """The child's number; None if it is not there."""
        return None if self._process is None else self._process.pid

    @property
    def environment(self) -> Environment:
        """As `Host` says."""
        assert self._environment is not None, f"{self!r} is used before it is open"
        return self._environment

    @property
    def is_open(self) -> bool:
        """As `Host` says."""
        return self._environment is not None and self._pending.lost is None and not self._ending

    @property
    def broke(self) -> str | None:
        """As `Host` says."""
        return self._broke

    async def open(self) -> None:
        """Start the child and open the device there.

        Raises:
            DeviceUnavailable: with the reason and the remedy.

        Cancellation: `aclose` ends what was begun.
        """
        end, its = socket.socketpair()
        mine = UnyieldingSocket.of(end)
        close_after_fork(mine)
        try:
            await self._pending.loop.create_unix_connection(lambda: self, sock=mine)
        except BaseException:
            mine.close()
            its.close()
            raise
        self._process = ChildProcess(self._device.name, its, self._on_exit)
        self._send(Open(self._recipe, self._device, self._limits, self._slowest))
        patience = Patience(self._limits.open_s)
        while patience.left and not self._opened.done():
            with patience.piece() as piece_s:
                await asyncio.wait([self._opened], timeout=piece_s)
        if not self._opened.done():
            self._process.kill()
            raise DeviceUnavailable(
                self._device.name, f"its process did not open it within {self._limits.open_s:g} s", "look after it"
            )
        self._environment = self._opened.result()

    async def enumerate(self, op: Op, width: int | None) -> Listing:
        """As `Host` says."""
        number, future = self._pending.add()
        self._send(Enumerate(number, op, width))
        listing: Listing = await future
        return listing

    async def search(self, job: Job, on_step: OnStep, on_listed: OnListed) -> Found:
        """As `Host` says."""
        number, future = self._pending.add(on_step, on_listed)
        try:
            self._send(Search(number, job))
            found: Found = await future
            return found
        except BaseException:
            self._pending.forget(number)
            self._send(Stop(number))
            raise

    async def hold(self) -> None:
        """As `Host` says."""
        number, future = self._pending.add()
        self._held = True
        self._send(Hold(number))
        try:
            await future
        finally:
            self._pending.forget(number)

    def release(self) -> None:
        """As `Host` says."""
        self._held = False
        self._send(Release())

    def end(self) -> None:
        """As `Host` says. A child that is not gone in time is killed."""
        if self._ending:
            return
        self._ending = True
        self._watch.stop()
        if self._process is None:  # never started
            self._gone.set_result(None)
        elif self._environment is None or self._pending.lost is not None:
            self._process.kill()
        else:
            self._send(Close())
            self._pending.loop.call_later(END_S, self._process.kill)

    async def aclose(self) -> None:
        """As `Host` says."""
        self.end()
        try:
            await asyncio.wait_for(asyncio.shield(self._gone), 1.5 * END_S)
        except TimeoutError:
            logger.warning("%s: its process was killed and does not end", self._device.name)

    # -- what comes from the child -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Of `asyncio.Protocol`."""
        try:
            for message in self._frames.feed(data):
                self._take(message)
            self._watch.heard()
        except ProtocolError as error:
            self._give_up(f"its process sent {error}", ())

    def connection_lost(self, exc: Exception | None) -> None:
        """Of `asyncio.Protocol`: nothing more comes."""
        self._transport = None
        if self._exit is not None:
            self._bury()
        elif self._process is not None:
            self._pending.loop.call_later(END_S, self._process.kill)  # it is about to end by itself

    def _take(self, message: ToParent) -> None:
        match message:
            case Began(step):
                self._watch.begins(step)
                self._pending.note(step)
            case Rests(side, done):
                self._watch.rests(side)
                tell(self._device, done)
            case Listed(number, listing):
                self._pending.listed(number, listing)
            case Ended(number, found):
                self._pending.settle(number, found, None)
            case MustWait(number):
                self._pending.settle(number, None, MustCompile())
            case Resting(number):
                self._pending.settle(number, None, None)
            case Opened(environment):
                _set(self._opened, environment)
            case Unavailable():
                _fail(self._opened, DeviceUnavailable(message.device, message.reason, message.remedy))
            case Broke(0):
                _fail(self._opened, BrokeInChild(message))
            case Broke(number):
                self._pending.settle(number, None, BrokeInChild(message))
            case Spoilt(blame):
                self._give_up(spoilt(blame), (blame,))
            case Returned():
                raise ProtocolError("an answer to what was not asked")

    def _send(self, message: ToChild) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))
            self._watch.heard()

    # -- the end -----------------------------------------------------------------------------------------------------

    def _give_up(self, reason: str, blamed: tuple[Blame, ...]) -> None:
        """It cannot be used any more, and may be doing anything."""
        self._watch.stop()
        self._lose(reason, blamed)
        assert self._process is not None
        self._process.kill()

    def _lose(self, reason: str, blamed: Sequence[Blame]) -> None:
        if self._broke is None and not self._ending:
            self._broke = reason
        self._pending.lose(reason, blamed)

    def _on_exit(self, exit_: Exit) -> None:
        """In the child's thread."""
        try:
            self._pending.loop.call_soon_threadsafe(self._take_exit, exit_)
        except RuntimeError:  # the loop was closed, and nobody is left there
            logger.debug("%s: %s, after its loop", self._device.name, exit_)

    def _take_exit(self, exit_: Exit) -> None:
        self._exit = exit_
        if self._transport is None:
            self._bury()
        else:  # its last words are still to be read
            self._pending.loop.call_later(_LAST_WORDS_S, self._transport.abort)

    def _bury(self) -> None:
        assert self._exit is not None
        self._watch.stop()
        reason = f"{self._exit}{f'; it wrote: {self._exit.wrote}' if self._exit.wrote else ''}"
        self._lose(reason, [_blame_of_death(step, self._exit) for step in self._watch.steps])
        _fail(
            self._opened,
            DeviceUnavailable(self._device.name, reason, "see what it wrote, or use isolation='thread'"),
        )
        self._opened.exception()  # nobody may be waiting any more
        _set(self._gone, None)


def _blame_of_death(step: Step, exit_: Exit) -> Blame:
    wrote = (("wrote", exit_.wrote),) if exit_.wrote else ()
    failure = Failure("crashed", str(exit_), (("during", step.deed), *wrote))
    return Blame(job=step.job, algorithms=step.algorithms, failure=failure)


def _set(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
