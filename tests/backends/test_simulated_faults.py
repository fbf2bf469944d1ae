"""Every way in which a simulated candidate can go wrong."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from algosearch.backends.simulated import (
    CandidateScript,
    Fault,
    FaultStage,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    read_trace,
)
from algosearch.records import Built, Burst, Failure, FailureKind
from tests.backends.driven import Driven
from tests.backends.simulated import (
    CONV,
    A,
    B,
    opened,
    ready,
    run_everything,
    scripted,
    time_us,
)


class TestFaults:
    @pytest.mark.parametrize("kind", get_args(FailureKind))
    @pytest.mark.parametrize("stage", ["build", "launch", "time", "check"])
    def test_every_kind_of_failure_at_every_stage(self, stage: FaultStage, kind: FailureKind) -> None:
        fault = Fault(at=stage, does=kind, message="status 3000")
        events: list[TraceEvent] = []
        backend = SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=9.0, faults=(fault,))), trace=events)
        session = opened(backend)
        built = session.build(CONV, session.enumerate(CONV, None).candidates[0])
        outcomes: dict[str, object] = {"build": built}
        if isinstance(built, Built):
            session.load(CONV, 0)
            outcomes["launch"] = session.launch(built.plan, None)
            (outcomes["time"],) = session.time([(built.plan, 3)], 1e6)
            outcomes["check"] = session.check(built.plan, None)
        failures = {call: failure for call, failure in outcomes.items() if isinstance(failure, Failure)}
        assert list(failures) == [stage]
        assert (failures[stage].kind, failures[stage].message) == (kind, "status 3000")
        assert bool(failures[stage].circumstances) is not failures[stage].is_fact
        assert [event.call for event in events if event.outcome == kind] == [stage]

    @pytest.mark.parametrize("stage", ["launch", "time"])
    @pytest.mark.parametrize(
        ("does", "is_so"),
        [("nan", math.isnan), ("zero", lambda us: us == 0.0), ("negative", lambda us: us < 0.0)],
    )
    def test_times_that_cannot_be(self, stage: FaultStage, does: Any, is_so: Callable[[float], bool]) -> None:
        candidate = CandidateScript(algorithm=A, time_us=9.0, faults=(Fault(at=stage, does=does),))
        session, (plan,) = ready(SimulatedBackend(scripted(candidate)))
        launched, (timed,) = session.launch(plan, None), session.time([(plan, 2)], None)
        strange, usual = (launched, timed) if stage == "launch" else (timed, launched)
        assert is_so(time_us(strange))
        assert not is_so(time_us(usual))

    @pytest.mark.parametrize("stage", ["enumerate", "load", "build", "launch", "time", "check"])
    def test_a_broken_contract_raises(self, stage: FaultStage) -> None:
        fault = Fault(at=stage, does="raises", message="as told")
        for_problem = stage in ("enumerate", "load")
        candidate = CandidateScript(algorithm=A, time_us=9.0, faults=() if for_problem else (fault,))
        problem = ProblemScript(op=CONV, candidates=(candidate,), faults=(fault,) if for_problem else ())
        session_trace: list[TraceEvent] = []
        backend = SimulatedBackend(Script(problems=(problem,)), trace=session_trace)
        with pytest.raises(RuntimeError, match="as told"):
            run_everything(backend)
        assert (session_trace[-1].call, session_trace[-1].outcome) == (stage, "raises")

    @pytest.mark.parametrize("stage", ["launch", "time", "check"])
    def test_who_poisons_a_device_spoils_it_for_everybody_until_it_is_opened_again(self, stage: FaultStage) -> None:
        poison = CandidateScript(algorithm=A, time_us=9.0, faults=(Fault(at=stage, does="poisons"),))
        backend = SimulatedBackend(scripted(poison, CandidateScript(algorithm=B, time_us=9.0)))
        session, (bad, good) = ready(backend)
        run: dict[str, Callable[[int], Burst | Failure | None]] = {
            "launch": lambda plan: session.launch(plan, None),
            "time": lambda plan: session.time([(plan, 1)], None)[0],
            "check": lambda plan: session.check(plan, None),
        }
        assert not isinstance(run[stage](good), Failure)
        assert session.healthy() is None
        assert isinstance(run[stage](bad), Failure)
        sick = session.healthy()
        assert sick is not None
        assert sick.kind == "launch_failed"
        for each in run.values():
            failure = each(good)
            assert isinstance(failure, Failure)
            assert failure.message == sick.message
        built = session.build(CONV, session.enumerate(CONV, None).candidates[1])
        assert isinstance(built, Failure)
        assert built.kind == "build_failed"
        session.close()
        again, (_, good) = ready(backend)
        assert again.healthy() is None
        assert isinstance(again.launch(good, None), Burst)

    def test_faults_can_begin_late_and_pass(self) -> None:
        candidate = CandidateScript(
            algorithm=A, time_us=9.0, faults=(Fault(at="time", does="launch_failed", after=1, times=2),)
        )
        session, (plan,) = ready(SimulatedBackend(scripted(candidate)))
        outcomes = session.time([(plan, 1)] * 4, None)
        assert [isinstance(outcome, Burst) for outcome in outcomes] == [True, False, False, True]

    def test_a_listing_that_is_refused_is_empty(self) -> None:
        fault = Fault(at="enumerate", does="not_supported", times=1)
        problem = ProblemScript(op=CONV, candidates=(CandidateScript(algorithm=A, time_us=1.0),), faults=(fault,))
        session = opened(SimulatedBackend(Script(problems=(problem,))))
        assert session.enumerate(CONV, None).candidates == ()
        assert session.enumerate(CONV, None).complete
        assert len(session.enumerate(CONV, None).candidates) == 1

    def test_what_hangs_goes_on_when_it_is_released(self) -> None:
        candidate = CandidateScript(algorithm=A, time_us=9.0, faults=(Fault(at="launch", does="hangs"),))
        backend = SimulatedBackend(scripted(candidate))
        with Driven(backend, backend.devices()[0]) as driven:
            plans = driven.runnable(CONV)
            driven.load_for(CONV, plans)
            launching = driven.in_lane(driven.session.launch, plans[0][1], None)
            assert backend.hanging.wait(30)
            assert not launching.done()
            assert len(driven.enumerate(CONV).candidates) == 1, "the other side is not held up"
            backend.release.set()
            assert time_us(launching.result()) == 9.0

    def test_nothing_hangs_longer_than_the_script_says(self) -> None:
        candidate = CandidateScript(algorithm=A, time_us=9.0, faults=(Fault(at="time", does="hangs"),))
        session, (plan,) = ready(SimulatedBackend(scripted(candidate, hang_s=0.01)))
        assert time_us(session.time([(plan, 1)], None)[0]) == 9.0

    @pytest.mark.parametrize(("does", "number"), [("crashes", signal.SIGSEGV), ("killed", signal.SIGKILL)])
    def test_a_crash_takes_the_process_and_leaves_the_trace(
        self, does: Any, number: signal.Signals, tmp_path: Path
    ) -> None:
        trace = tmp_path / "trace"
        code = f"""
