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
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from algosearch.errors import StoreUnusable
from algosearch.pinned import PinnedThread
from algosearch.records import Key, Record
from algosearch.stores.base import Claim, Committed, Miss, StoreStatistics

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


class DirectoryStore:
    """A store in a directory that is its user's alone. Made closed; it touches nothing before `open`.

    Args:
        paths: the directory; or a function that gives several, of which the first that can be used is taken. Called in
            the store's thread.
        clock: seconds, for the expiry of claims. The host's clock, so that all its processes read the same.
        retry_s: how long to leave a file alone that could not be written, before it is tried again.
        read_only: only ever look: nothing is made, repaired or set aside, nothing is kept, and the directory may be
            another user's, as long as not everybody can write to it. One that has no store cannot be opened.
    """

    def __init__(
        self,
        paths: str | Path | Callable[[], Sequence[Path]],
        *,
        clock: Callable[[], float] = time.time,
        retry_s: float = RETRY_S,
        read_only: bool = False,
    ) -> None:
        self.location = "the user's cache directory" if callable(paths) else str(paths)
        self._paths = paths
        self._clock = clock
        self._retry_s = retry_s
        self._read_only = read_only
        self._room: _Room | None = None

    def __repr__(self) -> str:
        return f"<DirectoryStore {self.location} {'closed' if self._room is None else 'open'}>"

    async def open(self) -> None:
        """As `Store.open`. A file that somebody holds is waited for 2 seconds."""
        if self._room is not None:
            return
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
        return await self._do(lambda shelf: shelf.get_many(keys), [Miss("unreadable", _GONE)] * len(keys))

    async def commit(self, record: Record, *, after: int) -> Committed:
        """As `Store.commit`."""
        return await self._do(lambda shelf: shelf.commit(record, after), Committed(record, won=True, kept=False))

    async def claim(self, digest: str, owner: str, *, expiry_s: float, trying: str = "") -> Claim:
        """As `Store.claim`."""
        granted = Claim(digest=digest, owner=owner, trying=trying)
        return await self._do(lambda shelf: shelf.claim(digest, owner, expiry_s, trying), granted)

    async def renew(self, claim: Claim, *, expiry_s: float) -> bool:
        """As `Store.renew`."""
        return await self._do(lambda shelf: shelf.renew(claim, expiry_s), True)

    async def release(self, claim: Claim) -> None:
        """As `Store.release`."""
        await self._do(lambda shelf: shelf.release(claim), None)

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
        return await self._do(lambda shelf: shelf.delete(digests), 0)

    async def statistics(self) -> StoreStatistics:
        """As `Store.statistics`."""
        gone = StoreStatistics(location=self.location, records=0, bytes=0, writable=False, trouble=(_GONE,))
        return await self._do(lambda shelf: shelf.statistics(), gone)

    async def _do(self, call: Callable[[Shelf], T], otherwise: T) -> T:
        """Do something with the shelf, in its thread; `otherwise` if there is none.

        Cancellation: as `PinnedThread.run`.
        """
        room = self._room
        return otherwise if room is None else await room.thread.run(room.apply, call, otherwise)

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
        for path in self._paths() if callable(self._paths) else [Path(self._paths)]:
            location = str(path)
            shelf = Shelf(
                path.absolute(),
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
            else:
                room.shelf = shelf
                if unusable is not None:
                    logger.warning("%s; %s is used instead", unusable, location)
                return location
        assert unusable is not None, "no path was given"
        raise unusable


class _Room:
    """A thread and the shelf in it, from one `open` to the `aclose` that belongs to it."""

    def __init__(self) -> None:
        self.thread = PinnedThread("algosearch-store")
        self.shelf: Shelf | None = None
        """Touched in the thread only."""

    def apply(self, call: Callable[[Shelf], T], otherwise: T) -> T:
        """Do something with the shelf, if there is one."""
        return otherwise if self.shelf is None else call(self.shelf)

    def close(self) -> None:
        """Let go of the shelf. Harmless if there is none."""
        shelf, self.shelf = self.shelf, None
        if shelf is not None:
            shelf.close()
