"""`algosearch compile`: a small graph compiler at work, and what each of its answers was waited for."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack, closing, nullcontext
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from algosearch.cli.options import Device, Json, Store, Verbose
from algosearch.cli.stop import Stop
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.verb import BY_SIGNAL, DONE, INCOMPLETE, NOT_WRITTEN
from algosearch.cli.warm import Batch, Dims, dimensions_of
from algosearch.errors import InvalidSetting, NoAlgorithm, NotCached

if TYPE_CHECKING:
    from algosearch.cli.compile_report import CompileReport
    from algosearch.cli.progress import Moment
    from algosearch.cli.target import Target
    from algosearch.compiler import ReadOptions
    from algosearch.compiler.compile import Pipeline
    from algosearch.compiler.strategies import StrategyName
    from algosearch.compiler.timeline import Timeline

Source = Annotated[
    str, typer.Argument(metavar="MODEL", help="An ONNX file, or the name of a built-in workload (resnet50).")
]
Nodes = Annotated[int, typer.Option(metavar="N", help="Nodes of a data-parallel job.")]
DevicesPerNode = Annotated[int, typer.Option(metavar="D", help="Devices on each node; each has a batch of its own.")]
Strategy = Annotated[str, typer.Option(metavar="S", help="How it asks: async, or for comparison cached, fixed, naive.")]
Memory = Annotated[
    int | None, typer.Option(metavar="BYTES", help="Of each device's arena; workspaces shrink until it fits.")
]
Inference = Annotated[bool, typer.Option("--inference", help="Compile inference, not a training step.")]
Single = Annotated[bool, typer.Option("--single", help="Leave float32 as it is: no mixed precision.")]
ChannelsFirst = Annotated[bool, typer.Option("--channels-first", help="Leave layouts as they are.")]
Trace = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a Chrome trace of it to FILE, for ui.perfetto.dev.")
]
PlanFile = Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="Write the plan as JSON to FILE.")]


def compile(  # noqa: A001 (a verb is named as it is called)
    model: Source,
    nodes: Nodes = 1,
    devices_per_node: DevicesPerNode = 1,
    batch: Batch = None,
    dim: Dims = None,
    strategy: Strategy = "async",
    memory: Memory = None,
    inference: Inference = False,
    single: Single = False,
    channels_first: ChannelsFirst = False,
    device: Device = None,
    store: Store = None,
    plan: PlanFile = None,
    trace: Trace = None,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Compile MODEL for NODES × DEVICES, and say what was asked and waited for.

    Passes, task graph and memory plan of a data-parallel training step. Devices need not be here: those of this machine
    stand for all of their kind. `--batch` is that of each device.
    """
    from algosearch.compiler import ReadOptions
    from algosearch.compiler.compile import Pipeline
    from algosearch.compiler.passes import Placement

    job = _Job(
        source=model,
        options=ReadOptions(batch=_at_least_one("--batch", batch), dimensions=dimensions_of(dim or ())),
        pipeline=Pipeline(
            training=not inference,
            half=not single,
            channels_last=not channels_first,
            placement=Placement(nodes=nodes, devices_per_node=devices_per_node),
        ),
        strategy=_strategy_of(strategy),
        memory_bytes=_at_least_one("--memory", memory),
        device=device,
        store=store,
    )
    return _carry_out(job, plan=plan, trace=trace, json=json, verbose=verbose)


def _carry_out(job: _Job, *, plan: Path | None, trace: Path | None, json: bool, verbose: bool) -> int:
    from algosearch.cli.target import Target

    terminal = Terminal()
    with ExitStack() as stack:

        def target_of(option: str, path: Path | None) -> Target | None:
            if path is None:
                return None
            target = stack.enter_context(closing(Target(option, path)))
            target.check_is_not(Path(job.source), "the model")
            return target

        plan_target, trace_target = target_of("--plan", plan), target_of("--trace", trace)
        if plan is not None and trace_target is not None:
            trace_target.check_is_not(plan, "the file of --plan")
        stack.enter_context(terminal.logging(verbose=verbose))
        stop = stack.enter_context(Stop())  # to the end, so that what is written is written whole
        return _compile(job, terminal, stop, plan=plan_target, trace=trace_target, json=json)


