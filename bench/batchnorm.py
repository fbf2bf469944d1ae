"""The batch norms of ResNet-50's training step: how good the picks are, and whether their sizes are the library's.

Forward and backward, plain and fused, both layouts, three types. A fused one is a pair: one case, one choice, the time
of both passes. Each pick is held against every one that was tried (`oracle.py`), and against what frameworks take by
rule: the persistent mode for channels-last tensors of half precision, else the spatial one; of a pair, for both passes.
Sizes are held against the legacy API's own queries, through another handle: of a pair, the larger workspace of its two
passes, and the reserve of each. `pairs_apart` counts those whose passes, asked one by one, got another choice than the
pair. `size_us` is what a size costs that is known, beside `hit_us` for an answer. Beside the times are errors, against
the definition in float64 (`accuracy.py`): the pick's, and that of what the rule says; of a type and layout the worst.

    python bench/batchnorm.py --types float16 --json bench/results/batchnorm_fp16.json
    python bench/batchnorm.py --types bfloat16 float32 --json bench/results/batchnorm_bf16_fp32.json
"""

from __future__ import annotations

import asyncio
import json
import statistics
from itertools import product
from time import perf_counter
from typing import Any

import accuracy
import apart
import machine
import oracle
from networks import described
from report import arguments, how_long, report, some

import algosearch
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.compiler import ReadOptions
from algosearch.compiler.training import expand
from algosearch.compiler.workloads import build_workload
from algosearch.ops import BatchNormOp, canonical
from algosearch.records import Candidate, Trial

TYPES = ("float16", "bfloat16", "float32")
LAYOUTS = ("channels_last", "channels_first")
LIMITS = {"regret_sum": "≤ 0.01", "regret_worst": "≤ 0.01", "sizes_that_differ": "0", "pairs_apart": "0"}
KINDS = (
    ("training_forward", "none"),
    ("backward", "none"),
    ("training", "activation"),
    ("training", "add_activation"),
)
"""(phase, fusion)."""
ASKED = 2000


def norms(data_type: str, layout: str, batch: int) -> list[BatchNormOp]:
    """Of one training step, each once; of each shape the pairs as well, which a pass would make of it."""
    options = ReadOptions(batch=batch, data_type=data_type, layout=layout)  # type: ignore[arg-type]
    nodes = expand(build_workload("resnet50", options).nodes)
    plain = dict.fromkeys(canonical(node.op) for node in nodes if isinstance(node.op, BatchNormOp))
    shapes = list(dict.fromkeys(op.shape for op in plain))
    return [
        canonical(BatchNormOp(shape=shape, phase=phase, fusion=fusion, layout=layout, data_type=data_type))  # type: ignore[arg-type]
        for shape, (phase, fusion) in product(shapes, KINDS)
    ]


def by_rule(op: BatchNormOp) -> str:
    """What frameworks take."""
    half = op.data_type in ("float16", "bfloat16")
    persistent = op.layout == "channels_last" and half
    return f"cudnn/legacy:{'spatial_persistent' if persistent else 'spatial'}"


def sample(data_type: str, layout: str, batch: int, seconds: float) -> dict[str, Any]:
    """One sample, in this process."""
    from algosearch.backends.cudnn import CudnnBackend

    ops = norms(data_type, layout, batch)
    found: dict[str, Any] = {"ops": len(ops), "cases": {}, "unsupported": [], "apart": []}

    async def search() -> dict[BatchNormOp, algosearch.Choice]:
        choices: dict[BatchNormOp, algosearch.Choice] = {}
        async with algosearch.open_searcher(
            store="memory:", backends=[CudnnBackend()], devices=["cudnn:0"], isolation="thread"
        ) as searcher:
            for op in ops:
                start = perf_counter()
                try:
                    choices[op] = await searcher.select(op)
                except algosearch.NoAlgorithm:
                    found["unsupported"].append(op.describe())
                    continue
                found["cases"][op.describe()] = {"seconds": perf_counter() - start}
                if any(choice != choices[op] for choice in await searcher.select_many(op.passes)):
                    found["apart"].append(op.describe())
                if perf_counter() > stop:
                    break
            found.update(await _hits(searcher, next(iter(choices))))
        return choices

    stop = perf_counter() + seconds
    choices = asyncio.run(search())
    backend = CudnnBackend()
    session = backend.open(backend.devices()[0])
    found["device"] = described(session.environment)
    try:
        for op, choice in choices.items():
            found["cases"][op.describe()] |= _priced(session, op, choice)
    finally:
        session.close()
    found["sizes_that_differ"] = _sizes_that_differ(choices)
    return found


async def _hits(searcher: algosearch.Searcher, op: BatchNormOp) -> dict[str, float]:
    start = perf_counter()
    for _ in range(ASKED):
        await searcher.select(op)
    hit_us = (perf_counter() - start) * 1e6 / ASKED
    start = perf_counter()
    for _ in range(ASKED):
        _ = (await searcher.select(op)).reserve_bytes
    return {"hit_us": hit_us, "size_us": (perf_counter() - start) * 1e6 / ASKED}


