"""Simulated devices: their memory, their clock, their time, and what they are called."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest

from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Generated,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
)
from algosearch.backends.simulated.device import Pacer
from algosearch.errors import DeviceUnavailable, InvalidSetting
from algosearch.ops import Op, canonical
from algosearch.records import Built, Burst, Failure
from tests.backends.simulated import (
    CONV,
    IMPOSSIBLE,
    NORM,
    POINTWISE,
    A,
    opened,
    ready,
    scripted,
    time_us,
)


class TestMemory:
    def test_sessions_of_a_device_share_its_memory(self) -> None:
        buffers = CONV.bytes_moved
        candidate = CandidateScript(algorithm=A, time_us=1.0, workspace_bytes=1000)
        script = scripted(candidate, devices=(DeviceScript(memory_bytes=buffers + 1500),))
        backend = SimulatedBackend(script)
        one, other = opened(backend), opened(backend)
        assert one.load(CONV, 1000) is None
        failure = other.load(CONV, 0)
        assert failure is not None
        assert failure.kind == "out_of_memory"
        assert dict(failure.circumstances) == {"free_bytes": "500", "needed_bytes": str(buffers)}
        assert backend.statistics()[0].free_bytes == 500
        one.unload()
        assert other.load(CONV, 1500) is None
        assert backend.statistics()[0].free_bytes == 0
        other.close()
        assert backend.statistics()[0].free_bytes == buffers + 1500

    def test_what_is_left_behind_can_be_seen(self) -> None:
        backend = SimulatedBackend(devices=2)
        session, plans = ready(backend)
        leaky, tidy = backend.statistics()
        assert (leaky.device, leaky.sessions, leaky.plans) == ("simulated:0", 1, len(plans))
        assert leaky.free_bytes < tidy.free_bytes
        assert (tidy.device, tidy.sessions, tidy.plans) == ("simulated:1", 0, 0)
        session.unload()
        session.destroy(plans)
        assert backend.statistics()[0].plans == session.plans == 0
        assert backend.statistics()[0].free_bytes == tidy.free_bytes
        session.close()
        assert backend.statistics()[0].sessions == 0


class TestTime:
    def test_a_series_is_gone_through_run_by_run(self) -> None:
        session, (plan,) = ready(SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=(8.0, 4.0, 2.0)))))
        assert time_us(session.launch(plan, None)) == 8.0
        assert [time_us(burst) for burst in session.time([(plan, 2), (plan, 3)], None)] == [3.0, 2.0]

    def test_the_first_launch_takes_longer_and_only_it(self) -> None:
        session, (plan,) = ready(SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=8.0, first_us=5.0))))
        assert [time_us(session.launch(plan, None)) for _ in range(2)] == [13.0, 8.0]

    def test_the_limit_is_for_a_single_run(self) -> None:
        slow_once = CandidateScript(algorithm=A, time_us=(1.0, 1.0, 60.0, 1.0))
        session, (plan,) = ready(SimulatedBackend(scripted(slow_once)))
        bursts = session.time([(plan, 2), (plan, 2), (plan, 90)], 59.0)
        assert [isinstance(burst, Burst) for burst in bursts] == [True, False, True]
        assert isinstance(bursts[1], Failure)
        assert bursts[1].kind == "timed_out"
        assert dict(bursts[1].circumstances) == {"limit_us": "59.0"}

    def test_a_burst_averages_independent_runs(self) -> None:
        sigma, repeats, bursts = 0.02, 16, 400
        session, (plan,) = ready(SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=50.0, noise=sigma))))
        times = [time_us(burst) / 50.0 for burst in session.time([(plan, repeats)] * bursts, None)]
        mean = sum(times) / bursts
        deviation = math.sqrt(sum((each - mean) ** 2 for each in times) / (bursts - 1))
        assert mean == pytest.approx(1.0, abs=4 * sigma / math.sqrt(repeats * bursts))
        assert deviation == pytest.approx(sigma / math.sqrt(repeats), rel=0.2)

    def test_a_run_is_repeatable_whatever_else_is_run(self) -> None:
        script = Script(seed=3, generated=Generated(noise=0.02))

        def times_of(op: Op, others: Sequence[Op], seed: int = 3) -> list[float]:
            backend = SimulatedBackend(Script(seed=seed, generated=script.generated), devices=2)
            session = opened(backend, ordinal=len(others) % 2)
            times = []
            for each in (*others, op):
                built = session.build(canonical(each), session.enumerate(canonical(each), 1).candidates[0])
                assert isinstance(built, Built)
                session.load(canonical(each), 1 << 30)
                times = [time_us(burst) for burst in session.time([(built.plan, 3)] * 5, None)]
                session.unload()
            return times

        alone = times_of(CONV, ())
        assert alone == times_of(CONV, (NORM, POINTWISE, IMPOSSIBLE))
        assert len(set(alone)) == 5
        assert alone != times_of(CONV, (), seed=4)

    def test_the_clock_comes_up_while_it_runs_and_falls_back_at_rest(self) -> None:
        device = DeviceScript(speed=2.0, clock_start=0.5, clock_ramp_us=60.0)
        session, (plan,) = ready(
            SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=60.0), devices=(device,)))
        )
        cold_then_warm = [time_us(burst) for burst in session.time([(plan, 1)] * 3, None)]
        assert cold_then_warm == [60.0, 30.0, 30.0]
        session.unload()
        session.load(CONV, 0)
        assert time_us(session.launch(plan, None)) == 60.0

    def test_a_disturbed_burst_says_so_and_is_slower(self) -> None:
        device = DeviceScript(disturbed=0.5)
        session, (plan,) = ready(
            SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=10.0), devices=(device,)))
        )
        bursts = session.time([(plan, 1)] * 100, None)
        disturbed = [isinstance(burst, Burst) and burst.disturbed is not None for burst in bursts]
        assert [time_us(burst) for burst in bursts] == [15.0 if each else 10.0 for each in disturbed]
        assert 20 < sum(disturbed) < 80

    def test_bursts_are_measured_in_ticks_and_never_as_nothing(self) -> None:
        device = DeviceScript(resolution_us=4.0)
        session, (plan,) = ready(
            SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=0.7), devices=(device,)))
        )
        assert [time_us(burst) for burst in session.time([(plan, 1), (plan, 8)], None)] == [4.0, 0.5]

    def test_no_time_passes_at_virtual_pace(self) -> None:
        year = CandidateScript(algorithm=A, time_us=3e13, build_us=3e13)
        session, (plan,) = ready(SimulatedBackend(scripted(year)))
        assert time_us(session.launch(plan, None)) == 3e13

    def test_time_at_real_pace_adds_up_though_each_sleep_is_too_long(self) -> None:
        now_s = 0.0

        def sleep(seconds: float) -> None:
            nonlocal now_s
            now_s += seconds + 0.0004

        pacer = Pacer(0.5, sleep=sleep, clock=lambda: now_s)
        for _ in range(1000):
            pacer.pass_us(300.0)
        assert now_s == pytest.approx(0.150, abs=0.002)

    def test_listing_building_and_running_take_real_time(self) -> None:
        candidate = CandidateScript(algorithm=A, time_us=2000.0, build_us=3000.0, first_us=1000.0)
        problem = ProblemScript(op=CONV, candidates=(candidate,), prepare_us=4000.0)
        begin = time.perf_counter()
        session, (plan,) = ready(SimulatedBackend(Script(problems=(problem,)), pace="real"))
        assert time.perf_counter() - begin >= 0.006
        begin = time.perf_counter()
        session.launch(plan, None)
        session.time([(plan, 2)], None)
        assert time.perf_counter() - begin >= 0.006


class TestDevices:
    def test_some_of_each_kind(self) -> None:
        script = Script(devices=(DeviceScript(kind="Big"), DeviceScript(kind="Small")), machine="node7")
        devices = SimulatedBackend(script, devices=2).devices()
        assert [(device.name, device.kind) for device in devices] == [
            ("simulated:0", "Big"),
            ("simulated:1", "Big"),
            ("simulated:2", "Small"),
            ("simulated:3", "Small"),
        ]
        assert len({device.identity for device in devices}) == 4
        assert all("node7" in device.identity for device in devices)
        assert SimulatedBackend(devices=0).devices() == ()

    def test_equal_devices_have_equal_environments_and_unlike_ones_do_not(self) -> None:
        script = Script(
            devices=(DeviceScript(kind="Big", facts={"sms": "132"}), DeviceScript(kind="Big", memory_bytes=1 << 30)),
            facts={"library": "9.19"},
        )
        backend = SimulatedBackend(script, devices=2)
        first, second, third, _ = (opened(backend, ordinal).environment for ordinal in range(4))
        assert first == second != third
        assert {("library", "9.19"), ("sms", "132")} <= set(first.facts)

    def test_another_script_is_another_library_unless_it_says_not(self) -> None:
        one = opened(SimulatedBackend(Script(seed=1))).environment
        other = opened(SimulatedBackend(Script(seed=2))).environment
        assert dict(one.facts).keys() == dict(other.facts).keys()
        assert one != other
        named = [opened(SimulatedBackend(Script(seed=seed, facts={"script": "x"}))).environment for seed in (1, 2)]
        assert named[0] == named[1]

    def test_incomplete_and_unavailable_devices(self) -> None:
        events: list[TraceEvent] = []
        script = Script(devices=(DeviceScript(incomplete="no compiler"), DeviceScript(unavailable="fell off the bus")))
        backend = SimulatedBackend(script, trace=events)
        assert opened(backend).environment.incomplete == "no compiler"
        with pytest.raises(DeviceUnavailable, match="simulated:1 cannot be used: fell off the bus"):
            opened(backend, 1)
        with pytest.raises(DeviceUnavailable, match="no such device"):
            backend.open(SimulatedBackend(devices=3).devices()[2])
        assert [(event.call, event.outcome) for event in events] == [("open", "ok"), ("open", "unavailable")]

    @pytest.mark.parametrize("wrong", [{"devices": -1}, {"pace": "slow"}, {"scale": -1.0}, {"scale": math.nan}])
    def test_settings_that_make_no_sense(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidSetting, match=next(iter(wrong))):
            SimulatedBackend(**wrong)


def test_the_noise_is_not_the_process_wide_generators() -> None:
    random.seed(1)
    before = random.getstate()
    session, plans = ready(SimulatedBackend())
    session.time([(plan, 3) for plan in plans], None)
    assert random.getstate() == before
