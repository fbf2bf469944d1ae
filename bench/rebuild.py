"""What a second process pays: its answers from disk, and the plans of what was picked built again.

One process fills a directory; every sample is a fresh process that finds all of it there. `answers_ms` is from asking
for all problems at once, when the device's environment is known (it has answered one other question from disk), to the
last answer; `first_answer_s` is the time until then. `build_s` is for the plans of all of them, when the library is
loaded (`library_s`, which is the time of one plan more). `first_runs_s` is the first call of each plan, waited for.

    python bench/rebuild.py --json bench/results/rebuild.json
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from time import perf_counter
from typing import Any

import apart
import machine
from networks import CASES, add_networks, asked, described, training_convs
from report import arguments, report, some

import algosearch
from algosearch.ops import ConvOp

LIMITS = {
    f"resnet50_64_{case}_{figure}": limit
    for case in CASES
    for figure, limit in (("answers_ms", "≤ 15"), ("build_s", "≤ 0.3"))
}
OTHER = ConvOp(input_shape=(2, 16, 8, 8), filter_shape=(16, 16, 3, 3))


async def fill(directory: str, ops: list[ConvOp]) -> None:
    async with algosearch.open_searcher(store=directory, devices=["cudnn:0"]) as searcher:
        await searcher.select_many([OTHER, *ops])


async def find(directory: str, ops: list[ConvOp], *, run: bool) -> dict[str, Any]:
    import cupy
    from graphs import DeviceArray

    cupy.cuda.runtime.free(0)
    found: dict[str, Any] = {"ops": len(ops)}
    start = perf_counter()
    async with algosearch.open_searcher(store=directory, devices=["cudnn:0"], mode="cached") as searcher:
        other = await searcher.select(OTHER)
        found["first_answer_s"] = perf_counter() - start
        start = perf_counter()
        choices = await searcher.select_many(ops)
        found["answers_ms"] = (perf_counter() - start) * 1e3
        start = perf_counter()
        plans = [await searcher.build(OTHER, other)]
        found["library_s"] = perf_counter() - start
        each_ms = []
        begin = perf_counter()
        for op, choice in zip(ops, choices, strict=True):
            start = perf_counter()
            plans.append(await searcher.build(op, choice))
            each_ms.append((perf_counter() - start) * 1e3)
        found["build_s"] = perf_counter() - begin
        found["build_ms"] = each_ms
        if run:
            first_s = 0.0
            for plan in plans[1:]:
                arrays = {name: DeviceArray(slot) for name, slot in plan.slots.items()}
                cupy.cuda.runtime.deviceSynchronize()
                start = perf_counter()
                plan(**arrays)
                cupy.cuda.runtime.deviceSynchronize()
                first_s += perf_counter() - start
            found["first_runs_s"] = first_s
        from algosearch.backends.cudnn import CudnnBackend

        backend = CudnnBackend()
        found["device"] = described(backend.runner(backend.devices()[0]).environment)
        for plan in plans:
            plan.close()
    return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sample", nargs=5, metavar=("WHAT", "DIRECTORY", "NETWORK", "CASE", "BATCH"))
    add_networks(parser, 64)
    parser.add_argument("--times", type=some, default=5)
    options = parser.parse_args()
    if options.sample:
        what, directory, network, case, batch = options.sample
        ops = training_convs(network, case, int(batch))
        if what == "fill":
            asyncio.run(fill(directory, ops))
            print("{}")
        else:
            print(json.dumps(asyncio.run(find(directory, ops, run=what == "run"))))
        return
    machine.needs(parser, gpus=1)
    figures: dict[str, Any] = {}
    raw: dict[str, Any] = {}
    for name, network, case, batch in asked(options):
        with tempfile.TemporaryDirectory() as directory:
            apart.sample(__file__, "fill", directory, network, case, str(batch))
            samples = [
                apart.sample(__file__, "run" if turn == 0 else "find", directory, network, case, str(batch))
                for turn in range(options.times)
            ]
        raw[name] = samples
        for figure in ("first_answer_s", "answers_ms", "library_s", "build_s", "first_runs_s"):
            each = [sample[figure] for sample in samples if figure in sample]
            figures[f"{name}_{figure}"] = statistics.median(each)
    report(figures, LIMITS, options.json, raw)


if __name__ == "__main__":
    main()
