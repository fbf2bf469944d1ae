"""Servers that are there and do harm: garbage, keys of the wrong type, no memory, no right to write, no right to speak.

Whatever it is, the job ends with answers, one warning for each kind of trouble says what to do, and what could not be
agreed on is marked.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import pytest
from redis import exceptions

from algosearch.backends.simulated import SimulatedBackend
from algosearch.records import wire
from algosearch.search import EngineStatistics
from algosearch.stores import DirectoryStore, MemoryStore, ServerStore, SharedStore
from algosearch.stores.address import ServerAddress
from algosearch.stores.layout import FORMAT
from algosearch.stores.mishap import hindrance_of
from tests.search.helpers import some_ops, until
from tests.search.rivals import rival
from tests.servers import KINDS, Server, free_port, program, running
from tests.stores.faulty import Fault, FaultyStore

BASE = f"algosearch:v{FORMAT}.{wire.WIRE_VERSION}"
OPS = 4


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if program(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), kind=request.param) as server:
        yield server


def store(url: str) -> SharedStore:
    return SharedStore(ServerStore(url, retry_s=0.05, pulse_s=0.05), None)


async def job(url: str) -> tuple[int, EngineStatistics, tuple[str, ...]]:
    """How many answers were found alone; what was counted; what the store complained of."""
    shared = store(url)
    async with rival(shared, SimulatedBackend()) as searcher:
        async with asyncio.timeout(20):
            choices = await searcher.select_many(some_ops(OPS))
        assert len(choices) == OPS
        return sum(each.alone for each in choices), searcher.statistics().engine, shared.server._troubles.lines()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


@asynccontextmanager
async def answering(*replies: bytes) -> AsyncIterator[str]:
    """The URL of something that answers each request with the next of these, whatever was asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        while await reader.read(1 << 16):
            writer.write(replies[min(number, len(replies) - 1)])
            number += 1
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}?timeout_s=0.3"
    finally:
        listener.close()


