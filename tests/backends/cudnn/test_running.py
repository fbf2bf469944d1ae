"""Plans rebuilt from their names and run on a caller's arrays, over the fake libcudnn and host memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from algosearch.backends.arrays import HOST
from algosearch.backends.cudnn.gpu import CudaFault
from algosearch.backends.cudnn.norm import EPSILON, MOMENTUM
from algosearch.backends.cudnn.running import CudnnRunner, stream_number
from algosearch.backends.running import Slot
from algosearch.errors import InvalidCall, RunFailed
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import Choice, Environment, Failure
from algosearch.search.plans import Plan
from tests.backends import reference
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.host_home import HostHome, OnDevice, words_on_streams
from tests.backends.cudnn.memory import aligned
from tests.backends.slots import Array, numbers, rows_for, shaped

HALVES: dict[str, Any] = {"input_type": "float16", "filter_type": "float16", "output_type": "float16"}
LAST: dict[str, Any] = {f"{name}_layout": "channels_last" for name in ("input", "filter", "output")}
CONV = ConvOp(input_shape=(2, 8, 6, 6), filter_shape=(8, 8, 3, 3), padding_low=(1, 1), **LAST)
NORM = BatchNormOp(shape=(4, 8, 5, 5), layout="channels_last")
FUSED = BatchNormOp(shape=(2, 8, 4, 4), fusion="add_activation", data_type="float16", layout="channels_last")
ENGINE = "cudnn/graph:5"
SPACIOUS = "cudnn/graph:77"
"""Needs a workspace."""
TOLERANCE = {"float16": 5e-3, "bfloat16": 2e-2, "float32": 1e-4, "float64": 1e-9}


@pytest.fixture
def home() -> HostHome:
    return HostHome()


@pytest.fixture
def runner(fake: FakeCudnn, home: HostHome) -> Iterator[CudnnRunner]:
    fake.engine(77)
    fake.config(77, workspace_bytes=1000)
    runner = CudnnRunner(fake.library, home, Environment(backend="cudnn", device="Host"))
    yield runner
    runner.close()
    runner.close()
    assert home.depth == 0


def built(runner: CudnnRunner, op: Op, algorithm: str) -> Plan:
    made = runner.build(op, algorithm)
    assert not isinstance(made, Failure), made
    return Plan(op, Choice(algorithm=algorithm, workspace_bytes=made.workspace_bytes), made)


def on_device(plan: Plan, rows: dict[str, Array]) -> dict[str, OnDevice]:
    return {
        name: OnDevice(shaped(slot, rows[name]), bfloat16=slot.element_type == "bfloat16")
        for name, slot in plan.slots.items()
    }


def check(plan: Plan, rows: dict[str, Array], *, epsilon: float = EPSILON, momentum: float = MOMENTUM) -> None:
    op, read = plan.op, numbers(plan.slots, rows)
    if isinstance(op, BatchNormOp):
        right, element_type = reference.batch_norm(op, read, epsilon=epsilon, momentum=momentum), str(op.data_type)
    else:
        written = {"forward": "output", "backward_data": "input", "backward_filter": "filter"}[op.direction]
        right, element_type = {written: reference.conv(op, read)}, str(op.input_type)
    found = numbers(plan.slots, rows, written=True)
    assert right.keys() == found.keys()
    for name, values in right.items():
        np.testing.assert_allclose(
            found[name], values, rtol=TOLERANCE[element_type], atol=TOLERANCE[element_type], err_msg=name
        )


def run(plan: Plan, seed: int = 0, **given: Any) -> None:
    rows = rows_for(plan.slots.values(), seed)
    plan(**on_device(plan, rows), **given)
    check(plan, rows, **{name: value for name, value in given.items() if name in ("epsilon", "momentum")})


@pytest.mark.parametrize(
    ("op", "algorithm"),
    [
        (CONV, ENGINE),
        (CONV, SPACIOUS),
        (replace(CONV, direction="backward_data", **HALVES), ENGINE),
        (replace(CONV, direction="backward_filter"), ENGINE),
        (ConvOp(input_shape=(1, 4, 9), filter_shape=(4, 2, 3), groups=2), ENGINE),
        (NORM, ENGINE),
        (replace(NORM, phase="backward"), ENGINE),
        (NORM, "cudnn/legacy:spatial"),
        (replace(NORM, data_type="bfloat16"), "cudnn/legacy:spatial_persistent"),
        (replace(NORM, phase="inference"), "cudnn/legacy:spatial"),
        (replace(NORM, phase="backward"), "cudnn/legacy:spatial"),
        (BatchNormOp(shape=(4, 6, 2), statistics="per_activation"), "cudnn/legacy:per_activation"),
        (BatchNormOp(shape=(2, 3, 4), data_type="float64", parameter_type="float64"), "cudnn/legacy:spatial"),
    ],
)
def test_it_computes_the_op(runner: CudnnRunner, op: Op, algorithm: str) -> None:
    with built(runner, op, algorithm) as plan:
        for seed in range(3):
            run(plan, seed)


@pytest.mark.parametrize("algorithm", [ENGINE, "cudnn/legacy:spatial"])
def test_epsilon_and_momentum_are_the_callers(runner: CudnnRunner, algorithm: str) -> None:
    with built(runner, NORM, algorithm) as plan:
        run(plan, epsilon=0.5, momentum=0.25)
        run(plan, epsilon=0.5)
        run(plan)
    with built(runner, CONV, ENGINE) as plan, pytest.raises(InvalidCall, match="batch norm's"):
        run(plan, epsilon=0.5)


def test_running_statistics_may_be_updated_in_place(runner: CudnnRunner) -> None:
    with built(runner, NORM, "cudnn/legacy:spatial") as plan:
        rows = rows_for(plan.slots.values())
        before = {name: row.copy() for name, row in rows.items()}
        arrays = on_device(plan, rows)
        for name in ("mean", "variance"):
            arrays[f"running_{name}"] = arrays[f"previous_{name}"]
        plan(**arrays)
        for name in ("mean", "variance"):
            rows[f"running_{name}"][:] = rows[f"previous_{name}"]
            rows[f"previous_{name}"][:] = before[f"previous_{name}"]
        check(plan, rows)


def test_what_a_fused_forward_pass_reserves_its_backward_pass_reads(runner: CudnnRunner) -> None:
    mode = "cudnn/legacy:spatial_persistent"
    with built(runner, FUSED, mode) as forward, built(runner, replace(FUSED, phase="backward"), mode) as backward:
        assert forward.reserve_bytes == backward.reserve_bytes > 0
        reserve = OnDevice(aligned(forward.reserve_bytes))
        rows = rows_for(forward.slots.values())
        with pytest.raises(InvalidCall, match="reserve"):
            forward(**on_device(forward, rows))
        with pytest.raises(InvalidCall, match="at least"):
            forward(**on_device(forward, rows), reserve=OnDevice(aligned(forward.reserve_bytes - 1)))
        forward(**on_device(forward, rows), reserve=reserve)
        check(forward, rows)
        behind = rows_for(backward.slots.values(), 1) | {
            name: rows[name] for name in ("input", "output", "scale", "bias", "saved_mean", "saved_inverse_deviation")
        }
        backward(**on_device(backward, behind), reserve=reserve)
        check(backward, behind)


def test_what_was_picked_for_a_pair_may_be_run_as_one_or_pass_by_pass(runner: CudnnRunner) -> None:
    pair = replace(FUSED, phase="training")
    mode = "cudnn/legacy:spatial_persistent"
    with built(runner, pair, mode) as both:
        passes = [built(runner, op, mode) for op in pair.passes]
        assert both.workspace_bytes == max(each.workspace_bytes for each in passes)
        assert {both.reserve_bytes} == {each.reserve_bytes for each in passes}
        for plan in passes:
            plan.close()
        rows = rows_for(both.slots.values())
        both(**on_device(both, rows), reserve=OnDevice(aligned(both.reserve_bytes)), epsilon=0.25, momentum=0.5)
        written = numbers(both.slots, rows, written=True)
        right = reference.batch_norm(pair, numbers(both.slots, rows) | written, epsilon=0.25, momentum=0.5)
        assert right.keys() == written.keys()
        for name, values in right.items():
            np.testing.assert_allclose(written[name], values, rtol=5e-3, atol=5e-3, err_msg=name)


def test_a_workspace_is_the_callers_or_one_for_each_stream(runner: CudnnRunner, home: HostHome) -> None:
    with built(runner, CONV, SPACIOUS) as plan:
        assert plan.workspace_bytes == 1000
        run(plan, workspace=OnDevice(aligned(1000)))
        assert home.taken_bytes == 0
        run(plan)
        run(plan)
        assert home.taken_bytes == 1000
        run(plan, stream=9)
        assert home.taken_bytes == 2000
        for wrong, rule in ((aligned(999), "at least 1000"), (aligned(2000)[8:], "multiple of 256")):
            with pytest.raises(InvalidCall, match=rule):
                run(plan, workspace=OnDevice(wrong))
    assert home.taken_bytes == 0


def test_a_stream_of_each_thread_has_a_workspace_of_each_thread(runner: CudnnRunner, home: HostHome) -> None:
    """cudaStreamPerThread is one name for many streams, which do not wait for each other."""
    with built(runner, CONV, SPACIOUS) as plan:
        for _ in range(2):
            run(plan, stream=2)
        assert home.taken_bytes == 1000
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run, plan, stream=2).result()
            pool.submit(run, plan, stream=2).result()
            assert home.taken_bytes == 2000
            pool.submit(run, plan, stream=9).result()
        run(plan, stream=9)
        assert home.taken_bytes == 3000
    assert home.taken_bytes == 0


def test_nothing_is_allocated_while_a_graph_is_captured(runner: CudnnRunner, home: HostHome) -> None:
    home.capturing.add(9)
    with built(runner, CONV, SPACIOUS) as plan:
        run(plan)
        with pytest.raises(InvalidCall, match="must be given to a call that is captured"):
            run(plan, stream=9)
        run(plan, stream=9, workspace=OnDevice(aligned(1000)))
        home.capturing.clear()
        run(plan, stream=9)
        home.capturing.add(9)
        run(plan, stream=9)


def test_it_runs_on_the_stream_that_is_named(fake: FakeCudnn, runner: CudnnRunner, home: HostHome) -> None:
    class Torch:
        cuda_stream = 0xA

    class Cupy:
        ptr = 0xB

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0xC

    with built(runner, CONV, ENGINE) as plan:
        fake.journal()
        for stream in (None, None, 8, Torch(), Cupy(), Protocol()):
            run(plan, stream=stream)
        told = words_on_streams(fake.journal())
    assert [line for line in told if line.startswith("execute")] == [
        f"execute on {number:#x}" for number in (5, 5, 8, 0xA, 0xB, 0xC)
    ]
    assert sum(line.startswith("stream") for line in told) == 5, "set where it changes, only"


@pytest.mark.parametrize("stream", [-1, 1.5, True, "7", object(), 1 << 64])
def test_what_is_no_stream(stream: object) -> None:
    with pytest.raises(InvalidCall, match="must be a stream"):
        stream_number(stream)


def test_a_stream_of_a_stranger_may_raise() -> None:
    class Broken:
        def __cuda_stream__(self) -> tuple[int, int]:
            raise KeyError("gone")

    with pytest.raises(InvalidCall, match="gone"):
        stream_number(Broken())


def test_arrays_elsewhere_are_refused(runner: CudnnRunner, home: HostHome) -> None:
    with built(runner, CONV, ENGINE) as plan:
        rows = rows_for(plan.slots.values())
        arrays: dict[str, Any] = dict(on_device(plan, rows))
        home.elsewhere[rows["filter"].ctypes.data] = 1
        with pytest.raises(InvalidCall, match="must be on device 3") as refused:
            plan(**arrays)
        assert (refused.value.field, refused.value.value) == ("filter", "device 1")
        home.elsewhere = {rows["filter"].ctypes.data: HOST}
        with pytest.raises(InvalidCall, match="the host's memory"):
            plan(**arrays)
        home.elsewhere = {}
        with pytest.raises(InvalidCall, match="the host's memory"):
            plan(**(arrays | {"filter": shaped(plan.slots["filter"], rows["filter"])}))
        plan(**(arrays | {"filter": arrays["filter"]}))


def test_the_same_arrays_are_bound_once(fake: FakeCudnn, runner: CudnnRunner) -> None:
    with built(runner, CONV, ENGINE) as plan:
        rows = [rows_for(plan.slots.values(), seed) for seed in range(12)]
        plan(**on_device(plan, rows[0]))
        before = fake.live()
        for _ in range(3):
            plan(**on_device(plan, rows[0]))
        assert fake.live() == before
        for each in rows:
            plan(**on_device(plan, each))
            check(plan, each)
        assert fake.live() <= before + 8, "packs that nobody needs are given back"


def test_the_same_addresses_in_other_places_are_another_binding(runner: CudnnRunner) -> None:
    """In whatever order they are passed: two buffers that change places from call to call."""
    op = ConvOp(input_shape=(2, 8, 6, 6), filter_shape=(8, 8, 3, 3), padding_low=(1, 1))
    with built(runner, op, ENGINE) as plan:
        rows = rows_for(plan.slots.values())
        arrays = on_device(plan, rows)
        plan(input=arrays["input"], filter=arrays["filter"], output=arrays["output"])
        check(plan, rows)
        rows["input"], rows["output"] = rows["output"], rows["input"]
        plan(output=arrays["input"], filter=arrays["filter"], input=arrays["output"])
        check(plan, rows)


def test_an_array_may_lie_worse_than_was_promised_as_long_as_nothing_relies_on_it(runner: CudnnRunner) -> None:
    with built(runner, replace(CONV, alignment_bytes=1024), ENGINE) as plan:
        slot = plan.slots["input"]
        rows = rows_for(plan.slots.values())
        for offset_bytes, is_good in ((256, True), (128, False)):
            moved = aligned(4096 + rows["input"].nbytes)[offset_bytes:][: rows["input"].nbytes].view(np.float32)
            moved[:] = rows["input"]
            arrays = on_device(plan, rows) | {"input": OnDevice(shaped(slot, moved))}
            if is_good:
                plan(**arrays)
                check(plan, rows)
            else:
                with pytest.raises(InvalidCall, match="multiple of 256"):
                    plan(**arrays)


@pytest.mark.parametrize("off", [0, 16, -16])
@pytest.mark.parametrize("name", ["input", "filter", "workspace"])
def test_what_is_written_lies_apart(runner: CudnnRunner, name: str, off: int) -> None:
    """No candidate was ever run on anything else, and some would read what they have written."""
    with built(runner, CONV, SPACIOUS) as plan:
        memory = aligned(1 << 16).view(np.float32)

        def at(offset_bytes: int, slot: Slot) -> OnDevice:
            return OnDevice(shaped(slot, memory[(4096 + offset_bytes) // 4 :]))

        arrays = on_device(plan, rows_for(plan.slots.values())) | {"output": at(0, plan.slots["output"])}
        if name == "workspace":
            arrays[name] = OnDevice(memory[(4096 + 16 * off) // 4 :][: plan.workspace_bytes])
        else:
            arrays[name] = at(off, plan.slots[name])
        with pytest.raises(InvalidCall, match="overlaps with") as caught:
            plan(**arrays)
        assert "output" in str(caught.value)


@pytest.mark.parametrize("algorithm", [ENGINE, "cudnn/legacy:spatial"])
def test_running_statistics_may_not_take_each_others_place(runner: CudnnRunner, algorithm: str) -> None:
    with built(runner, NORM, algorithm) as plan:
        arrays = on_device(plan, rows_for(plan.slots.values(), 0))
        for changed in (
            {"running_mean": arrays["previous_variance"]},
            {"running_mean": arrays["running_variance"]},
            {"output": arrays["input"]},
        ):
            with pytest.raises(InvalidCall, match="overlaps with"):
                plan(**{**arrays, **changed})


def test_what_is_only_read_may_overlap(runner: CudnnRunner) -> None:
    op = ConvOp(input_shape=(2, 2, 3, 3), filter_shape=(2, 2, 3, 3))
    with built(runner, op, ENGINE) as plan:
        arrays = on_device(plan, rows_for(plan.slots.values(), 0))
        plan(**{**arrays, "filter": arrays["input"]})


def test_threads_take_turns(runner: CudnnRunner) -> None:
    with built(runner, CONV, SPACIOUS) as one, built(runner, NORM, ENGINE) as other, ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run, plan, seed, stream=seed + 1) for seed in range(12) for plan in (one, other)]
        for each in runs:
            each.result()


def test_only_a_first_launch_gives_the_interpreters_lock_up(fake: FakeCudnn, runner: CudnnRunner) -> None:
    with built(runner, CONV, ENGINE) as plan:
        fake.watch_lock()
        fake.journal()
        run(plan)
        run(plan)
        runs = [line[0] for line in fake.journal() if "execute on" in line]
    assert runs == ["-", "+"]


def test_what_the_library_refuses_is_said(fake: FakeCudnn, runner: CudnnRunner, home: HostHome) -> None:
    with built(runner, CONV, ENGINE) as plan:
        fake.script("execute", 5000, what=5, times=1)
        with pytest.raises(RunFailed, match=r"running cudnn/graph:5 for forward .* failed: cuDNN refused"):
            run(plan)
        run(plan)
        fake.script("stream", 2000, times=1)
        with pytest.raises(RunFailed, match="cudnnSetStream"):
            run(plan, stream=6)
        run(plan, stream=6)
    with built(runner, NORM, "cudnn/legacy:spatial") as plan:
        home.fault = CudaFault("cudaMemcpyAsync", 700, "an illegal memory access was encountered")
        with pytest.raises(RunFailed, match="illegal memory access"):
            run(plan)


def test_memory_that_is_not_there_is_said(fake: FakeCudnn) -> None:
    fake.engine(77)
    fake.config(77, workspace_bytes=1 << 20)
    runner = CudnnRunner(fake.library, HostHome(capacity_bytes=1000), Environment(backend="cudnn", device="Host"))
    with built(runner, CONV, SPACIOUS) as plan, pytest.raises(RunFailed, match="1048576 bytes"):
        run(plan)
    runner.close()


@pytest.mark.parametrize(
    ("op", "algorithm"),
    [(CONV, "cudnn/graph:999"), (NORM, "cudnn/legacy:per_activation"), (FUSED, ENGINE), (CONV, ENGINE + "?3=1")],
)
def test_what_the_library_does_not_build(runner: CudnnRunner, op: Op, algorithm: str) -> None:
    assert isinstance(runner.build(op, algorithm), Failure)


def test_plans_outlive_their_runner(fake: FakeCudnn, home: HostHome) -> None:
    before = fake.live()
    runner = CudnnRunner(fake.library, home, Environment(backend="cudnn", device="Host"))
    one, other = built(runner, CONV, ENGINE), built(runner, CONV, ENGINE)
    run(one)
    runner.close()
    run(one)
    run(other)
    one.close()
    run(other)
    with pytest.raises(RunFailed, match="closed"):
        run(one)
    other.close()
    assert fake.live() == before
