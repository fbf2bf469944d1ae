"""`ContainedStore`: a store held to its contract, whoever wrote it.

A store may not raise (`algosearch.stores.base`), and one that does all the same must cost cached answers only. What it
raises leaves here as an ordinary exception: a `CancelledError` of its own would pass for the cancellation of the task
that asked, and leave whoever waits for that task without an answer; a `SystemExit` would end the engine. What it
returns is what it was asked for, or leaves as an exception too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from algosearch.pinned import BrokenContract, as_exception
from algosearch.records import Key, Record
from algosearch.stores.base import Claim, Committed, Miss, Store, StoreStatistics

T = TypeVar("T")

Revised = Callable[[Sequence[tuple[Record, Record]]], None]
"""Pairs: what was given, and what is to be gone by from now on."""


class ContainedStore:
    """A `Store` around another one. Raises the other's StoreUnusable, and otherwise only what the contract forbids.

    Cancellation: as the other's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lasting = store.lasting
        """As the other's."""
        self.shared: bool = bool(getattr(store, "shared", False))
        """Whether other hosts go by it too, so that what is found without it is found alone."""
        self.not_kept = 0
        """Commits that the store could not keep, or that broke."""

    def __repr__(self) -> str:
        return f"<ContainedStore of {self._store!r}>"

    @property
    def location(self) -> str:
        """The other's."""
        return self._store.location

    def watch(self, revised: Revised) -> None:
        """Have `revised` called, on the loop, with what is not any more as it was given; never, if it is the other's
        way to change nothing."""
        if self.shared:
            self._store.on_revised = revised  # type: ignore[attr-defined]

    async def open(self) -> None:
        """As `Store.open`."""
        await _contained(self._store.open)

    async def aclose(self) -> None:
        """As `Store.aclose`."""
        await _contained(self._store.aclose)

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        """As `Store.get_many`."""
        answers = await _contained(self._store.get_many, keys)
        if len(answers) != len(keys):
            raise BrokenContract(f"it gave {len(answers)} answers for {len(keys)} keys")
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Record) and (answer.key is key or answer.key == key):
                continue
            if not isinstance(answer, Miss):
                raise BrokenContract(f"for a key it gave {answer!r:.200}")
        return answers

    async def commit(self, record: Record, *, after: int) -> Committed:
        """As `Store.commit`."""
        try:
            committed = await _contained(self._store.commit, record, after=after)
            if not (isinstance(committed, Committed) and committed.record.key == record.key):
                raise BrokenContract(f"for a record it gave {committed!r:.200}")
        except Exception:
            self.not_kept += 1
            raise
        self.not_kept += not committed.kept
        return committed

    async def claim(
        self, digest: str, owner: str, *, expiry_s: float, trying: str = "", reading: Key | None = None
    ) -> Claim:
        """As `Store.claim`."""
        claim = await _contained(self._store.claim, digest, owner, expiry_s=expiry_s, trying=trying, reading=reading)
        found = getattr(claim, "found", None)
        if not (found is None or isinstance(found, Miss) or (isinstance(found, Record) and found.key == reading)):
            raise BrokenContract(f"for a claimed key it gave {found!r:.200}")
        return claim

    async def renew(self, claim: Claim, *, expiry_s: float) -> bool:
        """As `Store.renew`."""
        return await _contained(self._store.renew, claim, expiry_s=expiry_s)

    async def release(self, claim: Claim) -> bool:
        """As `Store.release`."""
        return await _contained(self._store.release, claim)

    async def holders(self, digests: Sequence[str]) -> list[Claim | None]:
        """As `Store.holders`."""
        held = await _contained(self._store.holders, digests)
        if len(held) != len(digests):
            raise BrokenContract(f"it named {len(held)} holders of {len(digests)} claims")
        return held

    async def changes(self) -> bool | frozenset[str]:
        """As `Store.changes`."""
        return await _contained(self._store.changes)

    async def scan(self) -> AsyncIterator[tuple[str, Record | Miss]]:
        """As `Store.scan`."""
        scanned = self._store.scan()
        while True:
            try:
                found = await _contained(scanned.__anext__)
            except StopAsyncIteration:
                return
            yield found

    async def delete(self, digests: Sequence[str]) -> int:
        """As `Store.delete`."""
        return await _contained(self._store.delete, digests)

    async def statistics(self) -> StoreStatistics:
        """As `Store.statistics`."""
        return await _contained(self._store.statistics)


async def _contained(call: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
    """What the call gives; what it raises as an exception. Only a cancellation that somebody asked for passes."""
    try:
        return await call(*args, **options)
    except (Exception, GeneratorExit):  # the latter is how a loop that is closed lets go of what still waits in it
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise as_exception(error) from error
