"""`HandleProbe`: asks a library directly, with a handle made and destroyed for each question.

What the system of the complaint did for every batch norm. It is here to be measured, never to be used: no cache, no
sharing, and a thread of its own only so that the loop does not stand still with it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from algosearch.backends import Backend, Device
from algosearch.backends.base import AsksAlone
from algosearch.ops import Op, searched_as
from algosearch.pinned import PinnedThread
from algosearch.records import Listing

__all__ = ("HandleProbe",)


class HandleProbe:
    """Usable while it is entered."""

    def __init__(self, backend: Backend, device: Device) -> None:
        self.handles = 0
        """Made so far."""
        self._backend = backend
        self._device = device
        self._thread: PinnedThread | None = None
        self._asks: Callable[[Op], Listing] | None = None

    async def __aenter__(self) -> Self:
        self._thread = PinnedThread("algosearch-handle-probe")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.stop()

    async def __call__(self, op: Op) -> Listing:
        """The candidates of an op, the first of them at least.

        Raises:
            DeviceUnavailable: the device cannot be opened.

        Cancellation: what has begun ends by itself, its result dropped.
        """
        assert self._thread is not None, "a HandleProbe is used while it is entered"
        return await self._thread.run(self._ask, searched_as(op))

    def _ask(self, op: Op) -> Listing:
        if self._asks is None:
            backend = self._backend
            self._asks = backend.alone(self._device) if isinstance(backend, AsksAlone) else self._ask_a_session

        self.handles += 1
        return self._asks(op)

    def _ask_a_session(self, op: Op) -> Listing:
        """Where a session is little more than a handle."""
        session = self._backend.open(self._device)
        try:
            return session.enumerate(op, 1)
        finally:
            session.close()
