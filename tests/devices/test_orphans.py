"""A child does not outlive its parent, however that ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from algosearch.backends.simulated import SimulatedBackend
from algosearch.devices.job import Limits
from algosearch.devices.remote.protocol import TO_PARENT, Frames, Open, Opened, frame
from tests.devices.children import is_alive, wait_until_gone

_LIMIT_S = 30.0


@contextmanager
def a_parent(how: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a child, and the child's number."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.devices.parent", how],
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        yield parent, child
    finally:
        parent.kill()
        parent.wait(_LIMIT_S)
        assert parent.stdout is not None
        parent.stdout.close()


def gone(pid: int) -> None:
    wait_until_gone(lambda: {pid} if is_alive(pid) else set())


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_the_parent_is_killed(how: str) -> None:
    with a_parent(how) as (parent, child):
        assert is_alive(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait(_LIMIT_S)
        gone(child)


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_the_parent_is_stopped_and_then_killed(how: str) -> None:
    with a_parent(how) as (parent, child):
        parent.send_signal(signal.SIGSTOP)
        assert is_alive(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait(_LIMIT_S)
        gone(child)


def test_the_parent_comes_to_its_end_and_closes_nothing() -> None:
    with a_parent("returns") as (parent, child):
        assert parent.wait(_LIMIT_S) == 0
        gone(child)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGABRT])
def test_the_parent_is_ended_by_a_signal(number: signal.Signals) -> None:
    with a_parent("busy") as (parent, child):
        parent.send_signal(number)
        parent.wait(_LIMIT_S)
        gone(child)


def test_a_fork_of_the_parent_lives_on_and_keeps_the_socket_open() -> None:
    """So that the socket does not tell of the parent's end: the system does."""
    with a_parent("forks") as (parent, child):
        assert parent.stdout is not None
        fork = int(parent.stdout.readline().removeprefix("fork "))
        try:
            parent.send_signal(signal.SIGKILL)
            parent.wait(_LIMIT_S)
            gone(child)
            assert is_alive(fork)
        finally:
            os.kill(fork, signal.SIGKILL)


@contextmanager
def a_child(parent: int) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A child that is told that this is its parent, and the other end of its socket."""
    mine, its = socket.socketpair()
    with mine, its:
        command = [sys.executable, "-m", "algosearch.devices.remote", str(its.fileno()), str(parent)]
        child = subprocess.Popen(command, pass_fds=(its.fileno(),), stderr=subprocess.DEVNULL)
        its.close()
        mine.settimeout(_LIMIT_S)
        try:
            yield child, mine
        finally:
            child.kill()
            child.wait(_LIMIT_S)


def opened(mine: socket.socket) -> None:
    backend = SimulatedBackend()
    recipe = backend.recipe()
    assert recipe is not None
    mine.sendall(frame(Open(recipe, backend.devices()[0], Limits())))
    frames = Frames(TO_PARENT)
    while not (messages := frames.feed(mine.recv(1 << 16))):
        pass
    assert isinstance(messages[0], Opened)


def test_the_parent_was_gone_before_the_child_could_ask_to_be_told() -> None:
    with a_child(parent=1) as (child, _):
        assert child.wait(_LIMIT_S) == 1


def test_the_socket_ends() -> None:
    """Where the system tells nothing, this does."""
    with a_child(os.getpid()) as (child, mine):
        opened(mine)
        mine.close()
        assert child.wait(_LIMIT_S) == 1


@pytest.mark.parametrize(
    "nonsense", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x03abc", b"\x00\x00\x00\x01\xc1", b"GET / HTTP/1.1\r\n"]
)
def test_what_is_no_message_ends_it(nonsense: bytes) -> None:
    with a_child(os.getpid()) as (child, mine):
        opened(mine)
        mine.sendall(nonsense)
        assert child.wait(_LIMIT_S) == 1


def test_the_first_message_must_open_a_device() -> None:
    from algosearch.devices.remote.protocol import Release

    with a_child(os.getpid()) as (child, mine):
        mine.sendall(frame(Release()))
        assert child.wait(_LIMIT_S) == 1


def test_control_c_is_the_parents_to_understand() -> None:
    with a_child(os.getpid()) as (child, mine):
        opened(mine)
        child.send_signal(signal.SIGINT)
        opened(mine)  # it still answers
        assert child.poll() is None
