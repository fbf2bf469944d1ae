"""How long the answers for a whole network take when nothing is known, beside what PyTorch's benchmark takes.

Every sample is a fresh process, ours and the peers' in turn. Ours begins when the searcher is open with an empty
directory store and its worker process is up, and ends with the last committed answer. What loading cuDNN takes is
added, for the worker has done that by then. PyTorch's is the sum of the first calls of the same problems, with its
benchmark (which tries ten plans of each problem, or all of them) and with the heuristics' first plan; XLA's what
it takes to compile them in one program, with autotuning at level 4 and without. `whole_s` is from the start of the
process, and has the start of the worker in it. The ledger is that of one search in threads.

The driver keeps the code that it, or a library, compiled at run time (`CUDA_CACHE_PATH`, ~/.nv unless it says
something else). Each sample, ours and the peers', has an empty one to itself, as the first process on a machine or in
a fresh container has; with `--code-cache kept` all share the user's, and from the second process of a kind on nothing
is compiled anew.

    python bench/cold_search.py --json bench/results/cold_search.json
    python bench/cold_search.py --code-cache kept --json bench/results/cold_search_code_kept.json
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from time import perf_counter
from typing import Any

import apart
import machine
import torch_peers
from networks import add_networks, asked, described, training_convs
from report import arguments, report, some

import algosearch
from algosearch.records import Environment

PEERS = (*torch_peers.TRIES, "xla_4", "xla_0")
LIMITS = {
    "resnet50_64_fp16_nhwc_ours_s": "≤ 1.2",
    "resnet50_64_fp32_nchw_ours_s": "≤ 1.3",
    "resnet50_64_fp16_nhwc_times_torch_benchmark": "≥ 8",
    "resnet50_64_fp32_nchw_times_torch_benchmark": "≥ 15",
    "resnet50_64_fp16_nhwc_times_xla_4": "≥ 4",
    "resnet50_64_fp32_nchw_times_xla_4": "≥ 4",
}


def ours(network: str, case: str, batch: int) -> dict[str, Any]:
    from algosearch.backends.cudnn import CudnnBackend

    ops = training_convs(network, case, batch)
    library_s = _elsewhere("library", network, case, batch)["library_s"]
    backend = CudnnBackend()
    begin = perf_counter()

    async def search(directory: str) -> tuple[list[algosearch.Choice], float, float]:
        async with algosearch.open_searcher(store=directory, backends=[backend], devices=["cudnn:0"]) as searcher:
            environment = await _open_device(searcher)
            start = perf_counter()
            choices = await searcher.select_many(ops)
            found["device"] = described(environment)
            return choices, start - begin, perf_counter() - start

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        choices, open_s, search_s = asyncio.run(search(directory))
    return {
        **found,
        "wall_s": library_s + search_s,
        "library_s": library_s,
        "search_s": search_s,
        "open_s": open_s,
        **_told(choices),
    }


def _told(choices: list[algosearch.Choice]) -> dict[str, Any]:
    return {
        "ops": len(choices),
        "final": sum(choice.precision == "final" for choice in choices),
        "picked_ms": sum(choice.time_us or 0.0 for choice in choices) / 1e3,
        "first_ms": sum(choice.first_us or 0.0 for choice in choices) / 1e3,
        "tried": sum(bool(getattr(each, "samples", b"")) for choice in choices for each in choice.candidates),
        "listed": sum(len(choice.candidates) for choice in choices),
    }


async def _open_device(searcher: algosearch.Searcher) -> Environment:
    """Wait until the worker is up and has its device; it has searched nothing yet."""
    engine = searcher._engine
    await engine.ready.wait()
    opening = engine._pool_of("cudnn:0").environment()
    assert engine._loop is not None
    if engine._loop is asyncio.get_running_loop():
        return await opening
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(opening, engine._loop))


def library_s() -> float:
    """What loading cuDNN takes in a process that has its CUDA context: our worker has done that when it is up, and
    it is to be counted."""
    import cupy

    cupy.cuda.runtime.free(0)
    from algosearch.backends.cudnn.library import Library

    start = perf_counter()
    Library.load()
    return perf_counter() - start


def in_threads(network: str, case: str, batch: int) -> dict[str, Any]:
    """The same in this process, and where the time goes."""
    import cupy
    from ledger import Ledger

    from algosearch.backends.cudnn import CudnnBackend

    cupy.cuda.runtime.free(0)
    sys.setswitchinterval(5e-5)  # as a child has it
    ops = training_convs(network, case, batch)
    ledger = Ledger(CudnnBackend())

    async def search(directory: str) -> tuple[list[algosearch.Choice], float]:
        start = perf_counter()
        async with algosearch.open_searcher(store=directory, backends=[ledger], devices=["cudnn:0"]) as searcher:
            choices = await searcher.select_many(ops)
            return choices, perf_counter() - start

    with tempfile.TemporaryDirectory() as directory:
        choices, wall_s = asyncio.run(search(directory))
    return {"wall_s": wall_s, **_told(choices), "ledger": ledger.entries()}


def torch_first_calls(who: str, network: str, case: str, batch: int) -> dict[str, Any]:
    import torch
    from torch_convs import TorchConv

    torch_peers.set_up(who)
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
    match who:
        case "ours":
            return ours(network, case, batch)
        case "ledger":
            return in_threads(network, case, batch)
        case "library":
            return {"library_s": library_s()}
        case "xla_4" | "xla_0":
            from xla_convs import compile_s

            return {"wall_s": compile_s(training_convs(network, case, batch), int(who.removeprefix("xla_")))}
    if who not in torch_peers.TRIES:
        raise ValueError(f"nobody is called {who}")
    return torch_first_calls(who, network, case, batch)


def _elsewhere(who: str, network: str, case: str, batch: int, *, code_cache: str = "kept") -> dict[str, Any]:
    """One sample, in a process of its own."""
    with tempfile.TemporaryDirectory() as empty:
        variables = {"CUDA_CACHE_PATH": empty} if code_cache == "empty" else {}
        return apart.sample(__file__, who, network, case, batch, time.time(), variables=variables)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sample", nargs=5, metavar=("WHO", "NETWORK", "CASE", "BATCH", "STARTED"))
    add_networks(parser, 64)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--code-cache", choices=("empty", "kept"), default="empty")
    parser.add_argument("--no-ledger", dest="ledger", action="store_false", help="not where the time goes")
    parser.add_argument("--times", type=some, default=5)
    parser.add_argument("--peer-times", type=some, default=3)
    options = parser.parse_args()
    if options.sample:
        who, network, case, batch, started = options.sample
        found = sample(who, network, case, int(batch))
        print(json.dumps({**found, "whole_s": time.time() - float(started)}))
        return
    machine.needs(parser, gpus=1, peers=options.peers)
    figures: dict[str, Any] = {"code_cache": options.code_cache}
    raw: dict[str, Any] = {}
    for name, network, case, batch in asked(options):
        _add_case(figures, raw, name, (network, case, batch), options)
    report(figures, LIMITS, options.json, raw)


def _add_case(
    figures: dict[str, Any], raw: dict[str, Any], name: str, what: tuple[str, str, int], options: Any
) -> None:
    network, case, batch = what
    samples: dict[str, list[dict[str, Any]]] = {who: [] for who in ("ours", *options.peers)}
    for turn in range(max(options.times, options.peer_times)):
        for who, found in samples.items():
            if turn < (options.times if who == "ours" else options.peer_times):
                found.append(_elsewhere(who, network, case, batch, code_cache=options.code_cache))
    if options.ledger:
        samples["ledger"] = [_elsewhere("ledger", network, case, batch, code_cache=options.code_cache)]
    raw[name] = samples
    medians = {who: statistics.median(each["wall_s"] for each in found) for who, found in samples.items() if found}
    mine = sorted(samples["ours"], key=lambda each: each["wall_s"])[len(samples["ours"]) // 2]
    figures |= {f"{name}_{who}_s": seconds for who, seconds in medians.items()}
    figures |= {f"{name}_times_{who}": medians[who] / medians["ours"] for who in options.peers}
    figures |= {f"{name}_whole_s": statistics.median(each["whole_s"] for each in samples["ours"])}
    figures |= {
        f"{name}_{key}": mine[key]
        for key in ("ops", "final", "listed", "tried", "picked_ms", "first_ms", "search_s", "library_s", "open_s")
    }
    for each in samples.get("ledger", ()):
        figures |= {f"{name}_ledger_{entry}": value for entry, value in each["ledger"].items()}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
