"""Who may be at a device with whom: everybody together, or one alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio


class Admission:
    """Lets searches in: the usual ones together, a careful one alone, so that nobody else can be suspected.

    Used on one loop. Who wants to be alone is let in before the others.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._alone = False
        self._lonely = 0
        """How many wait to be alone."""
        self._moved = anyio.Event()

    def __repr__(self) -> str:
        return f"<Admission {self._inside} inside{', alone' if self._alone else ''}, {self._lonely} want to be alone>"

    @property
    def inside(self) -> int:
        """How many are in."""
        return self._inside

    @asynccontextmanager
    async def admitted(self, *, alone: bool) -> AsyncIterator[None]:
        """Wait to be let in, and be in for the length of the block.

        Cancellation: while it waits, nothing has changed.
        """
        if alone:
            self._lonely += 1
        try:
            while self._inside if alone else (self._alone or self._lonely):
                await self._moved.wait()
        finally:
            if alone:
                self._lonely -= 1
                self._move()  # if it gives up, those that waited for it go on
        self._inside += 1
        self._alone = alone
        try:
            yield
        finally:
            self._inside -= 1
            self._alone = False
            self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()
