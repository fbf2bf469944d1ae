"""However a store and devices are spelled: what means the same is one engine, and one search of each key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from algosearch import open_searcher, select_algo
from algosearch.backends import discover
from algosearch.backends.simulated import SimulatedBackend, TraceEvent, searches
from algosearch.errors import UnknownDevice
from algosearch.forks import renew_in_children
from algosearch.search import Searcher, ambient
from algosearch.stores import DirectoryStore, MemoryStore
from algosearch.stores.home import FOLDER
from tests.search.helpers import some_op


@pytest.fixture
async def default(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ambient._Default]:
    """A default searcher of the test's own."""
    default = ambient._Default()
    renew_in_children(default)
    monkeypatch.setattr(ambient, "_DEFAULT", default)
    yield default
    if default._opening is not None:
        engine = default._opening.dismiss()
        if engine is not None:
            await engine.ended.wait()


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> list[TraceEvent]:
    """Of the two simulated devices that this machine has."""
    trace: list[TraceEvent] = []
    backend = SimulatedBackend(devices=2, trace=trace)
    monkeypatch.setattr(discover, "default_backends", lambda: (backend,))
    return trace


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default store's place, below the user's home, which is also where this process is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ALGOSEARCH_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "cache", target_is_directory=True)
    return tmp_path / "cache" / "algosearch" / FOLDER


async def all_at_once(spellings: list[dict[str, Any]]) -> list[Searcher]:
    """Open them all, and ask them all the same, at once."""
    async with AsyncExitStack() as stack:
        openings = [open_searcher(**spelling) for spelling in spellings]
        searchers = await asyncio.gather(*(opening.__aenter__() for opening in openings))
        for opening in openings:
            stack.push_async_exit(opening.__aexit__)
        first, *others = await asyncio.gather(*(each.select(some_op()) for each in searchers), select_algo(some_op()))
        assert others == [first] * len(spellings)
        return list(searchers)


async def test_stores_and_devices(default: object, home: Path, trace: list[TraceEvent]) -> None:
    below = f"cache/algosearch/{FOLDER}"
    stores = [
        None,
        str(home),
        home,
        f"{home}/",
        below,
        f"./cache/../{below}",
        f"~/{below}",
        f"link/algosearch/{FOLDER}",
    ]
    devices: list[Any] = [
        *(None, ["simulated"], "simulated", ("simulated", "simulated:1"), ["simulated:0", "simulated:1"]),
        *(["simulated:1", "simulated:0"], ["simulated:0", "simulated:0", "simulated:1"]),
    ]
    searchers = await all_at_once([{"store": store, "devices": names} for store in stores for names in devices])
    assert searches(trace) == 1
    assert len({searcher._engine for searcher in searchers}) == 1


async def test_the_variable(
    default: object, home: Path, trace: list[TraceEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, spelled in enumerate([str(home), f"~/cache/algosearch/{FOLDER}", f"link/algosearch/{FOLDER}"]):
        monkeypatch.setenv("ALGOSEARCH_STORE", spelled)
        await all_at_once([{"store": home}, {}, {"devices": "simulated"}])
        assert searches(trace) == 1, f"searched again after {n + 1} spellings"


async def test_the_default_searcher_and_a_block(default: object, home: Path, trace: list[TraceEvent]) -> None:
    opening = open_searcher(store=home)
    searcher, choice = await asyncio.gather(opening.__aenter__(), select_algo(some_op()))
    assert await searcher.select(some_op()) == choice
    await opening.__aexit__(None, None, None)
    assert (await select_algo(some_op(1))).digest != choice.digest
    assert searches(trace) == 2


async def test_what_means_something_else_is_kept_apart(default: object, home: Path, trace: list[TraceEvent]) -> None:
    store = MemoryStore()
    spellings: list[dict[str, Any]] = [
        {"store": home},
        {"store": home.parent / "another"},
        {"store": "memory:"},
        {"store": "memory:"},
        {"store": store},
        {"store": MemoryStore()},
        {"store": DirectoryStore(home)},
        {"store": home, "devices": ["simulated:1"]},
        {"store": home, "backends": [SimulatedBackend()]},
    ]
    searchers = await all_at_once(spellings)
    assert len({searcher._engine for searcher in searchers}) == len(spellings)


async def test_devices_that_are_not_there(
    home: Path, trace: list[TraceEvent], caplog: pytest.LogCaptureFixture
) -> None:
    """Two wrong names are two mistakes; what is there is served, and what is not is said."""
    async with (
        open_searcher(store=home, devices=["a:0"]) as one,
        open_searcher(store=home, devices=["b:0"]) as two,
        open_searcher(store=home, devices=["simulated", "c:0"]) as three,
    ):
        for searcher, name in ((one, "a:0"), (two, "b:0")):
            with pytest.raises(UnknownDevice, match=name):
                await searcher.select(some_op())
        await three.select(some_op())
    assert "going on without c:0" in caplog.text
