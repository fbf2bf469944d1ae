"""`Access`: one file of rows, held open through whatever happens to it. Blocking; it belongs to one thread.

It is in one of three states, and only `open` raises because of it:

- *writable*: diskcache holds the file, and reading goes over its connection;
- *readable*: the file cannot be opened for writing, but read, through a connection that cannot write;
- *out of reach*: neither. `why` says why it is not writable, or not readable.

In the last two it is tried again from time to time, whenever it is asked for something. A file that was deleted or
replaced is noticed by its inode, for a connection to a deleted file works on without a word. Damage is met when a page
is read: the file is set aside, and its readable rows are carried into a new one.

Invariant: whatever fails, no transaction is left open, and nothing waits longer than `OPEN_S` or `disk.BUSY_S`.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from algosearch.stores import inspection
from algosearch.stores.disk import TROUBLE, PromptCache, cause_of
from algosearch.stores.sqlite import SQLITE_ERRORS, connect_to_read, distrust
from algosearch.stores.trouble import Hindrance, Troubles

T = TypeVar("T")

OPEN_S: Final = 2.0
"""The longest that opening waits for somebody who holds the file."""
REOPEN_S: Final = 0.25
"""The same, when it is opened again in the middle of something else."""
_READ_S: Final = 0.1
"""How long a reader waits where the writer's way is barred already."""


class _Damage(NamedTuple):
    """A file of which a page could not be read."""

    identity: tuple[int, int] | None
    reason: str
    certain: bool
    """False if SQLite's own check is to confirm it first."""


class GroupSpoilt(Exception):
    """One of several writes in one transaction met trouble, and all of them were undone. Never leaves this room."""


