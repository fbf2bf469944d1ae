"""`algosearch warm`: read models, search what the store does not know yet, and keep the answers there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Final, TypeVar, get_args

import typer

from algosearch.cli.options import Base, Device, Json, Store, Verbose
from algosearch.cli.stop import Stop
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.verb import BY_SIGNAL, DONE, INCOMPLETE, OUT_OF_TIME
from algosearch.errors import InvalidSetting
from algosearch.ops import ElementType, Layout
from algosearch.settings import mode_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from algosearch.cli.asking import Answer
    from algosearch.cli.report import Report
    from algosearch.compiler import Model, ReadOptions
    from algosearch.ops import Op
    from algosearch.search.statistics import EngineStatistics

Word = TypeVar("Word", bound=str)

_ELEMENT_TYPES: Final[tuple[ElementType, ...]] = get_args(ElementType)
_LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL",
        help="ONNX files, files of ops (.jsonl, one JSON object a line), names of built-in workloads (resnet50).",
    ),
]
Batch = Annotated[int | None, typer.Option(metavar="N", help="Size of the batch dimension.")]
Dims = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=N", help="Size of a dimension that the model leaves open.")
]
DtypeWord = Annotated[
    str | None, typer.Option(metavar="T", help="Element type in place of the model's own: float16, ….")
]
LayoutWord = Annotated[str | None, typer.Option(metavar="L", help="channels_first or channels_last.")]
Training = Annotated[bool, typer.Option("--training", help="Ask for the backward directions as well.")]
Mode = Annotated[
    str | None,
    typer.Option(
        metavar="M",
        help="How a miss is answered: race, exhaustive, heuristic, cached. [default: ALGOSEARCH_MODE, else race]",
    ),
]
Budget = Annotated[float | None, typer.Option(metavar="SECONDS", help="End after so long, and keep what was found.")]


def warm(
    models: Models,
    batch: Batch = None,
    dim: Dims = None,
    dtype: DtypeWord = None,
    layout: LayoutWord = None,
    training: Training = False,
    device: Device = None,
    mode: Mode = None,
    store: Store = None,
    base: Base = None,
    budget: Budget = None,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Fill the store for MODELs ahead of time.

    Every convolution and batch norm is read, equal ones are taken together, and what the store does not know is
    searched. Interrupted, it keeps what it has, and the same command goes on from there.
    """
    from algosearch.cli.report import report_of, summary_of

    began = perf_counter()
    deadline = began + _seconds_of(budget)
    options = _options_of(batch, dim or (), dtype, layout, training)
    terminal = Terminal()
    with terminal.logging(verbose=verbose), Stop() as stop:

        def ended() -> bool:
            return stop.signum is not None or perf_counter() >= deadline

        read = _read(models, options, ended)
        answers, engine = _ask(terminal, _distinct(read), device=device, mode=mode, store=store, base=base, ended=ended)
        seconds = perf_counter() - began
        report = report_of(read, answers, engine=engine, seconds=seconds, interrupted=stop.signum is not None)
        terminal.present(*summary_of(report), results=not json)
        code = _conclude(terminal, report, stop.signum, unread=len(models) - len(read))
        if json:
            write_json(report)
        return code


def _read(models: Sequence[str], options: ReadOptions, ended: Callable[[], bool]) -> list[Model]:
    """Every model, in order; fewer if it is to end before."""
    from algosearch.compiler import read_model

    read: list[Model] = []
    for model in models:
        if ended():
            break
        read.append(read_model(model, options))
    return read


def _distinct(models: Sequence[Model]) -> list[Op]:
    """The different problems of all models, in the order in which they come."""
    return list(dict.fromkeys(op for model in models for op in model.distinct))


def _ask(
    terminal: Terminal,
    ops: Sequence[Op],
    *,
    device: str | None,
    mode: str | None,
    store: str | None,
    base: str | None,
    ended: Callable[[], bool],
) -> tuple[Sequence[Answer], EngineStatistics]:
    """Ask about every op, with progress; the answers, and what the engine says of them."""
    from algosearch.cli.asking import ask_all
    from algosearch.cli.devices import find_device
    from algosearch.cli.progress import progress
    from algosearch.search import open_searcher

    if device is not None:
        find_device(device)
    with open_searcher(
        store=store,
        base=base,
        devices=None if device is None else (device,),
        mode=None if mode is None else mode_of(mode, "--mode"),
    ) as searcher:
        with progress(terminal) as bar:
            answers = ask_all(searcher, ops, show=bar.show, ended=ended)
        if any(answer.open for answer in answers):
            terminal.say("stopping")
        return answers, searcher.statistics().engine


def _conclude(terminal: Terminal, report: Report, signum: int | None, *, unread: int) -> int:
    """The exit code; what is behind it is said."""
    for warning in report.warnings:
        terminal.warn(warning)
    models = f", and {unread} of the models unread" if unread else ""
    left = f"{report.unanswered} of {report.distinct} are open{models}; what was found is kept, and not searched again"
    if signum is not None:
        terminal.say(f"interrupted: {left}")
        return BY_SIGNAL + signum
    if report.unanswered or unread:
        terminal.say(f"the budget ran out: {left}")
        return OUT_OF_TIME
    if report.empty is not None:
        terminal.warn(report.empty)
        return INCOMPLETE
    return INCOMPLETE if report.failed else DONE


def _seconds_of(budget: float | None) -> float:
    if budget is None:
        return math.inf
    if not budget > 0:  # also of what is no number
        raise InvalidSetting("--budget", budget, "must be more than 0 seconds")
    return budget


def _options_of(
    batch: int | None, dims: Sequence[str], dtype: str | None, layout: str | None, training: bool
) -> ReadOptions:
    from algosearch.compiler import ReadOptions

    if batch is not None and batch < 1:
        raise InvalidSetting("--batch", batch, "must be at least 1")
    return ReadOptions(
        batch=batch,
        dimensions=dimensions_of(dims),
        data_type=_one_of("--dtype", dtype, _ELEMENT_TYPES),
        layout=_one_of("--layout", layout, _LAYOUTS),
        training=training,
    )


def _one_of(name: str, word: str | None, allowed: tuple[Word, ...]) -> Word | None:
    """`word` as one of the allowed ones; None if it is left out."""
    for each in allowed:
        if each == word:
            return each
    if word is not None:
        raise InvalidSetting(name, word, f"must be one of {', '.join(allowed)}")
    return None


def dimensions_of(pairs: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """The sizes by name.

    Raises:
        InvalidSetting: one of them is not NAME=N, or gives another size to a name that has one.
    """
    sizes: dict[str, int] = {}
    for pair in pairs:
        name, _, size = pair.rpartition("=")
        if not (name and size.isascii() and size.isdigit() and len(size) < 19 and int(size)):
            raise InvalidSetting("--dim", pair, "must be NAME=N, with N at least 1")
        if sizes.setdefault(name, int(size)) != int(size):
            raise InvalidSetting("--dim", pair, f"{name} is {sizes[name]} already")
    return tuple(sizes.items())
