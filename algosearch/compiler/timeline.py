"""`Timeline`: one compile on one time line, as a Chrome trace (Perfetto and chrome://tracing read it).

Rows: the compiler's passes and stages, what it waited for, and every flight of the engine from its first state to its
last. The flights are learned from the engine's own log records (`algosearch.flights`, DEBUG), which carry the digest
and the state: so tracing needs no hook in the engine, and costs nothing where nobody traces.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from algosearch.compiler.queries import Wait

__all__ = ("Timeline",)

_FLIGHTS: Final = "algosearch.flights"
_ENDED: Final = frozenset({"landed", "failed", "dropped"})
_COMPILER, _WAITS, _ENGINE = 1, 2, 3
_ROWS: Final = {_COMPILER: "compiler", _WAITS: "waits", _ENGINE: "flights"}


class Timeline(logging.Handler):
    """Collects while it is entered; `encoded` afterwards."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._zero = perf_counter()
        self._events: list[dict[str, Any]] = []
        self._flying: dict[str, tuple[str, float, str]] = {}
        """Flights by digest: state, since when, and their problem."""
        self._rows: dict[str, int] = {}
        self._free_rows: list[int] = []
        self._guard = threading.Lock()
        self._level_before = logging.NOTSET
        self._propagated_before = True

    def __enter__(self) -> Self:
        logger = logging.getLogger(_FLIGHTS)
        self._level_before, self._propagated_before = logger.level, logger.propagate
        # Others must not be flooded with what only this handler asked for.
        logger.propagate = logger.isEnabledFor(logging.DEBUG) and logger.propagate
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        logger = logging.getLogger(_FLIGHTS)
        logger.removeHandler(self)
        logger.setLevel(self._level_before)
        logger.propagate = self._propagated_before

    def emit(self, record: logging.LogRecord) -> None:
        """A flight has moved; called in the engine's thread."""
        digest, state = getattr(record, "digest", None), getattr(record, "state", None)
        if isinstance(digest, str) and isinstance(state, str):
            now = perf_counter()
            with self._guard:
                self._moved(digest, state, str(getattr(record, "problem", digest[:12])), now)

    def _moved(self, digest: str, state: str, problem: str, now: float) -> None:
        before = self._flying.pop(digest, None)
        row = self._rows.get(digest)
        if row is None:
            row = self._free_rows.pop() if self._free_rows else len(self._rows)
            self._rows[digest] = row
        if before is not None:
            was, since, _ = before
            self._add(was, "flight", since, now, _ENGINE, row, {"problem": problem, "digest": digest})
        if state in _ENDED:
            self._free_rows.append(self._rows.pop(digest))
        else:
            self._flying[digest] = (state, now, problem)

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
        names = [
            {"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}}
            for process, name in _ROWS.items()
        ]
        with self._guard:
            events = sorted(self._events, key=lambda event: (event["ts"], -event["dur"]))
        return msgspec.json.encode({"traceEvents": names + events, "displayTimeUnit": "ms"})