import resource
from algosearch.backends.simulated import *
from algosearch.ops import ConvOp
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
op = ConvOp(input_shape=(1, 1, 3, 3), filter_shape=(1, 1, 1, 1))
fault = Fault(at="build", does={does!r})
candidate = CandidateScript(algorithm={A!r}, time_us=1.0, faults=(fault,))
backend = SimulatedBackend(Script(problems=(ProblemScript(op=op, candidates=(candidate,)),)), trace={str(trace)!r})
session = backend.open(backend.devices()[0])
session.build(op, session.enumerate(op, None).candidates[0])
"""
        ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=50, capture_output=True)
        assert ended.returncode == -number, ended.stderr
        last = read_trace(trace)[-1]
        assert (last.call, last.algorithm, last.outcome) == ("build", A, does)

    def test_a_crash_within_a_round_leaves_what_came_before_it(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        code = f"""
import resource
from algosearch.backends.simulated import *
from algosearch.ops import ConvOp
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
op = ConvOp(input_shape=(1, 1, 3, 3), filter_shape=(1, 1, 1, 1))
fault = Fault(at="time", does="killed", after=2)
candidate = CandidateScript(algorithm={A!r}, time_us=1.0, faults=(fault,))
backend = SimulatedBackend(Script(problems=(ProblemScript(op=op, candidates=(candidate,)),)), trace={str(trace)!r})
session = backend.open(backend.devices()[0])
plan = session.build(op, session.enumerate(op, None).candidates[0]).plan
session.load(op, 0)
session.launch(plan, None)
session.time([(plan, 1), (plan, 2), (plan, 3), (plan, 4)], None)
"""
        ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=50, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        timed = [event.outcome for event in read_trace(trace) if event.call == "time"]
        assert timed == ["ok", "ok", "killed"]
