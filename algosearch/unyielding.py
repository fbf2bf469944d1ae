"""System calls that keep the interpreter's lock.

Python's own give it up, each of them. Beside a thread that computes, whoever gave it up waits for it as long as that
thread may keep it, which is 5 ms, while the call itself takes 2 µs. So for calls that never wait there are these, where
`AVAILABLE` says so; elsewhere Python's own have to do.

ctypes is imported where it is used: who asks no device need not pay for it.
"""

from __future__ import annotations

import platform
import socket
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

AVAILABLE: Final = sys.platform == "linux"

_PIECE_BYTES: Final = 1 << 16
_MOST_EVENTS: Final = 64
_EVENT: Final = struct.Struct("=Ii4x" if platform.machine() in ("x86_64", "i686", "i386") else "=I4xi4x")
"""`struct epoll_event`, where `select.epoll` has put the file's number into its data: packed on this one machine."""
_FLAGS: Final = 0x40 | 0x4000
"""Linux's `MSG_DONTWAIT | MSG_NOSIGNAL`; elsewhere Python may not know them."""


class UnyieldingSocket(socket.socket):
    """A connected stream socket that sends and receives without giving the interpreter's lock up, and never waits:
    `BlockingIOError` means later. Where that is not available, an ordinary socket that does not block.

    Made of another one, which it takes over: `UnyieldingSocket.of(end)`.
    """

    __slots__ = ("_room",)

    _room: Any

    @classmethod
    def of(cls, end: socket.socket) -> UnyieldingSocket:
        """Takes it over: the other one is closed now, without being shut down."""
        own = cls(end.family, end.type, end.proto, fileno=end.detach())
        own.setblocking(False)
        own._room = None
        return own

    @classmethod
    def pair(cls) -> tuple[UnyieldingSocket, UnyieldingSocket]:
        """Two that are connected."""
        one, other = socket.socketpair()
        return cls.of(one), cls.of(other)

    def send(self, data: Any, flags: int = 0, /) -> int:
        """As `socket.send`: as much as fits."""
        if not AVAILABLE:
            return super().send(data, flags)
        raw = data if isinstance(data, bytes) else bytes(memoryview(data)[:_PIECE_BYTES])
        return _outcome(_calls().send(self.fileno(), raw, len(raw), flags | _FLAGS))

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """As `socket.recv`; no more than 64 KiB at once."""
        if not AVAILABLE:
            return super().recv(bufsize, flags)
        if self._room is None:
            import ctypes

            self._room = ctypes.create_string_buffer(_PIECE_BYTES)
        got = _outcome(_calls().recv(self.fileno(), self._room, min(bufsize, _PIECE_BYTES), flags | _FLAGS))
        return memoryview(self._room)[:got].tobytes()


def sender(end: socket.socket) -> Callable[[bytes], int]:
    """For a socket that others use as well, and that may block. Sends what fits at once, and says how much that was;
    nothing, where that cannot be done, or the other end is gone."""
    if not AVAILABLE:
        return lambda raw: 0
    send, number = _calls().send, end.fileno()
    return lambda raw: max(0, int(send(number, raw, len(raw), _FLAGS)))


class ReadyFiles:
    """`epoll_wait` that does not wait."""

    def __init__(self, epoll: int) -> None:
        import ctypes

        self._epoll = epoll
        self._room = ctypes.create_string_buffer(_EVENT.size * _MOST_EVENTS)

    def __call__(self) -> tuple[tuple[int, int], ...]:
        """The files that are ready, and for what; some of them, if they are many; none, if it fails."""
        count = int(_calls().epoll_wait(self._epoll, self._room, _MOST_EVENTS, 0))
        if count <= 0:
            return ()
        filled = memoryview(self._room)[: count * _EVENT.size]
        return tuple((file, events) for events, file in _EVENT.iter_unpack(filled))


def _outcome(result: int) -> int:
    """Raises OSError, as Python's own does: `BlockingIOError`, `BrokenPipeError`, …"""
    if result >= 0:
        return result
    import ctypes
    import os

    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


@cache
def _calls() -> Any:
    """The C library's `send`, `recv` and `epoll_wait`."""
    import ctypes

    library = ctypes.PyDLL(None, use_errno=True)
    number, size, pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    library.send.argtypes = (number, ctypes.c_char_p, size, number)
    library.recv.argtypes = (number, pointer, size, number)
    library.epoll_wait.argtypes = (number, pointer, number, number)
    library.send.restype = library.recv.restype = ctypes.c_ssize_t
    library.epoll_wait.restype = number
    return library