GARBAGE = {
    "http": (b"HTTP/1.1 400 Bad Request\r\n\r\n",),
    "noise": (bytes(range(256)) * 4,),
    "a length that never comes": (b"$1000000000\r\nabc",),
    "a negative length": (b"*-7\r\n$-9\r\n",),
    "deep": (b"*1\r\n" * 5000,),
    "numbers": (b":1\r\n" * 8,),
    "ok to everything": (b"+OK\r\n" * 8,),
    "nothing to everything": (b"$-1\r\n" * 8,),
    "arrays to everything": (b"*2\r\n$1\r\na\r\n:7\r\n" * 8,),
    "text": (b"$3\r\n\xff\xfe\xfd\r\n" * 8,),
    "moved": (b"-MOVED 1 127.0.0.1:1\r\n" * 8,),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_something_that_is_no_such_server_costs_warnings_only(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(*GARBAGE[what]) as url:
        alone, counted, _ = await job(url)
    assert (alone, counted.searched) == (OPS, OPS)
    told = warnings(caplog)
    assert 1 <= len(told) <= 3, told
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR], told


@pytest.mark.parametrize("name", ["claims", "index", "news", "born"])
async def test_a_key_of_the_wrong_type(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """As where somebody else uses the prefix."""
    if name == "born":
        server.command("RPUSH", f"{BASE}:born", "x")
    else:
        server.command("SET", f"{BASE}:{name}", "x")
    _, counted, trouble = await job(server.unix)
    assert counted.searched == OPS
    assert len(warnings(caplog)) <= 2
    assert any("WRONGTYPE" in each for each in trouble)
    assert "set another prefix" in warnings(caplog)[0]


async def test_records_of_the_wrong_type(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with rival(store(server.unix), SimulatedBackend()) as searcher:
        choices = await searcher.select_many(some_ops(OPS))
    for choice in choices:
        server.command("DEL", f"{BASE}:record:{choice.digest}")
        server.command("RPUSH", f"{BASE}:record:{choice.digest}", "x")
    alone, counted, _ = await job(server.unix)
    assert (alone, counted.searched) == (OPS, OPS)
    assert len(warnings(caplog)) == 1


async def test_a_full_server_gives_what_it_has_and_keeps_no_more(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with rival(store(server.unix), SimulatedBackend()) as searcher:
        await searcher.select_many(some_ops(OPS))
    assert server.command("CONFIG", "SET", "maxmemory", "1") == "+OK"
    alone, counted, _ = await job(server.unix)
    assert (alone, counted.searched, counted.store_hits) == (0, 0, OPS)
    shared = store(server.unix)
    async with rival(shared, SimulatedBackend()) as searcher:
        choices = await searcher.select_many(some_ops(OPS + 2))
        assert [each.alone for each in choices] == [False] * OPS + [True] * 2
        assert server.command("CONFIG", "SET", "maxmemory", "0") == "+OK"
        await until(lambda: searcher.choices_digest().alone == 0)
    told = warnings(caplog)
    assert all("give it more memory" in each for each in told if each.startswith("store"))


async def test_a_replica_is_read_and_not_written(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rival(store(server.unix), SimulatedBackend()) as searcher:
        await searcher.select_many(some_ops(OPS))
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as replica:
        assert replica.command("REPLICAOF", "127.0.0.1", str(server.port)) == "+OK"
        await until(lambda: replica.command("ZCARD", f"{BASE}:index") == f":{OPS}")
        alone, counted, _ = await job(replica.unix)
        assert (alone, counted.searched, counted.store_hits) == (0, 0, OPS)
        async with rival(store(replica.unix), SimulatedBackend()) as searcher:
            choices = await searcher.select_many(some_ops(OPS + 1))
            assert [each.alone for each in choices] == [False] * OPS + [True]
    assert all("the server that this one follows" in each for each in warnings(caplog))


async def test_a_wrong_password(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.command("ACL", "SETUSER", "team", "on", ">right", "~*", "+@all")
    alone, _, _ = await job(f"unix://team:wrong@{server.socket}")
    assert alone == OPS
    (told,) = warnings(caplog)
    assert "correct the user and password" in told
    assert "wrong" not in told.replace("WRONGPASS", "")


@pytest.mark.parametrize(
    "rights", ["-info", "-evalsha", "-xread -xrevrange", "-mget", "-set", "-hget", "-time", "-@write", "-@scripting"]
)
async def test_a_user_who_may_not_do_everything(server: Server, rights: str, caplog: pytest.LogCaptureFixture) -> None:
    server.command("ACL", "SETUSER", "team", "on", ">right", "~algosearch:*", "+@all", *rights.split())
    _, counted, trouble = await job(f"unix://team:right@{server.socket}")
    assert counted.searched == OPS
    assert trouble
    told = warnings(caplog)
    assert 1 <= len(told) <= 2, told
    assert all("what the server lets that user do" in each for each in told if each.startswith("store")), told


async def test_a_user_with_what_the_manual_names_needs_no_more(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("ACL SETUSER")]
    assert server.command(*line.replace("PASSWORD", "right").split()) == "+OK"
    alone, counted, trouble = await job(f"unix://algosearch:right@{server.socket}")
    assert (alone, counted.searched, trouble) == (0, OPS, ())
    assert not warnings(caplog)


async def test_scripts_that_the_server_forgot_are_loaded_again(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with rival(store(server.unix), SimulatedBackend()) as searcher:
        for number in range(OPS):
            assert server.command("SCRIPT", "FLUSH") == "+OK"
            choice = await searcher.select(some_ops(OPS)[number])
            assert not choice.alone
    assert not warnings(caplog)


async def test_a_prefix_does_not_meet_another_one_that_begins_with_it(server: Server) -> None:
    for prefix in ("a", "a:v2", f"a:v{FORMAT}.{wire.WIRE_VERSION}:record"):
        alone, counted, _ = await job(f"{server.unix}?prefix={prefix}")
        assert (alone, counted.searched) == (0, OPS)
        alone, counted, _ = await job(f"{server.unix}?prefix={prefix}")
        assert (alone, counted.searched, counted.store_hits) == (0, 0, OPS)


@pytest.mark.parametrize("slots", [None, ("0", "16383"), ("0", "100")], ids=["none", "all", "some"])
async def test_a_cluster_is_said_to_be_one(
    tmp_path: Path, slots: tuple[str, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-port", str(free_port()))
    with running(tmp_path, options=options) as server:
        if slots is not None:
            assert server.command("CLUSTER", "ADDSLOTSRANGE", *slots) == "+OK"
            await until(lambda: server.command("GET", "{x}") != "" and not down(server, slots))
        alone, counted, _ = await job(server.unix)
        assert (alone, counted.searched) == (OPS, OPS)
    assert any("give the address of a server that is no cluster" in each for each in warnings(caplog))


def down(server: Server, slots: tuple[str, str]) -> bool:
    """Whether the cluster has not come up: it takes a second or two."""
    return slots == ("0", "16383") and "CLUSTERDOWN" in server.command("GET", "x")


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (exceptions.ConnectionError("max number of clients reached"), "unreachable", "raise its maxclients"),
        (exceptions.ConnectionError("Connection closed by server."), "unreachable", "if it is in protected mode"),
        (exceptions.ConnectionError("Connection refused"), "unreachable", "start it, or correct its address"),
        (exceptions.MasterDownError("Link with MASTER is down"), "unreachable", "start it, or correct its address"),
        (exceptions.MovedError("3999 127.0.0.1:6381"), "failed", "no cluster"),
        (exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"), "failed", "no cluster"),
    ],
)
def test_the_remedy_is_that_of_the_trouble(error: Exception, kind: str, remedy: str) -> None:
    hindrance = hindrance_of(error, 1.0, ServerAddress.parse("redis://host"))
    assert hindrance.kind == kind
    assert remedy in hindrance.remedy


async def test_a_database_that_is_not_there_is_named(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    alone, _, _ = await job(f"{server.unix}?database=99")
    assert alone == OPS
    assert "correct the database in its address" in warnings(caplog)[0]


@pytest.mark.parametrize("fault", get_args(Fault))
async def test_a_server_that_shows_late_damaged_or_never_what_was_written(
    server: Server, tmp_path: Path, fault: Fault
) -> None:
    """And before which a directory is kept: whatever they make of it, each question is answered, and rightly."""
    for n in range(2):
        shared = SharedStore(ServerStore(server.unix, retry_s=0.05, pulse_s=0.05), DirectoryStore(tmp_path / str(n)))
        faulty = FaultyStore(shared, lambda call: fault)
        async with rival(faulty, SimulatedBackend()) as searcher, asyncio.timeout(20):
            choices = await searcher.select_many(some_ops(OPS))
            assert len(choices) == OPS
            assert searcher.choices_digest().digest == await undisturbed()
        assert faulty.met


async def undisturbed() -> str:
    """What everybody is to choose."""
    async with rival(MemoryStore(), SimulatedBackend()) as searcher:
        await searcher.select_many(some_ops(OPS))
        return searcher.choices_digest().digest
