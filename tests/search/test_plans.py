"""What was picked is built again and run: on the CPU backend, through the searcher's public face.

Most of it from answers that were never timed: to search on a busy machine takes seconds, and makes no other plan.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from algosearch import Choice, Plan, Searcher, open_searcher
from algosearch.backends.cpu import CpuBackend
from algosearch.backends.cpu.norm import EPSILON, MOMENTUM
from algosearch.backends.cpu.running import CpuRunner
from algosearch.errors import (
    InvalidCall,
    InvalidOp,
    InvalidSetting,
    NotBuilt,
    NotRunnable,
    OtherEnvironment,
    RunFailed,
    SearcherClosed,
    UnknownDevice,
    WouldBlockLoop,
)
from algosearch.ops import BatchNormOp, ConvOp, Op, searched_as
from algosearch.records import Environment, InvalidAlgorithm
from tests.backends import reference
from tests.backends.cudnn.memory import aligned
from tests.backends.slots import numbers, rows_for, shaped
from tests.cancelling import cancel_at_every_suspension
from tests.forking import in_child
from tests.search.helpers import scripted, some_op

CONV = ConvOp(input_shape=(2, 4, 6, 5), filter_shape=(8, 4, 3, 3), padding_low=(1, 1))
LAST = ConvOp(
    input_shape=(2, 4, 6, 5),
    filter_shape=(8, 2, 3, 3),
    groups=2,
    direction="backward_filter",
    input_layout="channels_last",
    filter_layout="channels_last",
    output_layout="channels_last",
)
LINE = ConvOp(input_shape=(2, 4, 9), filter_shape=(4, 4, 3), direction="backward_data")
OPS: list[Op] = [
    CONV,
    LAST,
    LINE,
    ConvOp(input_shape=(1, 2, 3, 1, 4), filter_shape=(2, 2, 2, 1, 1)),
    BatchNormOp(shape=(4, 8, 5, 5)),
    BatchNormOp(shape=(4, 8, 5), phase="inference", layout="channels_last"),
    BatchNormOp(shape=(4, 8, 5, 3), phase="backward", fusion="activation", layout="channels_last"),
    BatchNormOp(shape=(4, 6, 2), statistics="per_activation", layout="channels_last"),
    BatchNormOp(shape=(4, 6, 2, 2), fusion="add_activation", data_type="float16"),
    BatchNormOp(shape=(4, 6, 2, 3), phase="training", fusion="add_activation"),
]


@pytest.fixture
async def searcher() -> AsyncIterator[Searcher]:
    async with open_searcher(store="memory:", backends=[CpuBackend()], mode="heuristic") as searcher:
        yield searcher


def right(op: Op, read: dict[str, Any]) -> dict[str, Any]:
    if isinstance(op, BatchNormOp):
        return reference.batch_norm(op, read, epsilon=EPSILON, momentum=MOMENTUM)
    written = {"forward": "output", "backward_data": "input", "backward_filter": "filter"}[op.direction]
    return {written: reference.conv(op, read)}


def check(plan: Plan, *, seed: int = 0, **given: Any) -> None:
    """Run it, and hold every element of every result against the definition."""
    rows = rows_for(plan.slots.values(), seed)
    plan(**{name: shaped(plan.slots[name], row) for name, row in rows.items()}, **given)
    written = numbers(plan.slots, rows, written=True)  # from which the gradients of a pair follow
    expected = right(plan.op, numbers(plan.slots, rows) | written)
    assert expected
    tolerance = 2e-2 if "float16" in str(plan.op) else 1e-4
    for name, values in expected.items():
        np.testing.assert_allclose(rows[name], values, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.describe())
async def test_whatever_could_be_picked_runs(searcher: Searcher, op: Op) -> None:
    choice = await searcher.select(op)
    assert choice.candidates
    for candidate in choice.candidates:
        with await searcher.build(op, replace(choice, algorithm=candidate.algorithm)) as plan:
            if op == searched_as(op):
                assert plan.workspace_bytes == candidate.workspace_bytes
            else:  # one pass of a pair, of which the other may need more
                assert plan.workspace_bytes <= candidate.workspace_bytes
            check(plan)
            check(plan, workspace=aligned(plan.workspace_bytes + 5))


async def test_a_plan_outlives_its_searcher_and_may_be_called_from_many_threads() -> None:
    async with open_searcher(store="memory:", backends=[CpuBackend()], mode="heuristic") as searcher:
        plan = await searcher.build(CONV, await searcher.select(CONV))
    with plan, ThreadPoolExecutor(4) as pool:
        for ended in [pool.submit(check, plan, seed=seed) for seed in range(16)]:
            ended.result()


async def test_the_blocking_door(searcher: Searcher) -> None:
    choice = await searcher.select(CONV)
    with pytest.raises(WouldBlockLoop):
        searcher.build_blocking(CONV, choice)
    with await asyncio.to_thread(searcher.build_blocking, CONV, choice, timeout_s=20) as plan:
        check(plan)
    with pytest.raises(NotBuilt):
        await asyncio.to_thread(searcher.build_blocking, CONV, _other(choice))


async def test_an_answer_that_was_searched_is_built_alike(searcher: Searcher) -> None:
    choice = await searcher.select(CONV, mode="race")
    assert choice.time_us is not None
    with await searcher.build(CONV, choice, device="cpu:0") as plan:
        check(plan)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"input": np.zeros((2, 4, 6, 6), np.float32)}, "must have the shape"),
        ({"input": np.zeros((2, 4, 6, 5), np.float64)}, "must be of float32"),
        ({"input": np.zeros((2, 4, 5, 6), np.float32).transpose(0, 1, 3, 2)}, "must be dense"),
        ({"input": np.zeros((2, 4, 6, 10), np.float32)[..., ::2]}, "must be dense"),
        ({"input": np.zeros(241, np.float32)[1:].reshape(2, 4, 6, 5)}, "must be a multiple of 16"),
        ({"output": np.broadcast_to(np.float32(0), (2, 8, 6, 5))}, "must be dense"),
        ({"input": [[1.0]]}, "must be a CuPy array, a PyTorch tensor"),
        ({"input": None}, "must be a CuPy array, a PyTorch tensor"),
        ({"more": np.zeros(3)}, "must be filter, input, output"),
        ({"workspace": np.zeros(3, np.uint8)}, "must have at least"),
        ({"stream": 7}, "must be left out"),
        ({"epsilon": 1e-5}, "is a batch norm's"),
    ],
)
async def test_what_it_cannot_run_on_is_refused(searcher: Searcher, change: dict[str, Any], rule: str) -> None:
    choice = await searcher.select(CONV)
    picked = next(each for each in choice.candidates if each.workspace_bytes)
    with await searcher.build(CONV, replace(choice, algorithm=picked.algorithm)) as plan:
        arrays = {name: shaped(plan.slots[name], row) for name, row in rows_for(plan.slots.values()).items()}
        with pytest.raises(InvalidCall, match=rule):
            plan(**(arrays | change))
        plan(**arrays)
        arrays["output"].flags.writeable = False
        with pytest.raises(InvalidCall, match="is written"):
            plan(**arrays)


async def test_a_batch_norm_knows_its_own_numbers_only(searcher: Searcher) -> None:
    op = BatchNormOp(shape=(4, 8, 5, 5))
    with await searcher.build(op, await searcher.select(op)) as plan:
        check(plan, epsilon=1e-5, momentum=0.1)
        with pytest.raises(InvalidCall, match="knows no other"):
            check(plan, epsilon=1e-3)
        for wrong in ("1e-5", float("nan"), -1.0):
            with pytest.raises(InvalidCall, match="must be a finite number"):
                check(plan, momentum=wrong)


async def test_parameters_may_have_axes_of_one(searcher: Searcher) -> None:
    op = BatchNormOp(shape=(4, 8, 5, 5), phase="inference")
    with await searcher.build(op, await searcher.select(op)) as plan:
        rows = rows_for(plan.slots.values())
        arrays = {name: shaped(plan.slots[name], row) for name, row in rows.items()}
        plan(**{name: a.reshape(1, 8, 1, 1) if a.ndim == 1 else a for name, a in arrays.items()})
        np.testing.assert_allclose(rows["output"], right(op, numbers(plan.slots, rows))["output"], rtol=1e-4, atol=1e-4)


def _other(choice: Choice) -> Choice:
    return replace(choice, algorithm="cpu/numpy:nothing")


async def test_what_cannot_be_built(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = await searcher.select(CONV)
    with pytest.raises(NotBuilt, match="not_supported: no cpu/numpy:nothing"):
        await searcher.build(CONV, _other(choice))
    with pytest.raises(OtherEnvironment, match="another op"):
        await searcher.build(LINE, choice)
    with pytest.raises(InvalidAlgorithm):
        await searcher.build(CONV, replace(choice, algorithm="nonsense"))
    with pytest.raises(UnknownDevice):
        await searcher.build(CONV, choice, device="cpu:7")
    with pytest.raises(UnknownDevice):
        await searcher.build(CONV, replace(choice, algorithm="cudnn/graph:1"))
    with pytest.raises(InvalidOp):
        await searcher.build("conv", choice)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting):
        await searcher.build(CONV, choice.algorithm)  # type: ignore[arg-type]

    def broken(self: CpuRunner, op: Op, algorithm: str) -> Any:
        raise SystemExit(op)

    monkeypatch.setattr(CpuRunner, "build", broken)
    with pytest.raises(NotBuilt, match="SystemExit"):
        await searcher.build(CONV, choice)


async def test_what_is_scripted_cannot_be_run() -> None:
    async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        with pytest.raises(NotRunnable, match="simulated"):
            await searcher.build(some_op(), await searcher.select(some_op()))


async def test_another_library_than_the_records_is_named() -> None:
    class Updated(CpuBackend):
        def runner(self, device: Any) -> CpuRunner:
            runner = super().runner(device)
            facts = dict(runner.environment.facts) | {"numpy": "0.1"}
            runner.environment = Environment(
                backend=runner.environment.backend, device=runner.environment.device, facts=tuple(facts.items())
            )
            return runner

    async with open_searcher(store="memory:", backends=[Updated()], mode="heuristic") as searcher:
        choice = await searcher.select(CONV)
        with pytest.raises(OtherEnvironment, match=rf"facts.numpy is 0.1, and was {np.__version__}"):
            await searcher.build(CONV, choice)


async def test_closed_is_closed(searcher: Searcher) -> None:
    choice = await searcher.select(CONV)
    plan = await searcher.build(CONV, choice)
    assert "closed" not in repr(plan)
    plan.close()
    plan.close()
    assert "closed" in repr(plan)
    with pytest.raises(RunFailed, match="closed"):
        check(plan)
    searcher.close()
    searcher.close()
    with pytest.raises(SearcherClosed):
        await searcher.build(CONV, choice)


@pytest.mark.parametrize("at_exit", [False, True])
async def test_runners_are_closed_but_not_at_exit(monkeypatch: pytest.MonkeyPatch, at_exit: bool) -> None:
    closed = threading.Event()
    monkeypatch.setattr(CpuRunner, "close", lambda self: closed.set())
    before = set(threading.enumerate())
    async with open_searcher(store="memory:", backends=[CpuBackend()], mode="heuristic") as searcher:
        (await searcher.build(CONV, await searcher.select(CONV))).close()
        (thread,) = (each for each in {*threading.enumerate()} - before if each.name == "algosearch-build")
        if at_exit:
            searcher.close_at_exit()
        searcher.close()
        await asyncio.to_thread(thread.join, 10)
    assert closed.is_set() != at_exit


async def test_a_plan_that_nobody_closed_says_so(searcher: Searcher) -> None:
    choice = await searcher.select(CONV)
    plans = [await searcher.build(CONV, choice)]
    (await searcher.build(CONV, choice)).close()  # the thread that built the first one has let go of it
    with pytest.warns(ResourceWarning, match="was never closed"):
        plans.clear()


async def test_cancelled_at_every_await_nothing_is_left_open(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = await searcher.select(CONV)
    opened: list[Plan] = []
    made = Plan.__init__

    def counting(self: Plan, *args: Any) -> None:
        made(self, *args)
        opened.append(self)

    monkeypatch.setattr(Plan, "__init__", counting)

    async def scenario() -> None:
        (await searcher.build(CONV, choice)).close()

    async def check_closed(_: bool) -> None:
        (await searcher.build(CONV, choice)).close()  # what was to be closed before it, is
        assert all("closed" in repr(plan) for plan in opened)

    assert await cancel_at_every_suspension(scenario, check_closed) > 0
    assert opened


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_child_builds_its_own_and_runs_its_parents(searcher: Searcher) -> None:
    choice = await searcher.select(CONV)
    with await searcher.build(CONV, choice) as inherited:

        def build() -> str:
            check(inherited)
            with searcher.build_blocking(CONV, choice, timeout_s=15) as plan:
                check(plan)
                return plan.choice.algorithm

        assert in_child(build) == choice.algorithm
        check(inherited)
