"""Claims over a memory that a ghost shares, on a test's own loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from algosearch.search.claims import Claims
from algosearch.search.tiers import Tiers
from algosearch.stores import Claim, MemoryStore
from tests.search.rivals import EXPIRY_S, Clock, Watched
from tests.stores.nouns import some_key

DIGEST = some_key().digest


class Home:
    """One memory, a ghost that claims in it, and our own claims."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ghosts = MemoryStore(clock=self.clock)
        self.store = Watched(beside=self.ghosts, clock=self.clock)

    @asynccontextmanager
    async def claims(self, store: MemoryStore | None = None, **how: Any) -> AsyncIterator[Claims]:
        tiers = Tiers(self.store if store is None else store)
        await tiers.open()
        async with anyio.create_task_group() as tasks:
            claims = Claims(tiers, tasks, expiry_s=how.pop("expiry_s", EXPIRY_S), **how)
            try:
                yield claims
            finally:
                tasks.cancel_scope.cancel()
        await claims.aclose()
        await tiers.aclose()

    async def holder(self, digest: str = DIGEST) -> Claim | None:
        (holder,) = await self.ghosts.holders([digest])
        return holder

    async def ghost(self, name: str = "ghost", digest: str = DIGEST, trying: str = "") -> Claim:
        """Somebody who claims and is never heard of again."""
        return await self.ghosts.claim(digest, name, expiry_s=EXPIRY_S, trying=trying)
