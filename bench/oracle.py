"""What the best choice would have been: candidates timed again and again, the best chosen on one half of the rounds and
priced on the other, so that nobody is the best by luck."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from math import ceil

from algosearch.backends.base import Session
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate, Failure

ROUNDS = 16
BURST_US = 150.0
MOST_REPEATS = 48
PATIENCE = 6
"""A burst is run again so often because it was disturbed. Some always are, which take the host longer to launch than
the device to run: their time is then taken as it is, for that is how they run."""
NEAR = 1.5
"""Only candidates within this factor of the best are timed again."""

HOPELESS = 10.0
"""Whose first run took longer by this factor is not run again: it takes seconds in some cases."""


def timed(session: Session, op: Op, candidates: Sequence[Candidate]) -> dict[str, list[float]]:
    """Times in µs of each candidate that runs, comes near the best, and is right, one for each round."""
    built = [(each, session.build(op, each)) for each in candidates]
    plans = {each.algorithm: outcome.plan for each, outcome in built if isinstance(outcome, Built)}
    workspace_bytes = max(each.workspace_bytes for each in candidates)
    failure = session.load(op, workspace_bytes)
    if failure is not None:
        raise MemoryError(failure.message)
    try:
        first = {name: session.launch(plan, None) for name, plan in plans.items()}
        runs = {name: burst.time_us for name, burst in first.items() if isinstance(burst, Burst)}
        hopeful = [name for name, us in runs.items() if us <= HOPELESS * min(runs.values())]
        once = _round(session, {name: plans[name] for name in hopeful}, dict.fromkeys(hopeful, 1))
        near = _near_and_right(session, plans, once)
        repeats = {name: min(MOST_REPEATS, ceil(BURST_US / once[name])) for name in near}
        found: dict[str, list[float]] = {name: [] for name in near}
        for turn in range(ROUNDS if near else 0):
            names = list(near)[turn % len(near) :] + list(near)[: turn % len(near)]
            for name, us in _round(session, {name: near[name] for name in names}, repeats).items():
                found[name].append(us)
        return found
    finally:
        session.unload()
        session.destroy(list(plans.values()))


def _near_and_right(session: Session, plans: Mapping[str, int], once: Mapping[str, float]) -> dict[str, int]:
    """Who is near the fastest of those whose result is right: a wrong one is no better choice, however fast."""
    near: dict[str, int] = {}
    best = 0.0
    fastest_first = sorted(once, key=lambda name: once[name])
    for name in fastest_first:
        if near and once[name] > NEAR * best + 1.0:
            break
        # The first has to be held against somebody, too: alone, much that is wrong looks right.
        other = next(iter(near), None) or next((each for each in fastest_first if each != name), None)
        if session.check(plans[name], None if other is None else plans[other]) is None:
            best = best or once[name]
            near[name] = plans[name]
    return near


def prices(times: Mapping[str, Sequence[float]], pick: str) -> tuple[float, float]:
    """(the pick's, the best one's) time in µs: the best of the even rounds priced on the odd ones, and vice versa."""
    mine = best = 0.0
    for chosen_on, priced_on in ((0, 1), (1, 0)):
        medians = [{name: statistics.median(each[half::2]) for name, each in times.items()} for half in (0, 1)]
        winner = min(medians[chosen_on], key=medians[chosen_on].__getitem__)
        best += medians[priced_on][winner] / 2
        mine += medians[priced_on][pick] / 2
    return mine, best


def _round(session: Session, plans: Mapping[str, int], repeats: Mapping[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for turn in range(PATIENCE):
        left = [name for name in plans if name not in found]
        if not left:
            break
        for name, outcome in zip(
            left, session.time([(plans[name], repeats[name]) for name in left], None), strict=True
        ):
            if isinstance(outcome, Failure):
                raise RuntimeError(f"{name} ran before and fails now: {outcome.message}")
            if outcome.disturbed is None or turn == PATIENCE - 1:
                found[name] = outcome.time_us
    return found
