"""SQLite as this room uses it: connections that cannot write, and its errors as kinds of trouble."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from algosearch.stores.trouble import Hindrance, Kind

_BY_CODE: Final[dict[int, Kind]] = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_PROTOCOL: "locked",
    sqlite3.SQLITE_READONLY: "read_only",
    sqlite3.SQLITE_PERM: "read_only",
    sqlite3.SQLITE_AUTH: "read_only",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
    sqlite3.SQLITE_CONSTRAINT: "corrupt",  # we ask for nothing that rows of ours could forbid
}


SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What a statement raises. Of a damaged file SQLite quotes what is no text, and Python raises that in its place."""


def hindrance_of(error: sqlite3.Error | UnicodeDecodeError) -> Hindrance:
    """By the low byte of SQLite's code; the rest of it (which I/O failed, say) is in the text."""
    if isinstance(error, UnicodeDecodeError):
        return Hindrance("corrupt", "it has words in it that are no text")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return Hindrance(_BY_CODE.get(code & 0xFF, "failed"), f"{error} ({name})")


def connect_to_read(file: Path, *, timeout_s: float, immutable: bool = False, cut: bool = False) -> sqlite3.Connection:
    """A connection that cannot write, in this thread.

    Args:
        immutable: takes no lock and looks at no log, so that a file can be read on a disk where nothing can be written.
            Only for a file that nobody writes to.
        cut: a file that is shorter than its header says is read as far as it goes, and not refused as a whole.

    Raises:
        SQLITE_ERRORS: it cannot be opened.
    """
    uri = f"{file.as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")
    connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)
    try:
        distrust(connection)
        if cut:
            connection.execute("PRAGMA writable_schema = ON")  # which is what lifts that check; nothing can be written
    except BaseException:
        connection.close()
        raise
    return connection


def distrust(connection: sqlite3.Connection) -> None:
    """Have SQLite take the file for what it may be: its schema calls no function with side effects, and its cells are
    checked one by one."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA mmap_size = 0")
