"""A rank of a job: `python -m tests.search.rank JOB`, where JOB is JSON. It asks for all ops at once, says so when it
has every answer, and then tells its digest for each line that it reads."""

from __future__ import annotations

import asyncio
import resource
import sys

import msgspec

from algosearch.backends.simulated import Script, SimulatedBackend
from algosearch.search import ChoicesDigest, EngineStatistics
from algosearch.stores import DirectoryStore, ServerStore, SharedStore
from tests.search.helpers import some_ops
from tests.search.rivals import rival


class Job(msgspec.Struct, kw_only=True):
    """What a rank is to do."""

    url: str
    directory: str
    trace: str
    script: Script
    ops: int
    expiry_s: float
    scale: float = 1.0
    file_bytes: int = 0
    """No file may be longer; 0 for no limit."""


class Told(msgspec.Struct, kw_only=True):
    """What it says of itself."""

    digest: ChoicesDigest
    statistics: EngineStatistics
    changed: int
    """Ops whose answer is another one than the first that was given."""
    trouble: tuple[str, ...]
    """With the directory."""


async def work(job: Job) -> None:
    if job.file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job.file_bytes, job.file_bytes))
    backend = SimulatedBackend(job.script, trace=job.trace, pace="real", scale=job.scale)
    directory = DirectoryStore(job.directory)
    store = SharedStore(ServerStore(job.url, retry_s=0.2, pulse_s=0.5), directory)
    async with rival(store, backend, expiry_s=job.expiry_s) as searcher:
        say("ready")
        first = await searcher.select_many(some_ops(job.ops))
        say("answered")
        while await asyncio.to_thread(sys.stdin.readline):
            # What was revised away is asked again, as a job does at its next step.
            now = await searcher.select_many(some_ops(job.ops))
            changed = sum(ours.algorithm != agreed.algorithm for ours, agreed in zip(first, now, strict=True))
            told = Told(
                digest=searcher.choices_digest(),
                statistics=searcher.statistics().engine,
                changed=changed,
                trouble=(await directory.statistics()).trouble,
            )
            say(msgspec.json.encode(told).decode())


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(work(msgspec.json.decode(sys.argv[1], type=Job)))
