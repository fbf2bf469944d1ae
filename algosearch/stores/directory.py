"""`DirectoryStore`: records in a directory, shared by the processes of one host and kept from run to run.

All that blocks happens in one pinned thread of the store's own, in which its SQLite connection lives: for a connection
belongs to its thread, and because a disk that does not answer must hold up neither the loop nor the interpreter's exit.
`Shelf` is what lives there; it is imported there as well (diskcache and SQLite take 20 ms).

Rejected: `asyncio.to_thread` (another thread each time, and exit waits for it), a connection for each caller (diskcache
opens in 3 ms and writes as it does), aiosqlite (its thread is neither named nor bounded at exit, and one more
dependency).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

from algosearch.errors import StoreUnusable
from algosearch.forks import hold_during_forks, renew_in_children
from algosearch.pinned import PinnedThread, is_pinned
from algosearch.records import Key, Record
from algosearch.stores.base import Claim, Committed, Miss, StoreStatistics
from algosearch.stores.trips import Ask, Kind, Trips

if TYPE_CHECKING:
    from algosearch.stores.shelf import Scanned, Shelf

T = TypeVar("T")

logger = logging.getLogger("algosearch.stores")

UNANSWERED_S: Final = 10.0
"""When `open` gives a file system up that does not answer at all."""
CLOSE_S: Final = 2.0
"""How long `aclose` waits for the thread. A call that hangs is left to it, and it to the end of the process."""
RETRY_S: Final = 5.0

_GONE: Final = "the store is not open"
_COPIED: Final = "its connection was in use when the process forked, and SQLite's locks cannot be trusted after that"


class DirectoryStore:
    """A store in a directory that is its user's alone. Made closed; it touches nothing before `open`.

    Args:
        paths: the directory; or a function that gives several, of which the first that can be used is taken. Called in
            the store's thread.
        clock: seconds, for the expiry of claims. The host's clock, so that all its processes read the same.
        retry_s: how long to leave a file alone that could not be written, before it is tried again.
        read_only: only ever look: nothing is made, repaired or set aside, nothing is kept, and the directory may be
            another user's, as long as not everybody can write to it. One that has no store cannot be opened.
        instead: directories to take in place of one that lies on a network file system, where only reading is safe.
    """

    lasting = True

    def __init__(
        self,
        paths: str | Path | Callable[[], Sequence[Path]],
        *,
        clock: Callable[[], float] = time.time,
        retry_s: float = RETRY_S,
        read_only: bool = False,
        instead: Callable[[], Sequence[Path]] | None = None,
    ) -> None:
        self.location = "the user's cache directory" if callable(paths) else str(paths)
        self._paths = paths
        self._clock = clock
        self._retry_s = retry_s
        self._read_only = read_only
        self._instead = instead
        self._room: _Room | None = None
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """The child's copy is closed: the thread is the parent's."""
        self._room = None

    def __repr__(self) -> str:
        return f"<DirectoryStore {self.location} {'closed' if self._room is None else 'open'}>"

    async def open(self) -> None:
        """As `Store.open`. A file that somebody holds is waited for 2 seconds."""
        if self._room is not None:
            return
        if _LEFT_BEHIND:
            raise StoreUnusable(self.location, _COPIED, "start this process without a fork (spawn), or fork earlier")
        room = self._room = _Room()
        try:
            async with asyncio.timeout(UNANSWERED_S):
                self.location = await room.thread.run(self._open_first, room)
        except TimeoutError:
            self._leave(room)
            raise StoreUnusable(self.location, "the file system does not answer", "choose another directory") from None
        except BaseException:
            self._leave(room)
            raise

    async def aclose(self) -> None:
        """As `Store.aclose`. What was asked before is done before, and waited for `CLOSE_S` at most."""
        room, self._room = self._room, None
        if room is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await room.thread.run(room.close)
        except TimeoutError:
            logger.warning("store %s is still busy; its thread is left to end by itself", self.location)
        finally:
            self._leave(room)

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """As `Store.get_many`. Decoded in the thread."""
        keys = tuple(keys)
        if not keys:
            return []
        otherwise: list[Record | Miss] = [Miss("unreadable", _GONE)] * len(keys)
        digests = [key.digest for key in keys]
        return await self._do(lambda shelf: shelf.get_many(keys), otherwise, kind="read", digests=digests, keys=keys)

    async def commit(self, record: Record, *, after: int) -> Committed:
        """As `Store.commit`."""
        otherwise = Committed(record, won=True, kept=False)
        return await self._do(
            lambda shelf: shelf.commit(record, after), otherwise, kind="write", digests=[record.key.digest]
        )

    async def claim(
        self, digest: str, owner: str, *, expiry_s: float, trying: str = "", reading: Key | None = None
    ) -> Claim:
        """As `Store.claim`."""
        granted = Claim(digest=digest, owner=owner, trying=trying)
        return await self._do(
            lambda shelf: shelf.claim(digest, owner, expiry_s, trying, reading), granted, kind="claim", digests=[digest]
        )

    async def renew(self, claim: Claim, *, expiry_s: float) -> bool:
        """As `Store.renew`."""
        return await self._do(lambda shelf: shelf.renew(claim, expiry_s), True, kind="write", digests=[claim.digest])

    async def release(self, claim: Claim) -> bool:
        """As `Store.release`."""
        return await self._do(lambda shelf: shelf.release(claim), False, kind="write", digests=[claim.digest])

    async def holders(self, digests: Sequence[str]) -> list[Claim | None]:
        """As `Store.holders`."""
        digests = tuple(digests)
        return await self._do(lambda shelf: shelf.holders(digests), [None] * len(digests))

    async def changes(self) -> bool:
        """As `Store.changes`. True as well after the file was replaced by another."""
        return await self._do(lambda shelf: shelf.changes(), False)

    async def scan(self) -> AsyncIterator[tuple[str, Record | Miss]]:
        """As `Store.scan`. Some dozens of records a step; between steps no transaction is open."""
        nothing: tuple[Scanned, bytes | None] = ([], None)
        after: bytes | None = b""
        while after is not None:
            scanned, after = await self._do(lambda shelf, last=after: shelf.scan_after(last), nothing)  # type: ignore[misc]
            for item in scanned:
                yield item

    async def delete(self, digests: Sequence[str]) -> int:
        """As `Store.delete`. All or none."""
        digests = tuple(digests)
        return await self._do(lambda shelf: shelf.delete(digests), 0, kind="write", digests=digests)

    async def statistics(self) -> StoreStatistics:
        """As `Store.statistics`."""
        gone = StoreStatistics(location=self.location, records=0, bytes=0, writable=False, trouble=(_GONE,))
        return await self._do(lambda shelf: shelf.statistics(), gone)

    async def _do(
        self,
        call: Callable[[Shelf], T],
        otherwise: T,
        *,
        kind: Kind = "other",
        digests: Sequence[str] = (),
        keys: Sequence[Key] = (),
    ) -> T:
        """Do something with the shelf, in its thread; `otherwise` if there is none.

        Cancellation: as `PinnedThread.run`.
        """
        room = self._room
        if room is None:
            return otherwise
        answer: T = await room.trips.make(Ask(call, otherwise, kind=kind, digests=digests, keys=keys))
        return answer

    def _leave(self, room: _Room) -> None:
        """Have the room closed, which harms nobody the second time, and its thread end. Waits for neither."""
        if self._room is room:
            self._room = None
        room.thread.post(room.close)
        room.thread.stop()

    def _open_first(self, room: _Room) -> str:
        """Open the first directory that can be used, and say which. In the room's thread.

        Raises:
            StoreUnusable: none can.
        """
        from algosearch.stores.shelf import Shelf
        from algosearch.stores.trouble import Hindrance, Troubles

        unusable: StoreUnusable | None = None
        paths = list(self._paths()) if callable(self._paths) else [Path(self._paths)]
        for path in paths:
            location = str(path)
            shelf = Shelf(
                absolute_path(path),
                clock=self._clock,
                retry_s=self._retry_s,
                troubles=Troubles(location),
                read_only=self._read_only,
            )
            try:
                shelf.open()
            except Hindrance as hindrance:
                if unusable is not None:
                    logger.warning("%s", unusable)
                unusable = StoreUnusable(location, hindrance.reason, hindrance.remedy)
                if hindrance.kind == "network" and self._instead is not None:
                    paths += [each for each in self._instead() if each not in paths]
            else:
                room.shelf = shelf
                if unusable is not None:
                    logger.warning("%s; %s is used instead", unusable, location)
                return location
        assert unusable is not None, "no path was given"
        raise unusable


def absolute_path(path: Path) -> Path:
    """`path`, seen from the current directory.

    Raises:
        StoreUnusable: that has been deleted.
    """
    try:
        return path.absolute()
    except OSError as error:
        reason = f"it is relative, and there is no current directory: {error}"
        raise StoreUnusable(str(path), reason, "name it from / on") from error


class _Room:
    """A thread and the shelf in it, from one `open` to the `aclose` that belongs to it."""

    def __init__(self) -> None:
        self.thread = PinnedThread("algosearch-store")
        self.shelf: Shelf | None = None
        """Touched in the thread only."""
        self.trips = Trips(self.thread, lambda: self.shelf)
        self.closed = False
        _ROOMS.add(self)

    def step_aside(self) -> _Aside | None:
        """Have the thread let go of its connection, say so, and do nothing until it is over. None if it is ending.

        A connection must not be copied: the child's SQLite would take the parent's locks for its own, even for another
        connection to the same file. It is opened afresh when it is next used.
        """
        aside = _Aside()

        def wait() -> None:
            if self.shelf is not None:
                self.shelf.close()
            aside.reached.set()
            aside.over.wait()

        return aside if self.thread.post(wait) else None

    def close(self) -> None:
        """Let go of the shelf. Harmless if there is none."""
        shelf, self.shelf = self.shelf, None
        if shelf is not None:
            shelf.close()
        self.closed = True


class _Aside:
    """A room's stepping aside for one fork."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.over = threading.Event()


