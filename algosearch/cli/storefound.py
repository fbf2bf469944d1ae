"""One store as it stands, for a check-up: where it is, whose, on what, and whether it would keep anything.

Looks only. What is written is one small file in the store's directory (or in the one where it would be made), or one
claim on a server, gone at once: nothing else tells a full disk, or one that lies about its permissions, from one with
room.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import msgspec

from algosearch.cli.census import SetAside, set_aside_in
from algosearch.cli.places import Place
from algosearch.errors import InvalidSetting, StoreUnusable
from algosearch.stores import ServerStore, StoreStatistics
from algosearch.stores.filesystem import file_system_of

_PROBE_BYTES: Final = 1 << 16
"""Of the file that is written for a try: more than a directory's own block."""
_PROBE_S: Final = 1.0
"""How long a claim that is made for a try is in force, should it not be given back."""
_SCARCE_BYTES: Final = 16 << 20
"""Less room than this is soon none."""


class StoreFound(msgspec.Struct, frozen=True, kw_only=True):
    """One store, as it stands."""

    location: str
    source: str
    """Who named it: `option`, `environment` or `default`."""
    served: bool = False
    """True of a server, which has no permissions, file system or room that could be seen from here."""
    exists: bool = False
    mode: str | None = None
    """The directory's permissions in octal digits."""
    owner: int | None = None
    """The number of the user whose it is."""
    file_system: str | None = None
    network: bool = False
    """True if it lies on a file system that other hosts may have mounted."""
    free_bytes: int | None = None
    readable: bool = False
    """For a store that is not there: whether it could be made."""
    writable: bool = False
    records: int = 0
    bytes: int = 0
    trouble: tuple[str, ...] = ()
    set_aside: tuple[SetAside, ...] = ()


def look_at_store(
    find: Callable[[], Place | None], broken: list[str], doubts: list[str], *, what: str, is_base: bool = False
) -> StoreFound | None:
    """A store as it stands; what is wrong with it is added to the lists."""
    try:
        place = find()
        if place is None:
            return None
        directory = place.directory
    except (InvalidSetting, StoreUnusable) as error:
        broken.append(str(error))
        return None
    if place.is_server:
        server = _served(place, doubts, what=what, is_base=is_base)
        broken += [f"{what} {server.location}: {each}" for each in server.trouble]
        return server
    if directory is None:
        doubts.append(f"{what} is this process's memory: nothing is kept")
        return StoreFound(location=str(place.location), source=place.source, readable=True)
    found = _at(place, directory, is_base=is_base)
    broken += [f"{what} {directory}: {each}" for each in found.trouble]
    if found.network and not is_base:
        doubts.append(
            f"{what} lies on a network file system ({found.file_system}), where only one host at a time may use it; "
            "name a local directory"
        )
    if found.free_bytes is not None and found.free_bytes < _SCARCE_BYTES and not is_base:
        doubts.append(f"{what} has hardly any room left: {found.free_bytes} bytes")
    doubts += [f"{each.path} was set aside, and takes {each.bytes} bytes; nobody reads it" for each in found.set_aside]
    return found


def _served(place: Place, doubts: list[str], *, what: str, is_base: bool) -> StoreFound:
    """A server as it answers. Its location is shown without user and password."""
    store = place.store()
    assert isinstance(store, ServerStore)
    statistics, unread, evicts = anyio.run(_ask_server, store, is_base)
    if evicts is not None:
        doubts.append(
            f"{what} {store.location} throws records and claims away when its memory is full (maxmemory-policy "
            f"{evicts}); set it to noeviction"
        )
    return StoreFound(
        location=store.location,
        source=place.source,
        served=True,
        exists=unread is None,
        readable=unread is None,
        writable=not is_base and statistics.writable and not statistics.trouble,
        records=statistics.records,
        bytes=statistics.bytes,
        trouble=statistics.trouble,
    )


async def _ask_server(store: ServerStore, is_base: bool) -> tuple[StoreStatistics, str | None, str | None]:
    """What it says of itself; why it cannot be read; by which policy it throws things away.

    Whether it can be written to is tried, with a claim on no key that is given back at once: a server that is full, or
    follows another one, says so only then.
    """
    await store.open()
    try:
        evicts = await store.evicts()
        await store.statistics()
        unread = None
        try:
            store.require_read()
        except StoreUnusable as error:
            unread = error.reason
        if unread is None and not is_base:
            claim = await store.claim("doctor", f"doctor-{secrets.token_hex(8)}", expiry_s=_PROBE_S)
            await store.release(claim)
        return await store.statistics(), unread, evicts
    finally:
        await store.aclose()


def _at(place: Place, directory: Path, *, is_base: bool) -> StoreFound:
    trouble: list[str] = []
    statistics = _read(place, trouble) if place.exists else None
    if is_base and not place.exists:
        trouble.append("there is no store; name a directory that has one")
    whole = directory.absolute()
    nearest = next(each for each in (whole, *whole.parents) if os.path.exists(each))
    writable = not is_base and _can_write(directory, nearest, trouble)
    file_system = file_system_of(directory)
    status = directory.stat() if os.path.isdir(directory) else None
    return StoreFound(
        location=str(directory),
        source=place.source,
        exists=place.exists,
        mode=None if status is None else f"{status.st_mode & 0o7777:04o}",
        owner=None if status is None else status.st_uid,
        file_system=None if file_system is None else file_system.kind,
        network=file_system is not None and file_system.network,
        free_bytes=_free_bytes(nearest),
        readable=statistics is not None if place.exists else writable,
        writable=writable,
        records=0 if statistics is None else statistics.records,
        bytes=0 if statistics is None else statistics.bytes,
        trouble=tuple(trouble),
        set_aside=set_aside_in(directory) if status is not None else (),
    )


def _read(place: Place, trouble: list[str]) -> StoreStatistics | None:
    async def read() -> StoreStatistics:
        store = place.store()
        await store.open()
        try:
            return await store.statistics()
        finally:
            await store.aclose()

    try:
        statistics = anyio.run(read)
    except StoreUnusable as error:
        trouble.append(f"it cannot be read: {error.reason}; {error.remedy}")
        return None
    trouble += statistics.trouble
    return statistics


def _can_write(directory: Path, nearest: Path, trouble: list[str]) -> bool:
    """Whether a searcher could keep records there; if not, why not is added."""
    user = os.geteuid()
    if not os.path.isdir(nearest):
        trouble.append(f"{nearest} is not a directory; name another one")
        return False
    status = nearest.stat()
    if nearest == directory.absolute() and status.st_uid != user:
        trouble.append(f"it belongs to user {status.st_uid}, and this is user {user}; name another directory")
        return False
    if nearest == directory.absolute() and status.st_mode & 0o022:
        trouble.append(f"others can write to it; run `chmod 700 {directory}`")
        return False
    try:
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=".doctor-") as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        trouble.append(
            f"it cannot be written to: {error.strerror or error}; make it writable, or name another directory"
        )
        return False
    return True


def _free_bytes(directory: Path) -> int | None:
    try:
        status = os.statvfs(directory)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
