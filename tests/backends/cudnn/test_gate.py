"""The gate's decisions, on counted clocks: 1 µs for the host to queue anything, whatever is wanted for a run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algosearch.backends.cudnn import gate
from algosearch.backends.cudnn.gate import MOST_HOLD_US, OPENED_EARLY, TRIES, Burst, Gate, groups
from tests.backends.cudnn.host_gpu import CALL_US, HostGpu


def burst(gpu: HostGpu, repeats: int, run_us: float, expected_us: float = 0.0) -> Burst:
    return Burst((lambda: gpu.run(run_us),) * repeats, expected_us)


def test_a_burst_of_short_runs_is_timed_without_the_hosts_gaps() -> None:
    gpu = HostGpu()
    (timed,) = gate.run(gpu, Gate(), [burst(gpu, 40, CALL_US / 4)])
    assert timed.burst_us == pytest.approx(40 * CALL_US / 4)
    assert timed.disturbed is None


def test_without_a_gate_it_would_measure_the_host() -> None:
    gpu = HostGpu()
    first, last = gpu.events(2)
    gpu.record(first)
    for _ in range(40):
        gpu.run(CALL_US / 4)
    gpu.record(last)
    gpu.synchronize()
    assert gpu.elapsed_us(first, last) > 3 * 40 * CALL_US / 4


def test_a_burst_whose_gate_was_too_short_is_thrown_away_and_the_gate_doubled() -> None:
    gpu = HostGpu()
    gpu.slow_calls[2] = 400.0  # between the launches of the burst and the event behind them the host is elsewhere
    (timed,) = gate.run(gpu, Gate(), [burst(gpu, 10, 1.0)])
    assert timed.burst_us == pytest.approx(10.0)
    assert timed.disturbed is None
    first, second = gpu.spins
    assert second == pytest.approx(2 * first)


def test_one_disturbed_burst_throws_its_whole_round_away() -> None:
    gpu = HostGpu()
    gpu.slow_calls[4] = 5_000.0
    timed = gate.run(gpu, Gate(), [burst(gpu, 10, 1.0), burst(gpu, 5, 3.0), burst(gpu, 1, 2.0)])
    assert [each.burst_us for each in timed] == pytest.approx([10.0, 15.0, 2.0])
    assert len(gpu.spins) > 1


def test_what_cannot_prove_itself_is_handed_out_as_disturbed() -> None:
    gpu = HostGpu()
    gpu.slow_calls = dict.fromkeys(range(2, 1000, 2), 1e6)
    (timed,) = gate.run(gpu, Gate(), [burst(gpu, 10, 1.0)])
    assert timed.disturbed == OPENED_EARLY
    assert len(gpu.spins) == TRIES


def test_a_gate_relaxes_when_the_host_is_quiet_again() -> None:
    held = Gate()
    bursts = [Burst((lambda: 0,) * 20, 0.0)]
    quiet = held.hold_us(bursts)
    for _ in range(4):
        held.opened_early()
    assert held.hold_us(bursts) == pytest.approx(16 * quiet)
    for _ in range(60):
        held.held(22, 22 * 5.0)
    assert held.hold_us(bursts) == pytest.approx(quiet)


def test_behind_long_runs_the_gate_is_short() -> None:
    short = Gate().hold_us([Burst((lambda: 0,) * 2, 1.0)] * 20)
    long = Gate().hold_us([Burst((lambda: 0,) * 2, 500.0)] * 20)
    assert long < short / 10


def test_a_failed_launch_is_told_and_the_others_are_timed() -> None:
    gpu = HostGpu()
    broken = Burst((lambda: 3000,) * 4, 0.0)
    first, second, third = gate.run(gpu, Gate(), [burst(gpu, 3, 2.0), broken, burst(gpu, 2, 4.0)])
    assert (first.status, second.status, third.status) == (0, 3000, 0)
    assert first.burst_us == pytest.approx(6.0)
    assert third.burst_us == pytest.approx(8.0)


def test_a_failing_plan_is_not_launched_again_in_its_burst() -> None:
    gpu, calls = HostGpu(), []

    def launch() -> int:
        calls.append(1)
        return 4000

    gate.run(gpu, Gate(), [Burst((launch,) * 9, 0.0)])
    assert len(calls) == 1


repeats = st.lists(st.integers(1, 64), max_size=40)


@given(repeats, st.integers(3, 500))
def test_groups_keep_the_order_and_lose_nothing(repeats: Sequence[int], most: int) -> None:
    bursts = [Burst((lambda: 0,) * count, 0.0) for count in repeats]
    grouped = list(groups(bursts, most))
    assert [each for group in grouped for each in group] == bursts
    for group in grouped:
        assert group
        assert len(group) == 1 or sum(each.queued for each in group) <= most


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.1, 1e4)), min_size=1, max_size=30), st.integers(0, 10))
def test_a_gate_is_bounded_and_grows_with_its_doubts(runs: Sequence[tuple[int, float]], doubts: int) -> None:
    bursts = [Burst((lambda: 0,) * count, expected_us) for count, expected_us in runs]
    calm, doubtful = Gate(), Gate()
    for _ in range(doubts):
        doubtful.opened_early()
    assert 0.0 < calm.hold_us(bursts) <= doubtful.hold_us(bursts) <= MOST_HOLD_US


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0.2, 300.0)), min_size=1, max_size=12))
def test_whatever_the_runs_take_every_time_is_theirs(runs: Sequence[tuple[int, float]]) -> None:
    gpu, held = HostGpu(), Gate()
    for _ in range(3):  # nothing is known of them, then too much, then enough
        timed = gate.run(gpu, held, [burst(gpu, count, run_us, 3 * run_us) for count, run_us in runs])
    for (count, run_us), each in zip(runs, timed, strict=True):
        assert each.disturbed is None
        assert each.burst_us == pytest.approx(count * run_us)


def test_what_a_run_queues_is_counted() -> None:
    """So that the driver's queue is not filled behind a gate, where launching would wait for the device."""
    single, threefold = gate.Burst((lambda: 0,) * 40, 1.0), gate.Burst((lambda: 0,) * 40, 1.0, 3)
    assert (single.queued, threefold.queued) == (42, 122)
    assert [len(group) for group in gate.groups([single] * 12)] == [11, 1]
    assert [len(group) for group in gate.groups([threefold] * 12)] == [3, 3, 3, 3]
    assert gate.Gate().hold_us([threefold]) > gate.Gate().hold_us([single])
