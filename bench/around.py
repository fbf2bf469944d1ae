"""`Around`: a session that stands for another one, so that a bench can look at the calls, or change one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from algosearch.backends.base import Session
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate, Environment, Failure, Listing

T = TypeVar("T")


class Around:
    """Every call goes through `around`, which makes it."""

    def __init__(self, session: Session) -> None:
        self.environment: Environment = session.environment
        self.session = session

    def around(self, name: str, call: Callable[[], T]) -> T:
        """Make a call of the session's."""
        return call()

    def enumerate(self, op: Op, width: int | None) -> Listing:
        return self.around("enumerate", lambda: self.session.enumerate(op, width))

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        return self.around("build", lambda: self.session.build(op, candidate))

    def load(self, op: Op, workspace_bytes: int) -> Failure | None:
        return self.around("load", lambda: self.session.load(op, workspace_bytes))

    def launch(self, plan: int, limit_us: float | None) -> Burst | Failure:
        return self.around("launch", lambda: self.session.launch(plan, limit_us))

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        return self.around("time", lambda: self.session.time(bursts, limit_us))

    def check(self, plan: int, against: int | None) -> Failure | None:
        return self.around("check", lambda: self.session.check(plan, against))

    def healthy(self) -> Failure | None:
        return self.around("healthy", self.session.healthy)

    def unload(self) -> None:
        self.around("unload", self.session.unload)

    def destroy(self, plans: Sequence[int]) -> None:
        self.around("destroy", lambda: self.session.destroy(plans))

    def close(self) -> None:
        self.around("close", self.session.close)
