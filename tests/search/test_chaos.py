"""Whatever dies: every survivor ends, all agree, no key is lost, and no record is damaged.

`ALGOSEARCH_TEST_CHAOS` sets how many rounds of trouble there are in the long run; one by default.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pytest

from algosearch.backends.simulated import CandidateScript, ProblemScript, Script
from algosearch.records import Record
from algosearch.stores import ServerStore
from tests.devices.helpers import under_way
from tests.search.helpers import FAST, SLOW, SMALL, some_ops, until
from tests.search.rank import Job, Told
from tests.servers import Server, running

OPS: Final = 100
EXPIRY_S: Final = 2.0
STOPPED_S: Final = EXPIRY_S + 0.5
GRACE_S: Final = 20.0
"""What somebody may be held up beyond the expiry of a claim: until it is seen that it has lapsed, and by the three keys
that whoever takes it may have in hand before it, a fifth of a second each; but ten times that on a machine that is busy
with other tests. Where it is never seen, it is a hundred seconds more."""
RANKS: Final = 4
DISK_BYTES: Final = 448 << 10
ROUNDS: Final = int(os.environ.get("ALGOSEARCH_TEST_CHAOS", "1"))


def script(machine: str) -> Script:
    """Each key takes some hundred milliseconds, and ranks that search it apart may well choose otherwise. Each has a
    device of its own: of one that they share nobody could say for how long a rank that is stopped holds it."""
    return Script(
        problems=tuple(
            ProblemScript(
                op=op,
                candidates=tuple(
                    CandidateScript(
                        algorithm=name, time_us=time_us, workspace_bytes=size, noise=0.02, first_us=60_000.0
                    )
                    for name, time_us, size in ((SLOW, 101.0, 0), (FAST, 100.0, 4 << 20), (SMALL, 100.4, 1 << 10))
                ),
            )
            for op in some_ops(OPS)
        ),
        facts={"script": "chaos"},
        machine=machine,
    )


class Proxy:
    """Connections to a server that can be cut."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        listener = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            listener.close()
            self.cut()

    def cut(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_unix_connection(str(self._path))
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(back)
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        self._writers -= {writer, back}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


class Rank:
    """One process of the job."""

    def __init__(self, job: Job) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.search.rank", msgspec.json.encode(job).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    async def hear(self, within_s: float = 40.0) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    async def told(self) -> Told:
        assert self.process.stdin is not None
        self.process.stdin.write("tell\n")
        self.process.stdin.flush()
        return msgspec.json.decode(await self.hear(), type=Told)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


@contextmanager
def full_disk(path: Path) -> Iterator[bool]:
    """Make a directory on a disk that is full before the job is done, where that may be done; whether it was."""
    path.mkdir(mode=0o700)
    # Large enough for a directory store to begin with, and of a mode in which it takes it for its own.
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


async def trouble(server: Server, proxy: Proxy, ranks: list[Rank], *, order: random.Random) -> None:
    """Everything that may happen to a job, one after the other."""

    async def stop_one() -> None:
        ranks[-1].process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        ranks[-1].process.send_signal(signal.SIGCONT)

    async def restart(*, forget: bool) -> None:
        server.kill(forget=forget)
        await asyncio.sleep(0.7)
        await asyncio.to_thread(server.start)

    async def freeze() -> None:
        server.freeze()
        await asyncio.sleep(0.8)
        server.thaw()

    async def cut() -> None:
        proxy.cut()

    troubles: list[Callable[[], Awaitable[None]]]
    troubles = [stop_one, freeze, cut, partial(restart, forget=False), partial(restart, forget=True)]
    order.shuffle(troubles)
    for each in troubles:
        await each()
        await asyncio.sleep(0.2)


async def agreement(ranks: list[Rank]) -> list[Told]:
    """What all say once they agree."""
    deadline = time.monotonic() + 25
    while True:
        told = [await rank.told() for rank in ranks]
        if len({each.digest.digest for each in told}) == 1 and {each.digest.choices for each in told} == {OPS}:
            return told
        assert time.monotonic() < deadline, told
        await asyncio.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_whatever_dies_the_survivors_agree(tmp_path: Path, seed: int) -> None:
    (tmp_path / "s").mkdir()
    with running(tmp_path / "s") as server, full_disk(tmp_path / "full") as mounted:
        proxy = Proxy(server.socket)
        async with proxy.serving():
            url = f"redis://127.0.0.1:{proxy.port}?timeout_s=0.5"
            places = [*(tmp_path / f"host{n}" for n in range(RANKS - 1)), tmp_path / "full"]
            ranks = [
                Rank(
                    Job(
                        url=url,
                        directory=str(place),
                        trace=str(tmp_path / "host0.jsonl") if place.name == "host0" else os.devnull,
                        script=script(place.name),
                        ops=OPS,
                        expiry_s=EXPIRY_S,
                        # Without a small disk, a small file: it is no larger than the disk would be.
                        file_bytes=0 if mounted or place.name != "full" else DISK_BYTES,
                    )
                )
                for place in places
            ]
            try:
                for rank in ranks:
                    assert await rank.hear() == "ready"
                await until(under_way(tmp_path / "host0.jsonl", "launch"))
                ranks[0].process.kill()  # in the middle of a search, with a claim
                await trouble(server, proxy, ranks, order=random.Random(seed))
                survivors = ranks[1:]
                for rank in survivors:
                    assert await rank.hear() == "answered"
                told = await agreement(survivors)
                assert all(each.digest.alone == 0 for each in told)
                what = "full: " if mounted else "disk I/O error"
                assert any(what in line for line in told[-1].trouble), told[-1].trouble
                assert not any(each.trouble for each in told[:-1]), "the others' directories have room"
                for each in told:
                    # Nobody was held up for longer than a claim takes to lapse, unless it was stopped itself.
                    most_s = EXPIRY_S + GRACE_S + (STOPPED_S if each is told[-1] else 0.0)
                    assert each.statistics.claims_longest_wait_s <= most_s, told
                    # Whoever got another answer than at first can see that in what was counted.
                    assert each.changed <= each.statistics.changed_choices, told
                    assert each.statistics.replaced or not each.changed, told
                store = ServerStore(server.unix)
                await store.open()
                found = [item async for _, item in store.scan()]
                await store.aclose()
                assert len(found) == OPS
                assert all(isinstance(item, Record) and not item.alone for item in found)
            finally:
                for rank in ranks:
                    rank.end()
