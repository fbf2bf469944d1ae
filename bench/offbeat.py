"""Convolutions that no network is made of: how good the picks are, and what each key costs.

Many kinds of shapes, three directions, two types. Each pick is held against every candidate that the library lists
(`oracle.py`), beside its own first answer; and against what PyTorch runs with benchmark on, both in CUDA graphs, in
fresh processes in turn. Every case is printed. What cannot be captured is counted, and what PyTorch has not (unequal
padding) left out of that comparison.

With `--gpus N` each GPU has every N-th case; what a case is compared with runs on the same GPU as it did. A run has
three stages (our searches, their prices, the peer's). Of `--seconds` the first has a third at most, the second another
and what the first left, and the third what is left then. What a run did not come to is measured by another one with
`--skip`, which counts the cases of the earlier one, too, with `--join FILE`.

    python bench/offbeat.py --json bench/results/offbeat.json
    python bench/offbeat.py --list padding --against tried --json bench/results/padding.json
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path
from time import perf_counter
from typing import Any

import apart
import machine
import odd_channels
import oracle
from networks import CASES, described
from report import arguments, environment, how_long, report, some, write

import algosearch
from algosearch.backends.base import Session
from algosearch.ops import ConvOp, canonical
from algosearch.records import Candidate, Trial

DIRECTIONS = ("forward", "backward_data", "backward_filter")
STARTING_S = 8.0
"""Until the process of a sample has begun."""
LIMITS = {"regret_geometric_mean": "≤ 0.01", "regret_worst": "≤ 0.05", "picks_refused": "= 0"}

SHAPES: dict[str, dict[str, Any]] = {
    # name: batch, channels, spatial sizes; filters, channels / groups, taps; and the rest
    "tiny": {"input": (1, 8, 5, 5), "filter": (8, 8, 3, 3), "padding": 1},
    "batch_1": {"input": (1, 256, 14, 14), "filter": (256, 256, 3, 3), "padding": 1},
    "odd_channels": {"input": (16, 37, 28, 28), "filter": (53, 37, 3, 3), "padding": 1},
    "three_channels": {"input": (32, 3, 224, 224), "filter": (32, 3, 3, 3), "padding": 1, "stride": 2},
    "three_channels_patch": {"input": (32, 3, 224, 224), "filter": (384, 3, 16, 16), "stride": 16},
    "one_channel": {"input": (64, 1, 64, 64), "filter": (32, 1, 5, 5), "padding": 2},
    "one_filter": {"input": (8, 64, 64, 64), "filter": (1, 64, 3, 3), "padding": 1},
    "depthwise_3": {"input": (32, 96, 56, 56), "filter": (96, 1, 3, 3), "padding": 1, "groups": 96},
    "depthwise_7": {"input": (32, 96, 28, 28), "filter": (96, 1, 7, 7), "padding": 3, "groups": 96},
    "depthwise_stride": {
        "input": (32, 144, 56, 56),
        "filter": (144, 1, 3, 3),
        "padding": 1,
        "stride": 2,
        "groups": 144,
    },
    "groups_32": {"input": (32, 128, 28, 28), "filter": (128, 4, 3, 3), "padding": 1, "groups": 32},
    "groups_2": {"input": (32, 96, 27, 27), "filter": (256, 48, 5, 5), "padding": 2, "groups": 2},
    "dilated_2": {"input": (8, 256, 33, 33), "filter": (256, 256, 3, 3), "padding": 2, "dilation": 2},
    "dilated_12": {"input": (4, 512, 33, 33), "filter": (128, 512, 3, 3), "padding": 12, "dilation": 12},
    "wide_filter": {"input": (16, 32, 64, 64), "filter": (32, 32, 11, 11), "padding": 5},
    "row_filter": {"input": (16, 64, 32, 128), "filter": (64, 64, 1, 7), "padding": (0, 3)},
    "column_filter": {"input": (16, 64, 128, 32), "filter": (64, 64, 7, 1), "padding": (3, 0)},
    "stride_3": {"input": (16, 48, 60, 60), "filter": (96, 48, 5, 5), "padding": 1, "stride": 3},
    "unequal_padding": {"input": (16, 64, 28, 28), "filter": (64, 64, 3, 3), "padding": 0, "behind": 1},
    "no_spatial": {"input": (256, 512, 1, 1), "filter": (1000, 512, 1, 1)},
    "large_image": {"input": (1, 16, 1080, 1920), "filter": (16, 16, 3, 3), "padding": 1},
    "many_channels": {"input": (4, 2048, 7, 7), "filter": (2048, 2048, 1, 1)},
    "line": {"input": (32, 80, 3000), "filter": (384, 80, 3), "padding": 1},
    "line_dilated": {"input": (8, 64, 16000), "filter": (64, 64, 3), "padding": 8, "dilation": 8},
    "cube": {"input": (2, 32, 16, 56, 56), "filter": (64, 32, 3, 3, 3), "padding": 1},
    "cube_1": {"input": (4, 64, 8, 28, 28), "filter": (128, 64, 1, 1, 1), "stride": 2},
    "cube_time": {"input": (4, 64, 16, 28, 28), "filter": (64, 64, 3, 1, 1), "padding": (1, 0, 0)},
}


LISTS = {"all": (CASES, SHAPES), "padding": (odd_channels.CASES, odd_channels.SHAPES)}


def op_of(shape: dict[str, Any], direction: str, case: dict[str, Any]) -> ConvOp:
    """One case."""
    axes = len(shape["input"]) - 2

    def each(value: int | tuple[int, ...]) -> tuple[int, ...]:
        return value if isinstance(value, tuple) else (value,) * axes

    low = each(shape.get("padding", 0))
    behind = each(shape.get("behind", 0))
    data_type, layout = case["data_type"], case["layout"]
    return canonical(
        ConvOp(
            input_shape=shape["input"],
            filter_shape=shape["filter"],
            direction=direction,  # type: ignore[arg-type]
            stride=each(shape.get("stride", 1)),
            dilation=each(shape.get("dilation", 1)),
            padding_low=low,
            padding_high=tuple(a + b for a, b in zip(low, behind, strict=True)),
            groups=shape.get("groups", 1),
            input_layout=layout,
            filter_layout=layout,
            output_layout=layout,
            input_type=data_type,
            filter_type=data_type,
            output_type=data_type,
        )
    )


def cases(listed: str, stride: int = 1, first: int = 0) -> Iterator[tuple[str, ConvOp]]:
    """Every `stride`th of a list, or of one shape of it (`all/cube`), from the `first`."""
    listed, _, only = listed.partition("/")
    types, shapes = LISTS[listed]
    names = [only] if only else list(shapes)
    for case, name, direction in islice(product(types, names, DIRECTIONS), first, None, stride):
        yield f"{name}_{direction}_{case}", op_of(shapes[name], direction, types[case])


Searched = tuple[str, ConvOp, algosearch.Choice, float, float | None]
"""A case's name and op, the choice, the seconds that it took, and µs of a run of it in a CUDA graph."""

