"""What a run of `warm` came to: the object of `--json`, and the summary for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from algosearch.cli.units import duration, run_time

if TYPE_CHECKING:
    from rich.console import RenderableType

    from algosearch.cli.asking import Answer
    from algosearch.compiler import Model, Skipped
    from algosearch.search.statistics import EngineStatistics

_FAILURES_SHOWN: Final = 10
_DIMENSIONS_SHOWN: Final = 12
_EXAMPLES_SHOWN: Final = 3


def counted(skipped: Iterable[Skipped]) -> dict[str, int]:
    """How many nodes were skipped, by kind and reason; with the first tensors that the reason speaks of."""
    alike: dict[str, list[Skipped]] = {}
    for each in skipped:
        alike.setdefault(f"{each.kind}: {each.reason}", []).append(each)
    return {f"{reason}{_examples(nodes)}": len(nodes) for reason, nodes in alike.items()}


def _examples(skipped: Iterable[Skipped]) -> str:
    names = list(dict.fromkeys(each.about for each in skipped if each.about))
    more = [f"{len(names) - _EXAMPLES_SHOWN} more"] if len(names) > _EXAMPLES_SHOWN else []
    return f" ({', '.join([*map(repr, names[:_EXAMPLES_SHOWN]), *more])})" if names else ""


class ModelRead(msgspec.Struct, frozen=True, kw_only=True):
    """One of the models asked for."""

    source: str
    operations: int
    skipped: int
    dimensions: tuple[str, ...]
    """What `--dim` may name."""


class FailedOp(msgspec.Struct, frozen=True, kw_only=True):
    """One op without an answer."""

    problem: str
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a run. Invariant: distinct = hits + searched + heuristic + failed + unanswered."""

    models: tuple[ModelRead, ...]
    operations: int
    """Convolution and batch-norm nodes of the models."""
    operations_with_gradients: int
    """The same and the gradients that `--training` added, all of which were asked."""
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
    base: str | None
    """The base store, which was only read; None if there was none."""
    alone: int
    """Answers that the shared store does not have: found while it could not be reached, or would not take them."""
    misses: dict[str, int]
    """What neither had an answer for, by kind of miss."""
    not_kept: tuple[str, ...]
    """What stood between the answers and the store, a sentence each."""
    unused: tuple[str, ...]
    """Options of reading that changed nothing in any of the models."""
    interrupted: bool
    """A signal ended it."""
    failures: tuple[FailedOp, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever asked for this may have meant otherwise."""
        return changed_nothing(self.unused, [(model.source, model.dimensions) for model in self.models])

    @property
    def empty(self) -> str | None:
        """That nothing was read of some models, and which; None if there is no such model."""
        named = "; ".join(
            f"no convolution or batch norm in {model.source} could be read, and {model.skipped} were skipped"
            if model.skipped
            else f"{model.source} has no convolution or batch norm"
            for model in self.models
            if not model.operations
        )
        if named and not self.operations:
            return f"nothing was warmed: {named}"
        return named or None


def report_of(
    models: Sequence[Model],
    answers: Sequence[Answer],
    *,
    engine: EngineStatistics,
    seconds: float,
    interrupted: bool,
) -> Report:
    """Count. `models` are those read so far: more may come where the time was up."""
    sources = Counter(answer.source for answer in answers if answer.choice is not None)
    timed = [
        (answer.choice.first_us, answer.choice.time_us)
        for answer in answers
        if answer.choice is not None and answer.choice.first_us is not None and answer.choice.time_us is not None
    ]
    first_us, picks_us = sum(first for first, _ in timed), sum(pick for _, pick in timed)
    alone = sum(answer.choice is not None and answer.choice.alone for answer in answers)
    failures = tuple(
        FailedOp(problem=answer.op.describe(), reason=str(answer.error))
        for answer in answers
        if answer.error is not None
    )
    return Report(
        models=tuple(
            ModelRead(
                source=model.source,
                operations=model.operations,
                skipped=len(model.skipped),
                dimensions=model.dimensions,
            )
            for model in models
        ),
        operations=sum(model.operations for model in models),
        operations_with_gradients=sum(len(model.nodes) for model in models),
        skipped=counted(each for model in models for each in model.skipped),
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
        store=engine.store,
        base=engine.base,
        alone=alone,
        misses=engine.store_misses,
        not_kept=_not_kept(engine, alone),
        unused=_unused(models),
        interrupted=interrupted,
        failures=failures,
    )


def _not_kept(engine: EngineStatistics, alone: int) -> tuple[str, ...]:
    """What the engine says of answers that later processes will not find."""
    reasons = [] if engine.store_trouble is None else [engine.store_trouble]
    if engine.store is not None and engine.not_kept:
        reasons.append(f"{engine.not_kept} records could not be written to {engine.store}; a warning says why")
    if alone:
        reasons.append(f"{alone} answers were found alone, and {engine.store} does not have them; a warning says why")
    reasons += [f"nothing that {name} finds is stored: {reason}" for name, reason in engine.incomplete.items()]
    return tuple(reasons)


def _unused(models: Sequence[Model]) -> tuple[str, ...]:
    """The options that every model ignored, in the order in which they were given."""
    return tuple(flag for flag in (models[0].ignored if models else ()) if all(flag in each.ignored for each in models))


def changed_nothing(flags: Sequence[str], models: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, ...]:
    """A sentence for each option that changed nothing in any of the models, given by source and dimensions."""
    named = "; ".join(f"{source} has {_listed(dimensions)}" for source, dimensions in models)
    return tuple(
        f"{flag} changed nothing: " + (named if flag.startswith("--dim") else "there is nothing in the model for it")
        for flag in flags
    )


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no dimension to set"
    more = len(names) - _DIMENSIONS_SHOWN
    return ", ".join(names[:_DIMENSIONS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def summary_of(report: Report) -> tuple[RenderableType, ...]:
    """The report for people."""
    from algosearch.cli.tables import facts

    count, added = len(report.models), report.operations_with_gradients - report.operations
    gradients = f", and {added} gradients" if added else ""
    rows = [
        ("operations", f"{report.operations} in {count} model{'s' * (count != 1)}{gradients}"),
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
    if report.base is not None:
        rows.append(("base", report.base))
    more = len(report.failures) - _FAILURES_SHOWN
    return (
        facts(rows),
        *(f"not kept: {reason}" for reason in report.not_kept),
        *(f"skipped {number}: {reason}" for reason, number in sorted(report.skipped.items())),
        *(f"failed: {each.reason}" for each in report.failures[:_FAILURES_SHOWN]),
        *([f"failed: {more} more, which --json lists"] if more > 0 else []),
    )
