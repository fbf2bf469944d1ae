"""What of a network's convolutions a search looks at first, and what is in the rest: the rules of 0014, measured.

Each candidate that the library lists is built, run once, and timed if it comes near the best. Of all of them, and of
those that a search looks at first (`Listing.look_at`): seconds of compiling and of first runs, and how much slower the
best one is than the best of all. Plain ops, of which a search looks at few by intention, are left out without
`--plain`. A candidate that leaves the device unusable ends its process; the next one goes on behind that op.

    python bench/looked_at.py --networks mobilenet_v2 r3d18 wavenet --json bench/results/looked_at.json
"""

from __future__ import annotations

import json
import statistics
import sys
from itertools import islice
from time import perf_counter
from typing import Any

import apart
import machine
from networks import add_networks, asked, described, training_convs
from report import arguments, how_long, report, some

from algosearch.backends.base import Session
from algosearch.ops import ConvOp
from algosearch.records import Built, Burst, Candidate, Failure

ROUNDS = 3
BURST_US = 150.0
MOST_REPEATS = 40
NEAR = 6.0
"""Only candidates whose first run is within this factor of the fastest are timed."""


def measured(session: Session, op: ConvOp, candidates: tuple[Candidate, ...]) -> list[dict[str, Any]]:
    """Of each candidate what was found, seconds and µs; no further ones if one leaves the device unusable."""
    rows = [_built(session, op, each) for each in candidates]
    plans = {number: row.pop("plan") for number, row in enumerate(rows) if "plan" in row}
    try:
        if not plans or session.load(op, max(candidates[number].workspace_bytes for number in plans)) is not None:
            return rows
        for number, plan in plans.items():
            rows[number] |= _run(session, plan)
            if session.healthy() is not None:
                return rows
        runs = {number: rows[number]["first_us"] for number in plans if "first_us" in rows[number]}
        near = [number for number, us in runs.items() if us <= NEAR * min(runs.values())]
        repeats = {number: max(1, min(MOST_REPEATS, int(BURST_US / runs[number]))) for number in near}
        found: dict[int, list[float]] = {number: [] for number in near}
        for _ in range(ROUNDS):
            bursts = [(plans[number], repeats[number]) for number in near]
            for number, outcome in zip(near, session.time(bursts, None), strict=True):
                if isinstance(outcome, Burst):
                    found[number].append(outcome.time_us)
        for number, times in found.items():
            if times:
                rows[number]["us"] = statistics.median(times)
    finally:
        if session.healthy() is None:  # else nothing can be given back
            session.unload()
            session.destroy(list(plans.values()))
    return rows


def _built(session: Session, op: ConvOp, candidate: Candidate) -> dict[str, Any]:
    start = perf_counter()
    built = session.build(op, candidate)
    row = {"algorithm": candidate.algorithm, "is_dear": candidate.is_dear, "build_s": perf_counter() - start}
    return row | ({"plan": built.plan} if isinstance(built, Built) else {"failure": built.message})


def _run(session: Session, plan: int) -> dict[str, Any]:
    start = perf_counter()
    first = session.launch(plan, None)
    took = {"launch_s": perf_counter() - start}
    return took | ({"failure": first.message} if isinstance(first, Failure) else {"first_us": first.time_us})


def some_of(ops: list[ConvOp], plain: bool, stride: int, first: int) -> list[ConvOp]:
    """Those that are measured, from the `first` of them."""
    from algosearch.backends.cudnn.kinds import kind_of

    return list(islice((op for op in ops if plain or kind_of(op) != "plain"), first * stride, None, stride))


def sample(network: str, case: str, batch: int, plain: bool, stride: int, first: int, seconds: float) -> dict[str, Any]:
    """One process: until the end, or a candidate leaves the device unusable, or so many seconds are over."""
    from algosearch.backends.cudnn import CudnnBackend

    stop = perf_counter() + seconds
    backend = CudnnBackend()
    session = backend.open(backend.devices()[0])
    found: dict[str, Any] = {"device": described(session.environment), "ops": []}
    for op in some_of(training_convs(network, case, batch), plain, stride, first):
        listing = session.enumerate(op, None)
        rows = measured(session, op, listing.candidates)
        print(f"{op.describe()}: {len(rows)} candidates, {listing.look_at} looked at", file=sys.stderr)
        found["ops"].append({"op": op.describe(), "look_at": listing.look_at, "candidates": rows})
        if session.healthy() is not None:
            found["ops"][-1]["ruined"] = True
            return found  # its process ends, and the context with it: nothing more can be closed
        if perf_counter() > stop:
            break
    else:
        found["complete"] = True
    session.close()
    return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sample", nargs=7)
    add_networks(parser, 64)
    parser.add_argument("--plain", action="store_true", help="plain ops, too")
    parser.add_argument("--stride", type=some, default=1, help="take every so manieth op only")
    parser.add_argument("--seconds", type=how_long, default=1e6, help="for each network: then no further op is begun")
    options = parser.parse_args()
    if options.sample:
        network, case, batch, plain, stride, first, seconds = options.sample
        print(json.dumps(sample(network, case, int(batch), plain == "True", int(stride), int(first), float(seconds))))
        return
    machine.needs(parser, gpus=1)
    raw: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    for name, network, case, batch in asked(options):
        raw[name] = _whole(network, case, batch, options)
        figures |= {f"{name}_{key}": value for key, value in _figures(raw[name]["ops"]).items()}
    report(figures, {}, options.json, raw)


def _whole(network: str, case: str, batch: int, options: Any) -> dict[str, Any]:
    """All of a network's ops, in as many processes as that takes."""
    stop = perf_counter() + options.seconds
    found: dict[str, Any] = {"ops": []}
    while not found.get("complete") and perf_counter() < stop:
        what = (network, case, batch, options.plain, options.stride, len(found["ops"]), max(0.0, stop - perf_counter()))
        part = apart.sample(__file__, *what)
        found = part | {"ops": [*found["ops"], *part["ops"]]}
    return found


def _figures(ops: list[dict[str, Any]]) -> dict[str, Any]:
    whole = [op for op in ops if "ruined" not in op]
    split = [(op["candidates"], op["candidates"][: op["look_at"]]) for op in whole]
    regrets = [_best(first) / _best(every) - 1 for every, first in split if _best(every) < float("inf")]

    def total(key: str, part: int, dear: bool | None = None) -> float:
        rows = (row for both in split for row in both[part] if dear is None or row["is_dear"] == dear)
        return float(sum(row.get(key, 0.0) for row in rows))

    return {
        "ops": len(whole),
        "ops_that_ruined": len(ops) - len(whole),
        "candidates": sum(len(every) for every, _ in split),
        "candidates_looked_at": sum(len(first) for _, first in split),
        "compiling_s": total("build_s", 0, dear=True),
        "compiling_looked_at_s": total("build_s", 1, dear=True),
        "first_runs_s": total("launch_s", 0),
        "first_runs_looked_at_s": total("launch_s", 1),
        "regret_looked_at_mean": statistics.mean(regrets) if regrets else None,
        "regret_looked_at_worst": max(regrets, default=None),
    }


def _best(rows: list[dict[str, Any]]) -> float:
    return min((row["us"] for row in rows if "us" in row), default=float("inf"))


if __name__ == "__main__":
    main()
