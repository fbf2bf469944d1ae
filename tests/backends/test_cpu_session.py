"""What surrounds the CPU kernels: the session, its checks, its memory and its environment."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pytest

from algosearch.backends import Backend, Device, Session
from algosearch.backends.cpu import CpuBackend, CpuSession, machine
from algosearch.backends.cpu.arena import Array, Run
from algosearch.backends.cpu.catalogue import Named, kernels
from algosearch.backends.cpu.disturbance import Watch
from algosearch.backends.cpu.kernel import Cost, Kernel, Tensors
from algosearch.backends.cpu.tensors import tensors_of
from algosearch.errors import DeviceUnavailable
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical
from algosearch.records import Algorithm, Burst, Failure, FailureKind
from tests.backends.contract import BackendContract
from tests.backends.cpu import loaded

CONV = ConvOp(input_shape=(2, 8, 14, 14), filter_shape=(16, 8, 3, 3), padding_low=(1, 1))
STRIDED = ConvOp(
    input_shape=(3, 6, 9, 8),
    filter_shape=(8, 3, 3, 2),
    groups=2,
    stride=(2, 1),
    direction="backward_filter",
    input_layout="channels_last",
)
TRANSPOSED = ConvOp(input_shape=(1, 4, 12, 12), filter_shape=(8, 4, 2, 2), stride=(2, 2), direction="backward_data")
NORM = BatchNormOp(shape=(4, 8, 7, 7), fusion="add_activation")
HALF_NORM = BatchNormOp(shape=(4, 8, 7, 7), phase="backward", data_type="float16", layout="channels_last")
BFLOAT16 = ConvOp(
    input_shape=(1, 2, 3, 3),
    filter_shape=(2, 2, 1, 1),
    input_type="bfloat16",
    filter_type="bfloat16",
    output_type="bfloat16",
)
BAD: Final = "cpu/numpy:bad"


class _Bad:
    """A kernel that does as another, and then something that it must not."""

    notes: Final = ()
    cost: Final = Cost(calls=1)

    def __init__(self, kernel: Kernel, then: Callable[[Tensors, Array], None]) -> None:
        self._kernel = kernel
        self._then = then
        self.workspace_bytes = kernel.workspace_bytes

    def bind(self, tensors: Tensors, workspace: Array) -> Run:
        run = self._kernel.bind(tensors, workspace)

        def bad() -> None:
            run()
            self._then(tensors, workspace)

        return bad


def with_bad(then: Callable[[Tensors, Array], None], *, alone: bool = False) -> CpuBackend:
    """A backend with one bad kernel more."""

    def catalogue(op: Op) -> Named:
        named = list(kernels(op))
        if not alone:
            yield from named
        yield Algorithm.parse(BAD), _Bad(max((kernel for _, kernel in named), key=_hunger), then)

    return CpuBackend(catalogue=catalogue)


def _hunger(kernel: Kernel) -> int:
    return kernel.workspace_bytes


def _doubled(tensors: Tensors, workspace: Array) -> None:
    tensors["output"] *= 2


def _one_off(tensors: Tensors, workspace: Array) -> None:
    tensors["output"][77] += np.float32(0.01)


def _one_unwritten(tensors: Tensors, workspace: Array) -> None:
    tensors["output"][-1] = np.nan


def _beyond(array: Array) -> Array:
    """The memory that an array is a part of, from the array's end on."""
    whole = array.base
    assert isinstance(whole, np.ndarray)
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    start = array.ctypes.data - whole.ctypes.data + array.nbytes
    return whole.view(np.uint8)[start:]


def _beyond_the_workspace(tensors: Tensors, workspace: Array) -> None:
    _beyond(workspace)[100] = 1


def _beyond_the_output(tensors: Tensors, workspace: Array) -> None:
    _beyond(tensors["output"])[0] = 1


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


class TestCpuOutOfBounds(TestCpuContract):
    """The same with a kernel that writes where it must not."""

    def wrong(self) -> tuple[Backend, Op, str, FailureKind]:
        return with_bad(_beyond_the_workspace), CONV, BAD, "out_of_bounds"