def _compile(
    job: _Job, terminal: Terminal, stop: Stop, *, plan: Target | None, trace: Target | None, json: bool
) -> int:
    import asyncio

    from algosearch.cli.compile_report import summary_of
    from algosearch.compiler.timeline import Timeline

    timeline = None if trace is None else Timeline()
    traced = True
    try:
        with timeline or nullcontext():
            report = asyncio.run(job.run(terminal, stop, timeline))
    except (NoAlgorithm, NotCached) as error:
        terminal.say(f"error: {error}", style="red")
        return INCOMPLETE
    finally:  # of a compile that does not come to its end as well: it may say why
        if trace is not None and timeline is not None and not timeline.is_empty:
            traced = _write(terminal, trace, timeline.encoded())
    if report is None:
        assert stop.signum is not None
        terminal.say("interrupted: what was found is kept, and not searched again")
        return BY_SIGNAL + stop.signum
    written = plan is None or _write(terminal, plan, report.plan.encoded())
    if json:
        write_json(report)
    terminal.present(*summary_of(report), results=not json)
    for warning in report.warnings:
        terminal.warn(warning)
    return DONE if written and traced else NOT_WRITTEN


def _write(terminal: Terminal, target: Target, data: bytes) -> bool:
    """Whether it could be written; if not, why is said, and the report is given all the same."""
    try:
        target.write(data)
    except OSError as error:
        terminal.say(f"error: {target} cannot be written: {error.strerror or error}", style="red")
        return False
    return True


class _Job:
    """One compile, with what it needs around it."""

    def __init__(
        self,
        *,
        source: str,
        options: ReadOptions,
        pipeline: Pipeline,
        strategy: StrategyName,
        memory_bytes: int | None,
        device: str | None,
        store: str | None,
    ) -> None:
        self.source = source
        self._options = options
        self._pipeline = pipeline
        self._strategy: StrategyName = strategy
        self._memory_bytes = memory_bytes
        self._device = device
        self._store = store
        self._stage, self._done, self._of = "reading", 0, 1

    async def run(self, terminal: Terminal, stop: Stop, timeline: Timeline | None) -> CompileReport | None:
        """The report; None if a signal came first."""
        import asyncio

        from algosearch.cli.progress import TICK_S, progress

        began = perf_counter()
        compiling = asyncio.ensure_future(self._compile(timeline))
        with progress(terminal) as bar:
            while not compiling.done() and stop.signum is None:
                bar.show(self._moment(perf_counter() - began))
                await asyncio.wait([compiling], timeout=TICK_S)
        if compiling.done():
            return await compiling
        compiling.cancel()
        await asyncio.wait([compiling])
        return None

    async def _compile(self, timeline: Timeline | None) -> CompileReport:
        from algosearch.cli.compile_report import compile_report
        from algosearch.cli.devices import find_device
        from algosearch.compiler.compile import compile_graph
        from algosearch.compiler.handles import HandleProbe
        from algosearch.compiler.queries import Queries
        from algosearch.compiler.read import read_graph
        from algosearch.compiler.strategies import ASK_LIBRARY, strategy_of
        from algosearch.pinned import PinnedThread
        from algosearch.search import open_searcher

        # In a thread of its own: a large model is read for seconds, and whoever interrupts that need not wait for it.
        reading = PinnedThread("algosearch-reading")
        try:
            graph, model = await reading.run(read_graph, self.source, self._options)
        finally:
            reading.stop()
        backend, device = find_device(self._device)
        async with AsyncExitStack() as stack:
            probe = None
            if self._strategy in ASK_LIBRARY:
                probe = await stack.enter_async_context(HandleProbe(backend, device))
            devices = None if self._device is None else (self._device,)
            searcher = await stack.enter_async_context(open_searcher(store=self._store, devices=devices))
            queries = Queries()
            strategy = strategy_of(self._strategy, searcher, queries, probe)
            compiled = await compile_graph(
                graph,
                strategy,
                queries,
                pipeline=self._pipeline,
                memory_bytes=self._memory_bytes,
                timeline=timeline,
                show=self._show,
            )
            return compile_report(
                model,
                compiled,
                queries,
                strategy=self._strategy,
                withdrawn=strategy.withdrawn,
                handles=0 if probe is None else probe.handles,
                searcher=searcher.statistics(),
            )

    def _show(self, stage: str, done: int, of: int) -> None:
        self._stage, self._done, self._of = stage, done, of

    def _moment(self, elapsed_s: float) -> Moment:
        from algosearch.cli.progress import Moment

        return Moment(total=self._of, answered=self._done, searched=self._done, elapsed_s=elapsed_s, trying=self._stage)


def _at_least_one(name: str, number: int | None) -> int | None:
    if number is not None and number < 1:
        raise InvalidSetting(name, number, "must be at least 1")
    return number


def _strategy_of(word: str) -> StrategyName:
    from algosearch.compiler.strategies import STRATEGIES

    for each in STRATEGIES:
        if each == word:
            return each
    raise InvalidSetting("--strategy", word, f"must be one of {', '.join(STRATEGIES)}")