Sample = tuple[dict[str, Any], dict[str, Any]]
"""What was found of us, and of the peer."""


async def search(listed: str, stride: int, first: int, stop: float) -> list[Searched]:
    """Search each case, until this moment."""
    import graphs

    from algosearch.backends.cudnn import CudnnBackend

    found: list[Searched] = []
    async with algosearch.open_searcher(
        store="memory:", backends=[CudnnBackend()], devices=["cudnn:0"], isolation="thread"
    ) as searcher:
        await searcher.select(ConvOp(input_shape=(2, 16, 8, 8), filter_shape=(16, 16, 3, 3)))
        for name, op in cases(listed, stride, first):
            start = perf_counter()
            choice = await searcher.select(op)
            took_s = perf_counter() - start
            _say(f"{name} searched in {took_s:.2f} s: {choice.algorithm}")
            with await searcher.build(op, choice) as plan:
                found.append((name, op, choice, took_s, graphs.plan_us(plan)))
            if perf_counter() > stop:
                break
    return found


def ours(listed: str, stride: int, first: int, against: str, seconds: float) -> dict[str, Any]:
    """Of each case the price of the pick, of the library's first answer and of the best, until `seconds` are over, of
    which half is for the searches."""
    from algosearch.backends.cudnn import CudnnBackend

    start = perf_counter()
    stop = start + seconds
    searched = asyncio.run(search(listed, stride, first, start + seconds / 2))
    backend = CudnnBackend()
    session = backend.open(backend.devices()[0])
    found: dict[str, Any] = {"device": described(session.environment), "cases": {}, "refused": []}
    try:
        for number, (name, op, choice, took_s, graph_us) in enumerate(searched):
            _say(f"{name} {number + 1} of {len(searched)}: pricing, {perf_counter() - start:.0f} of {seconds:.0f} s")
            case = priced(session, op, choice, listed, against)
            if case is None:
                found["refused"].append(f"{name} {choice.algorithm}")
            else:
                found["cases"][name] = case | {"seconds": took_s, "graph_us": graph_us}
            if perf_counter() > stop:
                break
    finally:
        session.close()
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def priced(session: Session, op: ConvOp, choice: algosearch.Choice, listed: str, against: str) -> dict[str, Any] | None:
    """One case; None if what was picked does not run, or is not right, when it is looked at again."""
    candidates = list(session.enumerate(op, None).candidates) if against == "all" else _tried(choice)
    if listed.startswith("padding"):
        there = {each.algorithm for each in candidates}
        candidates += [each for each in odd_channels.candidates(session, op) if each.algorithm not in there]
    answer = min(choice.candidates, key=lambda each: each.rank).algorithm
    times = oracle.timed(session, op, candidates)
    far = [each for each in candidates if each.algorithm in {choice.algorithm, answer} - times.keys()]
    times |= oracle.timed(session, op, far) if far else {}
    if choice.algorithm not in times:
        return None
    mine, best = oracle.prices(times, choice.algorithm)
    fastest = min(times, key=lambda algorithm: statistics.median(times[algorithm]))
    case = {
        "op": op.describe(),
        "pick": choice.algorithm,
        "candidates": len(candidates),
        "tried": sum(getattr(each, "time_us", None) is not None for each in choice.candidates),
        "best": fastest,
        "best_rank": next(each.rank for each in candidates if each.algorithm == fastest),
        "mine_us": mine,
        "best_us": best,
        "first_us": oracle.prices(times, answer)[0] if answer in times else None,
    }
    if listed.startswith("padding"):
        medians = {algorithm: statistics.median(each) for algorithm, each in times.items()}
        case |= odd_channels.figures(op, medians, choice.algorithm)
    return case


