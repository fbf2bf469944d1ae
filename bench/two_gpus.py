"""Two processes and one store: with a GPU each, how much faster than one; on one GPU, whether picks stay as good.

Each process searches all convolutions of a network's training step, against one empty directory; the second begins at
the end of the list, as ranks do that want each other's answers late. `faster` is the time of one process alone over
that of two, both from the moment when every process has its device open to the last answer of the last one. Answers are
interchangeable if both processes gave the same ones (`choices_digest`).

    python bench/two_gpus.py --json bench/results/two_gpus.json            # needs two GPUs
    python bench/two_gpus.py --shared --json bench/results/one_gpu_shared.json
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import apart
import machine
import oracle
from networks import CASES, NETWORKS, described, training_convs
from report import arguments, report, some

import algosearch
from algosearch.ops import ConvOp
from algosearch.records import Candidate, Trial

LIMITS = {"faster": "≥ 1.6", "interchangeable": "True", "regret": "≤ 0.003 fp16 and fp32"}
OTHER = ConvOp(input_shape=(2, 16, 8, 8), filter_shape=(16, 16, 3, 3))


def wait_to_go(directory: str, rank: int) -> None:
    """Say that this process is ready, and wait until all are."""
    Path(directory, f"ready-{rank}").touch()
    while not Path(directory, "go").exists():
        time.sleep(0.002)


def store_of(directory: str, rank: int) -> str:
    """Where a process keeps its records: the server, if one listens there, with a directory of its own before it."""
    socket = Path(directory, "server", "s")
    return f"unix://{socket}?directory={directory}/{rank}" if socket.exists() else directory


async def work(network: str, case: str, batch: int, directory: str, rank: int) -> dict[str, Any]:
    """One process's part: everything is its to ask, and whose search it was is all the same."""
    ops = training_convs(network, case, batch)
    if rank:
        ops.reverse()
    async with algosearch.open_searcher(store=store_of(directory, rank), devices=["cudnn:0"]) as searcher:
        await searcher.select(OTHER, mode="heuristic")  # the device is open, and nothing searched
        await asyncio.to_thread(wait_to_go, directory, rank)
        began = time.time()
        choices = await searcher.select_many(ops)
        ended = time.time()
        statistics_ = searcher.statistics().engine
        digest = searcher.choices_digest()
    found = {"began": began, "ended": ended, "searched": statistics_.searched, "digest": digest.digest}
    return found | {
        "answers": digest.choices,
        "choices": {op.describe(): c.algorithm for op, c in zip(ops, choices, strict=True)},
    }


def regrets(network: str, case: str, batch: int, directory: str) -> dict[str, Any]:
    """What the stored answers are worth, on a quiet device."""
    from algosearch.backends.cudnn import CudnnBackend

    ops = training_convs(network, case, batch)

    async def stored() -> list[algosearch.Choice]:
        async with algosearch.open_searcher(
            store=store_of(directory, 0), devices=["cudnn:0"], mode="cached"
        ) as searcher:
            return await searcher.select_many(ops)

    choices = asyncio.run(stored())
    backend = CudnnBackend()
    session = backend.open(backend.devices()[0])
    mine_us, best_us = [], []
    try:
        for op, choice in zip(ops, choices, strict=True):
            near = [
                Candidate(algorithm=each.algorithm, rank=each.rank, workspace_bytes=each.workspace_bytes)
                for each in choice.candidates
                if isinstance(each, Trial) and each.failure is None and each.time_us is not None
            ]
            mine, best = oracle.prices(oracle.timed(session, op, near), choice.algorithm)
            mine_us.append(mine)
            best_us.append(best)
        return {"mine_us": mine_us, "best_us": best_us, "device": described(session.environment)}
    finally:
        session.close()


@contextmanager
def server(directory: str) -> Iterator[None]:
    """A Valkey of our own, in a directory below this one."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.servers import running

    home = Path(directory, "server")
    home.mkdir()
    with running(home):
        yield


def told(started: Sequence[subprocess.Popen[str]], directory: Path) -> list[dict[str, Any]]:
    """What the processes have to tell, which begin once all of them are ready. If one fails, so does the bench; none
    is left behind."""
    try:
        while not all((directory / f"ready-{rank}").exists() for rank in range(len(started))):
            _look_at(started)
            time.sleep(0.01)

        (directory / "go").touch()
        printed = [each.communicate()[0] for each in started]
        _look_at(started)
        return [json.loads(each.splitlines()[-1]) for each in printed]
    finally:
        for each in started:
            each.kill()  # harmless where it has ended
            each.wait()


def _look_at(started: Sequence[subprocess.Popen[str]]) -> None:
    for each in started:
        if each.poll():
            raise SystemExit(apart.failed(cast("list[str]", each.args)[1:], each.returncode))


def together(count: int, what: tuple[str, str, str], *, shared: bool, served: bool) -> dict[str, Any]:
    """So many processes at once on one empty directory, or server, and what came of it."""
    with tempfile.TemporaryDirectory() as directory, server(directory) if served else nullcontext():
        started = [
            subprocess.Popen(
                [sys.executable, __file__, "--sample", "work", *what, directory, str(rank)],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "0" if shared else str(rank)},
            )
            for rank in range(count)
        ]
        found = told(started, Path(directory))
        priced = apart.sample(__file__, "regrets", *what, directory, 0)
    wall_s = max(each["ended"] for each in found) - min(each["began"] for each in found)
    return {"wall_s": wall_s, "processes": found, **priced}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sample", nargs=6, metavar=("WHAT", "NETWORK", "CASE", "BATCH", "DIRECTORY", "RANK"))
    parser.add_argument("--shared", action="store_true", help="both processes on the first GPU")
    parser.add_argument("--server", action="store_true", help="share a Valkey server, and no directory")
    parser.add_argument("--network", choices=NETWORKS, default="resnet50")
    parser.add_argument("--case", choices=tuple(CASES), default="fp16_nhwc")
    parser.add_argument("--batch", type=some, default=64)
    parser.add_argument("--times", type=some, default=3)
    options = parser.parse_args()
    if options.sample:
        what, network, case, batch, directory, rank = options.sample
        if what == "work":
            print(json.dumps(asyncio.run(work(network, case, int(batch), directory, int(rank)))))
        else:
            print(json.dumps(regrets(network, case, int(batch), directory)))
        return
    machine.needs(parser, gpus=1 if options.shared else 2)
    which = (options.network, options.case, str(options.batch))
    raw = [
        {count: together(count, which, shared=options.shared, served=options.server) for count in (1, 2)}
        for _ in range(options.times)
    ]
    one, two = (statistics.median(each[count]["wall_s"] for each in raw) for count in (1, 2))
    figures = {
        "one_process_s": one,
        "two_processes_s": two,
        "faster": one / two,
        "interchangeable": all(len({p["digest"] for p in each[2]["processes"]}) == 1 for each in raw),
        "searched_by_each": str([[p["searched"] for p in each[2]["processes"]] for each in raw]),
        "regret": statistics.median(sum(each[2]["mine_us"]) / sum(each[2]["best_us"]) - 1 for each in raw),
        "regret_alone": statistics.median(sum(each[1]["mine_us"]) / sum(each[1]["best_us"]) - 1 for each in raw),
    }
    limits = {key: value for key, value in LIMITS.items() if not (options.shared and key == "faster")}
    report(figures, limits, options.json, {"shared": options.shared, "server": options.server, "samples": raw})


if __name__ == "__main__":
    main()
