"""What all verbs have in common: their exit codes, and that no error reaches the user as a traceback."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Final, ParamSpec

import typer

from algosearch.cli.stop import interruptible
from algosearch.cli.streams import OutputLost
from algosearch.cli.terminal import Terminal
from algosearch.errors import (
    AlgosearchError,
    DeviceUnavailable,
    DoesNotFit,
    InvalidSetting,
    InvalidValue,
    ModelError,
    StoreUnusable,
    UnknownDevice,
    UnreadableExport,
)
from algosearch.settings import DEBUG_VARIABLE, debug_wanted

DONE: Final = 0
"""All that was asked was done."""
INCOMPLETE: Final = 1
"""Some of it has no answer: an op without an algorithm, a filter without a match."""
REFUSED: Final = 2
"""An argument, a setting, a model, a device or a store cannot be used. As typer's own for wrong usage."""
OUT_OF_TIME: Final = 3
"""The budget ran out. What was found is kept."""
BROKEN: Final = 70
"""An error inside algosearch (EX_SOFTWARE of sysexits.h)."""
NOT_WRITTEN: Final = 74
"""The results could not be written (EX_IOERR). What was found is kept."""
BY_SIGNAL: Final = 128
"""Plus the signal's number: 130 for Ctrl-C, 143 for SIGTERM. What was found is kept."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""Whoever read stdout has left: what the shell says of a process that SIGPIPE ended. What was found is kept."""

_REFUSALS: Final = (
    DoesNotFit,
    InvalidValue,
    InvalidSetting,
    ModelError,
    UnreadableExport,
    UnknownDevice,
    DeviceUnavailable,
    StoreUnusable,
)

P = ParamSpec("P")


def as_command(verb: Callable[P, int]) -> Callable[P, None]:
    """A function that returns an exit code, as typer wants it; its errors become one line of talk and a code."""

    @functools.wraps(verb)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with interruptible():
                code = verb(*args, **kwargs)
        except (typer.Exit, typer.Abort, OutputLost):
            raise
        except KeyboardInterrupt as error:
            Terminal().say("interrupted", style="yellow")
            code = BY_SIGNAL + error.args[0] if error.args else INTERRUPTED  # `Stop` says by which
        except _REFUSALS as error:
            Terminal().say(f"error: {error}", style="red")
            code = REFUSED
        except Exception as error:
            _tell_broken(error)
            code = BROKEN
        raise typer.Exit(code)

    return command


def after_lost(lost: OutputLost) -> int:
    """The exit code of a command whose results nobody got; why is said, unless it is nobody's mistake."""
    if lost.reader_left:
        return BROKEN_PIPE
    Terminal().say(f"error: {lost}", style="red")
    return NOT_WRITTEN


def _tell_broken(error: Exception) -> None:
    terminal = Terminal()
    debug = debug_wanted()
    if debug:
        for line in traceback.format_exception(error):
            terminal.talk.print(line, end="", markup=False, soft_wrap=True)
    what = str(error) if isinstance(error, AlgosearchError) else f"{type(error).__name__}: {error}"
    terminal.say(f"internal error: {what}" + ("" if debug else f"; {DEBUG_VARIABLE}=1 shows where"), style="red")