def _tried(choice: algosearch.Choice) -> list[Candidate]:
    return [
        Candidate(algorithm=each.algorithm, rank=each.rank, workspace_bytes=each.workspace_bytes, notes=each.notes)
        for each in choice.candidates
        if isinstance(each, Trial) and each.failure is None and each.time_us is not None
    ]


def torch_benchmark(listed: str, stride: int, first: int, seconds: float) -> dict[str, Any]:
    """Of each case the time of a run of what PyTorch picks."""
    import graphs
    import torch
    from torch_convs import TorchConv

    torch.backends.cudnn.benchmark = True
    stop, found = perf_counter() + seconds, {}
    for name, op in cases(listed, stride, first):
        if op.padding_low == op.padding_high:
            conv = TorchConv(op)
            start = perf_counter()
            conv()
            torch.cuda.synchronize()
            found[name] = {"seconds": perf_counter() - start, "graph_us": graphs.torch_us(conv)}
            _say(f"{name} run by PyTorch")
        if perf_counter() > stop:
            break
    return {"cases": found}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sample", nargs=6, metavar=("WHO", "LIST", "STRIDE", "FIRST", "AGAINST", "SECONDS"))
    lists = [*LISTS, *(f"{name}/{shape}" for name, (_, shapes) in LISTS.items() for shape in shapes)]
    parser.add_argument(
        "--list", choices=lists, metavar="LIST", default="all", help="all or padding; all/SHAPE for one"
    )
    parser.add_argument("--stride", type=some, default=1, help="take every so manieth case only")
    parser.add_argument("--join", type=Path, metavar="FILE", help="of an earlier run of the same code")
    parser.add_argument("--skip", type=some, default=0, help="leave out so many at the beginning of the list")
    parser.add_argument("--against", choices=("all", "tried"), default="all")
    parser.add_argument("--seconds", type=how_long, default=1e6, help="for one time: then no further case is begun")
    parser.add_argument("--gpus", type=some, default=1, help="so many, side by side")
    parser.add_argument("--times", type=some, default=1)
    options = parser.parse_args()
    if options.sample:
        who, listed, stride, first, against, seconds = options.sample
        if who == "ours":
            print(json.dumps(ours(listed, int(stride), int(first), against, float(seconds))))
        else:
            print(json.dumps(torch_benchmark(listed, int(stride), int(first), float(seconds))))
        return
    if next(cases(options.list, options.stride, options.skip), None) is None:
        parser.error(f"argument --skip: {options.list} has no case behind the first {options.skip}")
    earlier = None if options.join is None else _earlier(parser, options)
    machine.needs(parser, gpus=options.gpus, peers=("torch",))
    samples = [_both(options) for _ in range(options.times)]
    if earlier is not None:
        samples = [_joined(*both) for both in zip(earlier, samples, strict=True)]
    total = sum(1 for _ in cases(options.list))
    report(
        {"cases_in_all": total} | _figures(samples),
        LIMITS,
        options.json,
        {"against": options.against, "samples": samples},
    )


