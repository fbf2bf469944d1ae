"""The first run of a plan: how often it runs, and what of it is believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import cast

import pytest

from algosearch.backends.cudnn.first import First, first_run
from algosearch.backends.cudnn.gate import OPENED_EARLY
from algosearch.backends.cudnn.plan import VariantPack
from tests.backends.cudnn.host_gpu import HostGpu


class Scripted:
    """Stands for a `VariantPack`: each launch takes the next of these times on the device, and that long of the host's
    before anything is queued."""

    def __init__(self, gpu: HostGpu, *runs: tuple[float, float], status: int = 0) -> None:
        self.launch = self.launch_long = self._launch
        self.launches = 0
        self._gpu = gpu
        self._runs: Iterator[tuple[float, float]] = iter(runs)
        self._status = status

    def _launch(self) -> int:
        self.launches += 1
        host_us, run_us = next(self._runs)
        self._gpu.host_us += host_us
        self._gpu._queue(run_us)
        return self._status


@pytest.fixture
def gpu() -> HostGpu:
    return HostGpu()


@pytest.fixture
def first(gpu: HostGpu) -> Callable[..., tuple[First, int]]:
    def run(*runs: tuple[float, float], best_us: float = inf, status: int = 0) -> tuple[First, int]:
        pack = Scripted(gpu, *runs, status=status)
        return first_run(gpu, cast("VariantPack", pack), best_us), pack.launches

    return run


def test_the_second_run_tells(first: Callable[..., tuple[First, int]]) -> None:
    """The first one loads code for a millisecond."""
    found, launches = first((1_000.0, 30.0), (1.0, 30.0))
    assert (found.disturbed, launches) == (None, 2)
    assert 30.0 <= found.time_us < 60.0


def test_a_host_that_comes_late_is_noticed(first: Callable[..., tuple[First, int]]) -> None:
    found, launches = first((1_000.0, 30.0), (500.0, 30.0), (1.0, 30.0))
    assert (found.disturbed, launches) == (None, 3)
    assert found.time_us < 60.0


def test_a_host_that_always_comes_late_is_told_of(first: Callable[..., tuple[First, int]]) -> None:
    found, launches = first(*[(700.0, 30.0)] * 4)
    assert (found.disturbed, launches) == (OPENED_EARLY, 4)


def test_what_is_near_enough_runs_once(first: Callable[..., tuple[First, int]]) -> None:
    found, launches = first((1.0, 30.0), best_us=29.0)
    assert (found.disturbed, launches) == (None, 1)


def test_the_first_of_an_op_always_runs_again(first: Callable[..., tuple[First, int]]) -> None:
    assert first((1.0, 30.0), (1.0, 30.0))[1] == 2


def test_what_is_hopeless_runs_once_and_tells_its_own_time(first: Callable[..., tuple[First, int]]) -> None:
    found, launches = first((9_000.0, 4_000.0), best_us=30.0)
    assert launches == 1
    assert 3_500.0 < found.time_us < 4_500.0


def test_a_short_wait_condemns_nobody(first: Callable[..., tuple[First, int]]) -> None:
    """Half a millisecond may be this thread's own, that was not let on."""
    assert first((1.0, 500.0), (1.0, 500.0), best_us=30.0)[1] == 2


def test_what_runs_for_long_runs_once(first: Callable[..., tuple[First, int]]) -> None:
    assert first((1_000.0, 20_000.0))[1] == 1


def test_a_failure_is_told(first: Callable[..., tuple[First, int]]) -> None:
    assert first((1.0, 1.0), status=3000) == (First(0.0, 3000), 1)
