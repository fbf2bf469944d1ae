"""`ChildProcess`: starts a child, listens to what it complains of, and buries it.

All in one daemon thread that lives as long as the child does, for the system takes the end of the thread that started a
child for the end of its parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

logger = logging.getLogger("algosearch.devices")

_TAIL_LINES: Final = 20
"""Of what it last complained of: what Python writes when it crashes has fewer."""
_TAIL_LENGTH: Final = 400
"""Characters of it that a failure keeps."""
_LONGEST_LINE: Final = 1000
_PIECE_BYTES: Final = 1 << 16


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended."""

    status: int | None
    """As `subprocess` has it: negative for a signal. None if it was never started."""
    wrote: str
    """The first words of its last lines, or why it was not started; empty if it wrote nothing."""

    def __str__(self) -> str:
        if self.status is None:
            return "its process could not be started"
        if self.status >= 0:
            return f"its process exited with status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = f"signal {-self.status}"
        return f"its process was ended by {name}"


class ChildProcess:
    """One child, from its start to its end.

    Args:
        name: of the device, for what is logged.
        end: the child's end of the socketpair; closed here once it is the child's.
        on_exit: told, in this child's thread, how it ended. Once, last of all.
    """

    def __init__(self, name: str, end: socket.socket, on_exit: Callable[[Exit], None]) -> None:
        self._name = name
        self._end = end
        self._on_exit = on_exit
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._lock = threading.Lock()
        """Held to kill and to bury, so that nobody else's process is killed under a number that is free again."""
        self._thread = threading.Thread(target=self._live, name=f"algosearch-child-{name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<ChildProcess of {self._name}, pid {self.pid}>"

    @property
    def pid(self) -> int | None:
        """Its number; None if it is not there."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def kill(self) -> None:
        """End it now, from any thread. Harmless if it is gone; if it is being started, it ends as soon as it is."""
        with self._lock:
            self._killed = True
            if self._process is not None and self._process.returncode is None:
                self._process.kill()

    # -- in its thread -----------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            process = self._start()
        except (OSError, ValueError) as error:
            self._on_exit(Exit(status=None, wrote=str(error)))
            return
        finally:
            self._end.close()
        with self._lock:
            self._process = process
            if self._killed:
                process.kill()
        self._listen(process)
        _wait_for_end(process)
        with self._lock:
            status = process.wait()
        self._on_exit(Exit(status=status, wrote=" | ".join(self._tail)[:_TAIL_LENGTH]))

    def _start(self) -> subprocess.Popen[bytes]:
        if not sys.executable or getattr(sys, "frozen", False):
            raise OSError("it is not known which program Python is here; use isolation='thread'")
        # What this process imports the child imports: its search path is this one's, and the directory in which it is
        # started is not put before it (-P).
        path = os.pathsep.join(filter(None, (str(entry) or _current_directory() for entry in sys.path)))
        # A process group of its own: what the terminal sends is meant for the parent.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "algosearch.devices.remote", str(self._end.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(self._end.fileno(),),
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,
        )

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Log what it writes until it ends. Something that it started may live on and keep the pipe open: so it is not
        the end of the pipe that is waited for where the end of the process can be."""
        assert process.stdout is not None
        file = process.stdout.fileno()
        os.set_blocking(file, False)
        ended = _ended_file(process.pid)
        line = b""
        with process.stdout, selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            if ended is not None:
                selector.register(ended, selectors.EVENT_READ)
            while True:
                ready = [key.fd for key, _ in selector.select()]
                received = _read(file) if file in ready else None
                *lines, line = (line + (received or b"")).split(b"\n")
                for each in lines:
                    self._note(each)
                if (received == b"" and ended is None) or (received in (None, b"") and ended in ready):
                    break
                if received == b"":
                    selector.unregister(file)
        self._note(line)
        if ended is not None:
            os.close(ended)

    def _note(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode(errors="replace").rstrip()
        if text:
            self._tail.append(text)
            logger.warning("%s: %s", self._name, text)


def _current_directory() -> str:
    """Empty if it has been deleted: nothing is imported from there."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _read(file: int) -> bytes | None:
    """What there is; nothing (b"") at the end; None if there is nothing yet."""
    try:
        return os.read(file, _PIECE_BYTES)
    except BlockingIOError:
        return None


def _ended_file(pid: int) -> int | None:
    """A file that can be read from when a process has ended; None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    """Until it has ended, without taking its status: that is done where it cannot be killed at the same moment."""
    with contextlib.suppress(ChildProcessError, AttributeError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


_CHANNELS: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_after_fork(end: socket.socket) -> socket.socket:
    """The parent's end of a pair: a fork of this process closes its copy, or the child would not see its parent end."""
    _CHANNELS.add(end)
    return end


def _close_all() -> None:
    for end in tuple(_CHANNELS):
        with contextlib.suppress(OSError):
            end.close()
    _CHANNELS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
