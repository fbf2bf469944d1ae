"""`Timeline`: one compile on one time line, as a Chrome trace (Perfetto and chrome://tracing read it).

Rows: the compiler's passes and stages; what it waited for; every flight of the engine from its first state to its last;
and for each device its threads, with what they searched. Flights and turns are learned from the engine's own log
records (`algosearch.flights` and `algosearch.workers`, DEBUG), which carry what they tell: so tracing needs no hook in
the engine, and costs next to nothing where nobody traces. A turn is told when it is over; of one that a device did not
survive there is only the flight.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from algosearch.backends import Device
from algosearch.compiler.queries import Wait
from algosearch.devices.job import Side, Worked
from algosearch.records.plain import as_json

__all__ = ("Timeline",)

_LOGGERS: Final = ("algosearch.flights", "algosearch.workers")
_ENDED: Final = frozenset({"landed", "failed", "dropped"})
_COMPILER, _WAITS, _ENGINE, _WORKERS = 1, 2, 3, 4
_GROUPS: Final = {_COMPILER: "compiler", _WAITS: "waits", _ENGINE: "flights", _WORKERS: "workers"}


class _State(NamedTuple):
    """A flight in one of its states."""

    name: str
    since: float
    facts: dict[str, str]


class _Listening:
    """The loggers that time lines are learned from: turned up when the first one begins to listen, and as they were
    once the last one has ended, in whatever order they do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before: dict[str, tuple[int, bool]] = {}
        """Of each logger: its level, and whether it propagates."""

    def begin(self, handler: logging.Handler) -> None:
        with self._lock:
            for name in _LOGGERS:
                logger = logging.getLogger(name)
                if not self._count:
                    self._before[name] = logger.level, logger.propagate
                    # Others must not be flooded with what only time lines asked for.
                    logger.propagate = logger.isEnabledFor(logging.DEBUG) and logger.propagate
                    logger.setLevel(logging.DEBUG)
                logger.addHandler(handler)
            self._count += 1

    def end(self, handler: logging.Handler) -> None:
        with self._lock:
            self._count -= 1
            for name, (level, propagated) in self._before.items():
                logger = logging.getLogger(name)
                logger.removeHandler(handler)
                if not self._count:
                    logger.setLevel(level)
                    logger.propagate = propagated


_listening: Final = _Listening()


class Timeline(logging.Handler):
    """Collects while it is entered; `encoded` afterwards."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._zero = perf_counter()
        self._events: list[dict[str, Any]] = []
        self._flying: dict[str, _State] = {}
        """Flights by digest."""
        self._rows: dict[str, int] = {}
        self._free_rows: list[int] = []
        self._threads: dict[tuple[str, Side], int] = {}
        """The rows of the devices' threads."""
        self._guard = threading.Lock()

    def __enter__(self) -> Self:
        _listening.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _listening.end(self)
        with self._guard:  # what still flies is drawn as far as it was seen
            for digest in tuple(self._flying):
                self._moved(digest, "dropped", {}, perf_counter())

    @property
    def is_empty(self) -> bool:
        """Whether nothing has happened."""
        return not self._events

    def emit(self, record: logging.LogRecord) -> None:
        """A flight has moved, told in the engine's thread; or a device's thread has had a turn, told in any."""
        now = perf_counter()
        digest, device, turn = (getattr(record, name, None) for name in ("digest", "device", "turn"))
        with self._guard:
            if isinstance(device, Device) and isinstance(turn, Worked):
                self._worked(device, turn)
            elif isinstance(digest, str):
                facts = {"problem": str(getattr(record, "problem", "")), "digest": digest}
                if isinstance(device, Device):
                    facts["device"] = device.name
                self._moved(digest, str(getattr(record, "state", "")), facts, now)

    def _worked(self, device: Device, turn: Worked) -> None:
        row = self._threads.setdefault((device.name, turn.side), len(self._threads))
        facts = {"device": device.name, "side": turn.side, "problem": turn.problem}
        if turn.waited_s:
            facts["held still"] = f"{turn.waited_s:.6f} s"
        self._add(turn.problem, "worker", turn.began_s, turn.ended_s, _WORKERS, row, facts)

    def _moved(self, digest: str, state: str, facts: dict[str, str], now: float) -> None:
        before = self._flying.pop(digest, None)
        row = self._rows.get(digest)
        if row is None:
            row = self._free_rows.pop() if self._free_rows else len(self._rows)
            self._rows[digest] = row
        if before is not None:
            self._add(before.name, "flight", before.since, now, _ENGINE, row, before.facts)
        if state in _ENDED:
            self._free_rows.append(self._rows.pop(digest))
        else:
            self._flying[digest] = _State(state, now, facts)

    @contextmanager
    def span(self, name: str, category: str = "stage") -> Iterator[None]:
        """Something that the compiler does."""
        began = perf_counter()
        try:
            yield
        finally:
            with self._guard:
                self._add(name, category, began, perf_counter(), _COMPILER, 0, {})

    def waits(self, waits: Iterable[Wait], began: float) -> None:
        """What was waited for by a compile that began at `began`, by `perf_counter`."""
        with self._guard:
            for wait in waits:
                start = began + wait.began_s
                facts = {"problem": wait.problem, "stage": wait.stage}
                self._add(wait.awaited, "wait", start, start + wait.seconds, _WAITS, 0, facts)

    def _add(
        self, name: str, category: str, start: float, end: float, process: int, row: int, facts: dict[str, str]
    ) -> None:
        # The ends are rounded, not the length, so that what follows at once begins where this one ends.
        begins, ends = self._microseconds(start), self._microseconds(end)
        self._events.append(
            {
                "name": name,
                "cat": category,
                "ph": "X",
                "ts": begins,
                "dur": ends - begins,
                "pid": process,
                "tid": row,
                "args": facts,
            }
        )

    def _microseconds(self, moment: float) -> float:
        """In eighths: sums and differences of those are exact, so that no event seems to end within the next."""
        return round((moment - self._zero) * 8e6) / 8

    def encoded(self) -> bytes:
        """The trace as JSON, in the order of time."""
        with self._guard:
            names = [_named("process_name", process, 0, name) for process, name in _GROUPS.items()]
            names += [_named("thread_name", _WORKERS, row, " ".join(who)) for who, row in self._threads.items()]
            events = sorted(self._events, key=lambda event: (event["ts"], -event["dur"]))
        return as_json({"traceEvents": names + events, "displayTimeUnit": "ms"})


def _named(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}
