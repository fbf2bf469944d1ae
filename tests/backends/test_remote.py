"""The contract of every backend, kept by a session behind a socketpair; and what happens when its child is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from algosearch.backends import Backend, Session
from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Fault,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
)
from algosearch.devices.job import Limits
from algosearch.devices.remote.backend import ChildGone, RemoteBackend, RemoteSession
from algosearch.devices.remote.host import BrokeInChild
from algosearch.errors import DeviceUnavailable
from algosearch.ops import Op
from algosearch.records import FailureKind
from tests.backends import test_cpu_session, test_simulated
from tests.backends.driven import Driven
from tests.backends.simulated import CONV, A, scripted
from tests.devices.children import no_child_is_left


@pytest.fixture(autouse=True)
def nobody_is_left() -> Iterator[None]:
    yield
    no_child_is_left()


class TestRemoteSimulatedContract(test_simulated.TestScriptedContract):
    """The restless device, in a child."""

    def backend(self) -> Backend:
        return RemoteBackend(super().backend())

    def wrong(self) -> tuple[Backend, Op, str, FailureKind]:
        backend, op, algorithm, kind = super().wrong()
        return RemoteBackend(backend), op, algorithm, kind


class TestRemoteCpuContract(test_cpu_session.TestCpuContract):
    """The processor, in a child."""

    def backend(self) -> Backend:
        return RemoteBackend(super().backend())

    def wrong(self) -> None:  # type: ignore[override]
        """A bad kernel is code, which does not cross."""

    def used_workspace_bytes(self, session: Session, plan: int) -> None:  # type: ignore[override]
        """The buffers are in the child."""


def opened(backend: Backend, limits: Limits | None = None) -> RemoteSession:
    return RemoteBackend(backend, limits).open(backend.devices()[0])


class TestTrouble:
    """What a child does that it should not, and how its caller hears of it."""

    def test_a_device_that_cannot_be_opened_is_named_with_the_remedy(self) -> None:
        with pytest.raises(DeviceUnavailable) as caught:
            opened(SimulatedBackend(Script(devices=(DeviceScript(unavailable="asleep"),))))
        assert caught.value.args == ("simulated:0", "asleep", "take another device, or another script")

    def test_a_backend_that_cannot_be_written_down_says_so(self) -> None:
        trace: list[TraceEvent] = []
        backend = SimulatedBackend(trace=trace)
        assert backend.recipe() is None
        with pytest.raises(DeviceUnavailable, match="another process"):
            opened(backend)

    def test_a_broken_contract_raises_with_the_traceback_of_the_child(self) -> None:
        fault = Fault(at="enumerate", does="raises", message="as told")
        session = opened(SimulatedBackend(Script(problems=(ProblemScript(op=CONV, faults=(fault,)),))))
        with pytest.raises(BrokeInChild, match="RuntimeError: as told") as caught:
            session.enumerate(CONV, None)
        assert "in enumerate" in caught.value.__notes__[0]
        session.close()

    @pytest.mark.parametrize(("does", "name"), [("crashes", "SIGSEGV"), ("killed", "SIGKILL")])
    def test_a_child_that_dies_fails_the_call_and_those_after_it(self, does: str, name: str) -> None:
        fault = Fault(at="build", does=does)  # type: ignore[arg-type]
        backend = SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=1.0, faults=(fault,))))
        session = opened(backend)
        (candidate,) = session.enumerate(CONV, None).candidates
        with pytest.raises(ChildGone, match=name):
            session.build(CONV, candidate)
        with pytest.raises(ChildGone, match=name):
            session.unload()
        session.close()

    def test_who_waits_in_both_threads_hears_of_the_end(self) -> None:
        fault = Fault(at="launch", does="hangs")
        backend = SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=1.0, faults=(fault,))))
        driven = Driven(RemoteBackend(backend), backend.devices()[0])
        ((candidate, plan),) = driven.runnable(CONV)
        driven.load_for(CONV, [(candidate, plan)])
        launching = driven.in_lane(driven.session.launch, plan, None)
        assert driven.enumerate(CONV).candidates, "the other side is not held up"
        assert isinstance(driven.session, RemoteSession)
        assert driven.session.pid is not None
        os.kill(driven.session.pid, signal.SIGKILL)
        with pytest.raises(ChildGone, match="SIGKILL"):
            launching.result(30)
        with pytest.raises(ChildGone):
            driven.enumerate(CONV)
        driven.__exit__(None, None, None)

    def test_what_hangs_does_not_keep_it_from_closing(self) -> None:
        fault = Fault(at="launch", does="hangs")
        backend = SimulatedBackend(scripted(CandidateScript(algorithm=A, time_us=1.0, faults=(fault,))))
        driven = Driven(RemoteBackend(backend), backend.devices()[0])
        ((candidate, plan),) = driven.runnable(CONV)
        driven.load_for(CONV, [(candidate, plan)])
        launching = driven.in_lane(driven.session.launch, plan, None)
        driven.in_prepare(driven.session.close).result(30)
        with pytest.raises(ChildGone):
            launching.result(30)
        driven.__exit__(None, None, None)
