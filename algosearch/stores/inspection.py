"""What must be true of a directory and of the file in it before diskcache opens that file; and what is done if not.

The directory is its user's alone: what others can write to, others can fill. Even so nothing in the file is trusted:
its schema and settings are compared, through a connection that cannot write, with what diskcache makes on our behalf,
down to the letter. A trigger, a view, a setting more or of another value, and the file is *set aside*: moved, never
deleted, with the logs that belong to it.

Everything here blocks, and raises `Hindrance` for what is wrong.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import SQLITE_ERROR
from typing import Final, Literal

from algosearch.locked import LockedFile
from algosearch.stores.disk import METADATA, SETTINGS
from algosearch.stores.filesystem import file_system_of
from algosearch.stores.sqlite import SQLITE_ERRORS, connect_to_read, hindrance_of
from algosearch.stores.trouble import Hindrance

FILE: Final = "cache.db"
LOCK: Final = "lock"
LOGS: Final = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a file."""
APPLICATION_ID: Final = 0x616C676F
"""Says in the file's header whose it is: `algo`."""
PAGE_BYTES: Final = 8192
"""A record of 40 trials takes 4 to 7 kB: one page, where SQLite's default takes two, and twice as long to read."""
FORMAT: Final = 2
"""Counts up when the schema or the settings change. Records carry a version of their own (`records.wire`)."""

_TRIGGERS: Final = {
    "count_insert": ("INSERT", 'value + 1 WHERE key = "count"'),
    "count_delete": ("DELETE", 'value - 1 WHERE key = "count"'),
    "size_insert": ("INSERT", 'value + NEW.size WHERE key = "size"'),
    "size_update": ("UPDATE", 'value + NEW.size - OLD.size WHERE key = "size"'),
    "size_delete": ("DELETE", 'value - OLD.size WHERE key = "size"'),
}
SCHEMA: Final[dict[tuple[str, str], str | None]] = {
    ("table", "Settings"): "CREATE TABLE Settings ( key TEXT NOT NULL UNIQUE, value)",
    ("index", "sqlite_autoindex_Settings_1"): None,
    ("table", "Cache"): (
        "CREATE TABLE Cache ( rowid INTEGER PRIMARY KEY, key BLOB, raw INTEGER, store_time REAL, expire_time REAL,"
        " access_time REAL, access_count INTEGER DEFAULT 0, tag BLOB, size INTEGER DEFAULT 0, mode INTEGER DEFAULT 0,"
        " filename TEXT, value BLOB)"
    ),
    ("index", "Cache_key_raw"): "CREATE UNIQUE INDEX Cache_key_raw ON Cache(key, raw)",
    ("index", "Cache_expire_time"): "CREATE INDEX Cache_expire_time ON Cache (expire_time)",
} | {
    ("trigger", f"Settings_{name}"): (
        f"CREATE TRIGGER Settings_{name} AFTER {event} ON Cache FOR EACH ROW BEGIN UPDATE Settings SET value = {value};"
        " END"
    )
    for name, (event, value) in _TRIGGERS.items()
}
"""What diskcache 5.6 makes with our settings, (type, name) → text."""
_LIMIT: Final = 64
"""More rows than this of schema or settings are not ours, and not read."""
_LEAST_BYTES: Final = 128
"""No row with a key of ours is shorter."""
_ROWS_SALVAGED: Final = 200_000
"""So many are tried at most, at 5 µs each."""


