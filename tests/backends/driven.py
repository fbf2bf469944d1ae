"""`Driven`: a session as a worker drives it, from three pinned threads, with an encoding between it and its caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from algosearch.backends.base import Backend, Device, Session
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate, Failure, Listing

T = TypeVar("T")


def crossed(value: T) -> T:
    """`value` as it is behind a process boundary.

    Encoding once more tells an int from a float and catches what compares equal and is not the same.
    """
    raw = msgspec.msgpack.encode(value)
    again = msgspec.msgpack.decode(raw, type=type(value), strict=True)
    assert again == value
    assert msgspec.msgpack.encode(again) == raw
    return again


class Driven:
    """An open session and the threads from which it is called."""

    def __init__(self, backend: Backend, device: Device) -> None:
        self._prepare = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._compile = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._lane = ThreadPoolExecutor(1, thread_name_prefix="lane")
        self.session: Session = self.in_prepare(backend.open, device).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._prepare.shutdown()
        self._compile.shutdown()
        self._lane.shutdown()

    def in_prepare(self, call: Callable[..., T], *args: object) -> Future[T]:
        """Begin a call in the prepare thread."""
        return self._prepare.submit(call, *args)

    def in_compile(self, call: Callable[..., T], *args: object) -> Future[T]:
        """Begin a call in the compile thread."""
        return self._compile.submit(call, *args)

    def in_lane(self, call: Callable[..., T], *args: object) -> Future[T]:
        """Begin a call in the lane."""
        return self._lane.submit(call, *args)

    def enumerate(self, op: Op, width: int | None = None) -> Listing:
        return crossed(self.in_prepare(self.session.enumerate, crossed(op), width).result())

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        begin = self.in_compile if candidate.is_dear else self.in_prepare
        return crossed(begin(self.session.build, crossed(op), crossed(candidate)).result())

    def load(self, op: Op, workspace_bytes: int) -> Failure | None:
        return crossed(self.in_lane(self.session.load, crossed(op), workspace_bytes).result())

    def launch(self, plan: int, limit_us: float | None = None) -> Burst | Failure:
        return crossed(self.in_lane(self.session.launch, plan, limit_us).result())

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None = None) -> tuple[Burst | Failure, ...]:
        outcomes = self.in_lane(self.session.time, tuple(bursts), limit_us).result()
        return tuple(crossed(outcome) for outcome in outcomes)

    def check(self, plan: int, against: int | None = None) -> Failure | None:
        return crossed(self.in_lane(self.session.check, plan, against).result())

    def unload(self) -> None:
        self.in_lane(self.session.unload).result()

    def destroy(self, plans: Sequence[int]) -> None:
        self.in_lane(self.session.destroy, tuple(plans)).result()

    def close(self) -> None:
        self.in_lane(self.session.close).result()

    def runnable(self, op: Op) -> list[tuple[Candidate, int]]:
        """Every candidate of `op` that can be built, with its plan; at least one."""
        built = [(candidate, self.build(op, candidate)) for candidate in self.enumerate(op).candidates]
        plans = [(candidate, outcome.plan) for candidate, outcome in built if isinstance(outcome, Built)]
        assert plans, f"nothing can be built for {op.describe()}"
        return plans

    def load_for(self, op: Op, plans: Sequence[tuple[Candidate, int]]) -> None:
        """Load `op` with the largest workspace among `plans`, as a worker does."""
        assert self.load(op, max(candidate.workspace_bytes for candidate, _ in plans)) is None
