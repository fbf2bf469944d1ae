"""`RemoteBackend`: single calls of a session in a child process, as if it were here.

A worker does not use it: there a whole search crosses at once, and the race runs beside the device. This is the door
for whoever wants to try something in a process that may be lost: in a debugger, or in the contract's tests.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from algosearch.backends import Backend, Device, Recipe
from algosearch.devices.host import END_S
from algosearch.devices.job import Limits
from algosearch.devices.remote.host import BrokeInChild
from algosearch.devices.remote.patience import Patience
from algosearch.devices.remote.process import ChildProcess, Exit, close_after_fork
from algosearch.devices.remote.protocol import (
    CALLS,
    TO_PARENT,
    Broke,
    Call,
    CallName,
    Close,
    Frames,
    Open,
    Opened,
    Outcome,
    ProtocolError,
    Returned,
    ToChild,
    ToParent,
    Unavailable,
    encoded,
    frame,
)
from algosearch.errors import DeviceUnavailable
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate, Environment, Failure, Listing
from algosearch.settings import Isolation

_PIECE_BYTES: Final = 1 << 16


class ChildGone(RuntimeError):
    """The child has ended before it answered."""


class RemoteBackend:
    """A backend whose sessions live in a child each.

    Raises:
        DeviceUnavailable: when a device is opened, if the backend cannot be made again in another process.
    """

    isolation: Isolation = "thread"  # this process is where it is called; that it goes on from here is its own matter

    def __init__(self, inner: Backend, limits: Limits | None = None) -> None:
        self.name = inner.name
        self._inner = inner
        self._limits = Limits() if limits is None else limits

    def __repr__(self) -> str:
        return f"<RemoteBackend of {self._inner!r}>"

    def recipe(self) -> Recipe | None:
        """That of the backend inside."""
        return self._inner.recipe()

    def devices(self) -> tuple[Device, ...]:
        """Those of the backend inside."""
        return self._inner.devices()

    def open(self, device: Device) -> RemoteSession:
        """Start a child and open the device there.

        Raises:
            DeviceUnavailable: with the reason and the remedy.
        """
        recipe = self._inner.recipe()
        if recipe is None:
            raise DeviceUnavailable(device.name, "its backend cannot be made again in another process", "open it here")
        return RemoteSession(recipe, device, self._limits)


class RemoteSession:
    """A `Session` in a child. Made by `RemoteBackend.open`."""

    def __init__(self, recipe: Recipe, device: Device, limits: Limits) -> None:
        self._device = device
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[ToParent | None]] = {0: queue.SimpleQueue()}
        """Of whoever waits, by the number of the call; 0 is the opening. None for the end."""
        self._lock = threading.Lock()
        """Of the table of answers."""
        self._sending = threading.Lock()
        self._exit: Exit | None = None
        self._exited = threading.Event()
        self._closed = False
        self._socket, its = socket.socketpair()
        close_after_fork(self._socket)
        self._process = ChildProcess(device.name, its, self._on_exit)
        self._reader = threading.Thread(target=self._read, name=f"algosearch-remote-{device.name}", daemon=True)
        self._reader.start()
        try:
            self.environment: Environment = self._open(Open(recipe, device, limits), limits.open_s)
        except BaseException:
            self._process.kill()
            self._finish()
            raise

    def __repr__(self) -> str:
        return f"<RemoteSession of {self._device.name}, {self._process!r}>"

    @property
    def pid(self) -> int | None:
        """The child's number; None if it is not there."""
        return self._process.pid

    def enumerate(self, op: Op, width: int | None) -> Listing:
        """As the contract says."""
        listing: Listing = self._call("enumerate", op, width)
        return listing

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        """As the contract says."""
        built: Built | Failure = _either(self._call("build", op, candidate))
        return built

    def load(self, op: Op, workspace_bytes: int) -> Failure | None:
        """As the contract says."""
        failure: Failure | None = self._call("load", op, workspace_bytes)
        return failure

    def launch(self, plan: int, limit_us: float | None) -> Burst | Failure:
        """As the contract says."""
        burst: Burst | Failure = _either(self._call("launch", plan, limit_us))
        return burst

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        """As the contract says."""
        return tuple(map(_either, self._call("time", tuple(bursts), limit_us)))

    def check(self, plan: int, against: int | None) -> Failure | None:
        """As the contract says."""
        failure: Failure | None = self._call("check", plan, against)
        return failure

    def healthy(self) -> Failure | None:
        """As the contract says; asked in the lane."""
        failure: Failure | None = self._call("healthy")
        return failure

    def unload(self) -> None:
        """As the contract says."""
        self._call("unload")

    def destroy(self, plans: Sequence[int]) -> None:
        """As the contract says."""
        self._call("destroy", tuple(plans))

    def nothing(self) -> None:
        """There and back, through the lane."""
        self._call("nothing")

    def close(self) -> None:
        """As the contract says. What does not end within a second is killed."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ChildGone):
            self._send(Close())
        if not self._exited.wait(END_S):
            self._process.kill()
        self._finish()

    # -- there and back ----------------------------------------------------------------------------------------------

    def _open(self, message: Open, limit_s: float) -> Environment:
        self._send(message)
        patience = Patience(limit_s)
        while True:
            with patience.piece() as piece_s, contextlib.suppress(queue.Empty):
                answer = self._answers[0].get(timeout=piece_s)
                break
            if not patience.left:
                raise DeviceUnavailable(
                    self._device.name, f"its process did not open it within {limit_s:g} s", "look after it"
                )
        match answer:
            case Opened(environment):
                return environment
            case Unavailable(device, reason, remedy):
                raise DeviceUnavailable(device, reason, remedy)
            case Broke():
                raise BrokeInChild(answer)
        raise DeviceUnavailable(self._device.name, self._how_it_ended(), "see what it wrote, or open it here")

    def _call(self, name: CallName, *arguments: object) -> Any:
        answers: queue.SimpleQueue[ToParent | None] = queue.SimpleQueue()
        with self._lock:
            number = next(self._numbers)
            self._answers[number] = answers
        try:
            self._send(Call(number, name, msgspec.Raw(encoded(arguments))))
            answer = answers.get()
        finally:
            with self._lock:
                del self._answers[number]
        if isinstance(answer, Broke):
            raise BrokeInChild(answer)
        if not isinstance(answer, Returned):
            raise ChildGone(self._how_it_ended())
        return msgspec.msgpack.decode(answer.result, type=CALLS[name].result, strict=True)

    def _send(self, message: ToChild) -> None:
        try:
            with self._sending:
                self._socket.sendall(frame(message))
        except OSError:
            raise ChildGone(self._how_it_ended()) from None

    def _read(self) -> None:
        """In a thread of its own: whoever waits is in one of two others."""
        frames = Frames(TO_PARENT)
        with contextlib.suppress(OSError, ProtocolError):
            while received := self._socket.recv(_PIECE_BYTES):
                for message in frames.feed(received):
                    number = message.number if isinstance(message, Returned | Broke) else 0
                    with self._lock:
                        answers = self._answers.get(number)
                    if answers is not None:
                        answers.put(message)
        self._process.kill()
        self._exited.wait()
        with self._lock:
            left = tuple(self._answers.values())
        for answers in left:
            answers.put(None)

    def _on_exit(self, exit_: Exit) -> None:
        self._exit = exit_
        self._exited.set()

    def _how_it_ended(self) -> str:
        self._exited.wait(END_S)
        return str(self._exit or "its process does not answer")

    def _finish(self) -> None:
        self._exited.wait(END_S)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(END_S)
        self._socket.close()


def _either(outcome: Outcome[Any]) -> Any:
    return outcome.good if outcome.failure is None else outcome.failure
