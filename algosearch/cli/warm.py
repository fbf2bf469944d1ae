"""`algosearch warm`: read models, search what the store does not know yet, and keep the answers there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from algosearch.cli.stop import Stop
from algosearch.cli.terminal import Terminal, one_line, write_json
from algosearch.cli.verb import BY_SIGNAL, DONE, INCOMPLETE, OUT_OF_TIME
from algosearch.errors import InvalidSetting
from algosearch.ops.types import LARGEST

if TYPE_CHECKING:
    from rich.console import RenderableType

    from algosearch.cli.asking import Answer
    from algosearch.compiler import Model, ReadOptions

_FAILURES_SHOWN: Final = 10

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...",
        help="ONNX files, files of ops (.jsonl, one JSON object a line), names of built-in workloads (resnet50).",
    ),
]
Batch = Annotated[int | None, typer.Option(metavar="N", help="Size of the batch dimension.")]
Dims = Annotated[
    list[str] | None, typer.Option("--dim", metavar="NAME=N", help="Size of a dimension that the model leaves open.")
]
Dtype = Annotated[str | None, typer.Option(metavar="T", help="Element type in place of the model's: float16, …")]
Layout = Annotated[str | None, typer.Option(metavar="L", help="channels_first or channels_last.")]
Training = Annotated[bool, typer.Option("--training", help="Ask for the backward directions as well.")]
Device = Annotated[
    str | None, typer.Option(metavar="D", help="Only this device (cpu:0) or backend (cpu). [default: the best found]")
]
Mode = Annotated[
    str | None,
    typer.Option(
        metavar="M", help="How a miss is answered: race, exhaustive, heuristic, cached. [default: ALGOSEARCH_MODE or race]"
    ),
]
Store = Annotated[
    str | None,
    typer.Option(metavar="S", help="A directory. [default: ALGOSEARCH_STORE or the user's cache directory]"),
]
Budget = Annotated[float | None, typer.Option(metavar="SECONDS", help="End after so long, and keep what was found.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; talk goes to stderr anyway.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what becomes of every search.")]


class ModelRead(msgspec.Struct, frozen=True, kw_only=True):
    """One of the models asked for."""

    source: str
    operations: int


class FailedOp(msgspec.Struct, frozen=True, kw_only=True):
    """One op without an answer."""

    problem: str
    reason: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to: the object of `--json`. distinct = hits + searched + heuristic + failed + unanswered."""

    models: tuple[ModelRead, ...]
    operations: int
    """Convolution and batch-norm nodes read."""
    skipped: dict[str, int]
    """Such nodes that could not be made an op, by reason."""
    distinct: int
    """Different problems among them."""
    hits: int
    """Answered from the store."""
    searched: int
    heuristic: int
    """Answered by the library's own order: mode heuristic, nothing run, nothing stored."""
    failed: int
    """No algorithm, or in mode cached no record."""
    unanswered: int
    """Still open when time was up or a signal came."""
    seconds: float
    """From the first model's reading to the last answer."""
    gain: float | None
    """Sum of the times of the library's first candidates over that of the picks; None if nothing was timed."""
    store: str | None
    """Where the answers are kept; None if nowhere."""
    interrupted: bool
    """A signal came before all was answered."""
    failures: tuple[FailedOp, ...]


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
    searched. Interrupted, it keeps what it has, and the next run goes on from there.
    """
    began = perf_counter()
    deadline = began + _budget_of(budget)
    terminal = Terminal()
    with terminal.logging(verbose=verbose), Stop() as stop:
        ...


def _budget_of(seconds: float | None) -> float:
    if seconds is None:
        return math.inf
    if not seconds > 0:  # also true for NaN
        raise InvalidSetting("--budget", seconds, "must be more than 0 seconds")
    return seconds
