"""What is to be said of a search of `injected.py`: which answers are right, who was blamed, what it may have cost."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from math import hypot, sqrt
from typing import Any, Final

import msgspec
import oracle
from injected_search import Answer, Found, What
from injection import Injection, Misdeed, ground_of
from networks import described

from algosearch.backends.cudnn.buffers import lay_out, most_bytes
from algosearch.backends.cudnn.convolution import convolution_tensors
from algosearch.ops import ConvOp
from algosearch.records import Candidate, Failure, FailureKind, Trial

RESTART_S: Final = 2.0
CLOSE: Final = 0.01
NEAR: Final = 1.5
"""Only candidates within this factor of the best may be the best."""
BLAME: Final[dict[Misdeed, FailureKind]] = {
    "hangs": "timed_out",
    "overruns": "out_of_bounds",
    "runs_wild": "launch_failed",
}
_HUNG: Final = re.compile(r"took longer than ([0-9.e+-]+) s")


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Is a pick as good as the best of these?"""

    op: ConvOp
    pick: str
    candidates: tuple[Candidate, ...]
    """The pick among them."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to that."""

    pick_us: float
    best_us: float
    noise: float
    """Two standard errors of the ratio."""

    def keeps(self, tie_window: float) -> bool:
        """Whether the pick is as near to the best as was promised, or as `CLOSE`."""
        return self.pick_us <= self.best_us * (1 + max(CLOSE, tie_window) + self.noise)


def price(ground: str, questions: Sequence[Question]) -> tuple[list[Price], dict[str, str]]:
    """Time what may be the best again, on a quiet device; and which device that is."""
    backend = ground_of(ground).backend()
    session = backend.open(backend.devices()[0])
    prices = []
    try:
        for question in questions:
            times = oracle.timed(session, question.op, question.candidates)
            if question.pick not in times:  # more than 1.5 times slower than the best
                picked = [each for each in question.candidates if each.algorithm == question.pick]
                times |= oracle.timed(session, question.op, picked)
            mine, best = oracle.prices(times, question.pick)
            winner = min(times, key=lambda name: statistics.median(times[name]))
            noise = 2 * hypot(*(_error(times[name]) for name in (question.pick, winner)))
            prices.append(Price(pick_us=mine, best_us=best, noise=noise))
        return prices, described(session.environment)
    finally:
        session.close()


def question(op: ConvOp, clean: Answer, answer: Answer, what: What) -> Question | None:
    """What is to be asked about an answer; None if it is the clean one."""
    injected = {each.algorithm for each in what.injections if each.op == op}
    if answer.picked == clean.picked and answer.picked not in injected:
        return None
    away = injected | {each.algorithm for each in answer.trials if what.leave_bytes and found_no_memory(op, each)}
    # Of what this search looked at: that a race looks further where that was worth it is `quality.py`'s to judge.
    usable = {each.algorithm: each for each in answer.trials if works(each)}
    fair = {name: each for name, each in usable.items() if name not in away}
    best_us = min((each.time_us or 0.0 for each in fair.values()), default=0.0)
    asked = {name: each for name, each in fair.items() if each.time_us and each.time_us <= NEAR * best_us}
    asked |= {each.algorithm: each for each in answer.trials if each.algorithm == answer.picked}
    candidates = tuple(
        Candidate(algorithm=name, rank=rank, workspace_bytes=each.workspace_bytes, notes=each.notes)
        for rank, (name, each) in enumerate(asked.items())
    )
    return Question(op=op, pick=answer.picked, candidates=candidates)


def found_no_memory(op: ConvOp, trial: Trial) -> bool:
    """Whether there was none, and it needs more than what there was."""
    if trial.failure is None or trial.failure.kind != "out_of_memory":
        return False
    free_bytes = dict(trial.failure.circumstances).get("free_bytes")
    return free_bytes is None or needed_bytes(op, trial) > most_bytes(int(free_bytes))


def _error(times_us: Sequence[float]) -> float:
    """The relative standard error of their median, from the half in the middle: a burst may be far out."""
    low, middle, high = statistics.quantiles(times_us, n=4)
    return 1.25 * (high - low) / 1.35 / middle / sqrt(len(times_us))


def works(trial: Trial) -> bool:
    """Whether it was timed, and may be picked."""
    return trial.time_us is not None and trial.failure is None


def needed_bytes(op: ConvOp, trial: Trial) -> int:
    """Of device memory, to race it."""
    return lay_out(convolution_tensors(op), trial.workspace_bytes).size_bytes


def room_for_two_bytes(ops: Sequence[ConvOp], clean: Found) -> int:
    """What must be there for every op to have two candidates, where there are two."""
    return max(max(sorted(each)[:2]) for each in _needed_bytes(ops, clean))


