"""What surrounds the CPU kernels: the contract, the session, its memory, its clock and its environment."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from algosearch.backends import Backend, Device, Session
from algosearch.backends.cpu import CpuBackend, CpuSession, machine
from algosearch.backends.cpu.arena import Array
from algosearch.backends.cpu.disturbance import Watch
from algosearch.backends.cpu.kernel import Tensors
from algosearch.errors import DeviceUnavailable
from algosearch.ops import ConvOp, Op, canonical
from algosearch.records import Burst, Failure, FailureKind
from tests.backends.contract import BackendContract
from tests.backends.cpu import BAD, BFLOAT16, CONV, HALF_NORM, NORM, STRIDED, TRANSPOSED, loaded, with_bad


def _doubled(tensors: Tensors, workspace: Array) -> None:
    tensors["output"] *= 2


class TestCpuContract(BackendContract):
    """The contract of every backend."""

    def backend(self) -> Backend:
        return CpuBackend()

    def ops(self) -> Sequence[Op]:
        return (CONV, STRIDED, TRANSPOSED, NORM, HALF_NORM)

    def impossible_ops(self) -> Sequence[Op]:
        return (BFLOAT16,)

    def wrong(self) -> tuple[Backend, Op, str, FailureKind]:
        return with_bad(_doubled), CONV, BAD, "wrong_result"

    def used_workspace_bytes(self, session: Session, plan: int) -> int:
        assert isinstance(session, CpuSession)
        assert session.buffers is not None
        buffers = session.buffers
        buffers.spoil(buffers.workspace_bytes)
        painted = buffers.workspace(buffers.workspace_bytes).copy()
        session.launch(plan, None)
        written = np.flatnonzero(buffers.workspace(buffers.workspace_bytes) != painted)
        return int(written[-1]) + 1 if written.size else 0


# -- memory ----------------------------------------------------------------------------------------------------------


def test_nothing_is_held_after_unload() -> None:
    op = canonical(ConvOp(input_shape=(2, 32, 64, 64), filter_shape=(32, 32, 3, 3), padding_low=(1, 1)))
    backend = CpuBackend()
    session = backend.open(backend.devices()[0])
    plans = [session.build(op, candidate) for candidate in session.enumerate(op, None).candidates]
    workspace_bytes = max(candidate.workspace_bytes for candidate in session.enumerate(op, None).candidates)
    tracemalloc.start()
    try:
        held = []
        for _ in range(2):
            assert session.load(op, workspace_bytes) is None
            for built in plans:
                assert not isinstance(built, Failure)
                session.launch(built.plan, None)
                session.check(built.plan, None)
            assert tracemalloc.get_traced_memory()[0] > op.bytes_moved + workspace_bytes
            session.unload()
            held.append(tracemalloc.get_traced_memory()[0])
        assert held[0] < 100_000
        assert held[1] < held[0] + 10_000
    finally:
        tracemalloc.stop()
    session.close()


def test_out_of_memory_in_a_run_is_data() -> None:
    def hungry(tensors: Tensors, workspace: Array) -> None:
        np.empty(1 << 60, np.uint8)

    with loaded(CONV, with_bad(hungry, alone=True)) as (session, plans):
        (_, plan), *_ = plans
        for failure in (session.launch(plan, None), *session.time([(plan, 1)], None), session.check(plan, None)):
            assert isinstance(failure, Failure)
            assert failure.kind == "out_of_memory"
            assert "free_bytes" in dict(failure.circumstances)


def test_more_than_half_of_the_machine_is_not_taken() -> None:
    total = machine.memory_bytes()
    if total is None:
        pytest.skip("this system does not tell how much memory it has")
    backend = CpuBackend()
    session = backend.open(backend.devices()[0])
    failure = session.load(canonical(CONV), total // 2)
    assert failure is not None
    assert failure.kind == "out_of_memory"
    assert session.buffers is None


def test_any_other_exception_is_a_broken_contract() -> None:
    def broken(tensors: Tensors, workspace: Array) -> None:
        raise ZeroDivisionError

    with loaded(CONV, with_bad(broken, alone=True)) as (session, plans), pytest.raises(ZeroDivisionError):
        session.launch(plans[0][1], None)


def test_misuse_is_named() -> None:
    with loaded(CONV) as (session, plans):
        with pytest.raises(AssertionError, match="which would leak"):
            session.load(canonical(CONV), 0)
        with pytest.raises(AssertionError, match="there is no plan 99"):
            session.launch(99, None)
        session.unload()
        with pytest.raises(AssertionError, match="nothing loaded"):
            session.launch(plans[0][1], None)
        session.load(canonical(CONV), 0)
        with pytest.raises(AssertionError, match="and 0 are loaded"):
            session.launch(plans[-1][1], None)


# -- time ------------------------------------------------------------------------------------------------------------


def test_a_burst_is_timed_by_the_wall_clock() -> None:
    """D10."""

    def slow(tensors: Tensors, workspace: Array) -> None:
        begin = time.perf_counter()
        while time.perf_counter() < begin + 0.002:
            pass

    with loaded(CONV, with_bad(slow, alone=True)) as (session, plans):
        (outcome,) = session.time([(plans[0][1], 3)], None)
        assert isinstance(outcome, Burst)
        assert outcome.time_us >= 2_000
        assert outcome.timing == "wall,warm"


def test_a_burst_is_given_up_after_the_first_run_beyond_the_limit() -> None:
    runs = []

    def count(tensors: Tensors, workspace: Array) -> None:
        runs.append(1)

    with loaded(CONV, with_bad(count, alone=True)) as (session, plans):
        (failure,) = session.time([(plans[0][1], 5)], 1e-6)
        assert isinstance(failure, Failure)
        assert failure.kind == "timed_out"
        assert len(runs) == 1


def until_gone(thread: threading.Thread) -> None:
    """Until the system has forgotten it as well: Python calls a thread ended a little before."""
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(0.001)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="nobody counts here how long a thread waited")
def test_a_burst_is_disturbed_by_whoever_has_the_processor() -> None:
    # Threads beside this one, more than there are cores, all of them outside the interpreter's lock most of the time.
    stop = threading.Event()

    def compute() -> None:
        values = np.zeros(1 << 18)
        while not stop.is_set():
            np.sin(values, out=values)

    crowd = [threading.Thread(target=compute) for _ in range(4 * machine.cores())]
    for thread in crowd:
        thread.start()
    watch = Watch()
    try:
        values = np.zeros(1 << 18)
        for _ in range(100):
            watch.begin()
            begin = time.perf_counter_ns()
            for _ in range(20):
                np.cos(values, out=values)
            told = watch.end(time.perf_counter_ns() - begin)
            if told is not None:
                assert told.endswith("µs for a processor")
                return
        pytest.fail("100 bursts in a crowd, and none was disturbed")
    finally:
        watch.close()
        stop.set()
        for thread in crowd:
            until_gone(thread)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="nobody counts here how long a thread waited")
def test_the_watch_gives_its_files_back() -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    backend = CpuBackend()
    session = backend.open(backend.devices()[0])
    op = canonical(CONV)
    built = session.build(op, session.enumerate(op, None).candidates[0])
    assert not isinstance(built, Failure)
    session.load(op, session.enumerate(op, None).candidates[0].workspace_bytes)
    held = []
    for _ in range(3):
        thread = threading.Thread(target=threading.Event().wait, args=(0.0,))  # threads come and go meanwhile
        thread.start()
        session.launch(built.plan, None)
        until_gone(thread)
        session.launch(built.plan, None)
        held.append(open_files())
    assert held[0] == held[2] > before
    session.close()
    assert open_files() == before


def test_a_layer_of_resnet_takes_no_second() -> None:
    op = ConvOp(input_shape=(1, 64, 56, 56), filter_shape=(64, 64, 3, 3), padding_low=(1, 1))
    with loaded(op) as (session, plans):
        assert len(plans) == 3
        for candidate, plan in plans:
            # It takes 2 to 30 ms of this thread's processor; beside others that want it, seconds may go by.
            assert any(seconds_of_processor(session, plan) < 1.0 for _ in range(10)), candidate.algorithm


def seconds_of_processor(session: CpuSession, plan: int) -> float:
    """What one run takes of this thread's."""
    began_s = time.thread_time()
    assert isinstance(session.launch(plan, None), Burst)
    return time.thread_time() - began_s


# -- the backend -----------------------------------------------------------------------------------------------------


def test_the_environment_says_what_a_time_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    facts = dict(machine.environment("cpu").facts)
    assert facts["numpy"] == np.__version__
    assert facts["cores"] == str(machine.cores())
    assert facts["OPENBLAS_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in facts
    assert facts["memory"].endswith(" GiB")
    assert facts["blas"]


def test_a_device_of_another_machine_cannot_be_opened() -> None:
    device = Device(backend="cpu", ordinal=0, kind="Abacus", identity="cpu")
    with pytest.raises(DeviceUnavailable, match="cpu:0 cannot be used"):
        CpuBackend().open(device)


def test_the_likely_fastest_is_listed_first() -> None:
    backend = CpuBackend()
    session = backend.open(backend.devices()[0])
    names = [each.algorithm for each in session.enumerate(canonical(CONV), None).candidates]
    assert names[-1] == "cpu/numpy:fft"
    assert session.enumerate(canonical(CONV), None).look_at is None


def test_importing_the_package_does_not_import_numpy() -> None:
    code = "import sys, algosearch, algosearch.backends; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=50).returncode == 0