def _earlier(parser: ArgumentParser, options: Any) -> list[Sample]:
    """Those of an earlier run. If this one cannot be joined to them it does not begin."""
    try:
        found = json.loads(options.join.read_text())
        samples = [(mine, theirs) for mine, theirs in found["raw"]["samples"]]
        commit, against = found["environment"]["commit"], found["raw"]["against"]
        _figures(samples)
        names = {name for sample in samples for each in sample for name in each["cases"]}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        parser.error(f"argument --join: {options.join} is no finished run of this bench: {error!r}")

    here = environment()["commit"]
    for what, differs in (
        (f"is of {commit}, and this is {here}", commit != here),
        (f"is against {against}, and this is against {options.against}", against != options.against),
        (f"has {len(samples)} samples, and this will have {options.times}", len(samples) != options.times),
        (f"is not of {options.list}", not names <= {name for name, _ in cases(options.list)}),
        ("would be overwritten before this is joined to it", options.json == options.join),
    ):
        if differs:
            parser.error(f"argument --join: {options.join} {what}")
    return samples


def _both(options: Any) -> Sample:
    """One sample of ours and of the peer. Ours is written down at once, and so outlives a run that is ended."""
    stop = perf_counter() + options.seconds
    mine = _side_by_side("ours", options, options.seconds * 2 / 3)
    if options.json is not None:
        write(options.json, {"unfinished": True, "environment": environment(), "raw": mine})
    return mine, _side_by_side("torch", options, stop - perf_counter())


def _side_by_side(who: str, options: Any, seconds: float) -> dict[str, Any]:
    """One sample of all cases, each GPU with its share, in so many seconds."""

    def share(gpu: int) -> dict[str, Any]:
        what = (who, options.list, options.stride * options.gpus, options.skip + options.stride * gpu)
        visible = str(gpu) if options.gpus > 1 else None
        return apart.sample(__file__, *what, options.against, max(0.0, seconds - STARTING_S), gpu=visible)

    with ThreadPoolExecutor(options.gpus) as threads:
        shares = list(threads.map(share, range(options.gpus)))
    found = {name: case for each in shares for name, case in each["cases"].items()}
    order = [name for name, _ in cases(options.list, options.stride, options.skip)]
    refused = [each for share in shares for each in share.get("refused", ())]
    return shares[0] | {"cases": {name: found[name] for name in order if name in found}, "refused": refused}


def _joined(earlier: Sample, later: Sample) -> Sample:
    """Both as if they had been one."""
    mine, theirs = (
        {**after, "cases": before["cases"] | after["cases"]} for before, after in zip(earlier, later, strict=True)
    )
    return mine | {"refused": earlier[0]["refused"] + later[0]["refused"]}, theirs


def _figures(samples: Sequence[Sample]) -> dict[str, Any]:
    mine = [sample["cases"] for sample, _ in samples]
    theirs = [sample["cases"] for _, sample in samples]
    names = [name for name in mine[0] if all(name in each for each in mine)]
    regrets, firsts, ratios, figures = [], [], [], {}
    uncaptured = 0
    for name in names:
        regret = statistics.median(each[name]["mine_us"] / each[name]["best_us"] - 1 for each in mine)
        first = mine[0][name]["first_us"]
        graph = mine[0][name]["graph_us"]
        peer = theirs[0].get(name, {}).get("graph_us")
        uncaptured += graph is None
        regrets.append(regret)
        firsts.append(1 if first is None else first / mine[0][name]["best_us"])
        if graph and peer:
            ratios.append(graph / peer)
        figures[name] = (
            f"{regret:+.4f} {firsts[-1] - 1:+.3f} "
            f"{'-' if not (graph and peer) else f'{graph / peer - 1:+.3f}'} {mine[0][name]['seconds']:.3f}"
        )
        if "padded_us" in mine[0][name]:
            figures[name] += odd_channels.line(mine[0][name])
    seconds = [each[name]["seconds"] for each in mine for name in names]
    return {
        "": "regret, of the first answer, against PyTorch's benchmark, seconds",
        **figures,
        "cases_measured": len(names),
        "picks_refused": sum(len(sample["refused"]) for sample, _ in samples),
        "regret_geometric_mean": _geometric_mean([1 + each for each in regrets]),
        "regret_worst": max(regrets, default=None),
        "first_answer_geometric_mean": _geometric_mean(firsts),
        "against_torch_benchmark_geometric_mean": _geometric_mean(ratios),
        "against_torch_benchmark_cases": len(ratios),
        "seconds_a_key_mean": statistics.mean(seconds) if seconds else None,
        "seconds_a_key_worst": max(seconds, default=None),
        "uncapturable": uncaptured,
    }


def _geometric_mean(factors: Sequence[float]) -> float | None:
    """By how much more than 1; None of none: where every pick is refused, that is what there is to say."""
    return statistics.geometric_mean(factors) - 1 if factors else None


if __name__ == "__main__":
    main()