class Access:
    """A directory's file.

    Args:
        path: of the directory; made when it is opened.
        retry_s: how long to leave alone what could not be written.
        troubles: where what goes wrong is noted.
        genuine: whether a (key, value) that was read from a damaged file is worth to be kept.
        read_only: only ever look: nothing is made, repaired or set aside, and the directory may be another user's.
    """

    def __init__(
        self,
        path: Path,
        *,
        retry_s: float,
        troubles: Troubles,
        genuine: Callable[[str, bytes], bool],
        read_only: bool = False,
    ) -> None:
        self.path = path
        self.why = Hindrance("failed", "the store is not open")
        self._read_only = read_only
        self._retry_s = retry_s
        self._troubles = troubles
        self._genuine = genuine
        self._file: Path | None = None
        """None until the directory was found to be fit."""
        self._cache: PromptCache | None = None
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._retry_at = 0.0
        """Of `time.monotonic`. Until then nothing is written, or opened again."""
        self._version_seen = -1
        self._salvaged: dict[str, bytes | None] | None = None
        self._group: PromptCache | None = None
        """The cache whose transaction is shared by what is written now."""
        self._immutable = False
        """How it is read: as in `connect_to_read`."""

    @property
    def writable(self) -> bool:
        """Whether it is held open for writing."""
        return self._cache is not None

    def open(self) -> None:
        """Open it for writing, or else for reading.

        Raises:
            Hindrance: not even that.
        """
        self._open(OPEN_S)
        try:
            self._version_seen = _version(self._readable())
        except TROUBLE as error:
            self.close()
            raise cause_of(error) from error
        if self._cache is None and not self._read_only:
            self._note_state()

    def close(self) -> None:
        """Let go of the file. Harmless if it is not open."""
        self._salvaged = None
        cache, connection = self._cache, self._connection
        self._cache = self._connection = self._identity = None
        with contextlib.suppress(*TROUBLE):
            if cache is not None:
                cache.close()
            elif connection is not None:
                connection.close()

    # -- to be called within `attempt` or `write` --------------------------------------------------------------------

    def reader(self) -> sqlite3.Connection:
        """The connection to read from, for this moment.

        Raises:
            Hindrance: there is none.
        """
        self._refresh(writing=False)
        return self._readable()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[PromptCache]:
        """One transaction that holds the file's write lock from its beginning, so that what is read in it stays true.

        Raises:
            Hindrance: it cannot be begun; or what else is in `TROUBLE`, and then it was undone.
        """
        if self._group is not None:
            yield self._group
            return
        self._refresh(writing=True)
        cache = self._cache
        if cache is None or time.monotonic() < self._retry_at:
            raise self.why.again()
        try:
            with cache.transact(retry=False):
                yield cache
        finally:
            if cache.connection.in_transaction:  # the COMMIT failed, and diskcache leaves it at that
                with contextlib.suppress(*SQLITE_ERRORS):
                    cache.connection.execute("ROLLBACK")

    # -- from outside ------------------------------------------------------------------------------------------------

    def attempt(self, call: Callable[[], T]) -> T:
        """Do `call`; where it meets damage, once more on a file that was begun afresh.

        Raises:
            anything in `TROUBLE`: see `note`.
        """
        if self._group is not None:
            try:
                return call()
            except TROUBLE as error:
                raise GroupSpoilt from error
        for certain in (False, True):
            identity = self._identity
            try:
                return call()
            except TROUBLE as error:
                hindrance = cause_of(error)
                if hindrance.kind != "corrupt" or self._cache is None:
                    raise
            self._reopen(_Damage(identity, hindrance.reason, certain))
        return call()

    def write(self, call: Callable[[], T]) -> T:
        """`attempt` of a transaction, and once more if the file went away under it: what was written went with it."""
        if self._group is not None:
            return self.attempt(call)
        result = self.attempt(call)
        if self._file is not None and inspection.identity_of(self._file) != self._identity:
            result = self.attempt(call)
        return result

    def together(self, call: Callable[[], None]) -> bool:
        """Do what `call` does in one transaction: whatever it attempts and writes. False if nothing of that was done,
        whatever was in the way: then it is to be done one by one, and each says for itself what it met."""

        def grouped() -> None:
            with self.transaction() as cache:
                self._group = cache
                try:
                    call()
                finally:
                    self._group = None

        try:
            self.write(grouped)
        except TROUBLE as error:
            self.note(error)  # so that a file that somebody holds is not waited for by each of them
            return False
        except BaseException:
            return False
        return True

    def note(self, error: BaseException) -> str:
        """Write down what an attempt raised, and say it in words."""
        hindrance = cause_of(error)
        if not hindrance.known:
            self._troubles.note(hindrance.kind, hindrance.reason)
            if hindrance.kind == "locked" and self._cache is not None:
                # Those who come next shall not wait as long, one after the other.
                self.why, self._retry_at = hindrance.again(), time.monotonic() + self._retry_s
        return hindrance.reason

    def salvage(self) -> dict[str, bytes | None]:
        """What can be read of a file that is damaged and cannot be begun afresh, row by row: whatever an index says of
        it, or a page that leads to them. Once for as long as it is open."""
        if self._salvaged is None:
            file = self._file
            self._salvaged = {} if file is None else dict(inspection.salvage(file, immutable=self._immutable))
        return self._salvaged

    def changed(self) -> bool:
        """Whether another connection has committed since `open` or the last call, or the file is another one."""
        version = self.attempt(lambda: _version(self.reader()))
        seen, self._version_seen = self._version_seen, version
        return version != seen

    # -- opening -----------------------------------------------------------------------------------------------------

    def _readable(self) -> sqlite3.Connection:
        if self._connection is None:
            raise self.why.again()
        return self._connection

    def _refresh(self, *, writing: bool) -> None:
        """Reopen what was replaced, or (to write to it) deleted, and from time to time what could not be opened.

        Not to read from it: a poll must not bring a directory back that somebody is deleting. Nor within a transaction,
        which is about the file as it was found.
        """
        if self._connection is not None and self._connection.in_transaction:
            return
        if self._file is not None and self._connection is not None:
            found = inspection.identity_of(self._file)
            if found != self._identity and (writing or found is not None):
                self._troubles.note("gone", "the file was deleted or replaced while in use, and was opened afresh")
            elif self._cache is not None or self._read_only or time.monotonic() < self._retry_at:
                return
        elif time.monotonic() < self._retry_at:
            return
        self._reopen()

    def _reopen(self, damage: _Damage | None = None) -> None:
        self._open(REOPEN_S, damage)
        if self._cache is None and (self._connection is None or not self._read_only):
            self._note_state()

    def _note_state(self) -> None:
        state = "it is out of reach" if self._connection is None else "records are read, and none is kept"
        self._troubles.note(self.why.kind, f"{self.why}; {state}")

    def _open(self, limit_s: float, damage: _Damage | None = None) -> None:
        deadline = time.monotonic() + limit_s
        self.close()
        self._version_seen = -1
        self._retry_at = 0.0
        self._file = None
        try:
            if self._read_only:
                self._file = inspection.readable_directory(self.path) / inspection.FILE
                raise Hindrance("read_only", "it is opened for reading only")
            self._file = inspection.private_directory(self.path) / inspection.FILE
            self._open_to_write(self._file, deadline, damage)
            return
        except TROUBLE as error:
            self.close()
            self.why = cause_of(error).again()  # the copy holds no traceback, and so nothing of what was closed
            self._retry_at = time.monotonic() + self._retry_s
        # Not while that is handled: it would be in the context of what comes now, and be taken for its cause.
        if self._file is not None:
            self._open_to_read(self._file)

    def _open_to_write(self, file: Path, deadline: float, damage: _Damage | None) -> None:
        inspection.require_writable(file)
        with inspection.alone(file.parent, deadline):
            strange = inspection.examine(file, deadline) and inspection.examine(file, deadline)  # a second look
            if strange is None and damage is not None and self._confirms(file, damage):
                strange = damage.reason
            if strange is None:
                try:
                    self._connect(file, deadline)
                    return
                except TROUBLE as error:
                    hindrance = cause_of(error)
                    if hindrance.kind != "corrupt":
                        raise
                    strange = hindrance.reason
            self._begin_afresh(file, deadline, strange)

    def _confirms(self, file: Path, damage: _Damage) -> bool:
        """Whether it is still the same file, nobody else having replaced it, and damaged on a second look."""
        return damage.identity == inspection.identity_of(file) and (
            damage.certain or inspection.damage(file) is not None
        )

    def _begin_afresh(self, file: Path, deadline: float, reason: str) -> None:
        """Set a file aside and begin another, with what can still be read if it was one of ours."""
        self.close()
        folder = inspection.set_aside(file)
        saved = 0
        try:
            self._connect(file, deadline)
            with self.transaction() as cache:
                for name, value in inspection.salvage(folder / file.name):
                    saved += value is not None and self._genuine(name, value) and cache.add(name, value, retry=False)
        finally:
            self._troubles.note(
                "corrupt",
                f"the file was damaged or no store's ({reason}); it was set aside in {folder}, {saved} records saved",
            )

    def _connect(self, file: Path, deadline: float) -> None:
        """Have diskcache open a file that was examined, or make one."""
        new = inspection.is_new(file)
        if new:
            inspection.begin(file)
        cache = self._cache = PromptCache(file.parent, deadline)
        self._connection = cache.connection
        distrust(cache.connection)
        if new and (strange := inspection.difference(cache.connection)) is not None:
            raise Hindrance(
                "unfit", f"this version of diskcache makes other files than algosearch knows ({strange})",
                "install diskcache 5.6",
            )  # fmt: skip
        self._identity = inspection.identity_of(file)

    def _open_to_read(self, file: Path) -> None:
        # Immutable means without any lock, so not if somebody writes to it at this moment.
        immutables = (False,) if self.why.kind in ("locked", "gone") else (False, True)
        for immutable, cut in itertools.product(immutables, (False, True)):
            try:
                if inspection.is_new(file):
                    raise Hindrance("gone", "its file is empty")
                deadline = time.monotonic() + _READ_S
                strange = inspection.examine(file, deadline, immutable=immutable, cut=cut)
                if strange is not None:
                    raise Hindrance("corrupt", strange)
                connection = connect_to_read(file, timeout_s=_READ_S, immutable=immutable, cut=cut)
                try:
                    connection.execute("SELECT 1 FROM Cache LIMIT 1").fetchall()
                except BaseException:
                    connection.close()
                    raise
            except TROUBLE as error:
                if self._read_only:  # else what kept it from being written says more
                    self.why = cause_of(error).again()
                if cause_of(error).kind == "locked":
                    return
                continue
            self._connection, self._immutable = connection, immutable
            self._identity = inspection.identity_of(file)
            return


def _version(connection: sqlite3.Connection) -> int:
    ((version,),) = connection.execute("PRAGMA data_version").fetchall()
    return int(version)
