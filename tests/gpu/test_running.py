"""What was picked, built again and run on a caller's own arrays: CuPy's, PyTorch's, DLPack's; in graphs and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from algosearch import Choice, Plan, Policy, Searcher
from algosearch.errors import InvalidCall
from algosearch.ops import BatchNormOp, ConvOp, Fusion, Op
from algosearch.records.trial import RUNTIME_COMPILED
from tests.backends.slots import shaped
from tests.gpu.arrays import ALL, OnDevice, capture_and_replay, synchronize, with_cupy, with_torch

pytestmark = pytest.mark.timeout(120)

HALVES: Final[dict[str, Any]] = {"input_type": "float16", "filter_type": "float16", "output_type": "float16"}
LAST: Final[dict[str, Any]] = {f"{name}_layout": "channels_last" for name in ("input", "filter", "output")}
CONV = ConvOp(input_shape=(4, 32, 14, 14), filter_shape=(64, 32, 3, 3), padding_low=(1, 1), **HALVES, **LAST)
SINGLE = ConvOp(input_shape=(4, 16, 12, 12), filter_shape=(24, 16, 3, 3), padding_low=(1, 1))
NORM = BatchNormOp(shape=(8, 32, 9, 9), layout="channels_last", data_type="float16")
FUSED = replace(NORM, shape=(8, 64, 9, 9), fusion="add_activation")
OPS: Final[list[Op]] = [
    CONV,
    replace(CONV, direction="backward_data"),
    replace(CONV, direction="backward_filter"),
    SINGLE,
    replace(SINGLE, direction="backward_data", stride=(2, 2)),
    replace(SINGLE, direction="backward_filter"),
    ConvOp(input_shape=(2, 32, 10, 10), filter_shape=(32, 8, 3, 3), groups=4, **HALVES, **LAST),
    ConvOp(input_shape=(2, 8, 6, 7, 8), filter_shape=(8, 8, 3, 3, 3)),
    ConvOp(input_shape=(2, 8, 30), filter_shape=(8, 8, 5)),
    NORM,
    replace(NORM, phase="backward"),
    replace(NORM, phase="inference", layout="channels_first", data_type="float32"),
    replace(NORM, data_type="float32", layout="channels_first"),
    BatchNormOp(shape=(16, 8, 5), statistics="per_activation"),
]
TRIED: Final = 6
"""Candidates of each op: the pick, and the first of the others."""


async def picks(searcher: Searcher, op: Op) -> list[Choice]:
    """Choices of the best and of the first few others."""
    choice = await searcher.select(op)
    names = [choice.algorithm]
    for each in choice.candidates:
        if RUNTIME_COMPILED not in each.notes and getattr(each, "time_us", None) is not None:
            names.append(each.algorithm)
    return [replace(choice, algorithm=name) for name in list(dict.fromkeys(names))[:TRIED]]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.describe())
async def test_every_pick_is_right_on_every_kind_of_array(searcher: Searcher, op: Op) -> None:
    for choice in await picks(searcher, op):
        with await searcher.build(op, choice) as plan:
            for seed, using in enumerate(ALL):
                there = OnDevice(plan, using, seed)
                plan(**there.arrays)
                there.check()


async def test_a_limited_policys_pick_needs_no_more_than_it_says(searcher: Searcher) -> None:
    choice = await searcher.select(CONV, Policy(workspace_limit_bytes=0))
    with await searcher.build(CONV, choice) as plan:
        assert plan.workspace_bytes == choice.workspace_bytes == 0


async def test_a_fused_forward_pass_and_its_backward_pass(searcher: Searcher) -> None:
    import cupy

    behind = replace(FUSED, phase="backward")
    one, other = await searcher.select_many([FUSED, behind])
    assert one == other
    assert one.reserve_bytes > 0
    with await searcher.build(FUSED, one) as forward, await searcher.build(behind, other) as backward:
        reserve = cupy.empty(forward.reserve_bytes, np.uint8)
        there, back = OnDevice(forward, with_cupy), OnDevice(backward, with_cupy, 1)
        assert max(forward.workspace_bytes, backward.workspace_bytes) == one.workspace_bytes
        assert forward.reserve_bytes == backward.reserve_bytes == one.reserve_bytes
        forward(**there.arrays, reserve=reserve)
        there.check()
        shared = ("input", "output", "scale", "bias", "saved_mean", "saved_inverse_deviation")
        for name in shared:
            back.rows[name][:] = there.rows[name]
            back._there[name].set(back.rows[name])
        backward(**back.arrays, reserve=reserve)
        back.check()


@pytest.mark.parametrize("fusion", ["activation", "add_activation"])
async def test_both_passes_of_a_pair_in_one_call(searcher: Searcher, fusion: Fusion) -> None:
    import cupy

    pair = replace(FUSED, phase="training", fusion=fusion)
    choice = await searcher.select(pair)
    with await searcher.build(pair, choice) as plan:
        assert (plan.workspace_bytes, plan.reserve_bytes) == (choice.workspace_bytes, choice.reserve_bytes)
        there = OnDevice(plan, with_cupy)
        reserve = {"reserve": cupy.empty(plan.reserve_bytes, np.uint8)} if plan.reserve_bytes else {}
        plan(**there.arrays, **reserve)
        there.check()


async def test_running_statistics_in_place(searcher: Searcher) -> None:
    for choice in await picks(searcher, NORM):
        with await searcher.build(NORM, choice) as plan:
            there = OnDevice(plan, with_torch)
            apart = OnDevice(plan, with_torch)
            plan(**apart.arrays)
            apart.check()
            arrays = dict(there.arrays)
            for name in ("mean", "variance"):
                arrays[f"running_{name}"] = arrays[f"previous_{name}"]
            plan(**arrays)
            synchronize()
            for name in ("mean", "variance"):
                found = there._there[f"previous_{name}"].cpu().numpy()
                np.testing.assert_allclose(found, apart.rows[f"running_{name}"], rtol=1e-6)


@pytest.mark.parametrize("op", [CONV, replace(SINGLE, direction="backward_filter"), NORM], ids=lambda op: op.describe())
async def test_captured_and_replayed(searcher: Searcher, op: Op) -> None:
    for choice in await picks(searcher, op):
        with await searcher.build(op, choice) as plan:
            capture_and_replay(plan)


async def test_two_threads_with_a_plan_each_and_with_one_for_both(searcher: Searcher) -> None:
    import cupy

    choice, single = await searcher.select(CONV), await searcher.select(SINGLE)

    def work(plan: Plan, seed: int) -> None:
        with cupy.cuda.Device(0):
            stream = cupy.cuda.Stream(non_blocking=True)
            for turn in range(5):
                there = OnDevice(plan, with_cupy, seed + turn)
                synchronize()
                plan(**there.arrays, stream=stream)
                there.check()

    with (
        await searcher.build(CONV, choice) as one,
        await searcher.build(SINGLE, single) as other,
        ThreadPoolExecutor(3) as pool,
    ):
        for each in [pool.submit(work, plan, seed) for seed, plan in ((0, one), (20, one), (40, other))]:
            each.result()


async def test_what_it_cannot_run_on(searcher: Searcher) -> None:
    import torch

    with await searcher.build(SINGLE, await searcher.select(SINGLE)) as plan:
        there = OnDevice(plan, with_torch)
        host = {name: shaped(plan.slots[name], row) for name, row in there.rows.items()}
        for wrong, rule in (
            ({"input": host["input"]}, "the host's memory"),
            ({"input": there.arrays["input"].cpu()}, "the host's memory"),
            ({"input": there.arrays["input"].half()}, "must be of float32"),
            ({"input": there.arrays["input"].contiguous(memory_format=torch.channels_last)}, "must be dense"),
            ({"stream": "default"}, "must be a stream"),
        ):
            with pytest.raises(InvalidCall, match=rule):
                plan(**(there.arrays | wrong))
        plan(**there.arrays, stream=torch.cuda.Stream())
        there.check()