def _priced(session: CudnnSession, op: BatchNormOp, choice: algosearch.Choice) -> dict[str, Any]:
    tried = [each for each in choice.candidates if isinstance(each, Trial) and each.time_us is not None]
    candidates = [
        Candidate(
            algorithm=each.algorithm,
            rank=each.rank,
            workspace_bytes=each.workspace_bytes,
            notes=each.notes,
            reserve_bytes=each.reserve_bytes,
        )
        for each in tried
        if each.failure is None
    ]
    times = oracle.timed(session, op, candidates)
    rule = by_rule(op)
    far = [each for each in candidates if each.algorithm in {choice.algorithm, rule} - times.keys()]
    times |= oracle.timed(session, op, far) if far else {}
    mine, best = oracle.prices(times, choice.algorithm)
    exact = accuracy.errors(session, op, [each for each in candidates if each.algorithm in {choice.algorithm, rule}])
    return {
        "pick": choice.algorithm,
        "error": exact.get(choice.algorithm),
        "rule_error": exact.get(rule),
        "pair": op.phase == "training",
        "mine_us": mine,
        "best_us": best,
        "rule_us": oracle.prices(times, rule)[0] if rule in times else None,
        "candidates": len(candidates),
    }


def _sizes_that_differ(choices: dict[BatchNormOp, algosearch.Choice]) -> list[str]:
    from algosearch.backends.cudnn.candidates import legacy_algorithm
    from algosearch.backends.cudnn.handle import Handle
    from algosearch.backends.cudnn.legacy_norm import LegacyNorm
    from algosearch.backends.cudnn.library import Library

    handle = Handle(Library.load())
    differing = []
    for op, choice in choices.items():
        asked: dict[str, list[tuple[int, int]]] = {}
        for one in op.passes:
            for mode in LegacyNorm(handle, one).candidates():
                sizes = asked.setdefault(str(legacy_algorithm(mode.mode)), [])
                sizes.append((mode.workspace_bytes, mode.reserve_bytes))
        for each in choice.candidates:
            queried = asked.get(each.algorithm, [])
            largest = max((workspace_bytes for workspace_bytes, _ in queried), default=each.workspace_bytes)
            reserves = {reserve_bytes for _, reserve_bytes in queried} or {each.reserve_bytes}
            if (largest, reserves) != (each.workspace_bytes, {each.reserve_bytes}):
                differing.append(f"{op.describe()}: {each.algorithm}")
    handle.destroy()
    return differing


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sample", nargs=4, metavar=("TYPE", "LAYOUT", "BATCH", "SECONDS"))
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--batch", type=some, default=64)
    parser.add_argument("--times", type=some, default=1)
    parser.add_argument("--seconds", type=how_long, default=1e6, help="begin no further op of a sample after so many")
    options = parser.parse_args()
    if options.sample:
        data_type, layout, batch, seconds = options.sample
        print(json.dumps(sample(data_type, layout, int(batch), float(seconds))))
        return
    machine.needs(parser, gpus=1)
    raw = {
        f"{data_type}_{layout}": [
            apart.sample(__file__, data_type, layout, str(options.batch), str(options.seconds))
            for _ in range(options.times)
        ]
        for data_type, layout in product(options.types, options.layouts)
    }
    report(_figures(raw), LIMITS, options.json, raw)


def _figures(raw: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    everything = [case for samples in raw.values() for each in samples for case in each["cases"].values()]
    for name, samples in raw.items():
        found = [case for each in samples for case in each["cases"].values()]
        ruled = [case for case in found if case["rule_us"]]
        figures[f"{name}_ops_in_all"] = samples[0]["ops"]
        figures[f"{name}_ops"] = len(samples[0]["cases"])
        figures[f"{name}_unsupported"] = len(samples[0]["unsupported"])
        figures[f"{name}_regret"] = _ratio(found, "mine_us", "best_us")
        figures[f"{name}_against_rule"] = _ratio(ruled, "mine_us", "rule_us") if ruled else None
        pairs = [case for case in found if case["pair"]]
        figures[f"{name}_pairs"] = len(pairs)
        figures[f"{name}_pairs_regret"] = _ratio(pairs, "mine_us", "best_us") if pairs else None
        ruled = [case for case in pairs if case["rule_us"]]
        figures[f"{name}_pairs_against_rule"] = _ratio(ruled, "mine_us", "rule_us") if ruled else None
        for key in ("error", "rule_error"):
            figures[f"{name}_{key}"] = max((case[key] for case in found if case[key] is not None), default=None)
        figures[f"{name}_seconds_a_key"] = statistics.mean(case["seconds"] for case in found)
    first = next(iter(raw.values()))[0]
    return figures | {
        "regret_sum": _ratio(everything, "mine_us", "best_us"),
        "regret_worst": max(case["mine_us"] / case["best_us"] - 1 for case in everything),
        "sizes_that_differ": sum(len(each["sizes_that_differ"]) for samples in raw.values() for each in samples),
        "pairs_apart": sum(len(each["apart"]) for samples in raw.values() for each in samples),
        "hit_us": first["hit_us"],
        "size_us": first["size_us"],
    }


def _ratio(found: list[dict[str, Any]], over: str, under: str) -> float:
    return float(sum(case[over] for case in found) / sum(case[under] for case in found) - 1)


if __name__ == "__main__":
    main()
