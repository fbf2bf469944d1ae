"""`Quiet`: whether an engine's devices are to rest."""

from __future__ import annotations

import anyio


class Quiet:
    """Counts who wants it. One for all devices of an engine, on its loop."""

    def __init__(self) -> None:
        self._wanted = 0
        self._over = anyio.Event()

    def __repr__(self) -> str:
        return f"<Quiet, wanted by {self._wanted}>"

    @property
    def is_wanted(self) -> bool:
        """Whether anybody wants it now."""
        return self._wanted > 0

    async def over(self) -> None:
        """Wait until nobody wants it."""
        while self._wanted:
            await self._over.wait()

    def begin(self) -> None:
        """One more wants it."""
        self._wanted += 1

    def end(self) -> bool:
        """One less. True if it was the last."""
        self._wanted -= 1
        if not self._wanted:
            self._over.set()
            self._over = anyio.Event()
        return not self._wanted