def most_needed_bytes(ops: Sequence[ConvOp], clean: Found) -> int:
    """What the hungriest candidate needs."""
    return max(map(max, _needed_bytes(ops, clean)))


def _needed_bytes(ops: Sequence[ConvOp], clean: Found) -> list[list[int]]:
    """Of each op, by every candidate that works."""
    answers = zip(ops, clean.answers, strict=True)
    return [[needed_bytes(op, each) for each in answer.trials if works(each)] for op, answer in answers]


def is_pick(answer: Answer) -> bool:
    """Whether there is one, that was tried."""
    return any(each.algorithm == answer.picked for each in answer.trials)


def verdict(
    ops: Sequence[ConvOp],
    clean: Found,
    what: What,
    found: Found,
    prices: dict[tuple[ConvOp, str, tuple[Candidate, ...]], Price],
) -> dict[str, Any]:
    """The figures of one search, and what is wrong with it in words."""
    right, wrong = 0, []
    for op, before, answer in zip(ops, clean.answers, found.answers, strict=True):
        one = question(op, before, answer, what)
        at = None if one is None else prices.get((one.op, one.pick, one.candidates))
        injected = any(each.op == op and each.algorithm == answer.picked for each in what.injections)
        if (one is None or (at is not None and at.keeps(answer.tie_window))) and not injected:
            right += 1
        else:
            wrong.append(f"{op.describe()}: {answer.picked}, {at}, {answer.tie_window:.2%}")
    blamed = sum(is_blamed(each, ops, found) for each in what.injections)
    beaten = sum(is_beaten(each, ops, found) for each in what.injections)
    limits_s = [float(each) for reason in found.broke for each in _HUNG.findall(reason)]
    return {
        "right": right,
        "injected": len(what.injections),
        "struck": len({(each.problem, each.algorithm) for each in found.events}),
        "blamed": blamed,
        "beaten": beaten,
        "accounted_for": blamed + beaten,
        "innocent": len(innocents(ops, clean, what, found)),
        "out_of_memory": sum(kind_of(each) == "out_of_memory" for each in trials_of(found)),
        "restarts": len(found.broke),
        "limits_s": sum(limits_s),
        "seconds": found.seconds,
        "more_s": RESTART_S * len(found.broke) + sum(limits_s),
        "wrong": [*wrong, *innocents(ops, clean, what, found)],
        "broke": list(found.broke),
    }


def is_blamed(injection: Injection, ops: Sequence[ConvOp], found: Found) -> bool:
    """Whether the record says of an injected candidate what it did."""
    trial = trial_of(injection, ops, found)
    return trial is not None and kind_of(trial) == BLAME[injection.does]


def is_beaten(injection: Injection, ops: Sequence[ConvOp], found: Found) -> bool:
    """Whether an injected candidate was clearly slower than another one, and so was never a rival whom a policy could
    pick: its result is not looked at."""
    trial = trial_of(injection, ops, found)
    return trial is not None and trial.failure is None and trial.stage == "screened"


def trial_of(injection: Injection, ops: Sequence[ConvOp], found: Found) -> Trial | None:
    """What became of an injected candidate; None if it was not even listed."""
    answer = found.answers[list(ops).index(injection.op)]
    return next((each for each in answer.trials if each.algorithm == injection.algorithm), None)


def innocents(ops: Sequence[ConvOp], clean: Found, what: What, found: Found) -> list[str]:
    """Candidates that worked in the clean search, and are said to have done what an injected one did: in words."""
    guilty = {(each.op, each.algorithm) for each in what.injections}
    said = []
    for op, before, answer in zip(ops, clean.answers, found.answers, strict=True):
        fine = {each.algorithm for each in before.trials if works(each)}
        for each in answer.trials:
            failure = each.failure
            if failure is None or (op, each.algorithm) in guilty or each.algorithm not in fine:
                continue

            if is_deadly(failure):
                said.append(f"{op.describe()}: {each.algorithm}: {failure.kind}, {failure.message}")
    return said


def is_deadly(failure: Failure) -> bool:
    """Whether a device is started again for it, or it is what an injected candidate does. (A candidate that is merely
    slow is given up by the race, and has timed out as well.)"""
    hung = failure.kind == "timed_out" and "limit_s" in dict(failure.circumstances)
    return hung or failure.kind in ("out_of_bounds", "launch_failed", "crashed")


def trials_of(found: Found) -> list[Trial]:
    return [each for answer in found.answers for each in answer.trials]


def kind_of(trial: Trial) -> FailureKind | None:
    return None if trial.failure is None else trial.failure.kind
