"""What a run of `warm` came to: the object of `--json`, and the summary for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from algosearch.cli.units import duration, run_time

if TYPE_CHECKING:
    from rich.console import RenderableType

    from algosearch.cli.asking import Answer
    from algosearch.compiler import Model

_FAILURES_SHOWN: Final = 10


class ModelRead(msgspec.Struct, frozen=True, kw_only=True):
    """One of the models asked for."""

    source: str
    operations: int


class FailedOp(msgspec.Struct, frozen=True, kw_only=True):
    """One op without an answer."""

    problem: str
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a run. Invariant: distinct = hits + searched + heuristic + failed + unanswered."""

    models: tuple[ModelRead, ...]
    operations: int
    """Convolution and batch-norm nodes read."""
    skipped: dict[str, int]
    """Nodes that were left out, or not taken at their word, by kind and reason."""
    distinct: int
    """Different problems among them."""
    hits: int
    """Answered from the store."""
    searched: int
    heuristic: int
    """Answered by the library's own order: mode heuristic, nothing run, nothing stored."""
    failed: int
    """No algorithm; in mode cached, no record."""
    unanswered: int
    """Still open when time was up or a signal came."""
    seconds: float
    """From reading the first model until all was closed."""
    gain: float | None
    """The sum of the times of the library's first candidates over that of the picks; None if nothing was timed."""
    first_us: float
    """The one sum."""
    picks_us: float
    """And the other."""
    store: str | None
    """Where the answers are kept; None if nowhere."""
    interrupted: bool
    """A signal ended it."""
    failures: tuple[FailedOp, ...]


def report_of(
    models: Sequence[Model],
    answers: Sequence[Answer],
    *,
    store: str | None,
    seconds: float,
    interrupted: bool,
) -> Report:
    """Count."""
    sources = Counter(answer.source for answer in answers if answer.choice is not None)
    timed = [
        (answer.choice.first_us, answer.choice.time_us)
        for answer in answers
        if answer.choice is not None and answer.choice.first_us is not None and answer.choice.time_us is not None
    ]
    first_us, picks_us = sum(first for first, _ in timed), sum(pick for _, pick in timed)
    failures = tuple(
        FailedOp(problem=answer.op.describe(), reason=str(answer.error))
        for answer in answers
        if answer.error is not None
    )
    return Report(
        models=tuple(ModelRead(source=model.source, operations=model.operations) for model in models),
        operations=sum(model.operations for model in models),
        skipped=dict(Counter(f"{each.kind}: {each.reason}" for model in models for each in model.skipped)),
        distinct=len(answers),
        hits=sources["memory"] + sources["store"],
        searched=sources["search"],
        heuristic=sources["heuristic"],
        failed=len(failures),
        unanswered=sum(answer.open for answer in answers),
        seconds=round(seconds, 3),
        gain=round(first_us / picks_us, 4) if timed else None,
        first_us=first_us,
        picks_us=picks_us,
        store=store,
        interrupted=interrupted,
        failures=failures,
    )


def summary_of(report: Report) -> tuple[RenderableType, ...]:
    """The report for people."""
    from algosearch.cli.tables import facts

    count = len(report.models)
    rows = [
        ("operations", f"{report.operations} in {count} model{'s' * (count != 1)}"),
        ("distinct", str(report.distinct)),
        ("hits", str(report.hits)),
        ("searched", str(report.searched)),
    ]
    if report.heuristic:
        rows.append(("heuristic", f"{report.heuristic}, which are not stored: nothing was run"))
    rows.append(("failed", str(report.failed)))
    if report.unanswered:
        rows.append(("unanswered", str(report.unanswered)))
    rows.append(("time", duration(report.seconds)))
    if report.gain is not None:
        sums = f"the library's first candidates take {run_time(report.first_us)}, the picks {run_time(report.picks_us)}"
        rows.append(("gain", f"{report.gain:.2f} ×: {sums}"))
    rows.append(("store", report.store or "none"))
    more = len(report.failures) - _FAILURES_SHOWN
    return (
        facts(rows),
        *(f"skipped {number}: {reason}" for reason, number in sorted(report.skipped.items())),
        *(f"failed: {each.reason}" for each in report.failures[:_FAILURES_SHOWN]),
        *([f"failed: {more} more, which --json lists"] if more > 0 else []),
    )
