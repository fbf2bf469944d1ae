"""Whatever breaks: every waiter hears of it, and the next question finds a working engine."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from algosearch import open_searcher
from algosearch.backends import Device
from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Generated,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    searches,
)
from algosearch.errors import DeviceUnavailable, InvalidPolicy, NoAlgorithm, SearchFailed, UnknownDevice
from algosearch.ops import BatchNormOp, ConvOp, canonical
from algosearch.records import Key, Record, SearchMode
from algosearch.settings import Isolation
from algosearch.stores import MemoryStore
from algosearch.stores.base import Committed, Miss
from tests.search.gated import GatedBackend, RaisesOnce
from tests.search.helpers import FAST, SLOW, scripted, some_op, some_ops
from tests.search.processes import run_python

MODES_THAT_RUN: Final[tuple[SearchMode, ...]] = ("race", "exhaustive")


@pytest.mark.parametrize("call", ["enumerate", "build", "load", "launch", "time", "check"])
async def test_a_backend_that_breaks_its_contract(call: str) -> None:
    backend = GatedBackend(scripted(some_op()))
    backend.before = raising = RaisesOnce(call, ZeroDivisionError("a bug in the backend"))
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        asking = [asyncio.create_task(searcher.select(some_op())) for _ in range(5)]
        await asyncio.sleep(0)
        raising.may.set()
        failures = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(failure) for failure in failures] == [SearchFailed] * 5
        assert len({id(failure) for failure in failures}) == 5
        assert all(isinstance(failure.__cause__, ZeroDivisionError) for failure in failures)  # type: ignore[union-attr]
        assert (await searcher.select(some_op())).algorithm == FAST
        assert searcher.statistics().engine.failed == 1
    del failures
    gc.collect()
    assert heard == []


async def test_a_failure_that_nobody_waits_for_is_silent() -> None:
    """C07: errors are not cached, and never reported as unretrieved."""
    backend = GatedBackend(scripted(some_op()))
    backend.before = raising = RaisesOnce("launch", ZeroDivisionError("a bug in the backend"))
    raising.may.set()
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        searcher.request(some_op())
        while searcher.statistics().engine.failed == 0:
            await asyncio.sleep(0.001)
        assert (await searcher.select(some_op())).algorithm == FAST
    gc.collect()
    assert heard == []


async def test_a_device_that_cannot_be_opened_is_named_with_the_remedy() -> None:
    backend = SimulatedBackend(Script(devices=(DeviceScript(unavailable="its library is missing"),)))
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        for _ in range(2):
            with pytest.raises(DeviceUnavailable) as caught:
                await searcher.select(some_op())
            assert "its library is missing" in str(caught.value)


async def test_one_of_several_devices_cannot_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    devices = (DeviceScript(), DeviceScript(unavailable="taken"), DeviceScript())
    async with open_searcher(store="memory:", backends=[SimulatedBackend(Script(devices=devices))]) as searcher:
        assert len(await searcher.select_many(some_ops(40))) == 40


async def test_no_device_at_all() -> None:
    async with open_searcher(store="memory:", backends=[]) as searcher:
        with pytest.raises(DeviceUnavailable):
            await searcher.select(some_op())


async def test_devices_that_are_named_and_not_there() -> None:
    async with open_searcher(store="memory:", backends=[SimulatedBackend()], devices=["simulated:3"]) as searcher:
        with pytest.raises(UnknownDevice) as caught:
            await searcher.select(some_op())
        assert caught.value.available == ("simulated:0",)


class _Lost(SimulatedBackend):
    """Breaks while it looks for devices."""

    def devices(self) -> tuple[Device, ...]:
        raise ZeroDivisionError("a bug in the backend")


async def test_a_backend_that_breaks_while_looking_costs_its_own_devices_only(caplog: pytest.LogCaptureFixture) -> None:
    async with open_searcher(store="memory:", backends=[_Lost(), scripted(some_op())]) as searcher:
        assert (await searcher.select(some_op())).algorithm == FAST


async def test_an_op_that_the_library_cannot_do_is_a_record() -> None:
    trace: list[TraceEvent] = []
    backend = SimulatedBackend(Script(problems=(ProblemScript(op=some_op()),)), trace=trace)
    async with open_searcher(store="memory:", backends=[backend]) as searcher:
        for _ in range(2):
            with pytest.raises(NoAlgorithm):
                await searcher.select(some_op())
        assert searcher.statistics().engine.searched == 1


async def test_a_workspace_that_no_device_can_address(tmp_path: Path) -> None:
    """An op's sizes are exact at any size; such a candidate fails, is never built, and its record is stored."""
    problem = ProblemScript(
        op=some_op(),
        candidates=(
            CandidateScript(algorithm=FAST, time_us=1.0, workspace_bytes=2**70),
            CandidateScript(algorithm=SLOW, time_us=9.0, workspace_bytes=2**63 - 1),
        ),
    )
    trace: list[TraceEvent] = []
    backend = SimulatedBackend(Script(problems=(problem,), devices=(DeviceScript(memory_bytes=2**80),)), trace=trace)
    async with open_searcher(store=str(tmp_path), backends=[backend]) as searcher:
        assert (await searcher.select(some_op(), mode="heuristic")).algorithm == SLOW
        assert (await searcher.request(some_op()).workspace())[FAST] == 2**70
        for mode in MODES_THAT_RUN:
            choice = await searcher.select(some_op(), mode=mode)
            assert (choice.algorithm, choice.workspace_bytes) == (SLOW, 2**63 - 1)
            (rejection,) = choice.rejections
            assert rejection.failure is not None
            assert f"not_supported: needs {2**70} bytes of workspace" in rejection.describe()
    assert {event.algorithm for event in trace if event.call in ("build", "launch", "time")} == {SLOW}
    async with open_searcher(store=str(tmp_path), backends=[backend]) as searcher:
        assert [(await searcher.select(some_op(), mode=mode)).algorithm for mode in MODES_THAT_RUN] == [SLOW, SLOW]
        assert searcher.statistics().engine.searched == 0


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_a_reserve_that_no_device_can_address(isolation: Isolation, tmp_path: Path) -> None:
    op = BatchNormOp(shape=(1, 8, 4, 4), phase="training", fusion="activation")
    problem = ProblemScript(
        op=op,
        candidates=(
            CandidateScript(algorithm=FAST, time_us=1.0, reserve_bytes=2**63),
            CandidateScript(algorithm=SLOW, time_us=9.0, reserve_bytes=2**63 - 1),
        ),
    )
    backend = SimulatedBackend(Script(problems=(problem,), devices=(DeviceScript(memory_bytes=2**64 - 1),)))
    for searched in (1, 0):
        async with open_searcher(store=str(tmp_path), backends=[backend], isolation=isolation) as searcher:
            choice = await searcher.select(op)
            assert (choice.algorithm, choice.reserve_bytes) == (SLOW, 2**63 - 1)
            (rejection,) = choice.rejections
            assert f"not_supported: needs {2**63} bytes of reserve" in rejection.describe()
            engine = searcher.statistics().engine
            assert (engine.searched, engine.not_kept) == (searched, 0)


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_an_op_of_which_every_size_is_beyond_64_bits(isolation: Isolation, tmp_path: Path) -> None:
    op = ConvOp(input_shape=(2**40, 2**40, 2**20, 2**20), filter_shape=(2**20, 2**40, 1, 1))
    backend = SimulatedBackend(Script(generated=Generated(candidates=12)))
    assert any(each.workspace_bytes >= 2**64 for each in backend.problem(canonical(op)).candidates)
    for searched in (1, 1, 0):  # some of it was trouble, so that the next engine looks once more
        async with open_searcher(store=str(tmp_path), backends=[backend], isolation=isolation) as searcher:
            with pytest.raises(NoAlgorithm, match=r"needs \d{20,} bytes of workspace, and no device has 2\*\*63"):
                await searcher.select(op, mode="exhaustive")
            assert searcher.statistics().engine.searched == searched


