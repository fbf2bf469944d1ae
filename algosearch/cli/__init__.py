"""The command line: `algosearch`, or `python -m algosearch`.

One file a verb: a function that takes its options, does its job and returns an exit code (`algosearch.cli.verb`), and
its place in `_VERBS`. What a verb needs beyond typer it imports when it runs, so that `--help` costs neither onnx nor
numpy.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from algosearch._version import VERSION
from algosearch.cli import compile as compile_verb
from algosearch.cli import doctor, export, import_, prune, show, stats, verify, warm
from algosearch.cli.streams import OutputLost, settle_streams
from algosearch.cli.terminal import say_logs
from algosearch.cli.verb import after_lost, as_command

__all__ = ("app", "main")

_VERBS: Final = (
    warm.warm,
    compile_verb.compile,
    show.show,
    stats.stats,
    doctor.doctor,
    verify.verify,
    prune.prune,
    export.export,
    import_.import_,
)
"""In the order of the help."""

app: Final = typer.Typer(
    name="algosearch",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in _VERBS:
    app.command(verb.__name__.rstrip("_"))(as_command(verb))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"algosearch {VERSION}")
        raise typer.Exit


@app.callback()
def _algosearch(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Which convolution and batch-norm algorithm, and how much workspace? Each distinct question is answered once.

    The answers are kept in a store, a directory, where every later process finds them.
    """


def main() -> None:
    """The entry point.

    Raises:
        SystemExit: always, with the exit code (`docs/command-line.md`).
    """
    settle_streams()
    say_logs()
    try:
        app(prog_name="algosearch")
    except OutputLost as lost:
        sys.exit(after_lost(lost))
