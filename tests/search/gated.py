"""A backend whose calls stop at a gate until the test opens it, around any real backend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from algosearch.backends import Backend, Device, Recipe, Session
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate, Environment, Failure, Listing
from algosearch.settings import Isolation

_LIMIT_S = 20.0


class Gate:
    """Closed by `close`; whoever comes then waits until `open`, and can be waited for with `reached`."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._opened.set()
        self.reached = threading.Event()

    def close(self) -> None:
        self._opened.clear()
        self.reached.clear()

    def open(self) -> None:
        self._opened.set()

    def pass_through(self) -> None:
        if not self._opened.is_set():
            self.reached.set()
            assert self._opened.wait(_LIMIT_S), "the gate was never opened"


class RaisesOnce:
    """For `GatedBackend.before`: raises at the first of these calls, as soon as it may, then never again."""

    def __init__(self, call: str, error: BaseException) -> None:
        self.call: str | None = call
        self.may = threading.Event()
        self._error = error

    def __call__(self, call: str, subject: object) -> None:
        if call == self.call:
            self.call = None
            assert self.may.wait(_LIMIT_S), "it was never allowed"
            raise self._error


class GatedBackend:
    """`gates` has a gate for each call of a session, all open at first, and one more, `compile`, for dear builds;
    `before` may be replaced to act on a call."""

    def __init__(self, inner: Backend) -> None:
        self.name = inner.name
        self.isolation: Isolation = "thread"
        self._inner = inner
        self.gates = {
            call: Gate()
            for call in (
                *("open", "enumerate", "build", "load", "launch", "time", "check", "unload"),
                *("compile", "devices", "destroy", "close"),
            )
        }
        self.before: Callable[[str, Any], None] = lambda call, subject: None

    def recipe(self) -> Recipe | None:
        return None

    def devices(self) -> tuple[Device, ...]:
        self.come("devices", None)
        return self._inner.devices()

    def open(self, device: Device) -> Session:
        self.come("open", device)
        return _GatedSession(self, self._inner.open(device))

    def come(self, call: str, subject: Any) -> None:
        self.before(call, subject)
        self.gates[call].pass_through()


class _GatedSession:
    def __init__(self, backend: GatedBackend, inner: Session) -> None:
        self._backend = backend
        self._inner = inner
        self.environment: Environment = inner.environment

    def enumerate(self, op: Op, width: int | None) -> Listing:
        self._backend.come("enumerate", op)
        return self._inner.enumerate(op, width)

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        self._backend.come("build", op)
        if candidate.is_dear:
            self._backend.come("compile", op)
        return self._inner.build(op, candidate)

    def load(self, op: Op, workspace_bytes: int) -> Failure | None:
        self._backend.come("load", op)
        return self._inner.load(op, workspace_bytes)

    def launch(self, plan: int, limit_us: float | None) -> Burst | Failure:
        self._backend.come("launch", plan)
        return self._inner.launch(plan, limit_us)

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        self._backend.come("time", bursts)
        return self._inner.time(bursts, limit_us)

    def check(self, plan: int, against: int | None) -> Failure | None:
        self._backend.come("check", plan)
        return self._inner.check(plan, against)

    def healthy(self) -> Failure | None:
        return self._inner.healthy()

    def unload(self) -> None:
        self._backend.come("unload", None)
        self._inner.unload()

    def destroy(self, plans: Sequence[int]) -> None:
        self._backend.come("destroy", plans)
        self._inner.destroy(plans)

    def close(self) -> None:
        self._backend.come("close", None)
        self._inner.close()