async def test_what_an_incomplete_environment_finds_is_not_stored() -> None:
    store = MemoryStore()
    backend = SimulatedBackend(Script(devices=(DeviceScript(incomplete="a part is missing"),)))
    async with open_searcher(store=store, backends=[backend]) as searcher:
        await searcher.select(some_op())
        assert (await searcher.select(some_op(), mode="cached")).precision == "final"
        engine = searcher.statistics().engine
        assert engine.incomplete == {f"simulated on {DeviceScript().kind}": "a part is missing"}
        assert engine.not_kept == 0
    await store.open()
    assert [digest async for digest, _ in store.scan()] == []
    await store.aclose()


class _BrokenStore(MemoryStore):
    """Breaks the contract in everything that it is asked."""

    async def get_many(self, keys: Sequence[Key]) -> list[Record | Miss]:
        raise ZeroDivisionError("a bug in the store")

    async def commit(self, record: Record, *, after: int) -> Committed:
        raise ZeroDivisionError("a bug in the store")


async def test_a_broken_store_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, "algosearch.stores"):
        async with open_searcher(store=_BrokenStore(), backends=[scripted(some_op())]) as searcher:
            assert (await searcher.select(some_op())).algorithm == FAST


class _UnopenableStore(MemoryStore):
    """Breaks when it is opened and when it is closed."""

    async def open(self) -> None:
        raise OSError("a bug in opening")

    async def aclose(self) -> None:
        raise OSError("a bug in closing")