# -- what is found out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "against another"])
@pytest.mark.parametrize(
    ("then", "kind"),
    [
        (_one_unwritten, "wrong_result"),
        (_beyond_the_workspace, "out_of_bounds"),
        (_beyond_the_output, "out_of_bounds"),
    ],
)
def test_what_a_kernel_must_not_do_is_found_out(
    then: Callable[[Tensors, Array], None], kind: FailureKind, alone: bool
) -> None:
    with loaded(CONV, with_bad(then)) as (session, plans):
        plan_of = {candidate.algorithm: plan for candidate, plan in plans}
        bad = plan_of.pop(BAD)
        failure = session.check(bad, None if alone else next(iter(plan_of.values())))
        assert failure is not None
        assert failure.kind == kind
        for plan in plan_of.values():
            assert session.check(plan, bad) is None


def test_one_wrong_element_of_many_is_found_and_named() -> None:
    with loaded(CONV, with_bad(_one_off)) as (session, plans):
        plan_of = {candidate.algorithm: plan for candidate, plan in plans}
        failure = session.check(plan_of[BAD], plan_of["cpu/numpy:direct"])
        assert failure is not None
        assert failure.message.startswith("output[77] is ")


@pytest.mark.parametrize(
    "op",
    [
        CONV,
        STRIDED,
        TRANSPOSED,
        NORM,
        HALF_NORM,
        BatchNormOp(shape=(3, 4, 5, 5), statistics="per_activation", layout="channels_last"),
        BatchNormOp(shape=(3, 4, 5, 5), phase="backward", fusion="add_activation"),
        BatchNormOp(shape=(1, 4, 1, 1)),
        BatchNormOp(shape=(2, 4, 3, 3), phase="inference", data_type="float64", parameter_type="float64"),
        ConvOp(
            input_shape=(2, 64, 5, 5),
            filter_shape=(4, 64, 3, 3),
            input_type="int8",
            filter_type="int8",
            output_type="int8",
            accumulate_type="int32",
            padding_low=(1, 1),
            input_layout="channels_last",
        ),
    ],
    ids=lambda op: op.describe(),
)
def test_every_result_is_looked_at_and_right_ones_pass(op: Op) -> None:
    for name in _written(op):

        def spoil(tensors: Tensors, workspace: Array, name: str = name) -> None:
            tensors[name][0] = tensors[name][0] ^ 1 if tensors[name].dtype == np.int8 else tensors[name][0] * 3 + 1

        with loaded(op, with_bad(spoil)) as (session, plans):
            for candidate, plan in plans:
                for other in (None, *(each for _, each in plans)):
                    failure = session.check(plan, other)
                    if candidate.algorithm == BAD and other != plan:
                        assert failure is not None, f"nobody saw {name}"
                        assert failure.kind == "wrong_result"
                        assert failure.message.startswith(f"{name}[0] is ")
                    elif candidate.algorithm != BAD:
                        assert failure is None, failure


def _written(op: Op) -> list[str]:
    return [tensor.name for tensor in tensors_of(op) if tensor.written]


def test_a_kernel_cannot_write_what_is_only_read() -> None:
    def greedy(tensors: Tensors, workspace: Array) -> None:
        tensors["input"][0] = 1

    with loaded(CONV, with_bad(greedy, alone=True)) as (session, plans), pytest.raises(ValueError, match="read-only"):
        session.launch(plans[0][1], None)


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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux counts how long a thread waited")
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
    try:
        watch = Watch()
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
        stop.set()
        for thread in crowd:
            thread.join()


def test_a_layer_of_resnet_takes_no_second() -> None:
    op = ConvOp(input_shape=(1, 64, 56, 56), filter_shape=(64, 64, 3, 3), padding_low=(1, 1))
    with loaded(op) as (session, plans):
        assert len(plans) == 3
        for candidate, plan in plans:
            # It takes 2 to 30 ms; but beside others that want the processor, a run may wait for it time and again.
            tries = (session.launch(plan, 1e6) for _ in range(10))
            assert any(isinstance(burst, Burst) for burst in tries), candidate.algorithm


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
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
