"""A process that writes records and says so: `python -m tests.stores.writer DIRECTORY FIRST COUNT`.

A line with its number for each record that was acknowledged; `opened` before the first, with the seconds that it took.
It waits for a line on its standard input before it opens the store, and for the end of it before it closes the store.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from time import perf_counter

from algosearch.stores import DirectoryStore, access
from algosearch.stores.shelf import Shelf
from tests.stores.nouns import some_record

OPEN_S = 20.0
"""How long opening may take here: many writers may share one processor with other tests."""


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def write(directory: str, first: int, count: int) -> None:
    assert Shelf.__module__ in sys.modules, "what takes long to import does not count for opening"
    logging.basicConfig(level=logging.WARNING)
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    access.OPEN_S = OPEN_S  # type: ignore[misc]
    begin = perf_counter()
    store = DirectoryStore(directory)
    await store.open()
    say(f"opened {perf_counter() - begin}")
    for n in range(first, first + count):
        if (await store.commit(some_record(n, trials=12), after=0)).kept:
            say(n)
    await asyncio.to_thread(sys.stdin.read)
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
