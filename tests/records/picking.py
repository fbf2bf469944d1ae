"""Records of a few trials, and what a policy makes of them."""

from __future__ import annotations

from typing import Any, Final

from algosearch import AlgosearchError
from algosearch.ops import ConvOp
from algosearch.records import Choice, Environment, Key, Policy, Provenance, Record, Search, SearchMode, Trial, Trials

KEY: Final = Key.of(
    ConvOp(input_shape=(1, 2, 9, 9), filter_shape=(3, 2, 3, 3)), Environment(backend="cudnn", device="d")
)


def trial(engine: str, rank: int, time_us: float | None = 10.0, **changes: Any) -> Trial:
    """A candidate timed in the finals, without error; or what `changes` say."""
    fields: dict[str, Any] = {
        "algorithm": f"cudnn/graph:{engine}",
        "rank": rank,
        "workspace_bytes": 0,
        "stage": "final" if time_us is not None else "listed",
        "time_us": time_us,
    }
    return Trial(**{**fields, **changes})


def search(*trials: Trial, complete: bool = True, mode: SearchMode = "race") -> Search:
    origin = Provenance(version="0", found_at_s=0, seconds=0.0)
    return Search(mode=mode, complete=complete, trials=Trials.of(trials), provenance=origin)


def record(*searches_: Search) -> Record:
    return Record(key=KEY, searches=searches_)


def picked(policy: Policy, *trials: Trial, **changes: Any) -> str:
    return policy.pick(record(search(*trials, **changes))).algorithm.partition(":")[2]


def outcome(policy: Policy, found: Record, mode: SearchMode = "race") -> Choice | tuple[type, tuple[object, ...]]:
    try:
        return policy.pick(found, mode=mode)
    except AlgosearchError as error:
        return type(error), error.args


def met_trouble(policy: Policy, found: Record) -> bool:
    trials = [trial for each in found.searches for trial in each.trials if policy.refuses(trial) is None]
    return any(trial.failure is not None and not trial.failure.is_fact for trial in trials)
