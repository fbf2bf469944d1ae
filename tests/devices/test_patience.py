"""A wait for a child is as long as it may be by a clock that stands still while this process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from algosearch.devices.remote.patience import Patience
from tests.devices.parent import OPEN_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def waited(patience: Patience, clock: Clock, *, late_s: float = 0.0) -> float:
    """One piece of a wait, and how long it may be."""
    with patience.piece() as piece_s:
        clock.now_s += piece_s + late_s
    return piece_s


def test_a_wait_ends_when_it_has_been_long_enough() -> None:
    clock = Clock()
    patience = Patience(2.25, clock=clock)
    pieces = []
    while patience.left:
        pieces.append(waited(patience, clock, late_s=0.0625))
    assert pieces == [1.0, 1.0, 0.125]


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    clock = Clock()
    patience = Patience(1.5, clock=clock)
    for _ in range(5):
        assert waited(patience, clock, late_s=600.0) == 1.0
    assert [waited(patience, clock), waited(patience, clock)] == [1.0, 0.5]
    assert not patience.left


@pytest.mark.slow
def test_a_job_that_is_suspended_while_its_device_is_opened_has_it_afterwards() -> None:
    """Parent and child are stopped for longer than the opening may take."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.devices.parent", "opens"], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.waitid(os.P_PID, parent.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(OPEN_S + 1.5)
        for pid in (parent.pid, child):
            os.kill(pid, signal.SIGCONT)
        assert parent.communicate(timeout=30)[0] == "opened\n"
