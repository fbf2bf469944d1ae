"""`warm` as a process: its streams, its signals, and a terminal around it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from algosearch.backends.simulated import CandidateScript, Fault, Generated, ProblemScript, Script
from tests.cli.helpers import ROOT, environ, run, started, the_object, tiny_op, without_progress, write_ops
from tests.cli.simulated_main import GOES_ON, WAITS_FOR_LANES_S

MODULE = "tests.cli.simulated_main"
OPS = [tiny_op(n) for n in range(6)]
HANGS_S = 600.0
"""Longer than any test may take: whoever waits for it is not back in time."""


def script(path: Path, *, stuck: bool) -> Path:
    """A quick library, or one that does not come back from the last op. The records of one are those of the other."""
    hanging = CandidateScript(algorithm="simulated/t:stuck", time_us=5.0, faults=(Fault(at="launch", does="hangs"),))
    problems = (ProblemScript(op=OPS[-1], candidates=(hanging,)),) if stuck else ()
    made = Script(problems=problems, generated=Generated(candidates=3), facts={"script": "one"}, hang_s=HANGS_S)
    path.write_bytes(msgspec.json.encode(made))
    return path


@pytest.fixture
def ops_file(tmp_path: Path) -> Path:
    return write_ops(tmp_path / "ops.jsonl", OPS)


@contextlib.contextmanager
def stuck_at_the_last(
    tmp_path: Path, ops_file: Path, *flags: str, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A run that does not come back from the last op.

    A device has three keys in hand, so that three others have landed before; two may be stuck behind it.
    """
    made = script(tmp_path / "stuck.json", stuck=True)
    args: list[str | Path] = [made, "warm", ops_file, "--store", tmp_path / "store", "-v", *flags]
    with started(*args, module=MODULE, env=env) as process:
        yield process


def wait_for_line(process: subprocess.Popen[str], pattern: str) -> str:
    """The next line of its stderr in which the pattern is found."""
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(pattern, line):
            return line
    pytest.fail(f"it ended without saying {pattern!r}")


def wait_until_three_have_landed(process: subprocess.Popen[str]) -> None:
    for _ in range(3):
        wait_for_line(process, " landed: ")


def test_stdout_is_the_object_and_stderr_the_talk(tmp_path: Path, ops_file: Path) -> None:
    made = script(tmp_path / "quick.json", stuck=False)
    ended = run(made, "warm", ops_file, "--store", tmp_path / "store", "--json", module=MODULE)
    assert ended.returncode == 0
    assert the_object(ended.stdout)["searched"] == 6
    progress, summary = without_progress(ended.stderr)
    assert progress[0].startswith("0/6  ")
    assert summary[0].startswith("operations ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_was_found_and_a_second_run_goes_on(
    tmp_path: Path, ops_file: Path, number: signal.Signals, code: int
) -> None:
    with stuck_at_the_last(tmp_path, ops_file, "--json") as process:
        wait_until_three_have_landed(process)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=50)
    assert process.returncode == code
    report = the_object(stdout)
    assert report["interrupted"] is True
    found = report["searched"]
    assert 3 <= found <= 5
    assert (report["unanswered"], report["failed"]) == (6 - found, 0)
    assert f"interrupted: {6 - found} of 6 are open; what was found is kept, and not searched again" in stderr
    assert "Traceback" not in stderr

    quick = script(tmp_path / "quick.json", stuck=False)
    ended = run(quick, "warm", ops_file, "--store", tmp_path / "store", "--json", module=MODULE)
    assert ended.returncode == 0
    report = the_object(ended.stdout)
    assert found <= report["hits"] <= 5  # what it was just committing may be kept as well
    assert (report["searched"], report["interrupted"]) == (6 - report["hits"], False)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path, ops_file: Path) -> None:
    """It waits for its lane longer than anybody would."""
    with stuck_at_the_last(tmp_path, ops_file, env=environ(**{WAITS_FOR_LANES_S: str(HANGS_S)})) as process:
        wait_until_three_have_landed(process)
        process.send_signal(signal.SIGINT)
        wait_for_line(process, "^stopping$")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=50)
    assert process.returncode == 130
    assert stdout == ""
    assert "interrupted" in stderr.splitlines()
    assert "Traceback" not in stderr


def test_a_budget_that_is_over_before_it_begins(tmp_path: Path, ops_file: Path) -> None:
    made = script(tmp_path / "quick.json", stuck=False)
    ended = run(made, "warm", ops_file, "--store", tmp_path / "store", "--budget", "1e-9", "--json", module=MODULE)
    assert ended.returncode == 3
    assert the_object(ended.stdout)["operations"] == 0
    assert "and 1 of the models unread" in ended.stderr


def test_on_a_terminal_there_is_a_bar_and_then_only_the_summary(tmp_path: Path, ops_file: Path) -> None:
    made = script(tmp_path / "stuck.json", stuck=True)
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, str(made), "warm", str(ops_file), "--store", str(tmp_path / "store")],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=ROOT,
        env={name: value for name, value in environ(TERM="xterm").items() if name != "COLUMNS"},
    )
    os.close(its)
    screen = b""
    while not re.search(rb"[1-5]/6 ", screen):
        chunk = read_or_end(ours)
        assert chunk, screen.decode()
        screen += chunk
    process.send_signal(GOES_ON)
    while chunk := read_or_end(ours):
        screen += chunk
    os.close(ours)
    assert process.wait(50) == 0
    text = screen.decode()
    bar, summary = text.rsplit("\x1b[2K", 1)
    assert "0/6  " in bar
    assert re.search(r"\d/6 ", bar.rpartition("0/6")[2])  # it went on
    plain = [" ".join(line.split()) for line in re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", summary).splitlines()]
    assert plain[:2] == ["operations 6 in 1 model", "distinct 6"]


def read_or_end(terminal: int) -> bytes:
    """What was written, or nothing when the other side has closed (which Linux reports as an error)."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_lines_go_on_while_something_is_stuck(tmp_path: Path, ops_file: Path) -> None:
    """F03."""
    made = script(tmp_path / "stuck.json", stuck=True)
    with started(made, "warm", ops_file, "--store", tmp_path / "store", module=MODULE) as process:
        assert wait_for_line(process, r"^\d/6 ").startswith("0/6  ")
        for _ in range(2):  # the same again: nothing lands any more
            wait_for_line(process, r"^[345]/6  .+ s  about .+ s left  .+: forward 1x2x6x")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=50)
    assert process.returncode == 130
