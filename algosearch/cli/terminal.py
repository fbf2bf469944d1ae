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

import msgspec

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

    def present(self, *parts: RenderableType, results: bool) -> None:
        """Tables, and lines, for people: on stdout if they are the results, else on stderr."""
        if not results:
            _print(self.talk, parts)
            return
        from rich.console import Console

        console = Console(highlight=False)
        with console.capture() as page:  # rich would end the process, with 1, if the reader of a pipe had left
            _print(console, parts)
        sys.stdout.write(page.get())
        sys.stdout.flush()

    @contextlib.contextmanager
    def logging(self, *, verbose: bool = False) -> Iterator[None]:
        """Say what the package logs, for the length of the block: warnings, and with `verbose` every event."""
        logger = logging.getLogger(_LOGGER)
        handler, before = _Sayer(self, verbose), logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)


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
        text = record.getMessage()
        if record.levelno < logging.WARNING:
            self._terminal.say(f"{record.name.removeprefix(_LOGGER + '.')}: {text}", style="dim")
            return
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and str(error) not in text:
            text += f": {type(error).__name__}: {error}"
        self._terminal.say(f"{record.levelname.lower()}: {text}", style="yellow")
        if error is not None and self._verbose:
            for line in logging.Formatter().format(record).splitlines()[1:]:
                self._terminal.say(f"  {line}", style="dim")


def write_json(value: Any) -> None:
    """The one JSON object of a command, on one line of stdout."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def one_line(text: str) -> str:
    """`text` as one line that a terminal takes for text: no line ends, no escape sequences, no half characters."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "�" for char in text)
