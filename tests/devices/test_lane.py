"""The right to time on a device: between threads, between processes, and where no lock can be had."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from algosearch.backends.simulated import TraceEvent, read_trace
from algosearch.devices.lane import Lane, lane_of
from algosearch.devices.runtime import runtime_directory
from tests.forking import in_child

_LIMIT_S = 30.0


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of the test's own."""
    directory = tmp_path / "runtime"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    return directory


@contextmanager
def a_process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.devices.lane_user", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(_LIMIT_S)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# -- between threads -------------------------------------------------------------------------------------------------


def test_one_device_is_one_lane() -> None:
    assert lane_of("tests/x") is lane_of("tests/x")
    assert lane_of("tests/x") is not lane_of("tests/y")


def test_threads_exclude_each_other_on_one_device_and_not_on_two() -> None:
    with lane_of("tests/a"):
        with lane_of("tests/b"):
            pass
        taken = threading.Event()

        def take() -> None:
            with lane_of("tests/a"):
                taken.set()

        thread = threading.Thread(target=take)
        thread.start()
        assert not taken.wait(0.05)
    assert taken.wait(_LIMIT_S)
    thread.join(_LIMIT_S)


# -- between processes -----------------------------------------------------------------------------------------------


def test_timed_runs_of_two_processes_never_overlap(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with a_process("search", trace) as one, a_process("search", trace) as other:
        for process in (one, other):
            assert line(process) == "ready"
        for process in (one, other):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        deadline = time.monotonic() + _LIMIT_S
        while _changes(list(_visits(_timed(read_trace(trace))))) < 4:
            assert time.monotonic() < deadline, "they do not take turns"
            time.sleep(0.01)
        for process in (one, other):
            assert process.stdin is not None
            process.stdin.close()
        for process in (one, other):
            assert process.wait(_LIMIT_S) == 0
    events = read_trace(trace)
    assert len({event.pid for event in events}) == 2
    timed = _timed(events)
    visits = list(_visits(timed))
    assert all(calls[0] == "load" and calls.count("load") == 1 for _, calls in visits), "nobody comes in between"
    # Nor do the times that the runs took, of which the trace has the ends.
    runs = sorted((event.t - event.us * 1e-6, event.t, event.pid) for event in timed if event.us)
    for (_, end, pid), (start, _, other_pid) in pairwise(runs):
        assert pid == other_pid or end <= start


def _timed(events: Sequence[TraceEvent]) -> list[TraceEvent]:
    """What was done in the lane."""
    return [event for event in events if event.call in ("load", "launch", "time", "check", "unload")]


def _changes(visits: list[tuple[int, list[str]]]) -> int:
    """How often the lane went from one process to the other."""
    return sum(first != second for (first, _), (second, _) in pairwise(visits))


def _visits(events: list[TraceEvent]) -> Iterator[tuple[int, list[str]]]:
    """Who was in the lane, from each load to its unload, with all calls that anybody made meanwhile."""
    calls: list[str] = []
    for event in events:
        calls.append(event.call)
        if calls[-1] == "unload":
            yield event.pid, calls
            calls = []


def test_who_is_killed_gives_it_back() -> None:
    with a_process("hold", "tests/killed") as holder:
        assert line(holder) == "taken"
        with a_process("take", "tests/killed") as waiting:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(0.3)
            holder.kill()
            assert line(waiting) == "taken"


def test_a_fork_has_no_part_in_it() -> None:
    with a_process("fork", "tests/fork") as parent:
        fork = int(line(parent))
        try:
            with a_process("take", "tests/fork") as other:
                assert line(other) == "taken", "though the fork lives on, with copies of all open files"
        finally:
            os.kill(fork, 9)


def test_a_fork_can_take_it() -> None:
    code = (
        "import os\n"
        "from algosearch.devices.lane import lane_of\n"
        "lane = lane_of('tests/forked')\n"
        "lane.take()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    with lane_of('tests/forked'):\n"
        "        os._exit(7)\n"
        "lane.give_back()\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=_LIMIT_S)


def test_somebody_tidies_up_while_one_waits(runtime: Path) -> None:
    """Then the name is another file's, and who has locked the old one has locked nothing."""
    with a_process("hold", "tests/tidy") as holder:
        assert line(holder) == "taken"
        (file,) = (runtime / "algosearch").iterdir()
        with a_process("hold", "tests/tidy") as waiting:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(0.3)
            file.unlink()
            holder.kill()
            assert line(waiting) == "taken"
            with a_process("take", "tests/tidy") as third, pytest.raises(subprocess.TimeoutExpired):
                third.wait(0.3)


# -- where the locks are ---------------------------------------------------------------------------------------------


def test_files_are_this_users_alone(runtime: Path) -> None:
    with lane_of("tests/files"):
        (file,) = (runtime / "algosearch").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
    assert (runtime / "algosearch").stat().st_mode & 0o777 == 0o700
    assert "tests" not in file.name, "an identity may be any text"


def test_without_a_runtime_directory_it_is_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    expected = tmp_path / f"algosearch-{os.geteuid()}"
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    for environ in (
        {},
        {"XDG_RUNTIME_DIR": ""},
        {"XDG_RUNTIME_DIR": "relative"},
        {"XDG_RUNTIME_DIR": str(tmp_path / "nowhere")},
        {"XDG_RUNTIME_DIR": str(open_to_all)},
    ):
        assert runtime_directory(environ) == expected
    assert expected.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trap", ["link", "open", "file"])
def test_what_is_not_safe_is_refused_and_said_once(
    trap: str, runtime: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = runtime / "algosearch"
    if trap == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        directory.symlink_to(tmp_path / "elsewhere")
    elif trap == "open":
        directory.mkdir()
        directory.chmod(0o755)
    else:
        directory.write_text("")
    with pytest.raises(OSError, match="algosearch"):
        runtime_directory()
    lane = Lane("tests/unsafe")
    for _ in range(3):
        with lane:
            assert "taken" in repr(lane)
    (warning,) = caplog.records
    assert "disturb each other" in warning.getMessage()


def test_a_link_in_place_of_the_file_is_refused(
    runtime: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lane = Lane("tests/link")
    with lane:
        (file,) = (runtime / "algosearch").iterdir()
    file.unlink()
    target = tmp_path / "target"
    file.symlink_to(target)
    with lane:
        assert not target.exists()
    assert len(caplog.records) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_files_are_not_left_open() -> None:
    def left() -> int:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with lane_of("tests/descriptors"):
                pass
        return len(os.listdir("/proc/self/fd")) - before

    assert in_child(left) == "0", "where no thread of another test opens and closes any"
