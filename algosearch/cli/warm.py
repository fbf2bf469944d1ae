"""`algosearch warm`: read models, search what the store does not know yet, and keep the answers there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from algosearch.cli.stop import Stop
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.verb import BY_SIGNAL, DONE, INCOMPLETE, OUT_OF_TIME
from algosearch.errors import InvalidSetting
from algosearch.ops import canonical
from algosearch.settings import mode_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from algosearch.cli.asking import Answer
    from algosearch.cli.report import Report
    from algosearch.compiler import Model, ReadOptions
    from algosearch.ops import Op

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
Dtype = Annotated[str | None, typer.Option(metavar="T", help="Element type in place of the model's own: float16, ….")]
Layout = Annotated[str | None, typer.Option(metavar="L", help="channels_first or channels_last.")]
Training = Annotated[bool, typer.Option("--training", help="Ask for the backward directions as well.")]
Device = Annotated[
    str | None, typer.Option(metavar="D", help="A device (cpu:0) or a backend (cpu). [default: the best that is found]")
]
Mode = Annotated[
    str | None,
    typer.Option(
        metavar="M",
        help="How a miss is answered: race, exhaustive, heuristic, cached. [default: ALGOSEARCH_MODE, else race]",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(metavar="S", help="A directory. [default: ALGOSEARCH_STORE, else the user's cache directory]"),
]
Budget = Annotated[float | None, typer.Option(metavar="SECONDS", help="End after so long, and keep what was found.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and all else on stderr.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what becomes of every search.")]


def warm(
    models: Models,
    batch: Batch = None,
    dim: Dims = None,
    dtype: Dtype = None,
    layout: Layout = None,
    training: Training = False,
    device: Device = None,
    mode: Mode = None,
    store: Store = None,
    budget: Budget = None,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Fill the store for MODELs ahead of time.

    Every convolution and batch norm is read, equal ones are taken together, and what the store does not know is
    searched. Interrupted, it keeps what it has, and the same command goes on from there.
    """
    from algosearch.cli.report import report_of, summary_of
    from algosearch.compiler import ReadOptions

    began = perf_counter()
    deadline = began + _seconds_of(budget)
    options = ReadOptions(batch=batch, dims=_dims_of(dim or ()), dtype=dtype, layout=layout, training=training)
    terminal = Terminal()
    with terminal.logging(verbose=verbose), Stop() as stop:

        def ended() -> bool:
            return stop.signum is not None or perf_counter() >= deadline

        read = _read(models, options, ended)
        answers, home = _ask(terminal, _distinct(read), device=device, mode=mode, store=store, ended=ended)
        seconds = perf_counter() - began
        report = report_of(read, answers, store=home, seconds=seconds, interrupted=stop.signum is not None)
        if json:
            write_json(report)
        terminal.present(*summary_of(report), results=not json)
        return _conclude(terminal, report, stop.signum)


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
    return list(dict.fromkeys(canonical(op) for model in models for op in model.ops))


def _ask(
    terminal: Terminal,
    ops: Sequence[Op],
    *,
    device: str | None,
    mode: str | None,
    store: str | None,
    ended: Callable[[], bool],
) -> tuple[Sequence[Answer], str | None]:
    """Ask about every op, with progress; the answers, and where they are kept."""
    from algosearch.cli.asking import ask_all
    from algosearch.cli.devices import find_device
    from algosearch.cli.progress import progress
    from algosearch.search import open_searcher

    if device is not None:
        find_device(device)
    with open_searcher(
        store=store,
        devices=None if device is None else (device,),
        mode=None if mode is None else mode_of(mode, "--mode"),
    ) as searcher:
        with progress(terminal) as bar:
            answers = ask_all(searcher, ops, show=bar.show, ended=ended)
        if any(answer.open for answer in answers):
            terminal.say("stopping")
        return answers, searcher.statistics().engine.store


def _conclude(terminal: Terminal, report: Report, signum: int | None) -> int:
    """The exit code; what is behind it is said."""
    left = f"{report.unanswered} of {report.distinct} are open; what was found is kept, and is not searched again"
    if signum is not None:
        terminal.say(f"interrupted: {left}")
        return BY_SIGNAL + signum
    if report.unanswered:
        terminal.say(f"the budget ran out: {left}")
        return OUT_OF_TIME
    return INCOMPLETE if report.failed else DONE


def _seconds_of(budget: float | None) -> float:
    if budget is None:
        return math.inf
    if not budget > 0:  # also of what is no number
        raise InvalidSetting("--budget", budget, "must be more than 0 seconds")
    return budget


def _dims_of(pairs: Sequence[str]) -> dict[str, int]:
    """The sizes by name.

    Raises:
        InvalidSetting: one of them is not NAME=N, or names a dimension for the second time.
    """
    dims: dict[str, int] = {}
    for pair in pairs:
        name, equals, size = pair.rpartition("=")
        if not (name and equals and size.isascii() and size.isdigit() and len(size) < 19 and int(size)):
            raise InvalidSetting("--dim", pair, "must be NAME=N, with N at least 1")
        if dims.setdefault(name, int(size)) != int(size):
            raise InvalidSetting("--dim", pair, f"{name} is {dims[name]} already")
    return dims
