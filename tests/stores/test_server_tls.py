"""The server store over TLS: a real server behind a proxy that ends TLS, and one that speaks it itself, where that is
installed. Certificates are made here."""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from algosearch.backends.simulated import SimulatedBackend
from algosearch.errors import StoreUnusable
from algosearch.stores import ServerStore, SharedStore
from tests.search.helpers import some_op
from tests.search.rivals import rival
from tests.servers import Server, free_port, program, running
from tests.stores.homes import read
from tests.stores.nouns import some_key, some_record


class Papers:
    """An authority, a server's certificate and a client's, as files."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        authority = trustme.CA()
        self.ca, self.server, self.client = directory / "ca", directory / "server", directory / "client"
        authority.cert_pem.write_to_path(self.ca)
        for path, certificate in (
            (self.server, authority.issue_cert("127.0.0.1", "localhost")),
            (self.client, authority.issue_cert("rank@example.org")),
        ):
            certificate.private_key_pem.write_to_path(path.with_suffix(".key"))
            for blob in certificate.cert_chain_pems:
                blob.write_to_path(path, append=True)

    @property
    def as_client(self) -> str:
        """Options of a URL."""
        return f"certificate={self.client}&key={self.client.with_suffix('.key')}"


@pytest.fixture(scope="module")
def papers() -> Iterator[Papers]:
    with tempfile.TemporaryDirectory() as directory:
        yield Papers(Path(directory) / "papers")


@pytest.fixture(scope="module")
def strangers() -> Iterator[Papers]:
    with tempfile.TemporaryDirectory() as directory:
        yield Papers(Path(directory) / "papers")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as server:
        yield server


@asynccontextmanager
async def ended(server: Server, papers: Papers, *, asks_clients: bool = False) -> AsyncIterator[int]:
    """The port of a proxy that ends TLS before a server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(papers.server, papers.server.with_suffix(".key"))
    if asks_clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(papers.ca)
    writers: set[asyncio.StreamWriter] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(str(server.socket))
        writers.update((writer, back))
        await asyncio.gather(pump(reader, back), pump(there, writer))

    listener = await asyncio.start_server(carry, "0.0.0.0", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[ServerStore]:
    store = ServerStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


async def keeps(url: str) -> None:
    """It does what a store does."""
    async with opened(url) as store:
        assert store.reachable
        assert (await store.commit(some_record(), after=0)).kept
        assert await read(store, some_key()) == some_record()
        claim = await store.claim(some_key(1).digest, "rank", expiry_s=10.0)
        assert claim.owner == "rank"
        assert (await store.holders([claim.digest])) == [claim]
        await store.release(claim)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_over_tls(server: Server, papers: Papers, host: str) -> None:
    async with ended(server, papers) as port:
        await keeps(f"rediss://{host}:{port}?ca={papers.ca}&prefix=tls-{host}")


async def test_with_a_certificate_of_the_client(server: Server, papers: Papers) -> None:
    async with ended(server, papers, asks_clients=True) as port:
        await keeps(f"rediss://127.0.0.1:{port}?ca={papers.ca}&{papers.as_client}&prefix=mutual")


async def test_a_server_that_speaks_tls_itself(papers: Papers, tmp_path: Path) -> None:
    if program("redis") is None:
        pytest.skip("redis-server is not installed")
    port = free_port()
    options: tuple[str, ...] = ("--tls-port", str(port), "--tls-cert-file", str(papers.server), "--tls-key-file")
    options += (str(papers.server.with_suffix(".key")), "--tls-ca-cert-file", str(papers.ca))
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), kind="redis", options=options):
        await keeps(f"rediss://127.0.0.1:{port}?ca={papers.ca}&{papers.as_client}")


@pytest.mark.parametrize(
    ("options", "asks_clients", "told"),
    [
        ("", False, "set ca=PATH"),
        ("ca={stranger.ca}", False, "set ca=PATH"),
        ("ca=/nowhere/ca.pem", False, "correct the paths ca, certificate and key"),
        ("ca={ours.ca}", True, "set certificate=PATH and key=PATH"),
    ],
)
async def test_what_is_not_trusted_costs_one_warning_that_says_what_to_set(
    server: Server,
    papers: Papers,
    strangers: Papers,
    caplog: pytest.LogCaptureFixture,
    options: str,
    asks_clients: bool,
    told: str,
) -> None:
    options = options.format(ours=papers, stranger=strangers)
    async with ended(server, papers, asks_clients=asks_clients) as port:
        store = SharedStore(ServerStore(f"rediss://127.0.0.1:{port}?{options}", retry_s=0.05), None)
        async with rival(store, SimulatedBackend()) as searcher:
            choice = await searcher.select(some_op())
            assert choice.alone
            await asyncio.sleep(0.2)  # it is tried again meanwhile
            assert (await searcher.select(some_op(1))).alone
            (line,) = store.server._troubles.lines()
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert told in warnings[0]
    assert told in line


async def test_a_server_of_another_name_is_not_trusted(
    server: Server, papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    async with ended(server, papers) as port, opened(f"rediss://127.0.0.2:{port}?ca={papers.ca}") as store:
        assert not store.reachable
    assert "IP address mismatch" in caplog.text
    assert "correct its host" in caplog.text


async def test_a_server_without_tls_is_told_apart(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(f"rediss://127.0.0.1:{server.port}?timeout_s=1") as store:
        assert not store.reachable
    assert "write redis:// if it does not speak TLS" in caplog.text


async def test_tls_where_none_is_asked_costs_one_warning(
    server: Server, papers: Papers, caplog: pytest.LogCaptureFixture
) -> None:
    async with ended(server, papers) as port, opened(f"redis://127.0.0.1:{port}?timeout_s=1") as store:
        assert not store.reachable
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1


def test_paths_are_for_tls_only() -> None:
    with pytest.raises(StoreUnusable, match="write rediss://"):
        ServerStore("redis://host?ca=/a")
