"""What is said is a line each, on the stream where it belongs, and is text whatever a model or a store says."""

from __future__ import annotations

import logging
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algosearch.cli.stop import Stop
from algosearch.cli.tables import facts, table
from algosearch.cli.terminal import Terminal, one_line, write_json

HOSTILE = "a\x1b[2J\nb\tc[red]d\ud800\x07"
TAMED = "a�[2J b c[red]d��"


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    line = one_line(text)
    assert len(line) == len(text)
    assert line.isprintable()


def test_results_and_talk_go_apart(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.say(HOSTILE)
    terminal.present(HOSTILE, table("name", rows=[(HOSTILE,)]), facts([(HOSTILE, HOSTILE)]), results=True)
    written = capsys.readouterr()
    assert written.err == TAMED + "\n"
    assert [line.rstrip() for line in written.out.splitlines()] == [TAMED, "name", TAMED, f"{TAMED}   {TAMED}"]


def test_a_table_into_a_pipe_is_as_wide_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().present(table("long", "n", numbers="n", rows=[("x" * 300, "1"), ("y", "10")]), results=True)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [f"{'long':300}    n", f"{'x' * 300}    1", f"{'y':300}   10"]


def test_json_is_one_line_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": ["µ", None]})
    written = capsys.readouterr()
    assert written.err == ""
    assert written.out == '{"a":["µ",null]}\n'


def test_json_of_a_path_that_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"store": "st\udcff", "places": [("\udcff", 1), None]})
    assert capsys.readouterr().out == '{"store":"st\ufffd","places":[["\ufffd",1],null]}\n'


@pytest.fixture
def logger() -> logging.Logger:
    return logging.getLogger("algosearch.stores")


def test_a_logged_warning_is_a_line(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal().logging():
        logger.debug("not this")
        logger.warning("the disk is %s", "full\nof it")
        try:
            raise OSError("no space")
        except OSError:
            logger.exception("writing broke")
    logger.warning("nor this")
    assert capsys.readouterr().err == "warning: the disk is full of it\nerror: writing broke: OSError: no space\n"


def test_verbose_says_events_and_tracebacks(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger("algosearch").level
    with Terminal().logging(verbose=True):
        logger.debug("read %d", 3)
        try:
            raise OSError("no space")
        except OSError:
            logger.exception("writing broke")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == [
        "stores: read 3",
        "error: writing broke: OSError: no space",
        "  Traceback (most recent call last):",
    ]
    assert lines[-1] == "  OSError: no space"
    assert logging.getLogger("algosearch").level == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stop() as stop:
        os.kill(os.getpid(), number)
        assert stop.signum == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == number
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.signum is None
    finally:
        signal.signal(signal.SIGINT, before)
