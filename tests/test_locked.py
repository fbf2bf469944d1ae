"""Files that are locked between processes, and forks at every moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from algosearch import locked
from algosearch.locked import LockedFile
from tests.forking import in_child

_LIMIT_S = 20.0
_LINGERS_S = 0.3


def _copies(path: Path) -> list[str]:
    """The open files of this process with this name."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # that of the listing
            continue
    return [link for link in links if link == str(path)]


def test_one_has_it_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    one, other = LockedFile(), LockedFile()
    one.open(path)
    one.lock()
    other.open(path)
    with pytest.raises(BlockingIOError):
        other.lock(wait=False)
    one.close()
    one.close()  # harmless
    other.lock(wait=False)
    assert other.is_at(path)
    other.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="link"):
        LockedFile().open(tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_a_fork_has_no_part_in_it_and_can_lock_it_itself(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    file = LockedFile()
    file.open(path)
    file.lock()

    def lock_it() -> object:
        own = LockedFile()
        own.open(path)
        try:
            own.lock(wait=False)
        except BlockingIOError:
            return f"in vain, {len(_copies(path))} open"
        return "locked"

    assert in_child(lock_it) == "in vain, 1 open"
    file.close()
    assert in_child(lock_it) == "locked"


@pytest.mark.parametrize("moment", ["open", "close"])
def test_a_fork_while_it_is_opened_or_closed_has_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Both give the interpreter's lock up, so that another thread may fork when a file is open and unknown."""
    path = tmp_path / "lock"
    reached, forked = threading.Event(), threading.Event()

    def slow(call: Callable[..., Any]) -> Callable[..., Any]:
        def lingering(*arguments: Any) -> Any:
            if moment == "close":
                reached.set()
                forked.wait(_LINGERS_S)
            outcome = call(*arguments)
            if moment == "open":
                reached.set()
                forked.wait(_LINGERS_S)
            return outcome

        return lingering

    names = {name: getattr(os, name) for name in dir(os)}
    monkeypatch.setattr(locked, "os", SimpleNamespace(**{**names, moment: slow(names[moment])}))

    def use() -> None:
        file = LockedFile()
        file.open(path)
        file.lock()
        file.close()

    thread = threading.Thread(target=use)
    thread.start()
    assert reached.wait(_LIMIT_S)
    assert in_child(lambda: _copies(path)) == "[]"
    forked.set()
    thread.join(_LIMIT_S)
    assert not _copies(path)


def test_what_is_opened_while_somebody_forks_waits_until_that_is_over(tmp_path: Path) -> None:
    file, opened = LockedFile(), threading.Event()

    def use() -> None:
        file.open(tmp_path / "lock")
        opened.set()

    locked._FORKING.hold(0.0)
    thread = threading.Thread(target=use)
    thread.start()
    assert not opened.wait(0.05)
    locked._FORKING.let_go()
    thread.join(_LIMIT_S)
    assert opened.is_set()
    file.close()


def test_a_file_that_does_not_open_puts_a_fork_off_for_a_while_only() -> None:
    with locked._FORKING.kept_off():
        locked._FORKING.hold(0.01)
        locked._FORKING.let_go()
