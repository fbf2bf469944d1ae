"""The connections to a server: what a name costs, which versions of the package will do, whether it is the same one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from algosearch.stores import Claim, ServerStore
from algosearch.stores.connecting import Lookup, unnamed
from algosearch.stores.layout import Names
from algosearch.stores.link import STOOD_STILL_S
from tests.servers import Server, running
from tests.stores.nouns import some_record

BORN = Names("algosearch").born


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as server:
        yield server


async def returns(store: ServerStore, *, probes: int) -> int:
    """How often a store is told, while it looks so many times, that its server is another one."""
    told = 0

    def note() -> None:
        nonlocal told
        told += 1

    looks = asyncio.Semaphore(0)
    store.on_return, store.on_pulse = note, looks.release
    await store.open()
    try:
        for _ in range(probes):
            await looks.acquire()
    finally:
        await store.aclose()
    return told


async def test_a_server_that_takes_no_mark_is_the_same_one_each_time(server: Server) -> None:
    """Else everything that was given would be compared with it again and again."""
    assert server.command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "&*", "+@all", "-set") == "+OK"
    url = f"redis://reader:secret@127.0.0.1:{server.port}"
    assert await returns(ServerStore(url, pulse_s=0.01), probes=5) == 0
    assert server.command("EXISTS", BORN) == ":0"


async def test_a_full_server_is_the_same_one_each_time_and_is_marked_when_there_is_room(server: Server) -> None:
    for words in (("maxmemory-policy", "noeviction"), ("maxmemory", "1")):
        assert server.command("CONFIG", "SET", *words) == "+OK"
    assert await returns(ServerStore(server.unix, pulse_s=0.01), probes=5) == 0
    assert server.command("CONFIG", "SET", "maxmemory", "0") == "+OK"
    assert await returns(ServerStore(server.unix, pulse_s=0.01), probes=2) == 0
    assert server.command("EXISTS", BORN) == ":1"


async def test_handles_that_mark_a_server_at_once_agree_on_the_mark(server: Server) -> None:
    stores = [ServerStore(server.unix, pulse_s=0.01) for _ in range(8)]
    assert await asyncio.gather(*(returns(store, probes=3) for store in stores)) == [0] * 8


async def test_news_of_another_server_are_heard_though_its_clock_is_behind(server: Server) -> None:
    names = Names("algosearch")
    returned = asyncio.Event()
    listener, writer = (ServerStore(server.unix, pulse_s=0.01, news_s=5.0) for _ in range(2))
    listener.on_return = returned.set
    await listener.open()
    await writer.open()
    try:
        assert server.command("XADD", names.news, "99999999999999-0", "somebody", "a" * 64).startswith("$")
        assert await listener.changes() == frozenset({"a" * 64})
        assert server.command("FLUSHALL") == "+OK"
        await returned.wait()
        assert await listener.changes() is True
        record = some_record()
        await writer.commit(record, after=0)
        assert await listener.changes() == frozenset({record.key.digest})
    finally:
        await listener.aclose()
        await writer.aclose()


async def test_a_server_that_goes_away_between_two_looks_is_tried_again_soon(server: Server) -> None:
    """Not when the next look would have been due: until then everybody would search everything alone."""
    store = ServerStore(server.unix, pulse_s=3600, retry_s=0.01)
    returned = asyncio.Event()
    store.on_return = returned.set
    await store.open()
    try:
        for _ in range(2):
            returned.clear()
            server.kill()
            assert await store.tags(["a" * 64]) is None
            assert not store.reachable
            server.start()
            async with asyncio.timeout(30):
                await returned.wait()
            assert store.reachable
    finally:
        await store.aclose()


async def test_a_unix_socket_whose_queue_is_full_is_waited_for() -> None:
    """As when hundreds of ranks connect at once. A server that stands still takes nobody from its queue."""
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), options=("--tcp-backlog", "1")) as server:
        store = ServerStore(server.unix)
        with contextlib.ExitStack() as waiting:
            server.freeze()
            while True:
                end = waiting.enter_context(socket.socket(socket.AF_UNIX))
                end.setblocking(False)
                try:
                    end.connect(str(server.socket))
                except BlockingIOError:
                    break
            opening = asyncio.create_task(store.open())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not opening.done()
            server.thaw()
            await opening
        try:
            assert (await store.commit(some_record(), after=0)).kept
            assert (await store.statistics()).trouble == ()
        finally:
            await store.aclose()


async def test_a_call_that_was_late_because_this_process_stood_still_is_made_again(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a job is suspended: nothing is known of the server then."""
    store = ServerStore(f"{server.unix}?timeout_s=2", pulse_s=60)
    await store.open()
    try:
        calls = store.calls
        server.freeze()
        asking = asyncio.create_task(store.claim("digest", "me", expiry_s=10))
        while store.calls == calls:
            await asyncio.sleep(0)
        time.sleep(2 + STOOD_STILL_S + 0.1)  # nothing of this process runs
        server.thaw()
        await asking
        assert store.reachable
        assert [claim and claim.owner for claim in await store.holders(["digest"])] == ["me"]
        assert not caplog.records
    finally:
        await store.aclose()


