"""Homes of records: one contract (`Store`), and what keeps it: this process's memory, a directory, a server.

Importing this pulls in neither SQLite nor diskcache nor platformdirs, which come with the first directory opened, nor
redis, which comes with the first server.
"""

from __future__ import annotations

from algosearch.stores.base import Claim, Committed, Miss, MissKind, Store, StoreStatistics
from algosearch.stores.directory import DirectoryStore
from algosearch.stores.home import open_store
from algosearch.stores.memory import MemoryStore
from algosearch.stores.server import ServerStore
from algosearch.stores.shared import SharedStore

__all__ = (
    "Claim",
    "Committed",
    "Miss",
    "MissKind",
    "Store",
    "StoreStatistics",
    "DirectoryStore",
    "MemoryStore",
    "ServerStore",
    "SharedStore",
    "open_store",
)
