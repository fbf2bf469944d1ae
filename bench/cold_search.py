"""How long the answers for a whole network take when nothing is known, beside what PyTorch's benchmark takes.

Every sample is a fresh process, ours and the peers' in turn. Ours begins when the process has its CUDA context, its
modules imported and cuDNN not yet loaded, with an empty directory store: from opening the searcher to the last
committed answer. A peer's is the sum of the first calls of the same problems. `whole_s` is from the process's start.

    python bench/cold_search.py --json bench/results/cold_search.json
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from time import perf_counter
from typing import Any

from networks import CASES, described, training_convs
from report import arguments, report

PEERS = ("torch_benchmark", "torch_heuristic")
LIMITS = {
    "resnet50_64_fp16_nhwc_ours_s": "≤ 1.2",
    "resnet50_64_fp32_nchw_ours_s": "≤ 1.3",
    "resnet50_64_fp16_nhwc_times_torch_benchmark": "≥ 8",
    "resnet50_64_fp32_nchw_times_torch_benchmark": "≥ 15",
}


def ours(network: str, case: str, batch: int) -> dict[str, Any]:
    import cupy
    from ledger import Ledger

    import algosearch
    import algosearch.search.engine
    import algosearch.stores.directory
    from algosearch.backends.cudnn import CudnnBackend

    cupy.cuda.runtime.free(0)
    ops = training_convs(network, case, batch)
    ledger = Ledger(CudnnBackend())

    async def search(directory: str) -> tuple[list[algosearch.Choice], float]:
        start = perf_counter()
        async with algosearch.open_searcher(store=directory, backends=[ledger], devices=["cudnn:0"]) as searcher:
            choices = await searcher.select_many(ops)
            return choices, perf_counter() - start

    with tempfile.TemporaryDirectory() as directory:
        choices, wall_s = asyncio.run(search(directory))
    assert all(choice.precision == "final" for choice in choices)
    return {
        "wall_s": wall_s,
        "ops": len(ops),
        "picked_ms": sum(choice.time_us or 0.0 for choice in choices) / 1e3,
        "first_ms": sum(choice.first_us or 0.0 for choice in choices) / 1e3,
        "tried": sum(bool(getattr(each, "samples", b"")) for choice in choices for each in choice.candidates),
        "listed": sum(len(choice.candidates) for choice in choices),
        "ledger": ledger.entries(),
        "device": described(ledger.environment),
    }


def torch_first_calls(network: str, case: str, batch: int, *, benchmark: bool) -> dict[str, Any]:
    import torch
    from torch_convs import TorchConv

    torch.backends.cudnn.benchmark = benchmark
    torch.zeros(1, device="cuda")
    total_s = 0.0
    for op in training_convs(network, case, batch):
        conv = TorchConv(op)
        torch.cuda.synchronize()
        start = perf_counter()
        conv()
        torch.cuda.synchronize()
        total_s += perf_counter() - start
    return {"wall_s": total_s}


def sample(who: str, network: str, case: str, batch: int) -> dict[str, Any]:
    """One sample, in this process."""
    if who == "ours":
        return ours(network, case, batch)
    return torch_first_calls(network, case, batch, benchmark=who == "torch_benchmark")


def fresh(who: str, network: str, case: str, batch: int) -> dict[str, Any]:
    """One sample, in a process of its own."""
    started = time.time()
    command = [sys.executable, __file__, "--sample", who, network, case, str(batch), str(started)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sample", nargs=5, metavar=("WHO", "NETWORK", "CASE", "BATCH", "STARTED"))
    parser.add_argument("--networks", nargs="+", default=["resnet50"])
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--batches", nargs="+", type=int, default=[64])
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--peer-times", type=int, default=3)
    options = parser.parse_args()
    if options.sample:
        who, network, case, batch, started = options.sample
        found = sample(who, network, case, int(batch))
        print(json.dumps({**found, "whole_s": time.time() - float(started)}))
        return
    figures: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    for network in options.networks:
        for batch in options.batches:
            for case in options.cases:
                _add_case(figures, raw, (network, case, batch), options)
    report(figures, LIMITS, options.json, raw)


def _add_case(figures: dict[str, Any], raw: dict[str, Any], what: tuple[str, str, int], options: Any) -> None:
    network, case, batch = what
    name = f"{network}_{batch}_{case}"
    samples: dict[str, list[dict[str, Any]]] = {who: [] for who in ("ours", *options.peers)}
    for turn in range(max(options.times, options.peer_times)):
        for who, found in samples.items():
            if turn < (options.times if who == "ours" else options.peer_times):
                found.append(fresh(who, network, case, batch))
    raw[name] = samples
    medians = {who: statistics.median(each["wall_s"] for each in found) for who, found in samples.items()}
    mine = sorted(samples["ours"], key=lambda each: each["wall_s"])[len(samples["ours"]) // 2]
    figures |= {f"{name}_{who}_s": seconds for who, seconds in medians.items()}
    figures |= {f"{name}_times_{who}": medians[who] / medians["ours"] for who in options.peers}
    figures |= {f"{name}_whole_s": statistics.median(each["whole_s"] for each in samples["ours"])}
    figures |= {f"{name}_{key}": mine[key] for key in ("ops", "listed", "tried", "picked_ms", "first_ms")}
    figures |= {f"{name}_{entry}": value for entry, value in mine["ledger"].items()}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
