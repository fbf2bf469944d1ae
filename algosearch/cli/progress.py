"""How far a command has come: a live bar where there is a terminal, else a plain line every few seconds.

Drawing happens in the caller's thread, when it shows a moment, and only if that differs from the last one: on the CPU
backend the runs being timed share this process, so that a refresh thread would be noise in every measurement.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, Self

import msgspec

from algosearch.cli.terminal import Terminal, one_line
from algosearch.cli.units import duration

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import RenderableType

TICK_S: Final = 0.1
"""How often it is looked at."""
LINE_EVERY_S: Final = 3.0
_BAR_COLUMNS: Final = 30


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """How far it has come."""

    total: int
    answered: int
    searched: int
    """Those of `answered` that cost a search."""
    elapsed_s: float
    """Since it began."""
    trying: str = ""
    """What is under way, in a few words; empty if nothing is."""

    @property
    def left_s(self) -> float | None:
        """The estimate: what is left takes as long on average as what was searched. None before the first search."""
        if not self.searched:
            return None
        return self.elapsed_s / self.searched * (self.total - self.answered)


class Progress(Protocol):
    """Entered for as long as it goes on; gone, or at its last line, when left."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, moment: Moment) -> None:
        """Draw it, if there is something new to see."""
        ...


def progress(terminal: Terminal, *, after_s: float = 0.0) -> Progress:
    """What fits this terminal's stderr.

    Args:
        after_s: nothing is said of what takes less.
    """
    talk = terminal.talk
    return Bar(terminal, after_s) if talk.is_terminal and not talk.is_dumb_terminal else Lines(terminal, after_s)


class Tally:
    """Counts what a command goes through one by one, and shows it now and then.

    Args:
        total: how many there will be.
        bar: entered.
    """

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar = bar
        self._total = total
        self._done = 0
        self._began = perf_counter()
        self._next_s = 0.0

    def count(self, doing: str = "", *, done: int = 1) -> None:
        """So many more are done, and this is what goes on."""
        self._done += done
        elapsed_s = perf_counter() - self._began
        if elapsed_s >= self._next_s:
            self._next_s = elapsed_s + TICK_S
            total = max(self._total, self._done)
            self._bar.show(
                Moment(total=total, answered=self._done, searched=self._done, elapsed_s=elapsed_s, trying=doing)
            )


class Lines:
    """A line at once (or after a while), and then one every few seconds."""

    def __init__(self, terminal: Terminal, after_s: float = 0.0) -> None:
        self._terminal = terminal
        self._next_s = after_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, moment: Moment) -> None:
        """As `Progress.show`."""
        if moment.elapsed_s >= self._next_s:
            self._next_s = moment.elapsed_s + LINE_EVERY_S
            self._terminal.say("  ".join(filter(None, (*_facts(moment), moment.trying))))


class Bar:
    """A bar, and below it what is being tried. It leaves nothing behind."""

    def __init__(self, terminal: Terminal, after_s: float = 0.0) -> None:
        from rich.live import Live

        self._after_s = after_s
        self._live = Live(
            console=terminal.talk, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._shown: object = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, moment: Moment) -> None:
        """As `Progress.show`."""
        facts = _facts(moment)
        if moment.elapsed_s >= self._after_s and (facts, moment.trying) != self._shown:
            self._live.start()
            self._shown = (facts, moment.trying)
            self._live.update(_drawn(moment, facts), refresh=True)


def _facts(moment: Moment) -> tuple[str, ...]:
    """n/m, elapsed, and the estimate if there is one; in whole seconds, so that they change once a second."""
    left_s = moment.left_s
    return (
        f"{moment.answered}/{moment.total}",
        duration(int(moment.elapsed_s)),
        "" if left_s is None else f"about {duration(math.ceil(left_s))} left",
    )


def _drawn(moment: Moment, facts: tuple[str, ...]) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 2))
    line.add_row(ProgressBar(moment.total, moment.answered, width=_BAR_COLUMNS), *map(Text, facts))
    return Group(line, Text(one_line(moment.trying), style="dim", no_wrap=True, overflow="ellipsis"))
