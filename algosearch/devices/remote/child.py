"""What runs in the child: one device's threads, told what to do over a socket, telling what they do over it.

The main thread reads. It is there to notice that the parent is gone, whatever the device's threads are doing:

Guarantee: the child does not outlive its parent. On Linux the system kills it when the parent's thread that started it
ends, which is when the parent does, be it by SIGKILL or while it is stopped; everywhere the end of the socket is the
end of the child. Neither alone would do: a fork of the parent may keep the socket open, and a call that hangs with the
GIL taken would keep this thread from reading.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import signal
import socket
import sys
import threading
import traceback
from functools import partial
from typing import Any, Final, NoReturn

import msgspec

from algosearch.backends.discover import backend_of
from algosearch.devices.blame import DeviceSpoilt
from algosearch.devices.job import Found, MustCompile, SearchStopped, Side
from algosearch.devices.remote.protocol import (
    CALLS,
    TO_CHILD,
    Began,
    Broke,
    Call,
    Close,
    Ended,
    Enumerate,
    Frames,
    Hold,
    Listed,
    MustWait,
    Open,
    Opened,
    Outcome,
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
    as_read,
    encoded,
    frame,
)
from algosearch.devices.threads import DeviceThreads
from algosearch.devices.trip import Trip
from algosearch.errors import DeviceUnavailable
from algosearch.ops import Op
from algosearch.records import Candidate, Environment, Failure, Listing
from algosearch.unyielding import sender

_PIECE_BYTES: Final = 1 << 16
_PR_SET_PDEATHSIG: Final = 1
_SWITCH_S: Final = 5e-5
"""Whichever of a device's threads waits for the interpreter's lock gets it so soon. The usual 5 ms are longer than
most that the lane does."""


class _Threads(DeviceThreads):
    """A race that goes on here with a listing that the parent has kept finds its candidates in every wider one."""

    def listing_of(self, op: Op, width: int | None) -> Listing:
        return as_read(super().listing_of(op, width))


class Child:
    """The child's side. `serve` does not return."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._send_now = sender(end)
        self._threads: DeviceThreads | None = None
        self._trips: dict[int, Trip] = {}

    def serve(self) -> NoReturn:
        """Do what is asked until the parent closes its end, or is gone."""
        frames = Frames(TO_CHILD)
        try:
            while received := self._socket.recv(_PIECE_BYTES):
                for message in frames.feed(received):
                    self._take(message)
        except OSError:
            pass
        except BaseException:
            traceback.print_exc()
        _exit(1)

    def _take(self, message: ToChild) -> None:
        match message:
            case Open():
                self._open(message)
            case Enumerate(number, op, width):
                self._at_work().enumerate(number, op, width, partial(self._listed, number))
            case Search(number, job):
                try:
                    trip = self._at_work().search(
                        number,
                        job,
                        partial(self._ended, number),
                        lambda listing: self._send(Listed(number, listing)),
                    )
                except Exception as error:
                    self._broke(number, error)
                else:
                    self._trips[number] = trip
            case Stop(number):
                trip_or_none = self._trips.pop(number, None)
                if trip_or_none is not None:
                    trip_or_none.stop()
            case Hold(number):
                self._at_work().pause.hold(lambda: self._send(Resting(number)))
            case Release():
                self._at_work().pause.release()
            case Close():
                self._at_work().close(lambda: _exit(0))
            case Call():
                self._call(message)

    def _at_work(self) -> DeviceThreads:
        if self._threads is None:
            raise ProtocolError("the first message must open a device")
        return self._threads

    # -- what comes back, from the device's threads ------------------------------------------------------------------

    def _open(self, message: Open) -> None:
        try:
            self._threads = _Threads(
                backend_of(message.recipe),
                message.device,
                limits=message.limits,
                slowest=message.slowest,
                on_step=lambda step: self._send(Began(step)),
                on_rest=lambda side, done: self._send(Rests(side, done)),
                on_lost=lambda blame: self._send(Spoilt(blame)),
            )
            self._threads.open(self._opened)
        except Exception as error:
            self._broke(0, error)

    def _opened(self, environment: Environment | None, error: BaseException | None) -> None:
        if environment is not None:
            gc.freeze()  # what was imported is not looked through again at each collection: tens of milliseconds
            self._send(Opened(environment))
        elif isinstance(error, DeviceUnavailable):
            self._send(Unavailable(error.device, error.reason, error.remedy))
        else:
            self._broke(0, error)

    def _listed(self, number: int, listing: Listing | None, error: BaseException | None) -> None:
        if listing is None:
            self._broke(number, error)
        else:
            self._answer(number, Listed(number, listing))

    def _ended(self, number: int, found: Found | None, error: BaseException | None) -> None:
        self._trips.pop(number, None)
        if found is not None:
            self._answer(number, Ended(number, found))
        elif isinstance(error, MustCompile):
            self._send(MustWait(number))
        elif not isinstance(error, SearchStopped | DeviceSpoilt):  # the parent knows of those
            self._broke(number, error)

    def _call(self, message: Call) -> None:
        """A single call of the session, in its thread."""
        kind = CALLS[message.name]
        threads = self._at_work()
        try:
            arguments = msgspec.msgpack.decode(message.arguments, type=kind.arguments, strict=True)
        except Exception as error:
            self._broke(message.number, error)
            return
        side: Side = "compile" if any(isinstance(one, Candidate) and one.is_dear for one in arguments) else kind.side

        def job() -> None:
            try:
                call: Any = (lambda: None) if message.name == "nothing" else getattr(threads.session, message.name)
                result = _as_sent(kind.result, call(*arguments))
                self._answer(message.number, Returned(message.number, msgspec.Raw(encoded(result))))
            except Exception as error:
                self._broke(message.number, error)

        threads.post(side, job)

    def _answer(self, number: int, message: ToParent) -> None:
        try:
            self._send(message)
        except Exception as error:  # too long, or of what cannot be sent: else the parent would wait in vain
            self._broke(number, error)

    def _broke(self, number: int, error: BaseException | None) -> None:
        kind, text = type(error).__name__, str(error)
        self._send(Broke(number, kind, text[:10_000], "".join(traceback.format_exception(error))[-10_000:]))

    def _send(self, message: ToParent) -> None:
        raw = frame(message)
        try:
            with self._sending:
                rest = raw[self._send_now(raw) :]
                if rest:
                    self._socket.sendall(rest)
        except OSError:  # nobody is left there
            _exit(1)


