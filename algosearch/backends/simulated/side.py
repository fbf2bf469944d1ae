"""The sides from which a session may be called, held to their rules."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from algosearch.backends.simulated.device import Pacer


class Side:
    """One of the threads that may call: `with side:` holds the caller to being it, and alone."""

    def __init__(self, name: str, pacer: Pacer) -> None:
        self.pacer = pacer
        """How its time passes."""
        self._name = name
        self._busy = threading.Lock()
        self._owner: threading.Thread | None = None

    def __enter__(self) -> Self:
        if not self._busy.acquire(blocking=False):
            raise AssertionError(f"two calls at a time on the {self._name} side")
        caller = threading.current_thread()
        if self._owner is None:
            self._owner = caller
        elif self._owner is not caller:
            self._busy.release()
            raise AssertionError(f"the {self._name} side is {self._owner.name}'s, and {caller.name} called")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._busy.release()

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._busy.locked()
