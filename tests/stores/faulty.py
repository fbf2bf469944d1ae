"""Stores that fail, at a place and in a way that a test chooses.

`FaultySqlite` lets a real directory store meet what SQLite says on a bad day: busy, "locking protocol", a full or
read-only disk, an error of input or output, at whatever statement. `FaultyStore` is any store that breaks its contract,
keeps nothing, or shows what was written late, damaged or never.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

from algosearch.records import Key, Record
from algosearch.stores import Miss, Store
from algosearch.stores.base import Claim, Committed, StoreStatistics

Ailment = Literal["busy", "protocol", "full", "read_only", "io"]
_SAYS: Final[dict[Ailment, tuple[int, str]]] = {
    "busy": (sqlite3.SQLITE_BUSY, "database is locked"),
    "protocol": (sqlite3.SQLITE_PROTOCOL, "locking protocol"),
    "full": (sqlite3.SQLITE_FULL, "database or disk is full"),
    "read_only": (sqlite3.SQLITE_READONLY, "attempt to write a readonly database"),
    "io": (sqlite3.SQLITE_IOERR, "disk I/O error"),
}


def sqlite_error(ailment: Ailment) -> sqlite3.OperationalError:
    """What SQLite raises."""
    code, text = _SAYS[ailment]
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    error.sqlite_errorname = f"SQLITE_{ailment.upper()}"
    return error


class FaultySqlite:
    """While it is in force, every new connection asks it before each statement.

    Args:
        plan: given a statement and its number, what goes wrong with it; None for nothing.
    """

    def __init__(self, plan: Callable[[str, int], Ailment | None]) -> None:
        self.plan = plan
        self.raised: Counter[str] = Counter()
        self.statements = 0

    def come(self, statement: str) -> None:
        """A statement is about to be carried out."""
        number, self.statements = self.statements, self.statements + 1
        ailment = self.plan(statement, number)
        if ailment is not None:
            self.raised[ailment] += 1
            raise sqlite_error(ailment)

    @contextmanager
    def in_force(self) -> Iterator[FaultySqlite]:
        """For the length of a block."""
        faulty = self

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                faulty.come(statement)
                return super().execute(statement, *values)

        connect = sqlite3.connect

        def faulty_connect(*args: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **{**options, "factory": Connection})
            return connection

        sqlite3.connect = faulty_connect  # type: ignore[assignment]
        try:
            yield self
        finally:
            sqlite3.connect = connect


Fault = Literal["raises", "not_kept", "hidden", "torn", "late"]
"""`hidden`: a record is there and not seen. `torn`: it cannot be decoded. `late`: the answer takes some turns."""


class FaultyStore:
    """A store around another one.

    Args:
        plan: given a call, what goes wrong with it; None for nothing.
    """

    def __init__(self, store: Store, plan: Callable[[str], Fault | None]) -> None:
        self.plan = plan
        self.met: Counter[tuple[str, str]] = Counter()
        self.lasting = store.lasting
        self.shared: bool = getattr(store, "shared", False)
        self._store = store

    @property
    def location(self) -> str:
        return self._store.location

    def __setattr__(self, name: str, value: object) -> None:
        # Who is to be told of what a shared store revises is told by the store itself.
        if name == "on_revised":
            setattr(self._store, name, value)
        else:
            super().__setattr__(name, value)

    async def _come(self, call: str) -> Fault | None:
        fault = self.plan(call)
        if fault is None:
            return None
        self.met[call, fault] += 1
        if fault == "late":
            for _ in range(5):
                await asyncio.sleep(0)
        if fault == "raises":
            raise OSError(f"{call} of a faulty store")
        return fault

    async def open(self) -> None:
        await self._come("open")
        await self._store.open()

    async def aclose(self) -> None:
        await self._store.aclose()
        await self._come("aclose")

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        fault = await self._come("get_many")
        answers = await self._store.get_many(keys)
        if fault == "hidden":
            return [Miss("absent", "hidden")] * len(keys)
        if fault == "torn":
            return [Miss("undecodable", "torn")] * len(keys)
        return answers

    async def commit(self, record: Record, *, after: int) -> Committed:
        if await self._come("commit") == "not_kept":
            return Committed(record, won=True, kept=False)
        return await self._store.commit(record, after=after)

    async def claim(
        self, digest: str, owner: str, *, expiry_s: float, trying: str = "", reading: Key | None = None
    ) -> Claim:
        await self._come("claim")
        return await self._store.claim(digest, owner, expiry_s=expiry_s, trying=trying, reading=reading)

    async def renew(self, claim: Claim, *, expiry_s: float) -> bool:
        await self._come("renew")
        return await self._store.renew(claim, expiry_s=expiry_s)

    async def release(self, claim: Claim) -> bool:
        await self._come("release")
        return await self._store.release(claim)

    async def holders(self, digests: Sequence[str]) -> list[Claim | None]:
        await self._come("holders")
        return await self._store.holders(digests)

    async def changes(self) -> bool | frozenset[str]:
        await self._come("changes")
        return await self._store.changes()

    async def scan(self) -> AsyncIterator[tuple[str, Record | Miss]]:
        await self._come("scan")
        async for item in self._store.scan():
            yield item

    async def delete(self, digests: Sequence[str]) -> int:
        await self._come("delete")
        return await self._store.delete(digests)

    async def statistics(self) -> StoreStatistics:
        await self._come("statistics")
        return await self._store.statistics()
