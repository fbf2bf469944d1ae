"""Convolutions whose channels are filled up with zeros: right in every element, and built again in the caller's
process like all others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from msgspec.structs import replace

from algosearch import Choice, Policy, Searcher
from algosearch.backends.cudnn import CudnnBackend
from algosearch.backends.cudnn.candidates import without_padding
from algosearch.backends.cudnn.padding import padded_to, worthwhile
from algosearch.ops import ConvOp, canonical
from algosearch.ops.conv import DIRECTIONS
from algosearch.records import Trial
from algosearch.records.trial import RUNTIME_COMPILED
from tests.backends.driven import Driven
from tests.backends.padded import padded_candidates
from tests.gpu.arrays import ALL, OnDevice, capture_and_replay, synchronize, with_cupy
from tests.gpu.ops import generated_ops
from tests.gpu.test_candidates import what_is_wrong

pytestmark = pytest.mark.timeout(240)

HALVES: Final[dict[str, Any]] = {"input_type": "float16", "filter_type": "float16", "output_type": "float16"}
BRAINS: Final = dict.fromkeys(HALVES, "bfloat16")
SINGLES: Final = dict.fromkeys(HALVES, "float32")
LAST: Final[dict[str, Any]] = {f"{name}_layout": "channels_last" for name in ("input", "filter", "output")}
STEM: Final = ConvOp(input_shape=(16, 3, 64, 64), filter_shape=(32, 3, 3, 3), padding_low=(1, 1), **HALVES, **LAST)
SHAPES: Final = [
    STEM,
    replace(STEM, input_shape=(16, 1, 64, 64), filter_shape=(64, 1, 5, 5), padding_low=(2, 2), padding_high=(2, 2)),
    replace(STEM, input_shape=(4, 37, 28, 28), filter_shape=(53, 37, 3, 3)),
    replace(STEM, input_shape=(4, 64, 28, 28), filter_shape=(255, 64, 1, 1), padding_low=(0, 0), padding_high=(0, 0)),
    replace(STEM, stride=(2, 2), filter_shape=(128, 3, 3, 3)),
    replace(STEM, **BRAINS),
    replace(STEM, **SINGLES),
    ConvOp(input_shape=(1, 1, 12, 20, 24), filter_shape=(16, 1, 3, 3, 3), **HALVES, **LAST),
    ConvOp(input_shape=(4, 3, 500), filter_shape=(24, 3, 9), **HALVES, **LAST),
]
GENERATED: Final = 60
FEW: Final = 4
"""Padded candidates of each op that are run."""


@pytest.fixture(scope="module")
def driven() -> Iterator[Driven]:
    backend = CudnnBackend()
    with Driven(backend, backend.devices()[0]) as driven:
        yield driven


def wrong(driven: Driven, op: ConvOp) -> tuple[int, list[str]]:
    """As `what_is_wrong`, of the first few padded candidates and, to compare them with, one that is not."""
    multiple = 4 if op.input_type == "float32" else 8
    padded = [each for each in padded_candidates(driven, op, multiple) if RUNTIME_COMPILED not in each.notes]
    others = [each for each in driven.enumerate(op, 1).candidates if "pad" not in each.algorithm]
    count, found = what_is_wrong(driven, op, [*padded[:FEW], *others[:1]])
    return count["candidates"], found


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", SHAPES, ids=ConvOp.describe)
def test_padded_candidates_are_right_in_every_element(driven: Driven, op: ConvOp, direction: Any) -> None:
    ran, found = wrong(driven, canonical(replace(op, direction=direction)))
    assert not found, "\n".join(found)
    assert ran >= 2


def test_padded_candidates_of_many_kinds_of_op_are_right(driven: Driven) -> None:
    ran, seen, found = 0, 0, list[str]()
    for op in generated_ops(12 * GENERATED, seed=13):
        if padded_to(op, 4 if op.input_type == "float32" else 8) is None:
            continue
        count, what = wrong(driven, op)
        ran, seen, found = ran + count, seen + 1, [*found, *what]
        if seen == GENERATED:
            break
    assert not found, "\n".join(found)
    assert seen == GENERATED
    assert ran > 2 * seen


async def padded_picks(searcher: Searcher, op: ConvOp) -> list[Choice]:
    """The search's choice, and the same of each padded candidate that ran in it."""
    choice = await searcher.select(op)
    names = [
        each.algorithm
        for each in choice.candidates
        if isinstance(each, Trial) and each.failure is None and without_padding(each.algorithm)[1] is not None
    ]
    assert names, f"none of {[each.algorithm for each in choice.candidates]} is padded"
    workspaces = {each.algorithm: each.workspace_bytes for each in choice.candidates}
    return [
        choice,
        *(replace(choice, algorithm=name, workspace_bytes=workspaces[name]) for name in names),
    ]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("types", [HALVES, SINGLES], ids=lambda types: types["input_type"])
async def test_padded_plans_run_on_every_kind_of_array(searcher: Searcher, direction: Any, types: Any) -> None:
    op = replace(STEM, direction=direction, **types)
    assert worthwhile(canonical(op)) is not None
    for choice in await padded_picks(searcher, op):
        with await searcher.build(op, choice) as plan:
            assert plan.workspace_bytes == choice.workspace_bytes
            for seed, using in enumerate(ALL):
                there = OnDevice(plan, using, seed)
                plan(**there.arrays)
                there.check()


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_padded_plans_are_captured_and_replayed(searcher: Searcher, direction: Any) -> None:
    op = replace(STEM, direction=direction)
    for choice in await padded_picks(searcher, op):
        with await searcher.build(op, choice) as plan:
            capture_and_replay(plan)


async def test_a_padded_plan_runs_in_threads_that_never_used_the_device(searcher: Searcher) -> None:
    import cupy

    choices = await padded_picks(searcher, STEM)
    with await searcher.build(STEM, choices[-1]) as plan:
        there = [OnDevice(plan, with_cupy, seed) for seed in range(3)]
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in there]
        synchronize()
        together = threading.Barrier(len(there), timeout=60.0)

        def work(number: int) -> None:
            together.wait()
            plan(**there[number].arrays, stream=streams[number].ptr)

        with ThreadPoolExecutor(len(there)) as pool:
            for each in [pool.submit(work, number) for number in range(len(there))]:
                each.result()
        for one in there:
            one.check()


async def test_a_limit_refuses_the_workspace_that_padding_takes(searcher: Searcher) -> None:
    padding = padded_to(canonical(STEM), 8)
    assert padding is not None
    for limit_bytes in (0, padding.scratch_bytes - 1):
        choice = await searcher.select(STEM, Policy(workspace_limit_bytes=limit_bytes))
        assert without_padding(choice.algorithm)[1] is None
        assert choice.workspace_bytes <= limit_bytes