class _Forking(threading.local):
    """The rooms of this process, and which of them stand aside for a fork of this thread."""

    def __init__(self) -> None:
        self._aside: dict[_Room, _Aside | None] = {}

    def hold(self, timeout_s: float) -> None:
        """Have every room step aside."""
        self._aside = {}
        if is_pinned():  # it may be a store's own thread, which cannot wait for itself
            return
        deadline = time.monotonic() + timeout_s
        self._aside = {room: room.step_aside() for room in tuple(_ROOMS) if not room.closed}
        for room, aside in self._aside.items():
            wait = room.thread.join if aside is None else aside.reached.wait
            wait(max(0.0, deadline - time.monotonic()))

    def let_go(self) -> None:
        """In the parent: they go on."""
        for aside in self._aside.values():
            if aside is not None:
                aside.over.set()

    def renew_after_fork(self) -> None:
        """In the child: whatever had not stepped aside has a connection that must never be used, nor closed."""
        for room in _ROOMS:
            aside = self._aside.get(room)
            if not room.closed and not (aside is not None and aside.reached.is_set()):
                _LEFT_BEHIND.append(room)
        _ROOMS.clear()


_ROOMS: Final[WeakSet[_Room]] = WeakSet()
_LEFT_BEHIND: Final[list[_Room]] = []
"""In a child: the rooms whose connection was copied; kept, so that it is not closed."""
_FORKING: Final = _Forking()
hold_during_forks(_FORKING.hold, _FORKING.let_go)
renew_in_children(_FORKING)
