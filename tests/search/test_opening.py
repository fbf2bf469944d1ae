"""Opening: whatever takes long happens in a thread of ours, and a caller's loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading

import pytest

from algosearch import open_searcher
from algosearch.backends import Device, discover
from algosearch.backends.simulated import SimulatedBackend
from algosearch.errors import DeviceUnavailable, InvalidSetting, StoreUnusable
from algosearch.search import Searcher
from algosearch.stores import home
from tests.search.gated import Gate
from tests.search.helpers import FAST, scripted, some_op
from tests.search.processes import run_python

WATCHED = """
import asyncio, sys, threading
import algosearch
from algosearch import ConvOp

op = ConvOp(input_shape=(1, 2, 4, 4), filter_shape=(2, 2, 1, 1))
imported = {}

def watch(event, args):
    if event == "import":
        imported.setdefault(threading.current_thread().name, []).append(args[0])

async def main():
    await asyncio.sleep(0)
    sys.addaudithook(watch)
    BODY
    here = imported.pop(threading.main_thread().name, [])
    elsewhere = [name for names in imported.values() for name in names]
    print(here, "numpy" in elsewhere, "anyio" in elsewhere, "algosearch.search.engine" in elsewhere)
    print(*sorted(name for name in imported if not name.startswith("algosearch-")))

asyncio.run(main(), debug=False)
"""


@pytest.mark.parametrize(
    "body",
    [
        "await algosearch.select_algo(op)",
        "async with algosearch.open_searcher() as searcher: await searcher.select(op)",
        "async with algosearch.open_searcher(store='~/somewhere', devices=['cpu']) as searcher: searcher.request(op)",
    ],
)
def test_a_callers_loop_imports_nothing(body: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not a module of ours, nor of numpy, anyio or SQLite: not timed, for a list of names cannot be flaky."""
    cache = str(tmp_path_factory.mktemp("cache"))
    done = run_python(WATCHED.replace("BODY", body), ALGOSEARCH_STORE="", XDG_CACHE_HOME=cache, HOME=cache)
    assert done.stderr == ""
    assert done.stdout.split("\n") == ["[] True True True", "", ""]


class _Watching(SimulatedBackend):
    """Says which thread looks for its devices, when the gate lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.looked_in: list[str] = []

    def devices(self) -> tuple[Device, ...]:
        self.looked_in.append(threading.current_thread().name)
        self.gate.pass_through()
        return super().devices()


async def test_a_loop_turns_while_devices_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved_in: list[str] = []
    user_directories = home.user_directories

    def watched() -> list[object]:
        resolved_in.append(threading.current_thread().name)
        return list(user_directories())

    monkeypatch.setattr("algosearch.search.engines.user_directories", watched)
    backend = _Watching()
    backend.gate.close()
    async with open_searcher(store="memory:", backends=[SimulatedBackend()]):  # everything is imported
        opening = open_searcher(backends=[backend])
        entering = asyncio.create_task(opening.__aenter__())
        for _ in range(50):  # the loop turns: nothing on it waits for the gate
            await asyncio.sleep(0)
        assert await asyncio.to_thread(backend.gate.reached.wait, 20)
        assert not entering.done()
        backend.gate.open()
        assert isinstance(await entering, Searcher)
        await opening.__aexit__(None, None, None)
    assert {*backend.looked_in, *resolved_in} == {"algosearch-open"}


async def test_who_is_cancelled_while_it_opens_leaves_nothing_behind() -> None:
    backend = _Watching()
    backend.gate.close()
    entering = asyncio.create_task(open_searcher(store="memory:", backends=[backend]).__aenter__())
    assert await asyncio.to_thread(backend.gate.reached.wait, 20)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    openers = [thread for thread in threading.enumerate() if thread.name == "algosearch-open"]
    backend.gate.open()
    for thread in openers:
        await asyncio.to_thread(thread.join, 20)
    for thread in threading.enumerate():
        if thread.name == "algosearch-engine":
            await asyncio.to_thread(thread.join, 20)
            assert not thread.is_alive()


async def test_what_cannot_be_opened_says_so_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreUnusable, match="etcd"):
        async with open_searcher(store="etcd://somewhere"):
            pass
    with pytest.raises(StoreUnusable, match="it is empty"):
        await asyncio.to_thread(open_searcher(store=" ").__enter__)

    def broken() -> tuple[SimulatedBackend, ...]:
        raise ImportError("numpy is in pieces")

    monkeypatch.setattr(discover, "default_backends", broken)
    for _ in range(2):
        with pytest.raises(DeviceUnavailable, match="ImportError: numpy is in pieces") as caught:
            async with open_searcher(store="memory:"):
                pass
        assert isinstance(caught.value.__cause__, ImportError)
    async with open_searcher(store="memory:", backends=[scripted(some_op())]) as searcher:
        assert (await searcher.select(some_op())).algorithm == FAST


def test_the_default_searcher_is_tried_again() -> None:
    done = run_python(
        """
        import asyncio, os
        from algosearch import ConvOp, InvalidSetting, StoreUnusable, select_algo

        op = ConvOp(input_shape=(1, 2, 4, 4), filter_shape=(2, 2, 1, 1))

        async def ask(**variables):
            os.environ.update(variables)
            answers = await asyncio.gather(*(select_algo(op) for _ in range(3)), return_exceptions=True)
            return {type(answer).__name__ for answer in answers}

        print(asyncio.run(ask(ALGOSEARCH_STORE="etcd://here")))
        print(asyncio.run(ask(ALGOSEARCH_STORE="memory:", ALGOSEARCH_MODE="fast")))
        print(asyncio.run(ask(ALGOSEARCH_MODE="race")))
        """
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["{'StoreUnusable'}", "{'InvalidSetting'}", "{'Choice'}"]


def test_an_environment_that_cannot_be_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_MODE", "fast")
    with pytest.raises(InvalidSetting, match="ALGOSEARCH_MODE"):
        open_searcher()


def test_a_process_that_can_have_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    opening = open_searcher(store="memory:")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(DeviceUnavailable, match="can't start new thread"):
            opening.__enter__()
