"""Homes of records: one contract (`Store`), and what keeps it: this process's memory, a directory.

Importing this pulls in neither SQLite nor diskcache nor platformdirs: they come with the first directory opened.
"""

from __future__ import annotations

from algosearch.stores.base import Claim, Committed, Miss, MissKind, Store, StoreStatistics
from algosearch.stores.directory import DirectoryStore
from algosearch.stores.home import open_store
from algosearch.stores.memory import MemoryStore

__all__ = (
    "Claim",
    "Committed",
    "Miss",
    "MissKind",
    "Store",
    "StoreStatistics",
    "DirectoryStore",
    "MemoryStore",
    "open_store",
)
