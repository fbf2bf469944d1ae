"""A process with a searcher of its own on a directory: `python -m tests.search.process JOB`, where JOB is JSON.

It writes one line when it is ready, waits for a line (or the end) of its standard input, asks for all ops at once, and
writes what it was answered as one JSON object. After a second line whatever hangs in it goes on.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

import msgspec

from algosearch.backends.simulated import Script, SimulatedBackend
from algosearch.errors import AlgosearchError
from algosearch.records import Choice
from algosearch.search import EngineStatistics
from algosearch.stores import DirectoryStore
from tests.search.helpers import some_ops
from tests.search.rivals import rival


class FileClock:
    """A clock in a file: processes on one store go by it, and it stands still until a test moves it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> float:
        return float(self._path.read_text())

    def set(self, seconds: float) -> None:
        """Make it say that."""
        beside = self._path.with_suffix(".new")
        beside.write_text(str(seconds))
        os.replace(beside, self._path)  # whoever reads it reads all of it


class Job(msgspec.Struct, kw_only=True):
    """What a process is to do."""

    store: str
    clock: str
    """The file of the store's."""
    trace: str
    script: Script
    ops: int = 1
    expiry_s: float = 10.0


class Report(msgspec.Struct, kw_only=True):
    """What came of it."""

    algorithms: list[str | None]
    """None where the answer was an error."""
    provisional: list[bool]
    statistics: EngineStatistics


async def work(job: Job) -> Report:
    backend = SimulatedBackend(job.script, trace=job.trace)
    backend.isolation = "process"  # its script may kill, and it runs here all the same
    store = DirectoryStore(job.store, clock=FileClock(Path(job.clock)))
    async with rival(store, backend, expiry_s=job.expiry_s) as searcher:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        threading.Thread(target=_release, args=[backend], daemon=True).start()
        requests = [searcher.request(op) for op in some_ops(job.ops)]
        choices: list[Choice | None] = []
        for request in requests:
            try:
                choices.append(await request.choice())
            except AlgosearchError:
                choices.append(None)
        return Report(
            algorithms=[None if choice is None else choice.algorithm for choice in choices],
            provisional=[choice is not None and choice.provisional for choice in choices],
            statistics=searcher.statistics().engine,
        )


def _release(backend: SimulatedBackend) -> None:
    if os.read(sys.stdin.fileno(), 1):  # past `sys.stdin`, whose lock would be in the way of the interpreter's exit
        backend.release.set()


def main(job: str) -> None:
    report = asyncio.run(work(msgspec.json.decode(job, type=Job)))
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
