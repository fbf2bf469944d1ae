"""`open_store`: from what a user writes to the store that is meant; and where records go if nothing is said."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

from algosearch.errors import StoreUnusable
from algosearch.saying import without_secrets
from algosearch.settings import MEMORY, means_server
from algosearch.stores.base import Store
from algosearch.stores.directory import DirectoryStore
from algosearch.stores.memory import MemoryStore

FOLDER: Final = "store-v2"
"""Carries the format (`inspection.FORMAT`), so that versions with different formats do not meet."""

_TEMPORARY: Final = "/tmp"
"""Named where nothing temporary can be written, not even there."""

_SUPPORTED: Final = f"name a directory, {MEMORY}, or a server: redis://, rediss:// or unix://"


def open_store(location: str | Path | None = None, *, read_only: bool = False) -> Store:
    """The store at `location`, made and not yet opened (`Store.open`): nothing is touched.

    Args:
        location: a directory; `memory:`; the URL of a server (`ServerAddress`), before which this host keeps a
            directory; or None for the user's cache directory, and where that cannot be used a
            directory of the user's own among the temporary ones. Where neither can be used, `Store.open` says so, and a
            searcher goes on with what its process remembers. In place of a directory on a network file system, the
            first of these is written to that is on none.
        read_only: only ever look at a directory (`DirectoryStore`).

    Raises:
        StoreUnusable: it names no store that this version knows, or needs a package that is not installed.
    """
    if location is None:
        return DirectoryStore(user_directories, read_only=read_only)
    if location == MEMORY:
        return MemoryStore()
    if isinstance(location, str):
        if not location.strip():
            raise StoreUnusable(repr(location), "it is empty", _SUPPORTED)
        if means_server(location):
            return _shared(location, read_only=read_only)
        if "://" in location:
            scheme = location.partition("://")[0]
            raise StoreUnusable(
                without_secrets(location), f"this version has no store of the kind {scheme}", _SUPPORTED
            )
    try:
        return DirectoryStore(Path(location).expanduser(), read_only=read_only, instead=user_directories)
    except RuntimeError as error:
        raise StoreUnusable(str(location), str(error), _SUPPORTED) from error


def _shared(url: str, *, read_only: bool) -> Store:
    """A server with a directory before it; to be only looked at, the server alone."""
    from algosearch.stores.server import ServerStore, require_client
    from algosearch.stores.shared import SharedStore

    server = ServerStore(url)
    require_client(server.location)
    named = server.address.directory
    if read_only or named == "":
        return server if read_only else SharedStore(server, None)
    if named is not None:
        return SharedStore(server, DirectoryStore(Path(named).expanduser()))
    # With the database, which the location of a socket does not show: what one has would be offered to another.
    meant = f"{server.location} {server.address.database} {server.address.prefix}"
    folder = sha256(meant.encode()).hexdigest()[:12]
    return SharedStore(server, DirectoryStore(lambda: [path / "servers" / folder for path in user_directories()]))


def user_directories() -> list[Path]:
    """Where to keep records if nothing is said, the best first: under `XDG_CACHE_HOME`, else `HOME` (on macOS in
    Library/Caches); else a directory of this user's own among the temporary ones."""
    import tempfile

    import platformdirs

    named = platformdirs.user_cache_path("algosearch", appauthor=False)
    # Without a home and without a name in the user data base it is relative: `~/.cache` of whatever directory this is.
    found = [named / FOLDER] if named.is_absolute() else []
    try:
        temporary = tempfile.gettempdir()
    except OSError:  # nothing there can be written: whoever opens a store in the usual place hears why
        temporary = _TEMPORARY
    return [*found, Path(temporary) / f"algosearch-{os.geteuid()}" / FOLDER]
