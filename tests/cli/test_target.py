"""`Target`: tried before the work, written after it, and what it must not be."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from algosearch.cli import target as targets
from algosearch.cli.target import Target
from algosearch.errors import InvalidSetting


def refused(path: Path) -> str:
    with pytest.raises(InvalidSetting) as caught:
        Target("--plan", path)
    return str(caught.value)


def test_what_is_there_stays_until_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_bytes(b"what was there before, and longer")
    target = Target("--plan", path)
    assert path.read_bytes() == b"what was there before, and longer"
    target.write(b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("linked", [False, True])
def test_a_trial_leaves_nothing_behind(linked: bool, tmp_path: Path) -> None:
    made, path = tmp_path / "made", tmp_path / "path"
    path.symlink_to(made)
    target = Target("--plan", path if linked else made)
    assert not made.exists()
    target.write(b"new")
    assert made.read_bytes() == b"new"


def test_a_reader_of_a_pipe_waits_for_what_is_written(tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reading = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reading.start()
    while True:
        try:
            target = Target("--plan", pipe)
        except InvalidSetting:  # nobody reads yet
            continue
        break
    data = b"more than a pipe holds " * 10_000
    target.write(data)
    reading.join(20.0)
    assert received == [data]


def test_a_reader_of_a_pipe_hears_that_nothing_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    target = Target("--plan", pipe)
    with pytest.raises(BlockingIOError):  # somebody may still write
        os.read(handle, 1)
    for _ in range(2):
        target.close()
        assert os.read(handle, 1) == b""
    os.close(handle)


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "cannot be written: " in refused(tmp_path / "pipe")


def test_a_name_that_is_no_path_is_refused() -> None:
    assert "is no path: " in refused(Path("a\0b"))


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_the_file_that_a_stream_goes_to_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report would be written over it, or it into the middle of the report."""
    ends = list(os.pipe()) if kind == "pipe" else [os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)]
    monkeypatch.setattr(targets, "_STREAMS", ((ends[-1], "stdout"),))
    try:
        assert "is stdout as well, which has the report" in refused(Path(f"/proc/self/fd/{ends[-1]}"))
        Target("--plan", tmp_path / "another").close()
    finally:
        for end in ends:
            os.close(end)


def test_a_device_may_be_a_stream_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal shows both."""
    with open(os.devnull, "wb") as stream:
        monkeypatch.setattr(targets, "_STREAMS", ((stream.fileno(), "stdout"),))
        Target("--plan", Path(os.devnull)).write(b"new")


def test_a_closed_stream_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    os.close(handle)
    monkeypatch.setattr(targets, "_STREAMS", ((handle, "stdout"),))
    Target("--plan", tmp_path / "out").close()


@pytest.mark.parametrize("how", ["name", "soft", "hard"])
def test_another_name_of_the_same_file_is_found_out(how: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    if how == "name":
        other = tmp_path / "." / "one"
    elif how == "soft":  # to what is not there yet
        other.symlink_to(one)
    else:
        one.write_bytes(b"kept")
        other.hardlink_to(one)
    target = Target("--trace", other)
    with pytest.raises(InvalidSetting, match="is the file of --plan as well: give each its own"):
        target.check_is_not(one, "the file of --plan")
    target.check_is_not(tmp_path / "third", "the file of --plan")
