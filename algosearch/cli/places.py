"""Which store a command means, and who said so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from algosearch.errors import InvalidSetting
from algosearch.saying import without_secrets
from algosearch.settings import Settings, means_server
from algosearch.stores import DirectoryStore, ServerStore, SharedStore, Store, open_store
from algosearch.stores.directory import absolute_path
from algosearch.stores.home import user_directories
from algosearch.stores.inspection import FILE

Source = Literal["option", "environment", "default"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store is, or would be."""

    location: str | Path
    source: Source
    """Who named it: an option or argument, a variable of the environment, nobody."""

    @property
    def directory(self) -> Path | None:
        """The directory; None if it is no directory at all, but `memory:` or a server.

        Raises:
            StoreUnusable: it names no store that this version knows, or is relative to a directory that is gone.
        """
        store = self.store()
        if not isinstance(store, DirectoryStore):
            return None
        directory = Path(store.location)
        absolute_path(directory)
        return directory

    @property
    def is_server(self) -> bool:
        """Whether it is a server."""
        return isinstance(self.location, str) and means_server(self.location)

    @property
    def exists(self) -> bool:
        """Whether there is a store. To open one makes one, and to look must not."""
        directory = self.directory
        try:
            return directory is None or bool(os.stat(directory / FILE))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False
        except OSError:
            return True  # something is there, and whoever opens it hears what is wrong with it

    def store(self, *, read_only: bool = True) -> Store:
        """The store there, not yet opened.

        Raises:
            StoreUnusable: it names no store that this version knows.
        """
        return open_store(self.location, read_only=read_only)


def place_of(asked: str | None) -> Place:
    """The store that an option named, or else the environment, or else the user's own.

    Raises:
        InvalidSetting: the environment cannot be understood.
    """
    named = _named(asked, "store")
    if named is not None:
        return named
    candidates = user_directories()
    return Place(location=next((path for path in candidates if path.exists()), candidates[0]), source="default")


def base_of(asked: str | None) -> Place | None:
    """The base store that an option named, or else the environment; None if there is none.

    Raises:
        InvalidSetting: the environment cannot be understood.
    """
    return _named(asked, "base")


def _named(asked: str | None, setting: Literal["store", "base"]) -> Place | None:
    if asked is not None:
        return Place(location=asked, source="option")
    named: str | None = getattr(Settings.read(), setting)
    return None if named is None else Place(location=named, source="environment")


def require_read(store: Store) -> None:
    """Raises StoreUnusable if it is on a server that has not answered everything so far: for a server that is away,
    unlike a directory, opens all the same."""
    if isinstance(store, ServerStore | SharedStore):
        store.require_read()


def one_store(argument: str | None, option: str | None) -> str | None:
    """The store of a verb that takes it either way.

    Raises:
        InvalidSetting: it was named twice, and not alike.
    """
    if argument is not None and option is not None and not _alike(argument, option):
        raise InvalidSetting(
            "--store", option, f"goes without another store, and there is {without_secrets(argument)!r}"
        )
    return option if argument is None else argument


def _alike(one: str, other: str) -> bool:
    try:
        return one == other or os.path.abspath(one) == os.path.abspath(other)
    except OSError:  # there is no current directory
        return False
