"""How good the picks are: against every candidate that was tried, or that there is, and against what PyTorch runs.

Regret is that of `oracle.py`, with tensors in the cache (warm) and never in it (rotating). Beside PyTorch, kernels are
timed alike for both, as a CUDA graph of 20 runs, replayed; each sample is a fresh process, ours and the peers' in turn.

    python bench/quality.py --json bench/results/quality.json
"""

from __future__ import annotations

import asyncio
import json
import statistics
from time import perf_counter
from typing import Any

import apart
import graphs
import machine
import oracle
import torch_peers
from networks import add_networks, asked, described, training_convs
from report import arguments, report, some

import algosearch
from algosearch import Policy
from algosearch.backends.base import Session
from algosearch.ops import ConvOp
from algosearch.records import Candidate, Trial

PEERS = tuple(torch_peers.TRIES)
HOW = ("peers", "limits", "all")
"""Kernels timed beside the peers'; picks under limits; regret against all candidates, not only those tried."""
MIB = 1 << 20
LIMITS = {
    "resnet50_64_fp16_nhwc_regret_tried_warm": "≤ 0.003",
    "resnet50_64_fp32_nchw_regret_tried_warm": "≤ 0.003",
    "resnet50_1_fp16_nhwc_regret_tried_warm": "≤ 0.015",
    "resnet50_64_fp16_nhwc_regret_all_warm": "≤ 0.007",
    "resnet50_64_fp32_nchw_regret_all_warm": "≤ 0.007",
    "resnet50_64_fp16_nhwc_against_torch_benchmark": "≤ -0.06",
    "resnet50_64_fp32_nchw_against_torch_benchmark": "≤ -0.02",
    "resnet50_64_fp16_nhwc_against_torch_heuristic": "< 0",
    "resnet50_64_fp32_nchw_against_torch_heuristic": "< 0",
}


def ours(network: str, case: str, batch: int, how: set[str]) -> dict[str, Any]:
    from algosearch.backends.cudnn import CudnnBackend

    ops = training_convs(network, case, batch)
    limits = (64, 8, 1, 0) if "limits" in how else ()
    graph_us: list[float | None] = []

    async def search() -> tuple[list[algosearch.Choice], dict[int, tuple[float, list[algosearch.Choice]]]]:
        backend = CudnnBackend()
        async with algosearch.open_searcher(store="memory:", backends=[backend], devices=["cudnn:0"]) as searcher:
            choices = await searcher.select_many(ops)
            limited: dict[int, tuple[float, list[algosearch.Choice]]] = {}
            for limit in limits:
                start = perf_counter()
                found = await searcher.select_many(ops, Policy(workspace_limit_bytes=limit * MIB))
                limited[limit] = perf_counter() - start, found
            if "peers" in how:
                graph_us.extend(await graphs_us(searcher, ops, choices))
            return choices, limited

    choices, limited = asyncio.run(search())
    found: dict[str, Any] = {
        "picks": [choice.algorithm for choice in choices],
        "first_us": [choice.first_us for choice in choices],
        "time_us": [choice.time_us for choice in choices],
    }
    if "peers" in how:
        found["graph_us"] = graph_us
    for timing in ("warm", "rotating"):
        backend = CudnnBackend(timing=timing)
        session = backend.open(backend.devices()[0])
        found["device"] = described(session.environment)
        try:
            found[timing] = regrets(session, ops, choices)
            if timing == "warm":
                for limit, (seconds, picked) in limited.items():
                    found[f"limit_{limit}"] = {"seconds": seconds, **regrets(session, ops, picked, limit * MIB)}
                if "all" in how:
                    found["all"] = regrets(session, ops, choices, everything=True)
        finally:
            session.close()
    return found


def regrets(
    session: Session,
    ops: list[ConvOp],
    choices: list[algosearch.Choice],
    limit_bytes: int | None = None,
    *,
    everything: bool = False,
) -> dict[str, Any]:
    """For each op the price of the pick and of the best, against those tried, or all."""
    pairs = []
    for op, choice in zip(ops, choices, strict=True):
        candidates = list(session.enumerate(op, None).candidates) if everything else _near(choice)
        if limit_bytes is not None:
            candidates = [each for each in candidates if each.workspace_bytes <= limit_bytes]
        times = oracle.timed(session, op, candidates)
        if choice.algorithm not in times:  # more than 1.5 times slower than the best
            times |= oracle.timed(session, op, [each for each in candidates if each.algorithm == choice.algorithm])
        pairs.append(oracle.prices(times, choice.algorithm))
    return {"mine_us": [mine for mine, _ in pairs], "best_us": [best for _, best in pairs]}


