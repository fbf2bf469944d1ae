"""diskcache, held short: what it may write, how long it may wait, and what it is told in place of its defaults.

diskcache makes the file, runs the transactions and writes the rows. It is kept from everything else that it can do:

- A value is bytes in its row, a key is text. `InlineDisk` knows no pickle, no JSON and no files, in either direction:
  a row's `filename` is neither read nor deleted.
- All settings are passed. What is left out would be taken from the file's own `Settings` table, which may name any
  attribute or method of the cache, or a pragma. The table is compared before (`inspection.difference`) all the same.
- Nothing waits for 60 seconds. Whatever `timeout` says, diskcache repeats the statements with which it opens as long as
  SQLite answers "database is locked", and everything for ever with `retry=True` (which `cache[key] = value` means).
  `PromptCache` lets it see that answer only as an error of another class, when the time that we allow is over.
- Its `Timeout` may mean that the disk is read-only. The same error of ours carries SQLite's code instead.

Reading is not diskcache's: it has no call for many keys, nor for `PRAGMA data_version`. `algosearch.stores.shelf` reads
with statements of its own, on diskcache's connection (`PromptCache.connection`), or on one that cannot write.
Rejected: a second connection for reading beside diskcache's (its own commits would look like somebody else's).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from diskcache import Cache, Disk, Timeout
from diskcache.core import MODE_RAW

from algosearch.records.wire import LONGEST_BYTES
from algosearch.stores.sqlite import SQLITE_ERRORS, hindrance_of
from algosearch.stores.trouble import Hindrance

SETTINGS: Final[dict[str, int | str]] = {
    "statistics": 0,  # else every read would write
    "tag_index": 0,
    "eviction_policy": "none",  # what was found once is never thrown out to make room
    "size_limit": 1 << 40,
    "cull_limit": 0,
    "sqlite_auto_vacuum": 0,  # 1 moves pages at each delete
    "sqlite_cache_size": 128,  # pages: few are read twice, and new ones cost more than reading them again
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,  # a file cut short under a mapping is a SIGBUS
    "sqlite_synchronous": 1,  # NORMAL: power loss may cost the last commits, never the file
    "disk_min_file_size": 1 << 40,
    "disk_pickle_protocol": 0,
}
"""All of diskcache's. Another value of any of them is another format: count up `inspection.FORMAT`."""
METADATA: Final = ("count", "size", "hits", "misses")
"""What diskcache counts in the same table."""

BUSY_S: Final = 2.0
"""How long one statement waits for another connection's transaction."""
_PAUSE_S: Final = 0.001


class InlineDisk(Disk):  # type: ignore[misc]
    """Text keys, bytes within the row, nothing else."""

    def put(self, key: object) -> tuple[str, bool]:
        """The column values of a key."""
        if type(key) is not str:
            raise TypeError(f"a key is text, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: object) -> str:
        """The key of column values."""
        if type(key) is not str or not raw:
            raise TypeError("a key that is not text")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, bytes]:
        """(size in files, mode, file name, value) of a value."""
        if type(value) is not bytes or read or len(value) > LONGEST_BYTES:
            raise TypeError(f"a value is at most {LONGEST_BYTES} bytes, not {type(value).__name__}")
        return 0, MODE_RAW, None, value

    def fetch(self, mode: object, filename: object, value: object, read: object) -> bytes | None:
        """The value of column values; None for a row that this class has not written."""
        return value if mode == MODE_RAW and filename is None and type(value) is bytes else None

    def filename(self, key: object = None, value: object = None) -> tuple[str, str]:
        """Never: values have no files."""
        raise TypeError("a value has no file")

    def remove(self, file_path: object) -> None:
        """Nothing: the name comes from a row, and may be that of any file."""


class PromptCache(Cache):  # type: ignore[misc]
    """A `Cache` that says at once, and why, what it cannot do. Belongs to the thread that made it.

    Args:
        directory: it exists, and what lies in it was compared.
        deadline: of `time.monotonic`; until then the statements of the opening are repeated while the file is locked.

    Raises:
        Hindrance: it cannot be opened for writing.
    """

    def __init__(self, directory: Path, deadline: float) -> None:
        self._deadline = deadline
        try:
            super().__init__(str(directory), timeout=BUSY_S, disk=InlineDisk, **SETTINGS)
        except BaseException:
            self.close()
            raise
        self._deadline = 0.0  # from here on SQLite waits, `BUSY_S` at most

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection on which it writes, to be read from."""
        connection: sqlite3.Connection = self._con
        return connection

    @property
    def _sql(self) -> Callable[..., sqlite3.Cursor]:
        """Overrides the one way by which diskcache reaches SQLite.

        An error in the statement itself ("no such table", while it opens) stays what diskcache expects and catches.
        """
        execute = self.connection.execute

        def prompt(statement: str, *values: Any) -> sqlite3.Cursor:
            while True:
                try:
                    return execute(statement, *values)
                except sqlite3.Error as error:
                    hindrance = hindrance_of(error)
                    if hindrance.kind == "locked" and time.monotonic() < self._deadline:
                        time.sleep(_PAUSE_S)
                        continue
                    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR:
                        raise
                    raise hindrance from error

        return prompt


def cause_of(error: BaseException) -> Hindrance:
    """What lay behind an error. diskcache rolls back when a statement fails, and where SQLite has done so already the
    second failure hides the first."""
    found: Hindrance | None = None
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, Hindrance):
            return behind
        if isinstance(behind, SQLITE_ERRORS):
            found = hindrance_of(behind)
        elif isinstance(behind, OSError):
            found = Hindrance.of_system(behind)
        behind = behind.__context__
    return found or Hindrance("failed", f"{type(error).__name__}: {error}")


TROUBLE: Final = (Hindrance, sqlite3.Error, Timeout, OSError, UnicodeError)
"""Everything that a call on the file may raise because of the file, the disk, or a name that no file can hold."""
