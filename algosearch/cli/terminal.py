"""What the command line says, and where: results on stdout, talk on stderr.

The only room of the package that prints. Talk is one line each, whatever is in it, and goes through one console, so
that it appears above a progress bar and not in the middle of it. What comes from models and stores is printed as text:
no markup, and no control characters, which a terminal would obey.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_LOGGER: Final = "algosearch"
_WIDEST: Final = 4000
"""Columns; no table comes near it."""


class Terminal:
    """Both streams of one command. rich is imported by what is first said, not by what is imported."""

    def __init__(self) -> None:
        self._talk: Console | None = None

    @property
    def talk(self) -> Console:
        """The console of stderr."""
        if self._talk is None:
            from rich.console import Console

            self._talk = Console(stderr=True, highlight=False)
        return self._talk

    def say(self, text: str, *, style: str | None = None) -> None:
        """One line of talk; from any thread."""
        self.talk.print(one_line(text), style=style, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """One line of talk about what may not be as it was meant."""
        self.say(f"warning: {text}", style="yellow")

    def present(self, *parts: RenderableType, results: bool) -> None:
        """Tables, and lines, for people: on stdout if they are the results, else on stderr."""
        if not results:
            _print(self.talk, parts)
            return
        from rich.console import Console

        _print(Console(highlight=False), parts)

    @contextlib.contextmanager
    def logging(self, *, verbose: bool = False) -> Iterator[None]:
        """Say what is logged, for the length of the block: warnings of anybody, and with `verbose` every event of the
        package."""
        root, logger = logging.getLogger(), logging.getLogger(_LOGGER)
        before, level = [each for each in root.handlers if isinstance(each, _Sayer)], logger.level
        now = _Sayer(self, verbose)
        _change(root, before, [now])
        logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
        try:
            yield
        finally:
            _change(root, [now], before)
            logger.setLevel(level)


def say_logs() -> None:
    """Say warnings to the end of the process, in the one form that all talk has: also what is logged before a verb has
    begun or after it has ended, by whichever thread, and what goes through Python's `warnings`."""
    logging.captureWarnings(True)
    _change(logging.getLogger(), [], [_Sayer(Terminal(), verbose=False)])


def _change(logger: logging.Logger, old: Sequence[logging.Handler], new: Sequence[logging.Handler]) -> None:
    for handler in new:
        logger.addHandler(handler)
    for handler in old:
        logger.removeHandler(handler)


def _print(console: Console, parts: Sequence[RenderableType]) -> None:
    from rich.measure import Measurement

    for part in parts:
        if isinstance(part, str):
            console.print(one_line(part), markup=False, soft_wrap=True)
            continue
        if not console.is_terminal:
            # Into a file or a pipe as wide as it is: nothing there folds, and grep wants whole lines.
            console.width = _WIDEST
            console.width = Measurement.get(console, console.options, part).maximum
        console.print(part)


class _Sayer(logging.Handler):
    """Says log records, a line each. Tracebacks are for who asks to see everything."""

    def __init__(self, terminal: Terminal, verbose: bool) -> None:
        super().__init__()
        self._terminal = terminal
        self._verbose = verbose

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().strip()
        if record.levelno < logging.WARNING:
            self._terminal.say(f"{record.name.removeprefix(_LOGGER + '.')}: {text}", style="dim")
            return
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and str(error) not in text:
            text += f": {type(error).__name__}: {error}"
        if record.levelno < logging.ERROR:
            self._terminal.warn(text)
        else:
            self._terminal.say(f"error: {text}", style="red")
        if error is not None and self._verbose:
            for line in logging.Formatter().format(record).splitlines()[1:]:
                self._terminal.say(f"  {line}", style="dim")


def write_json(value: Any) -> None:
    """The one JSON object of a command, on one line of stdout."""
    from algosearch.records.plain import as_json

    sys.stdout.write(as_json(value).decode() + "\n")
    sys.stdout.flush()


def one_line(text: str) -> str:
    """`text` as one line that a terminal takes for text: no line ends, no escape sequences, no half characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "�" for char in text)