def _near(choice: algosearch.Choice) -> list[Candidate]:
    tried = [each for each in choice.candidates if isinstance(each, Trial) and each.failure is None]
    timed = [each for each in tried if each.time_us is not None]
    assert choice.time_us is not None
    return [
        Candidate(algorithm=each.algorithm, rank=rank, workspace_bytes=each.workspace_bytes, notes=each.notes)
        for rank, each in enumerate(timed)
        if each.time_us is not None and each.time_us <= oracle.NEAR * choice.time_us
    ]


async def graphs_us(
    searcher: algosearch.Searcher, ops: list[ConvOp], choices: list[algosearch.Choice]
) -> list[float | None]:
    """The time of one run of each pick in a CUDA graph; None for one that cannot be captured."""
    found = []
    for op, choice in zip(ops, choices, strict=True):
        with await searcher.build(op, choice) as plan:
            found.append(graphs.plan_us(plan))
    return found


def torch_graphs(who: str, network: str, case: str, batch: int) -> dict[str, Any]:
    from torch_convs import TorchConv

    torch_peers.set_up(who)
    return {"graph_us": [graphs.torch_us(TorchConv(op)) for op in training_convs(network, case, batch)]}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sample", nargs=5, metavar=("WHO", "NETWORK", "CASE", "BATCH", "HOW"))
    add_networks(parser, 64, 1)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--times", type=some, default=3)
    parser.add_argument("--how", nargs="+", choices=HOW, default=["peers", "limits"])
    options = parser.parse_args()
    if options.sample:
        who, network, case, batch, how = options.sample
        if who == "ours":
            print(json.dumps(ours(network, case, int(batch), set(how.split(",")))))
        else:
            print(json.dumps(torch_graphs(who, network, case, int(batch))))
        return
    machine.needs(parser, gpus=1, peers=options.peers)
    figures: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    for name, network, case, batch in asked(options):
        _add_case(figures, raw, name, (network, case, batch), options)
    report(figures, LIMITS, options.json, raw)


def _add_case(
    figures: dict[str, Any], raw: dict[str, Any], name: str, what: tuple[str, str, int], options: Any
) -> None:
    network, case, batch = what
    samples: dict[str, list[dict[str, Any]]] = {who: [] for who in ("ours", *options.peers)}
    for _ in range(options.times):
        for who, found in samples.items():
            found.append(apart.sample(__file__, who, network, case, batch, ",".join(options.how)))
    raw[name] = samples
    for key, label in (("warm", "tried_warm"), ("rotating", "tried_rotating"), ("all", "all_warm")):
        each = [_regret(sample[key]) for sample in samples["ours"] if key in sample]
        if each:
            figures[f"{name}_regret_{label}"] = statistics.median(each)
    for limit in (64, 8, 1, 0):
        limited = [sample[f"limit_{limit}"] for sample in samples["ours"] if f"limit_{limit}" in sample]
        if limited:
            figures[f"{name}_regret_{limit}_mib"] = statistics.median(map(_regret, limited))
            figures[f"{name}_seconds_{limit}_mib"] = statistics.median(each["seconds"] for each in limited)
    ours_us = _per_op(samples["ours"])
    for who in options.peers if ours_us else ():
        both = [(a, b) for a, b in zip(ours_us, _per_op(samples[who]), strict=True) if a and b]
        mine, theirs = ([pair[side] for pair in both] for side in (0, 1))
        ratios = [a / b - 1 for a, b in both]
        figures[f"{name}_not_captured_beside_{who}"] = len(ours_us) - len(both)
        figures[f"{name}_sum_ms"] = sum(mine) / 1e3
        figures[f"{name}_{who}_sum_ms"] = sum(theirs) / 1e3
        figures[f"{name}_against_{who}"] = sum(mine) / sum(theirs) - 1
        figures[f"{name}_ops_2_percent_slower_than_{who}"] = sum(ratio > 0.02 for ratio in ratios)
        figures[f"{name}_worst_against_{who}"] = max(ratios)


def _regret(found: dict[str, Any]) -> float:
    return float(sum(found["mine_us"]) / sum(found["best_us"]) - 1)


def _per_op(samples: list[dict[str, Any]]) -> list[float | None]:
    """None for an op that could not be captured in every sample."""
    rows = [sample["graph_us"] for sample in samples if "graph_us" in sample]
    return [None if None in each else statistics.median(each) for each in zip(*rows, strict=True)]


if __name__ == "__main__":
    main()
