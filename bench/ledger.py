"""`Ledger`: a backend that counts what each call of another one's sessions takes, to say where a search's time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

from around import Around

from algosearch.backends.base import Backend, Device, Recipe, Session
from algosearch.records import Burst, Environment, Failure
from algosearch.settings import Isolation

T = TypeVar("T")


class Ledger:
    """Stands for `backend`, in this process. Each entry is written by one thread only."""

    isolation: Isolation = "thread"

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.environment: Environment | None = None
        """Of the device that was opened."""
        self._backend = backend

    def recipe(self) -> Recipe | None:
        return None

    def devices(self) -> tuple[Device, ...]:
        return self._backend.devices()

    def open(self, device: Device) -> Session:
        session = self.count("open", lambda: self._backend.open(device))
        self.environment = session.environment
        return _Counted(self, session)

    def count(self, name: str, call: Callable[[], T]) -> T:
        start = perf_counter()
        try:
            return call()
        finally:
            self.seconds[name] += perf_counter() - start
            self.calls[name] += 1

    def entries(self) -> dict[str, float]:
        """Seconds by call, and how many calls."""
        found: dict[str, float] = {}
        for name in sorted(self.seconds):
            found[f"{name}_s"] = round(self.seconds[name], 4)
            found[f"{name}_calls"] = self.calls[name]
        return found


class _Counted(Around):
    def __init__(self, ledger: Ledger, session: Session) -> None:
        super().__init__(session)
        self._ledger = ledger

    def around(self, name: str, call: Callable[[], T]) -> T:
        return self._ledger.count(name, call)

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        outcomes = super().time(bursts, limit_us)
        for outcome in outcomes:
            if isinstance(outcome, Burst):
                self._ledger.seconds["running"] += outcome.time_us * outcome.repeats / 1e6
                self._ledger.calls["running"] += outcome.repeats
                self._ledger.calls["disturbed"] += outcome.disturbed is not None
        return outcomes
