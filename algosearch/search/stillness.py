"""`Stillness`: who wants an engine's devices quiet, and what is done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio
from anyio.abc import TaskGroup

from algosearch.devices.pool import Pool
from algosearch.devices.quiet import Quiet
from algosearch.errors import AlgosearchError
from algosearch.search.milestone import Milestone


class Hush:
    """One who wants it quiet, in whatever thread."""

    __slots__ = ("held", "scope")

    def __init__(self) -> None:
        self.held: Milestone[None] = Milestone()
        """Nothing is under way any more."""
        self.scope: anyio.CancelScope | None = None
        """Of bringing that about."""

    def fail(self, error: AlgosearchError) -> None:
        """It cannot be had."""
        self.held.fail(error)


class Stillness:
    """The engine's own: used on its loop."""

    def __init__(self, pools: Callable[[], Iterable[Pool]]) -> None:
        self.quiet = Quiet()
        self._pools = pools
        self._hushes: set[Hush] = set()

    def __repr__(self) -> str:
        return f"<Stillness, wanted by {len(self._hushes)}>"

    def begin(self, hush: Hush, tasks: TaskGroup) -> None:
        """Bring it about."""
        hush.scope = anyio.CancelScope()
        self._hushes.add(hush)
        self.quiet.begin()
        tasks.start_soon(self._bring_about, hush, hush.scope)

    def end(self, hush: Hush) -> None:
        """It is not wanted by this one any more. Harmless if it never was."""
        if hush not in self._hushes:
            return
        self._hushes.remove(hush)
        assert hush.scope is not None
        hush.scope.cancel()
        if self.quiet.end():
            for pool in self._pools():
                pool.resume()

    def fail_all(self, error: AlgosearchError) -> None:
        """The engine ends."""
        for hush in self._hushes:
            hush.fail(error)

    async def _bring_about(self, hush: Hush, scope: anyio.CancelScope) -> None:
        with scope:
            async with anyio.create_task_group() as tasks:
                for pool in self._pools():
                    tasks.start_soon(pool.rest)
            hush.held.set(None)
