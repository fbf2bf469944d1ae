"""One search of `injected.py`, in a process of its own, and the neighbour that has the device's memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec
from injection import Event, InjectedBackend, Injection, Settings, ground_of, journal, prepare_children

import algosearch
from algosearch.ops import ConvOp
from algosearch.records import Trial

BENCH: Final = Path(__file__).parent / "injected.py"
OTHER: Final = ConvOp(input_shape=(2, 16, 8, 8), filter_shape=(16, 16, 3, 3))
"""Asked first, without a run, so that the device is open and the library loaded."""
END_S: Final = 20.0
"""For a neighbour to end."""


class What(msgspec.Struct, frozen=True, kw_only=True):
    """Which search."""

    ground: str
    network: str
    case: str
    batch: int
    injections: tuple[Injection, ...] = ()
    leave_bytes: int | None = None
    """What a neighbour leaves of the memory; None: there is none."""
    release_at: int | None = None
    """After so many answers it gives everything back."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """To one op."""

    picked: str
    """The algorithm, or in words why there is none."""
    trials: tuple[Trial, ...]
    tie_window: float = 0.0
    """As in `Choice`: what the pick may be slower by than the best."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a search brought."""

    answers: tuple[Answer, ...]
    seconds: float
    broke: tuple[str, ...]
    """Why the device's process was started again, each time."""
    events: tuple[Event, ...]


class Breaks(logging.Handler):
    """Collects why a worker's device broke."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "%s broke: %s" and isinstance(record.args, tuple):
            self.reasons.append(str(record.args[1]))


@contextlib.contextmanager
def neighbour(what: What) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Another process on the device. Two calls: take the memory, and give it back."""
    if what.leave_bytes is None:
        yield lambda: None, lambda: None
        return
    command = [sys.executable, str(BENCH), "--neighbour", what.ground, str(what.leave_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        its, said = process.stdin, process.stdout

        def tell(word: bytes) -> None:
            its.write(word + b"\n")
            its.flush()

        def take() -> None:
            tell(b"take")
            assert said.readline() == b"taken\n", "the neighbour took nothing"

        try:
            assert said.readline() == b"there\n", "there is no neighbour"
            yield take, lambda: tell(b"give back")
        finally:
            its.close()
            if process.wait(END_S):
                raise RuntimeError(f"the neighbour ended with {process.returncode}")


def be_neighbour(ground: str, leave_bytes: int) -> None:
    """Until nobody tells it anything any more."""
    make = ground_of(ground)
    give_back: Callable[[], None] = make.take_memory(sys.maxsize)
    print("there", flush=True)
    for line in sys.stdin:
        if line == "take\n":
            give_back = make.take_memory(leave_bytes)
            print("taken", flush=True)
        else:
            give_back()
    give_back()


async def search(what: What, directory: Path) -> Found:
    """Ask for everything at once."""
    ops = ground_of(what.ground).ops(what.network, what.case, what.batch)
    notes = directory / "journal"
    backend = InjectedBackend(Settings(ground=what.ground, injections=what.injections, journal=str(notes)))
    breaks = Breaks()
    logging.getLogger("algosearch.devices").addHandler(breaks)
    prepare_children()
    with neighbour(what) as (take, give_back):
        async with algosearch.open_searcher(
            store=directory / "store", backends=[backend], devices=["cudnn:0"], isolation="process"
        ) as searcher:
            await searcher.select(OTHER, mode="heuristic")
            await asyncio.to_thread(take)
            answered = 0

            async def answer_to(request: algosearch.Request) -> Answer:
                nonlocal answered
                answer = await answered_by(request)
                answered += 1
                if answered == what.release_at:
                    give_back()
                return answer

            begin = perf_counter()
            requests = [searcher.request(op) for op in ops]
            answers = await asyncio.gather(*map(answer_to, requests))
            seconds = perf_counter() - begin
    return Found(answers=tuple(answers), seconds=seconds, broke=tuple(breaks.reasons), events=tuple(journal(notes)))


async def answered_by(request: algosearch.Request) -> Answer:
    try:
        choice = await request.choice()
    except algosearch.AlgosearchError as error:
        return Answer(picked=f"{type(error).__name__}: {error}", trials=())
    trials = tuple(each for each in choice.candidates if isinstance(each, Trial))
    return Answer(picked=choice.algorithm, trials=trials, tie_window=choice.tie_window)
