"""The trace of a simulated backend: what was called, counted by whoever was called and not by who called.

One JSON line an event, appended by one `write` to a file opened with `O_APPEND`, so that threads and processes can
share a file: on a local file system no line is ever torn by another.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from algosearch.errors import InvalidSetting

Call = Literal["open", "enumerate", "build", "load", "launch", "time", "check", "unload", "destroy", "close"]


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """One call of a session; of `time`, one burst; of `destroy`, one plan."""

    t: float
    """Seconds of the machine's monotonic clock, at the call's end; if it hangs or crashes, before that."""
    pid: int
    thread: str
    """The calling thread's name."""
    device: str
    """`Device.name`."""
    call: Call
    problem: str = ""
    """`problem_digest(op)`; empty where a call is about none."""
    algorithm: str = ""
    """Empty where a call is about none."""
    outcome: str = "ok"
    """`ok`, or the failure's kind, or what else the script made of it (`hangs`, `raises`, `nan`, …)."""
    us: float = 0.0
    """What it took in the device's time: listing, building, running."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TraceEvent, strict=True).decode


class Tracer:
    """One session's end of a trace. A path is opened here and closed by `close`; a list is appended to.

    Raises:
        InvalidSetting: the file cannot be opened.
    """

    def __init__(self, trace: str | os.PathLike[str] | list[TraceEvent] | None, device: str) -> None:
        self._device = device
        self._events = trace if isinstance(trace, list) else None
        self._lock = threading.Lock()
        self._file: int | None = None
        if trace is not None and not isinstance(trace, list):
            try:
                self._file = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise InvalidSetting("trace", os.fspath(trace), f"cannot be written: {error.strerror}") from None

    def event(
        self, call: Call, problem: str = "", algorithm: str = "", outcome: str = "ok", us: float = 0.0
    ) -> TraceEvent:
        """An event of this moment, process and thread."""
        return TraceEvent(
            t=time.monotonic(),
            pid=os.getpid(),
            thread=threading.current_thread().name,
            device=self._device,
            call=call,
            problem=problem,
            algorithm=algorithm,
            outcome=outcome,
            us=us,
        )

    def write(self, *events: TraceEvent) -> None:
        """Append events, together; those of a call that outlives its session are dropped."""
        if self._events is not None:
            self._events.extend(events)
            return
        if self._file is None or not events:
            return
        raw = b"".join(_encode(event) + b"\n" for event in events)
        # The lock: a file's number must not be closed, and given to another file, between look and write.
        with self._lock:
            if self._file is not None:
                os.write(self._file, raw)

    def flush(self) -> None:
        """Nothing: what is written is there. As `Gathered`."""

    def close(self) -> None:
        """Close the file. Harmless if called twice."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            os.close(file)


class Gathered:
    """A tracer whose events are appended together, at the end of the block that it is entered for, or by `flush`.

    For calls of many parts, of one thread. Bursts are sixty of the hundred lines of a search, and each `write` of its
    own gives the interpreter's lock away, and waits for it behind whatever computes.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._events: list[TraceEvent] = []
        self.event = tracer.event

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.flush()

    def write(self, *events: TraceEvent) -> None:
        """As `Tracer.write`, later."""
        self._events.extend(events)

    def flush(self) -> None:
        """Append what was gathered."""
        events, self._events = self._events, []
        self._tracer.write(*events)


def read_trace(path: str | os.PathLike[str]) -> tuple[TraceEvent, ...]:
    """The events of a file in the order in which they were written; none if the file does not exist. A last line
    without an end is being written, and no event yet.

    Raises:
        InvalidSetting: a line is not an event.
    """
    try:
        with open(path, "rb") as lines:
            return tuple(_decode(line) for line in lines if line.endswith(b"\n"))
    except FileNotFoundError:
        return ()
    except msgspec.DecodeError as error:
        raise InvalidSetting("trace", os.fspath(path), f"is not a trace: {error}") from None


def searches(events: Iterable[TraceEvent]) -> int:
    """How many searches the events show, over all sessions and processes.

    A search builds an algorithm once, or once more if it found no memory. So a problem was searched as often as
    that of its algorithms was built that was built most often. It does not matter how often candidates were listed, how
    often buffers were loaded, nor whether two searches ran one after the other or side by side. A problem without
    candidates counts for none.
    """
    return sum(searched(events).values())


def searched(events: Iterable[TraceEvent]) -> dict[str, int]:
    """How often each problem was searched, as `searches` counts; problems by `problem_digest`."""
    builds: defaultdict[str, Counter[str]] = defaultdict(Counter)
    short: set[tuple[int, str, str, str]] = set()
    """Where an algorithm found no memory, and was not built again yet."""
    for event in sorted(events, key=lambda event: event.t):
        if event.call == "build":
            place = (event.pid, event.device, event.problem, event.algorithm)
            if place in short:
                short.remove(place)
                continue
            builds[event.problem][event.algorithm] += 1
            if event.outcome == "out_of_memory":
                short.add(place)
    return {problem: max(counts.values()) for problem, counts in builds.items()}


def spent_us(events: Iterable[TraceEvent], calls: Sequence[Call]) -> float:
    """The device's time that these kinds of calls took, added up."""
    return sum(event.us for event in events if event.call in calls)
