"""`Ledger`: a backend that counts what each call of another one's sessions takes, to say where a search's time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

from algosearch.backends.base import Backend, Device, Recipe, Session
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate, Environment, Failure, Listing
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


class _Counted:
    def __init__(self, ledger: Ledger, session: Session) -> None:
        self.environment: Environment = session.environment
        self._ledger = ledger
        self._session = session

    def enumerate(self, op: Op, width: int | None) -> Listing:
        return self._ledger.count("enumerate", lambda: self._session.enumerate(op, width))

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        return self._ledger.count("build", lambda: self._session.build(op, candidate))

    def load(self, op: Op, workspace_bytes: int) -> Failure | None:
        return self._ledger.count("load", lambda: self._session.load(op, workspace_bytes))

    def launch(self, plan: int, limit_us: float | None) -> Burst | Failure:
        return self._ledger.count("launch", lambda: self._session.launch(plan, limit_us))

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        outcomes = self._ledger.count("time", lambda: self._session.time(bursts, limit_us))
        for outcome in outcomes:
            if isinstance(outcome, Burst):
                self._ledger.seconds["running"] += outcome.time_us * outcome.repeats / 1e6
                self._ledger.calls["running"] += outcome.repeats
                self._ledger.calls["disturbed"] += outcome.disturbed is not None
        return outcomes

    def check(self, plan: int, against: int | None) -> Failure | None:
        return self._ledger.count("check", lambda: self._session.check(plan, against))

    def healthy(self) -> Failure | None:
        return self._session.healthy()

    def unload(self) -> None:
        self._ledger.count("unload", self._session.unload)

    def destroy(self, plans: Sequence[int]) -> None:
        self._ledger.count("destroy", lambda: self._session.destroy(plans))

    def close(self) -> None:
        self._ledger.count("close", self._session.close)