async def test_a_store_that_breaks_when_opened_and_closed_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with open_searcher(store=_UnopenableStore(), backends=[scripted(some_op())]) as searcher:
        assert (await searcher.select(some_op())).algorithm == FAST
        assert "a bug in opening" in str(searcher.statistics().engine.store_trouble)


async def test_a_second_searcher_finds_what_the_first_one_stored() -> None:
    store = MemoryStore()
    trace: list[TraceEvent] = []
    choices = []
    for _ in range(2):
        async with open_searcher(store=store, backends=[scripted(some_op(), trace=trace)]) as searcher:
            request = searcher.request(some_op())
            choices.append(await request.choice())
            assert request.source == ("search" if len(choices) == 1 else "store")
    assert choices[0] == choices[1]
    assert searches(trace) == 1


def test_the_interpreter_exits_in_time_with_a_hung_call_and_an_open_searcher() -> None:
    done = run_python(
        """
        import asyncio, threading, time
        from algosearch import ConvOp, open_searcher
        from algosearch.backends.simulated import SimulatedBackend
        from tests.search.gated import GatedBackend, RaisesOnce

        backend = GatedBackend(SimulatedBackend())
        backend.gates["launch"].close()
        searcher = open_searcher(store="memory:", backends=[backend]).__enter__()
        searcher.request(ConvOp(input_shape=(1, 8, 8, 8), filter_shape=(8, 8, 3, 3)))
        assert backend.gates["launch"].reached.wait(20)
        print(time.monotonic())
        """
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert time.monotonic() - float(done.stdout) < 15.0, "the call hangs for twenty seconds"


def test_the_default_searcher_is_closed_at_exit() -> None:
    done = run_python(
        """
        import asyncio
        from algosearch import ConvOp, select_algo

        op = ConvOp(input_shape=(1, 2, 4, 4), filter_shape=(2, 2, 1, 1))
        first = asyncio.run(select_algo(op))
        assert asyncio.run(select_algo(op)) is first
        print(first.algorithm)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cpu/")


async def test_one_directory_is_one_store_however_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace: list[TraceEvent] = []
    backends = [scripted(some_op(), trace=trace)]
    monkeypatch.chdir(tmp_path)
    async with (
        open_searcher(store="s", backends=backends) as one,
        open_searcher(store=f"{tmp_path}/s/", backends=backends) as two,
        open_searcher(store=tmp_path / "." / "s", backends=backends) as three,
    ):
        await asyncio.gather(*(searcher.select(some_op()) for searcher in (one, two, three)))
    assert searches(trace) == 1


def test_a_policy_of_the_wrong_kind_is_refused_at_once() -> None:
    with pytest.raises(InvalidPolicy):
        open_searcher(policy="x")  # type: ignore[arg-type]
