"""System calls that keep the interpreter's lock, against Python's own."""

from __future__ import annotations

import errno
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from algosearch import unyielding
from algosearch.unyielding import AVAILABLE, ReadyFiles, UnyieldingSocket, sender

LONG = b"x" * (1 << 22)
"""More than a socket holds."""
only_here = pytest.mark.skipif(not AVAILABLE, reason="these calls are Linux's")


@pytest.fixture(params=[pytest.param(True, marks=only_here), False], ids=["unyielding", "elsewhere"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[UnyieldingSocket, ...]]:
    """Two connected ones; where they are not available as well."""
    monkeypatch.setattr(unyielding, "AVAILABLE", request.param)
    one, other = UnyieldingSocket.pair()
    with closing(one), closing(other):
        yield one, other


def test_what_is_sent_arrives(pair: tuple[UnyieldingSocket, ...]) -> None:
    one, other = pair
    for data in (b"bytes\0with zeros", bytearray(b"more"), memoryview(b"and more")[4:]):
        assert one.send(data) == len(data)
        assert other.recv(1 << 20) == bytes(data)


def filled(end: UnyieldingSocket) -> int:
    """How much it took until it took no more."""
    sent = 0
    try:
        while True:
            sent += end.send(memoryview(LONG))
    except BlockingIOError:
        return sent


def test_nothing_waits(pair: tuple[UnyieldingSocket, ...]) -> None:
    one, other = pair
    with pytest.raises(BlockingIOError):
        one.recv(1)
    sent = filled(one)
    got = 0
    while got < sent:
        got += len(other.recv(1 << 20))
    assert got == sent
    assert one.send(b"again") == 5


def test_no_more_is_received_than_asked_for(pair: tuple[UnyieldingSocket, ...]) -> None:
    one, other = pair
    one.send(b"abc")
    assert [other.recv(2), other.recv(2)] == [b"ab", b"c"]


def test_the_other_end_is_gone(pair: tuple[UnyieldingSocket, ...]) -> None:
    one, other = pair
    other.close()
    assert one.recv(1) == b""
    with pytest.raises(BrokenPipeError):
        one.send(b"x")


def test_a_closed_one_sends_to_nobody(pair: tuple[UnyieldingSocket, ...]) -> None:
    one, _ = pair
    one.close()
    for call in (lambda: one.send(b"x"), lambda: one.recv(1)):
        with pytest.raises(OSError) as error:
            call()
        assert error.value.errno == errno.EBADF


def test_it_takes_the_socket_over() -> None:
    end, other = socket.socketpair()
    with closing(UnyieldingSocket.of(end)) as own, closing(other):
        assert end.fileno() == -1
        assert own.send(b"x") == 1
        assert other.recv(1) == b"x"


@only_here
def test_a_sender_sends_what_fits() -> None:
    one, other = socket.socketpair()
    with closing(one), closing(other):
        send = sender(one)
        sent = send(LONG)
        assert 0 < sent < len(LONG)
        assert send(b"more") == 0, "and does not wait, though the socket would"
        got = 0
        while got < sent:
            got += len(other.recv(1 << 20))
        assert send(b"more") == 4
        assert other.recv(10) == b"more"
        other.close()
        assert send(b"more") == 0


def test_elsewhere_a_sender_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unyielding, "AVAILABLE", False)
    one, other = socket.socketpair()
    with closing(one), closing(other):
        assert sender(one)(b"x") == 0


@only_here
def test_ready_files_are_those_that_epoll_finds() -> None:
    ends = [socket.socketpair() for _ in range(100)]
    with closing(select.epoll()) as epoll:
        ready = ReadyFiles(epoll.fileno())
        assert ready() == ()
        for one, _ in ends:
            epoll.register(one, select.EPOLLIN)
        assert ready() == ()
        for one, other in ends[:40]:
            other.send(b"x")
            epoll.modify(one, select.EPOLLIN | select.EPOLLOUT)
        ends[40][1].close()
        found = ready()
        assert len(found) == 41
        assert sorted(found) == sorted(epoll.poll(0))
        for _, other in ends[41:]:
            other.send(b"x")
        assert len(set(ready()) | set(ready())) >= 41, "of many, some"
    assert ready() == (), "closed"
    for pair in ends:
        for end in pair:
            end.close()


@only_here
@pytest.mark.parametrize("what", ["send", "recv", "ready"])
def test_the_lock_is_kept(what: str) -> None:
    """With a switch interval of an hour, who gives the lock up to a thread that computes never sees it again."""
    one, other = UnyieldingSocket.pair()
    epoll = select.epoll()
    ready = ReadyFiles(epoll.fileno())
    other.send(b"x" * 10_000)
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: one.send(b"x"),
        "recv": lambda: one.recv(1),
        "ready": ready,
    }
    call = calls[what]
    call()  # ctypes is imported now
    turns = Turns()
    with turns:
        before = turns.taken
        for _ in range(100):
            call()
        assert turns.taken == before
    for each in (one, other, epoll):
        each.close()


class Turns:
    """Counts how often another thread, which always wants the lock, has had it."""

    def __init__(self) -> None:
        self.taken = 0
        self._over = False
        self._thread = threading.Thread(target=self._take)
        self._interval_s = sys.getswitchinterval()

    def __enter__(self) -> None:
        self._thread.start()
        while not self.taken:
            time.sleep(0.001)
        sys.setswitchinterval(3600.0)
        time.sleep(0.01)  # it waits now, and for so long

    def __exit__(self, *error: object) -> None:
        sys.setswitchinterval(self._interval_s)
        self._over = True
        self._thread.join()

    def _take(self) -> None:
        while not self._over:
            self.taken += 1
            time.sleep(0)
