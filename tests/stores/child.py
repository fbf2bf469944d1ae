"""A process that uses the directory store of another: `python -m tests.stores.child DIRECTORY COUNT [LIMIT_BYTES]`.

Started by root it becomes nobody, once everything is imported: to root every file is writable. With a limit it can make
no file longer than that, as on a full disk. What it met is one JSON object on its standard output.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys

from algosearch.errors import StoreUnusable
from algosearch.records import Record
from algosearch.stores import DirectoryStore
from algosearch.stores.shelf import Shelf
from tests.stores.nouns import some_key, some_record

NOBODY = 65534


class _Count(logging.Handler):
    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


async def use(directory: str, count: int) -> dict[str, object]:
    """Read `count` records, commit two new ones and an old one, claim, delete."""
    warnings = _Count(logging.WARNING)
    logging.getLogger("algosearch.stores").addHandler(warnings)
    store = DirectoryStore(directory, retry_s=0.0)
    try:
        await store.open()
    except StoreUnusable as error:
        return {"unusable": str(error)}
    answers = await store.get_many([some_key(n) for n in range(count)])
    committed = [await store.commit(some_record(1000 + n, trials=12), after=0) for n in range(2)]
    lost = await store.commit(some_record(0, trials=12, seed=1), after=0)
    claim = await store.claim(some_key(0).digest, "child", expiry_s=10.0)
    renewed = await store.renew(claim, expiry_s=10.0)
    await store.release(claim)
    deleted = await store.delete([some_key(0).digest])
    statistics = await store.statistics()
    scanned = [digest async for digest, _ in store.scan()]
    await store.changes()
    await store.aclose()
    return {
        "read": sum(isinstance(answer, Record) for answer in answers),
        "won": [one.won for one in committed],
        "kept": [one.kept for one in committed],
        "lost": not lost.won,
        "claimed": claim.owner == "child" and renewed,
        "deleted": deleted,
        "scanned": len(scanned),
        "writable": statistics.writable,
        "trouble": [line.split(":")[0] for line in statistics.trouble],
        "warnings": warnings.count,
    }


def main(directory: str, count: str, limit_bytes: str = "") -> None:
    assert Shelf.__module__ in sys.modules, "no import is left for when root's rights are gone"
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit_bytes), int(limit_bytes)))
    elif os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    sys.stdout.write(json.dumps(asyncio.run(use(directory, int(count)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
