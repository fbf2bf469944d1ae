"""What a compile came to: the object of `--json`, and the tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from algosearch.cli.report import changed_nothing, counted
from algosearch.cli.units import duration, size
from algosearch.compiler.plan import Plan
from algosearch.compiler.queries import QueryStatistics, Wait

if TYPE_CHECKING:
    from rich.console import RenderableType

    from algosearch.compiler import Model
    from algosearch.compiler.compile import Compiled
    from algosearch.compiler.queries import Queries
    from algosearch.search.statistics import Statistics

_LONGEST_WAITS: Final = 10
_PROBLEMS_SHOWN: Final = 10


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a compile."""

    stage: str
    seconds: float
    waited_s: float
    """Of them, spent waiting for answers."""


class CompileReport(msgspec.Struct, frozen=True, kw_only=True):
    """A compile."""

    source: str
    strategy: str
    devices: int
    tasks: int
    """Of all devices."""
    seconds: float
    """All stages."""
    stages: tuple[StageReport, ...]
    queries: int
    distinct: int
    """Different keys among them; of `statistics`, which go by what was asked, several may be about one."""
    conv_query_s: float
    """Spent waiting for answers about convolutions."""
    batch_norm_query_s: float
    listings: int
    """Probes: how often a library was asked for its candidates."""
    handles: int
    """Made for one question each, by a strategy that does."""
    searched: int
    trials: int
    memory_hits: int
    """Questions answered from memory, asked before or not."""
    store_hits: int
    withdrawn: int
    """Requests that a pass made needless before they were answered."""
    skipped: dict[str, int]
    """What of the model was not read, or takes part without memory, by kind and reason."""
    dimensions: tuple[str, ...]
    """What `--dim` may name."""
    unused: tuple[str, ...]
    """Options of reading that changed nothing."""
    waits: tuple[Wait, ...]
    """The longest."""
    statistics: tuple[QueryStatistics, ...]
    plan: Plan

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever asked for this may have meant otherwise."""
        return changed_nothing(self.unused, [(self.source, self.dimensions)])


def compile_report(
    model: Model,
    compiled: Compiled,
    queries: Queries,
    *,
    strategy: str,
    withdrawn: int,
    handles: int,
    searcher: Statistics,
) -> CompileReport:
    """Count."""
    statistics, engine = queries.statistics(), searcher.engine
    return CompileReport(
        source=model.source,
        strategy=strategy,
        devices=len(compiled.plan.devices),
        tasks=compiled.tasks,
        seconds=sum(compiled.seconds.values()),
        stages=tuple(
            StageReport(stage=stage, seconds=seconds, waited_s=compiled.waited_s[stage])
            for stage, seconds in compiled.seconds.items()
        ),
        queries=queries.count,
        distinct=queries.distinct,
        conv_query_s=queries.seconds_of("conv"),
        batch_norm_query_s=queries.seconds_of("batch_norm"),
        listings=engine.listings + handles,
        handles=handles,
        searched=engine.searched,
        trials=engine.trials,
        memory_hits=searcher.hits + engine.memory_hits,
        store_hits=engine.store_hits,
        withdrawn=withdrawn,
        skipped=counted(model.skipped),
        dimensions=model.dimensions,
        unused=model.ignored,
        waits=tuple(sorted(queries.waits, key=lambda wait: -wait.seconds)[:_LONGEST_WAITS]),
        statistics=statistics,
        plan=compiled.plan,
    )


def summary_of(report: CompileReport) -> list[RenderableType]:
    """Tables and lines for people."""
    from rich.table import Table

    devices = "1 device" if report.devices == 1 else f"{report.devices} devices"
    stages = Table(title=f"{report.source}, {report.strategy}, {devices}", title_justify="left")
    for column in ("stage", "seconds", "waiting"):
        stages.add_column(column, justify="left" if column == "stage" else "right")
    for stage in report.stages:
        stages.add_row(stage.stage, f"{stage.seconds:.4f}", f"{stage.waited_s:.4f}")
    stages.add_row("total", f"{report.seconds:.4f}", f"{sum(stage.waited_s for stage in report.stages):.4f}")

    waits = Table(title="longest waits", title_justify="left")
    for column in ("seconds", "stage", "for", "problem"):
        waits.add_column(column, justify="right" if column == "seconds" else "left")
    for wait in report.waits:
        waits.add_row(f"{wait.seconds:.4f}", wait.stage, wait.awaited, wait.problem)

    problems = Table(title="queries, the dearest problems first", title_justify="left")
    for column in ("queries", "first", "later", "cached", "problem"):
        problems.add_column(column, justify="left" if column == "problem" else "right")
    for line in report.statistics[:_PROBLEMS_SHOWN]:
        later = "" if line.later_us is None else f"{line.later_us:.1f} µs"
        cached = {None: "", True: "yes", False: "no"}[line.cached]
        problems.add_row(f"{line.queries}", f"{line.first_us:.1f} µs", later, cached, line.problem)

    return [stages, *_lines(report), waits, problems]


def _lines(report: CompileReport) -> list[str]:
    plan = report.plan
    each_us = sum(stage.waited_s for stage in report.stages) / report.queries * 1e6 if report.queries else 0.0
    problems = f"{len(report.statistics)} problems, {report.distinct} keys"
    lines = [
        f"{report.queries} queries about {problems}, {each_us:.2f} µs each",
        f"waited for convolutions {duration(report.conv_query_s)}, batch norms {duration(report.batch_norm_query_s)}",
        f"{report.searched} searches, {report.trials} trials, {report.listings} probes, {report.handles} handles",
        f"from memory {report.memory_hits}, from the store {report.store_hits}; withdrawn {report.withdrawn}",
        f"{len(plan.tasks)} tasks a device, {report.tasks} in all",
        f"arena {size(plan.arena_bytes)} a device, of at least {size(plan.lower_bound_bytes)}",
        f"inputs and parameters {size(plan.resident_bytes)} a device",
    ]
    if plan.workspace_limit_bytes is not None:
        cost = "what that costs is not known, for nothing was timed" if plan.slower is None else _cost(plan.slower)
        lines.append(
            f"workspaces of at most {size(plan.workspace_limit_bytes)} bring the arena from "
            f"{size(plan.unlimited_arena_bytes)} down; {cost}"
        )
    lines += [f"skipped {count}: {reason}" for reason, count in report.skipped.items()]
    return lines


def _cost(slower: float) -> str:
    return f"that costs {slower:.1%} of the tasks' time"
