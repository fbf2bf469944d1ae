"""What becomes of a command whose stdout or stderr cannot be written: full, closed, or a pipe that nobody reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from algosearch.backends.simulated import CandidateScript, Fault, Generated, ProblemScript, Script
from tests.cli.helpers import (
    ROOT,
    environ,
    fill,
    record_of,
    run,
    started,
    the_object,
    tiny_op,
    without_progress,
    write_ops,
)

OPS = [tiny_op(n) for n in range(3)]
FULL = "the results cannot be written to stdout: No space left on device"
CLOSED = "the results cannot be written to stdout: Bad file descriptor"

Streams = tuple[int | None, int | None]
"""Descriptors for stdout and stderr; None: closed."""


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def unread() -> int:
    """A pipe whose reader has left."""
    reads, writes = os.pipe()
    os.close(reads)
    return writes


def closed() -> None:
    return None


def ended(
    args: Sequence[str | Path], *, out: int | None = subprocess.PIPE, err: int | None = subprocess.PIPE
) -> tuple[int, str, str]:
    """A command's exit code and what it could write; its streams are closed where None is given."""
    shut = [number for number, stream in ((1, out), (2, err)) if stream is None]

    def close() -> None:
        for number in shut:
            os.close(number)

    process = subprocess.Popen(
        [sys.executable, "-m", *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if out is None else out,
        stderr=subprocess.DEVNULL if err is None else err,
        preexec_fn=close,  # noqa: PLW1509 - nothing else closes a stream, and no thread is running
        text=True,
        env=environ(),
        cwd=ROOT,
    )
    with process:
        stdout, stderr = process.communicate(timeout=50)
    for stream in (out, err):
        if stream is not None and stream >= 0:
            os.close(stream)
    return process.returncode, stdout or "", stderr or ""


@pytest.fixture
def warm(tmp_path: Path) -> list[str | Path]:
    """A run of `warm` on a simulated device."""
    script = tmp_path / "script.json"
    script.write_bytes(msgspec.json.encode(Script(generated=Generated(candidates=3))))
    ops = write_ops(tmp_path / "ops.jsonl", OPS)
    return ["tests.cli.simulated_main", script, "warm", ops, "--store", tmp_path / "store"]


COMMANDS = [["--help"], ["show", "--json"], ["show"]]
"""What click prints, one object, a table."""


@pytest.mark.parametrize(("made", "code", "said"), [(full, 74, FULL), (unread, 141, ""), (closed, 74, CLOSED)])
@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_results_that_nobody_gets(
    args: list[str], made: Callable[[], int | None], code: int, said: str, tmp_path: Path
) -> None:
    store = ["--store", str(fill(tmp_path / "store", record_of(OPS[0])))] if args[0] == "show" else []
    result, _, stderr = ended(["algosearch", *args[:1], *store, *args[1:]], out=made())
    assert result == code
    assert without_progress(stderr)[1] == ([f"error: {said}"] if said else [])


@pytest.mark.parametrize(("made", "code", "said"), [(full, 74, FULL), (unread, 141, ""), (closed, 74, CLOSED)])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_what_was_found_is_kept_though_nobody_gets_the_report(
    flags: list[str], made: Callable[[], int | None], code: int, said: str, warm: list[str | Path]
) -> None:
    result, _, stderr = ended([*warm, *flags], out=made())
    assert result == code
    progress, rest = without_progress(stderr)
    assert progress[0].startswith("0/3  ")
    assert rest[-1:] == ([f"error: {said}"] if said else rest[-1:])
    assert "Traceback" not in stderr
    assert "internal error" not in stderr
    assert not flags or rest[0].startswith("operations ")
    result, stdout, _ = ended([*warm, "--json"])
    assert (result, the_object(stdout)["hits"]) == (0, 3)


@pytest.mark.parametrize("made", [full, unread, closed])
def test_talk_that_nobody_hears_costs_nothing(made: Callable[[], int | None], warm: list[str | Path]) -> None:
    result, stdout, _ = ended([*warm, "--json", "-v"], err=made())
    assert result == 0
    assert the_object(stdout)["searched"] == 3


@pytest.mark.parametrize("made", [full, unread, closed])
def test_a_refusal_that_nobody_hears_is_one(made: Callable[[], int | None]) -> None:
    result, stdout, _ = ended(["algosearch", "warm", "no-such-model"], err=made())
    assert (result, stdout) == (2, "")


@pytest.mark.parametrize("made", [full, unread, closed])
def test_neither_stream(made: Callable[[], int | None], warm: list[str | Path]) -> None:
    result, _, _ = ended([*warm, "--json"], out=made(), err=made())
    assert result == (141 if made is unread else 74)
    result, stdout, _ = ended([*warm, "--json"])
    assert (result, the_object(stdout)["hits"]) == (0, 3)


def test_a_closed_stream_is_nobody_elses(warm: list[str | Path], tmp_path: Path) -> None:
    """A store that got descriptor 2 would have the talk in its file."""
    result, _, _ = ended([*warm, "--json", "-v"], out=None, err=None)
    assert result == 74
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or b"landed" not in file.read_bytes(), file
    assert the_object(run("show", "--json", "--store", tmp_path / "store").stdout)["unreadable"] == []


def test_a_warning_of_a_thread_looks_like_any_other(tmp_path: Path) -> None:
    """A lane that does not come back is told of while everything is closed."""
    hanging = CandidateScript(algorithm="simulated/t:stuck", time_us=5.0, faults=(Fault(at="launch", does="hangs"),))
    stuck = ProblemScript(op=OPS[0], candidates=(hanging,))
    script = tmp_path / "script.json"
    script.write_bytes(msgspec.json.encode(Script(problems=(stuck,), hang_s=600.0)))
    ops = write_ops(tmp_path / "ops.jsonl", OPS[:1])
    with started(script, "warm", ops, "--store", tmp_path / "store", module="tests.cli.simulated_main") as process:
        assert process.stderr is not None
        assert any("first run of simulated/t:stuck" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=50)
    assert process.returncode == 130
    (busy,) = (line for line in stderr.splitlines() if "still busy" in line)
    assert busy.startswith("warning: simulated:0 is still busy")


def test_what_is_logged_outside_of_any_verb_looks_like_all_talk() -> None:
    code = (
        "import atexit, logging, threading, warnings; from algosearch.cli import main\n"
        "late = logging.getLogger('algosearch.devices').warning\n"
        "atexit.register(late, 'cpu:%d is still busy', 0)\n"
        "def odd():\n"
        "    warnings.warn('odd', stacklevel=1); logging.getLogger('asyncio').error('a task was lost')\n"
        "atexit.register(odd)\n"
        "main()"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, "show", "--store", "/nonexistent/store"],
        capture_output=True,
        text=True,
        env=environ(PYTHONWARNINGS="default"),
        timeout=50,
        check=True,
    ).stderr.splitlines()
    assert said == [
        "there is no store at /nonexistent/store",
        "warning: <string>:5: UserWarning: odd",
        "error: a task was lost",
        "warning: cpu:0 is still busy",
    ]