async def test_what_is_given_back_while_its_claim_is_on_its_way_is_not_held(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go over two connections, and the server may read the second one first."""
    store = ServerStore(server.unix, pulse_s=60)
    await store.open()
    try:
        assert store._link is not None
        attempt, sent, may_arrive = store._link._attempt, asyncio.Event(), asyncio.Event()

        async def late(*what: Any) -> Any:
            if not sent.is_set():
                sent.set()
                await may_arrive.wait()
            return await attempt(*what)

        monkeypatch.setattr(store._link, "_attempt", late)
        claiming = asyncio.create_task(store.claim("digest", "me", expiry_s=10))
        await sent.wait()
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        giving_back = asyncio.create_task(store.release(Claim(digest="digest", owner="me")))
        assert (await store.claim("another", "me", expiry_s=10)).owner == "me", "nobody else waits for it"
        may_arrive.set()
        assert await giving_back
        assert await store.holders(["digest", "another"]) == [None, Claim(digest="another", owner="me")]
        assert not store._link._latest
    finally:
        await store.aclose()


async def test_what_waits_for_a_call_that_finds_the_server_gone_costs_no_time_of_its_own(server: Server) -> None:
    store = ServerStore(f"{server.unix}?timeout_s=0.3", pulse_s=60, retry_s=60)
    await store.open()
    try:
        server.freeze()
        claiming = asyncio.create_task(store.claim("digest", "me", expiry_s=10))
        await asyncio.sleep(0)
        calls = store.calls
        assert not await store.release(Claim(digest="digest", owner="me"))
        assert (await claiming).owner == "me", "nobody can say who has it"
        assert store.calls == calls + 1, "the claim's"
    finally:
        server.thaw()
        await store.aclose()


HANGING = """
import asyncio, socket, threading
from algosearch.stores import ServerStore

begun = threading.Event()

def hang(*what, **how):
    begun.set()
    threading.Event().wait()

socket.getaddrinfo = hang

async def main():
    store = ServerStore("redis://somewhere.invalid?timeout_s=0.2", retry_s=0.05)
    await store.open()
    assert begun.is_set() and not store.reachable
    await store.aclose()

asyncio.run(main())
print("closed")
"""


def test_a_name_server_that_hangs_holds_nobody_up_not_even_the_end_of_the_process() -> None:
    """An executor's thread would: the interpreter waits for those when it exits."""
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=20, check=False)
    assert ended.stdout == "closed\n", ended.stderr
    assert ended.returncode == 0, ended.stderr


async def test_every_address_of_a_name_is_tried(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
    store = ServerStore(f"redis://two.invalid:{server.port}", pulse_s=60)
    await store.open()
    try:
        assert store.reachable
    finally:
        await store.aclose()


def two_addresses(host: str, *what: Any, **how: Any) -> list[Any]:
    """The first one refuses: servers of these tests listen at 127.0.0.1 only."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.0.9", "127.0.0.1")]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%lo"])
async def test_an_address_is_not_looked_up(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*what: Any, **how: Any) -> list[Any]:
        raise AssertionError(what)

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert await Lookup().addresses(address) == [address]


class Old:
    """As a connection of the package until 7.1."""

    def __init__(self, *, db: int = 0, lib_name: str | None = "redis-py", lib_version: str | None = "5.2") -> None: ...


class OldOverSockets(Old):
    def __init__(self, *, path: str = "", **more: Any) -> None: ...


def test_connections_of_older_packages_are_kept_from_naming_themselves() -> None:
    assert unnamed(OldOverSockets) == {"lib_name": None, "lib_version": None}
    OldOverSockets(path="/s", **unnamed(OldOverSockets))


async def test_no_connection_names_itself(server: Server) -> None:
    store = ServerStore(server.unix)
    await store.open()
    try:
        assert store.reachable
        said = "string.find(redis.call('INFO', 'commandstats'), 'setinfo')"
        assert server.command("EVAL", f"return {said} and 1 or 0", "0") == ":0"
    finally:
        await store.aclose()
