"""Sending without giving the interpreter's lock up. A socket's own `send` gives it up: beside a thread that computes,
to win it back may take 5 ms each time."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable


def sender(end: socket.socket) -> Callable[[bytes], int]:
    """Sends what fits at once, and says how much that was; nothing, where that cannot be done, or the other end is
    gone."""
    if sys.platform != "linux":
        return lambda raw: 0
    import ctypes

    send = ctypes.PyDLL(None).send
    send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    send.restype = ctypes.c_ssize_t
    number = end.fileno()
    return lambda raw: max(0, int(send(number, raw, len(raw), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)))
