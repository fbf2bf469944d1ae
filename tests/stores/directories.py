"""Directories with stores in them, and what tests do to them."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from algosearch.records import Record
from algosearch.stores import DirectoryStore
from tests.stores.homes import BytesHome
from tests.stores.nouns import some_key, some_record


def database(directory: Path) -> closing[sqlite3.Connection]:
    """A connection that does as it likes."""
    return closing(sqlite3.connect(directory / "cache.db", isolation_level=None))


class DirectoryHome(BytesHome):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def handle(self) -> DirectoryStore:
        return DirectoryStore(self.path, clock=self.clock, retry_s=0.0)

    def plant(self, digest: str, raw: bytes) -> None:
        with database(self.path) as connection:
            connection.execute(
                "INSERT OR REPLACE INTO Cache(key, raw, mode, value) VALUES (?, 1, 1, ?)", (f"record:{digest}", raw)
            )


async def filled(home: DirectoryHome, count: int = 3, *, trials: int = 3) -> None:
    """Let `count` records be in the home, and nobody have it open."""
    async with home.opened() as store:
        for n in range(count):
            assert (await store.commit(some_record(n, trials=trials), after=0)).kept


async def readable(home: DirectoryHome, count: int) -> list[int]:
    """Which of the first `count` records a fresh handle can read. Each is right, or it is none."""
    async with home.opened() as store:
        answers = await store.get_many([some_key(n) for n in range(count)])
    found = {n: answer for n, answer in enumerate(answers) if isinstance(answer, Record)}
    assert all(record == some_record(n, trials=len(record.searches[0].trials)) for n, record in found.items())
    return list(found)


def set_aside(home: DirectoryHome) -> list[Path]:
    return sorted(home.path.glob("set-aside-*"))


def spoil(file: Path, start: int, length: int | None = None) -> None:
    """Overwrite a part, or all from `start` on, with nonsense."""
    length = file.stat().st_size - start if length is None else length
    with file.open("r+b") as handle:
        handle.seek(start)
        handle.write(b"\xa5" * length)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
