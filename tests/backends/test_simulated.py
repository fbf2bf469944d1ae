"""The simulated backend passes the contract, and holds whoever calls it to the contract, call by call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from algosearch.backends import Backend
from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Fault,
    Generated,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    problem_digest,
)
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical
from algosearch.records import FailureKind
from tests.backends.contract import BackendContract
from tests.backends.driven import Driven
from tests.backends.simulated import (
    COMPILED,
    CONV,
    IMPOSSIBLE,
    NORM,
    POINTWISE,
    A,
    B,
    C,
    opened,
    ready,
    scripted,
)


class _Wrong:
    """How both are made to be wrong."""

    def wrong(self) -> tuple[Backend, Op, str, FailureKind]:
        wrong = CandidateScript(algorithm=B, time_us=1.0, faults=(Fault(at="check", does="out_of_bounds"),))
        return SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=2.0), wrong)), CONV, B, "out_of_bounds"


class TestGeneratedContract(_Wrong, BackendContract):
    """What is made up from the op."""

    has_dear = True

    def backend(self) -> Backend:
        return SimulatedBackend(Script(problems=(ProblemScript(op=IMPOSSIBLE),)))

    def ops(self) -> Sequence[Op]:
        return (CONV, POINTWISE, NORM, COMPILED)

    def impossible_ops(self) -> Sequence[Op]:
        return (IMPOSSIBLE,)


class TestScriptedContract(_Wrong, BackendContract):
    """A restless device, whose time really passes."""

    has_dear = True
    script = Script(
        devices=(DeviceScript(clock_start=0.6, clock_ramp_us=500.0, disturbed=0.2, resolution_us=0.5),),
        problems=(
            ProblemScript(
                op=CONV,
                candidates=(
                    CandidateScript(algorithm=A, time_us=(90.0, 30.0, 31.0), noise=0.02, first_us=50.0),
                    CandidateScript(
                        algorithm=B, time_us=25, build_us=900, workspace_bytes=4096, notes=("tensor_core", "tf32")
                    ),
                    CandidateScript(
                        algorithm=C, time_us=0.1, faults=(Fault(at="build", does="build_failed"),), noise=0.005
                    ),
                ),
                look_at=2,
                least_width=2,
            ),
            ProblemScript(
                op=COMPILED,
                candidates=(
                    CandidateScript(algorithm=A, time_us=20, notes=("runtime_compiled",), build_us=2000),
                    CandidateScript(algorithm=B, time_us=30),
                ),
            ),
        ),
        generated=Generated(candidates=4, unsupported=0.3),
        seed=7,
    )

    def backend(self) -> Backend:
        return SimulatedBackend(self.script, devices=2, pace="real", scale=0.01)

    def ops(self) -> Sequence[Op]:
        return (CONV, NORM, COMPILED)


class TestRules:
    """Who breaks the contract is told, rule by rule."""

    def test_a_side_belongs_to_one_thread(self) -> None:
        backend = SimulatedBackend()
        with Driven(backend, backend.devices()[0]) as driven:
            driven.unload()
            driven.enumerate(CONV)
            with pytest.raises(AssertionError, match="the lane side is lane_0's"):
                driven.in_prepare(driven.session.destroy, ()).result()
            with pytest.raises(AssertionError, match="the prepare side is prepare_0's"):
                driven.in_lane(driven.session.enumerate, CONV, None).result()

    def test_a_side_takes_one_call_at_a_time(self) -> None:
        candidate = CandidateScript(algorithm=A, time_us=9.0, faults=(Fault(at="check", does="hangs"),))
        backend = SimulatedBackend(scripted(candidate))
        with Driven(backend, backend.devices()[0]) as driven:
            plans = driven.runnable(CONV)
            driven.load_for(CONV, plans)
            checking = driven.in_lane(driven.session.check, plans[0][1], None)
            assert backend.hanging.wait(30)
            with pytest.raises(AssertionError, match="two calls at a time on the lane side"):
                driven.session.unload()
            with pytest.raises(AssertionError, match="closed while a call is under way"):
                driven.session.close()
            backend.release.set()
            assert checking.result() is None

    def test_only_what_was_built_and_is_loaded_and_fits_may_run(self) -> None:
        hungry = CandidateScript(algorithm=A, time_us=1.0, workspace_bytes=256)
        backend = SimulatedBackend(Script(problems=(ProblemScript(op=CONV, candidates=(hungry,)),)))
        session, (plan,) = ready(backend)
        with pytest.raises(AssertionError, match="no plan 99"):
            session.launch(99, None)
        with pytest.raises(AssertionError, match="no plan 99"):
            session.check(plan, 99)
        with pytest.raises(AssertionError, match="a burst of 0 runs"):
            session.time([(plan, 0)], None)
        with pytest.raises(AssertionError, match="would leak"):
            session.load(CONV, 256)
        session.unload()
        with pytest.raises(AssertionError, match="loaded is None"):
            session.launch(plan, None)
        session.load(CONV, 255)
        with pytest.raises(AssertionError, match="needs 256 bytes of workspace; 255 are loaded"):
            session.launch(plan, None)
        session.unload()
        session.load(canonical(NORM), 256)
        with pytest.raises(AssertionError, match="loaded is <Problem"):
            session.launch(plan, None)

    def test_a_pass_of_a_pair_is_not_searched_alone(self) -> None:
        pair = BatchNormOp(shape=(2, 4, 5, 5), phase="training", fusion="activation")
        session = opened(SimulatedBackend())
        for op in pair.passes:
            with pytest.raises(AssertionError, match="not what is searched"):
                session.enumerate(op, None)
        assert session.enumerate(pair, None).candidates

    def test_ops_must_be_canonical(self) -> None:
        with pytest.raises(AssertionError, match="not what is searched"):
            opened(SimulatedBackend()).enumerate(ConvOp(input_shape=(1, 1, 5), filter_shape=(1, 1, 3)), None)

    def test_nothing_comes_after_close(self) -> None:
        session, (plan, *_) = ready(SimulatedBackend())
        session.close()
        calls: list[Callable[[], object]] = [
            lambda: session.enumerate(CONV, None),
            lambda: session.load(CONV, 0),
            lambda: session.launch(plan, None),
            lambda: session.check(plan, None),
            session.unload,
            lambda: session.destroy([plan]),
        ]
        for call in calls:
            with pytest.raises(AssertionError, match="after close"):
                call()


class TestTraceOfASession:
    def test_every_call_is_one_event(self) -> None:
        events: list[TraceEvent] = []
        candidate = CandidateScript(algorithm=A, time_us=5.0, build_us=70.0)
        session, (plan,) = ready(SimulatedBackend(scripted(candidate), trace=events))
        session.launch(plan, None)
        session.time([(plan, 2), (plan, 3)], 4.0)
        session.check(plan, None)
        session.unload()
        session.unload()
        session.destroy([plan, plan, 99])
        session.close()
        session.close()
        assert [(event.call, event.outcome, event.us) for event in events] == [
            ("open", "ok", 0.0),
            ("enumerate", "ok", 2000.0),
            ("build", "ok", 70.0),
            ("load", "ok", 0.0),
            ("launch", "ok", 5.0),
            ("time", "timed_out", 10.0),
            ("time", "timed_out", 15.0),
            ("check", "ok", 0.0),
            ("unload", "ok", 0.0),
            ("destroy", "ok", 0.0),
            ("close", "ok", 0.0),
        ]
        assert {event.device for event in events} == {"simulated:0"}
        assert {event.thread for event in events} == {threading.current_thread().name}
        assert {event.problem for event in events} == {"", problem_digest(CONV)}
        assert [event.t for event in events] == sorted(event.t for event in events)