def private_directory(path: Path) -> Path:
    """The real directory behind `path`, made if there is none; it is this user's alone to write to, on this host.

    Raises:
        Hindrance: it is not, or cannot be made.
    """
    user = os.geteuid()
    place = file_system_of(path)
    if place is not None and place.network:
        raise Hindrance("network", f"it lies on a network file system ({place.kind}), where SQLite's locks do not hold")
    try:
        if path.is_symlink() and path.lstat().st_uid not in (user, 0):
            raise Hindrance("unfit", f"{path} is a link that belongs to another user")
        _make(path)
        real = path.resolve(strict=True)
        status = real.stat()
    except FileExistsError:
        raise Hindrance("unfit", f"{path} is not a directory") from None
    except OSError as error:
        hindrance = Hindrance.of_system(error)
        raise Hindrance(hindrance.kind, f"it cannot be made: {error}", hindrance.remedy) from error
    except ValueError as error:
        raise Hindrance("unfit", f"{error}") from error
    if status.st_uid != user:
        raise Hindrance("unfit", f"it belongs to user {status.st_uid}, and this is user {user}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Hindrance("unfit", "others can write to it", f"run `chmod 700 {real}`, or choose another directory")
    if os.path.expandvars(real) != str(real):
        raise Hindrance("unfit", "diskcache would take a part of its name for a variable")
    return real


def _make(path: Path) -> None:
    """A directory and those above it that are not there: each this user's alone, where `Path.mkdir` would let others
    look into those above. (Among the temporary files the locks of lanes share one, and take none that others see.)"""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if not path.is_dir():
        raise FileExistsError


def readable_directory(path: Path) -> Path:
    """The real directory behind `path`, to be looked at only. Whose it is does not matter, for somebody has named it
    and nothing in it is trusted; but what anybody could fill is not worth reading.

    Raises:
        Hindrance: there is no store, or others can write to it.
    """
    try:
        real = path.resolve(strict=True)
        status = real.stat()
        if not (real / FILE).exists():
            raise Hindrance("gone", "there is no store in it")
    except (FileNotFoundError, NotADirectoryError):
        raise Hindrance("gone", "there is no such directory") from None
    except OSError as error:
        raise Hindrance.of_system(error) from error
    except ValueError as error:
        raise Hindrance("unfit", f"{error}") from error
    if status.st_mode & stat.S_IWOTH:
        raise Hindrance("unfit", "anybody can write to it", f"run `chmod o-w {real}`, or choose another directory")
    return real


def require_writable(file: Path) -> None:
    """Say early and in plain words what SQLite would say as "unable to open".

    Raises:
        Hindrance: `read_only`.
    """
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise Hindrance("read_only", "its directory cannot be written to")
    if file.exists() and not os.access(file, os.W_OK):
        raise Hindrance("read_only", "its file cannot be written to")


def identity_of(file: Path) -> tuple[int, int] | None:
    """What tells whether a name still leads to the same file; None if to no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def alone(directory: Path, deadline: float) -> Iterator[None]:
    """Hold the directory's lock: one process at a time opens the file, or sets it aside.

    Not `filelock` and not a blocking `flock`: a process that was stopped while it held the lock must cost the others a
    known time.

    Args:
        deadline: of `time.monotonic`.

    Raises:
        Hindrance: `locked`, or `read_only`, …
    """
    file = LockedFile()
    try:
        file.open(directory / LOCK)
    except OSError as error:
        raise Hindrance.of_system(error) from error
    try:
        while True:
            try:
                file.lock(wait=False)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Hindrance("locked", "another process has been opening it for too long") from None
                time.sleep(0.002)
        yield
    finally:
        file.close()


def examine(file: Path, deadline: float, *, immutable: bool = False, cut: bool = False) -> str | None:
    """What is wrong with a file, in a few words; None if nothing, or if it is not there or empty.

    Args:
        deadline: of `time.monotonic`, for somebody who holds it to let go.
        immutable, cut: as in `connect_to_read`.

    Raises:
        Hindrance: it cannot be said (`locked`, …), or it is a newer version's.
    """
    for part in (file, *(file.with_name(file.name + log) for log in LOGS)):
        if not _is_plain(part):
            return f"{part.name} is not a plain file of this user"
    if is_new(file):
        return None
    if file.with_name(file.name + "-journal").exists():
        return "a rollback journal lies beside it, which a store never leaves"
    try:
        timeout_s = max(0.0, deadline - time.monotonic())
        connection = connect_to_read(file, timeout_s=timeout_s, immutable=immutable, cut=cut)
    except SQLITE_ERRORS as error:
        raise hindrance_of(error) from error
    with contextlib.closing(connection):
        return difference(connection)


def is_new(file: Path) -> bool:
    """Whether there is no file yet, or an empty one."""
    return not file.exists() or file.stat().st_size == 0


def _is_plain(file: Path) -> bool:
    try:
        status = file.lstat()
    except FileNotFoundError:
        return True
    # A directory that is opened for writing is this user's own (`private_directory`).
    return stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), file.parent.stat().st_uid)


def difference(connection: sqlite3.Connection) -> str | None:
    """How a file differs from one that we have made; None if not at all.

    One that is unfinished, since its maker was killed, is one of ours: diskcache goes on with it.

    Raises:
        Hindrance: as `examine`.
    """
    try:
        ((application,),) = connection.execute("PRAGMA application_id").fetchall()
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
        if application == APPLICATION_ID and version > FORMAT:
            raise Hindrance("newer", f"it has format {version}, made by a newer algosearch; this one knows {FORMAT}")
        if (application, version) != (APPLICATION_ID, FORMAT):
            return "it is the file of another program"
        parts = connection.execute(f"SELECT type, name, sql FROM sqlite_master LIMIT {_LIMIT}").fetchall()
        for kind, name, text in parts:
            if SCHEMA.get((kind, name), "") != text:
                return f"its schema has the {kind} {name!r}, which is not that of a store"
        if ("table", "Settings") in {(kind, name) for kind, name, _ in parts}:
            for name, value in connection.execute(f"SELECT key, value FROM Settings LIMIT {_LIMIT}").fetchall():
                ours = type(value) is int if name in METADATA else _same(value, SETTINGS.get(name))
                if not ours:
                    return f"its setting {name!r} is not that of a store"
    except SQLITE_ERRORS as error:
        hindrance = hindrance_of(error)
        # SQLITE_ERROR: the statement is ours and right, so it is the file that has a table of another shape, or a text
        # that is none.
        if hindrance.kind == "corrupt" or getattr(error, "sqlite_errorcode", SQLITE_ERROR) == SQLITE_ERROR:
            return hindrance.reason
        raise hindrance from error
    return None


def _same(value: object, setting: int | str | None) -> bool:
    return setting is not None and type(value) is type(setting) and value == setting


def begin(file: Path) -> None:
    """Make a file in which diskcache will find nothing but a header of ours. The caller is `alone`.

    Under another name first: a maker that is killed leaves a whole file, or none.

    Raises:
        sqlite3.Error, OSError: it cannot be written.
    """
    draft = file.with_name(f"{file.name}.new")
    for part in (draft, *(draft.with_name(draft.name + log) for log in LOGS)):
        part.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(draft, timeout=0.0, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("PRAGMA journal_mode = WAL")
    draft.rename(file)


def damage(file: Path) -> str | None:
    """What SQLite's own check of all pages finds first; None if nothing. Milliseconds for each megabyte."""
    try:
        with contextlib.closing(connect_to_read(file, timeout_s=0.0)) as connection:
            ((found,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
    except SQLITE_ERRORS as error:
        return str(error)
    return None if found == "ok" else str(found)


def set_aside(file: Path) -> Path:
    """Move a file and its logs into a new folder beside it, and say where. The caller is `alone`.

    The logs first: a log that stayed behind would be played into the file that comes next.
    """
    name = f"set-aside-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    for attempt in range(1000):
        folder = file.with_name(name + (f"-{attempt}" if attempt else ""))
        try:
            folder.mkdir(mode=0o700)
            break
        except FileExistsError:
            continue
    else:
        raise Hindrance("failed", "too many files were set aside within one second")
    for part in (*(file.name + log for log in LOGS), file.name):
        with contextlib.suppress(FileNotFoundError):
            file.with_name(part).rename(folder / part)
    return folder


def salvage(file: Path, *, immutable: bool = False) -> Iterator[tuple[str, bytes | None]]:
    """What can still be read of a damaged file: (key, value) of each row of the shape that we write, and None for the
    value of a row of which no more than the key can be.

    Row by row by number, so that a bad page costs the rows on it and no other; nothing of a file whose schema or
    settings are not ours. What comes is as little trusted as ever.

    Args:
        immutable: as in `connect_to_read`.
    """
    if not _is_plain(file):
        return
    try:
        with contextlib.closing(connect_to_read(file, timeout_s=0.0, immutable=immutable, cut=True)) as connection:
            if difference(connection) is not None:
                return
            for row in range(1, _last_row(connection) + 1):
                key, value = _cell(connection, "key", row), _cell(connection, "value", row)
                if type(key) is str:
                    yield key, value if type(value) is bytes else None
    except (*SQLITE_ERRORS, Hindrance):
        return


def _cell(connection: sqlite3.Connection, column: Literal["key", "value"], row: int) -> object:
    """Of a row by its number; None if there is none, or it cannot be read."""
    with contextlib.suppress(*SQLITE_ERRORS):
        found = connection.execute(f"SELECT {column} FROM Cache WHERE rowid = ?", (row,)).fetchone()
        return found[0] if found else None
    return None


def _last_row(connection: sqlite3.Connection) -> int:
    """The number of the last row, or one behind. What the last page says may be damage (of a page that was cut in two
    the numbers are zeros), and less than there can be on so many pages it need not say."""
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    last = int(pages) * PAGE_BYTES // _LEAST_BYTES
    with contextlib.suppress(*SQLITE_ERRORS):
        ((said,),) = connection.execute("SELECT max(rowid) FROM Cache").fetchall()
        last = max(last, said or 0)
    return min(last, _ROWS_SALVAGED)
