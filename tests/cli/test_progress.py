"""What a moment looks like: as a line into a file, as a bar on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from algosearch.cli.progress import LINE_EVERY_S, Bar, Lines, Moment, Tally, progress
from algosearch.cli.terminal import Terminal

TRYING = "racing im2col for forward 1x2x6x6 * 2x2x3x3 float32"


def moment(answered: int, elapsed_s: float, *, searched: int | None = None, trying: str = TRYING) -> Moment:
    return Moment(
        total=40,
        answered=answered,
        searched=answered if searched is None else searched,
        elapsed_s=elapsed_s,
        trying=trying,
    )


def terminal_on(stream: io.StringIO, *, is_terminal: bool) -> Terminal:
    terminal = Terminal()
    terminal._talk = Console(file=stream, force_terminal=is_terminal, width=70, highlight=False, color_system=None)
    return terminal


def test_the_estimate_counts_only_what_was_searched() -> None:
    assert moment(0, 5.0).left_s is None
    assert moment(20, 5.0, searched=0).left_s is None
    assert moment(20, 5.0, searched=10).left_s == pytest.approx(10.0)
    assert moment(40, 5.0).left_s == 0.0


def test_lines_come_at_once_and_then_every_few_seconds() -> None:
    stream = io.StringIO()
    with Lines(terminal_on(stream, is_terminal=False)) as lines:
        for tenths in range(80):
            lines.show(moment(tenths // 4, tenths / 10))
    written = stream.getvalue().splitlines()
    assert len(written) == 1 + int(7.9 // LINE_EVERY_S)
    assert written[0] == f"0/40  0 s  {TRYING}"
    assert written[1] == f"7/40  3 s  about 15 s left  {TRYING}"  # one line, however narrow


def test_a_bar_is_drawn_when_there_is_something_new_and_leaves_nothing_behind() -> None:
    stream = io.StringIO()
    with Bar(terminal_on(stream, is_terminal=True)) as bar:
        bar.show(moment(4, 0.98))
        first = stream.getvalue()
        bar.show(moment(4, 0.99))
        assert stream.getvalue() == first
        bar.show(moment(5, 1.0))
        assert "5/40" in stream.getvalue()[len(first) :]
    assert "4/40" in first
    assert "about 9 s left" in first
    assert max(map(len, re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", first).splitlines())) <= 70
    assert stream.getvalue().rstrip("\n").endswith("\x1b[2K")  # the last thing it does is to erase its lines


def test_a_warning_appears_above_the_bar() -> None:
    stream = io.StringIO()
    terminal = terminal_on(stream, is_terminal=True)
    with Bar(terminal) as bar:
        bar.show(moment(4, 1.0))
        terminal.say("warning: something")
        after = stream.getvalue()
    above, below = after.rsplit("warning: something\n", 1)
    assert "4/40" in above
    assert "4/40" in below  # drawn again


def test_what_fits_the_terminal() -> None:
    assert isinstance(progress(terminal_on(io.StringIO(), is_terminal=True)), Bar)
    assert isinstance(progress(terminal_on(io.StringIO(), is_terminal=False)), Lines)


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress(terminal_on(io.StringIO(), is_terminal=True)), Lines)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_takes_no_longer_is_not_said(is_terminal: bool) -> None:
    stream = io.StringIO()
    with progress(terminal_on(stream, is_terminal=is_terminal), after_s=1.0) as bar:
        bar.show(moment(4, 0.9))
        assert stream.getvalue() == ""
        bar.show(moment(5, 1.0))
        assert "5/40" in stream.getvalue()


def test_a_tally_counts_and_never_beyond_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Moment] = []

    class Kept(Lines):
        def show(self, moment: Moment) -> None:
            shown.append(moment)

    clock = iter([0.0, 0.0, 0.05, 0.1, 0.5])
    monkeypatch.setattr("algosearch.cli.progress.perf_counter", lambda: next(clock))
    tally = Tally(Kept(terminal_on(io.StringIO(), is_terminal=False)), 2)
    for _ in range(3):
        tally.count("reading")
    tally.count("reading", done=4)
    assert [(each.answered, each.total) for each in shown] == [(1, 2), (3, 3), (7, 7)]
    assert shown[-1].left_s == 0.0
