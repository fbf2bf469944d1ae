"""What a record says about trying again. Pure functions; `Policy` answers from a record, this decides what it lacks.

A failure is a fact, or it is trouble: something that may be different in another process, on another day
(`Failure.is_fact`). The rule, in one sentence: trouble is tried once more in a later search of the key, and what was
trouble twice is taken for a fact.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from algosearch.records.policy import Policy
from algosearch.records.record import Record
from algosearch.records.trial import Failure

PROCESSES: Final = "processes"
"""The circumstance of a failure that counts for more than one try: so many processes met it, one after the other."""
ENOUGH: Final = 2
"""Tries after which trouble is taken for a fact."""


def not_to_try(record: Record | None) -> dict[str, Failure]:
    """The candidates of which a further search of the key knows that they fail, by algorithm."""
    if record is None:
        return {}
    tries: Counter[str] = Counter()
    latest: dict[str, Failure] = {}
    for search in record.searches:
        for trial in search.trials:
            if trial.failure is not None:
                tries[trial.algorithm] += _tries(trial.failure)
                latest[trial.algorithm] = trial.failure
            elif trial.time_us is not None:  # it has run since: whatever it was has passed
                tries[trial.algorithm] = 0
    return {algorithm: failure for algorithm, failure in latest.items() if tries[algorithm] >= ENOUGH}


def deserves_another_search(record: Record, policy: Policy) -> bool:
    """Whether every candidate that was looked at and that `policy` admits failed, and some for what may be different
    elsewhere.

    Who meets such a record is not told that there is no algorithm: it is to look once more. In another engine only, for
    nothing has changed in the one that has just looked.
    """
    tries: Counter[str] = Counter()
    for search in record.searches:
        for trial in search.trials:
            # What was another candidate at that time (of another workspace, say) is no try of this one.
            if policy.refuses(trial) is not None:
                continue
            if trial.failure is not None:
                tries[trial.algorithm] += _tries(trial.failure)
            elif trial.time_us is not None:
                return False
    return any(count < ENOUGH for count in tries.values())


def _tries(failure: Failure) -> int:
    if failure.is_fact:
        return ENOUGH
    said = dict(failure.circumstances).get(PROCESSES, "")
    return int(said) if said in ("1", "2") else 1
