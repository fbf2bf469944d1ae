"""The server store: the contract, against a real server of each kind that there is."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from algosearch.records import wire
from algosearch.stores import DirectoryStore, ServerStore, SharedStore
from algosearch.stores.layout import FORMAT
from tests.servers import KINDS, Server, program, running
from tests.stores.contract import BytesStoreContract
from tests.stores.homes import BytesHome, Home

_PREFIXES: Final = itertools.count()


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if program(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), kind=request.param) as server:
        yield server


class ServerHome(BytesHome):
    """A prefix of its own on a server."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server
        self.prefix = f"test-{next(_PREFIXES)}"
        self.base = f"{self.prefix}:v{FORMAT}.{wire.WIRE_VERSION}"

    def handle(self) -> ServerStore:
        return ServerStore(f"{self.server.unix}?prefix={self.prefix}&timeout_s=20", clock=self.clock, news_s=0.02)

    def plant(self, digest: str, raw: bytes) -> None:
        assert self.server.command("SET", f"{self.base}:record:{digest}", bytes(16) + raw) == "+OK"
        assert self.server.command("ZADD", f"{self.base}:index", "0", digest).startswith(":")


class TestServerStore(BytesStoreContract):
    @pytest.fixture
    def new_home(self, server: Server) -> Callable[[], Home]:
        return lambda: ServerHome(server)


class SharedHome(ServerHome):
    """The same, with a directory in front: each handle is a process of one host."""

    def __init__(self, server: Server, directories: Path) -> None:
        super().__init__(server)
        self._directory = directories / self.prefix

    def handle(self) -> SharedStore:  # type: ignore[override]
        return SharedStore(super().handle(), DirectoryStore(self._directory, clock=self.clock, retry_s=0.0))


class TestSharedStore(BytesStoreContract):
    @pytest.fixture
    def new_home(self, server: Server, tmp_path: Path) -> Callable[[], Home]:
        return lambda: SharedHome(server, tmp_path)
