"""Ask one searcher about many ops at once, and stop when told to or when time is up.

Blocking, on purpose: a command has one thing to wait for, the engine has a loop of its own, and a signal handler that
only sets a flag is looked at ten times a second whatever goes on. Whoever waits for the first open request also makes
it the most awaited one, so that the ops are searched in the order of the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

import msgspec

from algosearch.cli.progress import TICK_S, Moment
from algosearch.errors import AlgosearchError, DeviceUnavailable, SearcherClosed, UnknownDevice
from algosearch.ops import Op
from algosearch.records import Choice
from algosearch.search import FlightStatus, Request, Searcher
from algosearch.search.inquiry import Source

_UNDER_WAY: Final = ("racing", "listing", "committing")
"""States of a flight that is being worked on, the most telling first."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one question."""

    op: Op
    source: Source | None = None
    """Where the choice came from; None if there is none."""
    choice: Choice | None = None
    error: AlgosearchError | None = None
    """Why there is no choice; None with a choice, and for what was still open at the end."""

    @property
    def open(self) -> bool:
        """True if it was withdrawn before it was answered."""
        return self.choice is None and self.error is None


def ask_all(
    searcher: Searcher,
    ops: Sequence[Op],
    *,
    show: Callable[[Moment], None],
    ended: Callable[[], bool],
) -> tuple[Answer, ...]:
    """Ask about every op, wait until all are answered or `ended()` is true, and withdraw what is still open.

    Args:
        show: told ten times a second how far it is.
        ended: looked at as often.

    Raises:
        DeviceUnavailable, UnknownDevice, SearcherClosed: there is no device, or the engine broke, so that no question
            at all could be answered.
    """
    began = perf_counter()
    requests = [searcher.request(op) for op in ops]
    waiting = requests
    while waiting and not ended():
        show(_moment(searcher, requests, len(waiting), perf_counter() - began))
        _wait(waiting[0])
        waiting = [request for request in waiting if not request.answered]
    answers = tuple(map(_answer, requests))
    first = answers[0].error if answers else None
    if isinstance(first, DeviceUnavailable | UnknownDevice | SearcherClosed) and not any(
        answer.choice for answer in answers
    ):
        raise first
    return answers


def _wait(request: Request) -> None:
    # TimeoutError: not yet. AlgosearchError: that is its answer, and it is looked at when all have theirs.
    with contextlib.suppress(TimeoutError, AlgosearchError):
        request.choice_blocking(timeout_s=TICK_S)


def _answer(request: Request) -> Answer:
    if not request.answered:
        request.withdraw()
        return Answer(op=request.op)
    try:
        return Answer(op=request.op, source=request.source, choice=request.choice_blocking())
    except AlgosearchError as error:
        return Answer(op=request.op, error=error)


def _moment(searcher: Searcher, requests: Sequence[Request], waiting: int, elapsed_s: float) -> Moment:
    return Moment(
        total=len(requests),
        answered=len(requests) - waiting,
        searched=sum(request.source == "search" for request in requests),
        elapsed_s=elapsed_s,
        trying=_trying(searcher.flights()),
    )


def _trying(flights: Sequence[FlightStatus]) -> str:
    at_work = [flight for flight in flights if flight.state in _UNDER_WAY]
    if not at_work:
        return ""
    flight = min(at_work, key=lambda flight: (_UNDER_WAY.index(flight.state), not flight.trying, -flight.seconds))
    return f"{flight.trying or flight.state}: {flight.problem}"