def _as_sent(kind: Any, result: Any) -> Any:
    """A result in the form in which it crosses: a good one and a `Failure` are told apart by their places."""
    if isinstance(result, tuple):
        return tuple(map(_outcome, result))
    return _outcome(result) if getattr(kind, "__origin__", None) is Outcome else result


def _outcome(result: Any) -> Outcome[Any]:
    return Outcome(None, result) if isinstance(result, Failure) else Outcome(result, None)


def die_with(parent: int) -> None:
    """Let the system kill this process as soon as its parent is gone; at once, if it is gone already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _exit(1)


def _exit(status: int) -> NoReturn:
    """At once: exit handlers of libraries may wait for what hangs."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)


def main(number: int, parent: int) -> NoReturn:
    """Serve the socket whose file has this number, for a parent with this process id."""
    die_with(parent)
    end = socket.socket(fileno=number)
    end.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to understand
    faulthandler.enable(all_threads=False)
    _without_core_dumps()
    if isinstance(sys.stdout, io.TextIOWrapper):  # it is the same pipe as the standard error stream
        sys.stdout.reconfigure(line_buffering=True)
    sys.setswitchinterval(_SWITCH_S)
    Child(end).serve()


def _without_core_dumps() -> None:
    """A candidate that crashes is an everyday matter here, and an image of the device's memory is gigabytes."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))
