"""Whatever is passed for an argument: a typed error at once that names argument, value and rule, or a sense."""

from __future__ import annotations

import asyncio
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algosearch import Policy, open_searcher, select_algo
from algosearch.backends.simulated import SimulatedBackend, TraceEvent, searches
from algosearch.errors import AlreadyEntered, InvalidOp, InvalidPolicy, InvalidSetting, UnknownDevice
from algosearch.search import Searcher
from algosearch.settings import Isolation
from algosearch.stores import MemoryStore
from tests.absurd import Agreeing, Hostile, absurd, endless
from tests.nowhere import nowhere
from tests.search.helpers import FAST, scripted, some_op

KNOWN, UNKNOWN = some_op(0), some_op(1)
NO_TIMES = [-1, -0.5, float("nan"), float("inf"), -float("inf"), np.float64("nan"), 10**400, "1", True, np.bool_(True)]

Ask = Callable[[Searcher, Any, dict[str, Any]], Any]


@pytest.fixture(scope="module")
def searcher() -> Iterator[Searcher]:
    with open_searcher(store="memory:", backends=[scripted(KNOWN, UNKNOWN)]) as searcher:
        searcher.select_blocking(KNOWN)
        yield searcher


def _begin(coroutine: Any) -> Any:
    """Only as far as a coroutine comes by itself: what is wrong is said before anything is waited for."""
    try:
        return coroutine.send(None)
    finally:
        coroutine.close()


ASKS: dict[str, Ask] = {
    "select": lambda searcher, op, options: _begin(searcher.select(op, **options)),
    "select_many": lambda searcher, op, options: _begin(searcher.select_many([op], **options)),
    "select_blocking": lambda searcher, op, options: searcher.select_blocking(op, **options),
    "select_many_blocking": lambda searcher, op, options: searcher.select_many_blocking([op], **options),
    "request": lambda searcher, op, options: searcher.request(op, **options),
    "peek": lambda searcher, op, options: searcher.peek(op, **options),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@given(value=absurd() | st.none())
def test_an_op_that_is_none(searcher: Searcher, ask: Ask, value: Any) -> None:
    with pytest.raises(InvalidOp) as caught:
        ask(searcher, value, {})
    assert (caught.value.field, caught.value.value is value) == ("op", True)
    assert "must be a ConvOp or a BatchNormOp" in str(caught.value)


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("op", [KNOWN, UNKNOWN], ids=["known", "unknown"])
@given(value=absurd())
def test_a_policy_a_mode_or_a_device_that_is_none(searcher: Searcher, ask: Ask, op: Any, value: Any) -> None:
    with pytest.raises(InvalidPolicy) as policy:
        ask(searcher, op, {"policy": value})
    assert policy.value.value is value
    with pytest.raises(InvalidSetting) as mode:
        ask(searcher, op, {"mode": value})
    assert (mode.value.name, mode.value.value is value) == ("mode", True)
    if not issubclass(type(value), str):
        with pytest.raises(InvalidSetting) as device:
            ask(searcher, op, {"device": value})
        assert (device.value.name, device.value.value is value) == ("device", True)
        assert "cpu:0" in str(device.value)
    assert searcher.statistics().open == 0


@pytest.mark.parametrize("op", [KNOWN, UNKNOWN], ids=["known", "unknown"])
@given(value=absurd() | st.sampled_from(NO_TIMES))
def test_a_time_that_is_none(searcher: Searcher, op: Any, value: Any) -> None:
    request = searcher.request(KNOWN)
    calls: dict[str, tuple[Callable[[], Any], ...]] = {
        "deadline_s": (
            lambda: _begin(searcher.select(op, deadline_s=value)),
            lambda: _begin(request.choice(deadline_s=value)),
        ),
        "timeout_s": (
            lambda: searcher.select_blocking(op, timeout_s=value),
            lambda: searcher.select_many_blocking([op], timeout_s=value),
            lambda: request.choice_blocking(timeout_s=value),
        ),
    }
    for name, ways in calls.items():
        for way in ways:
            with pytest.raises(InvalidSetting) as caught:
                way()
            assert (caught.value.name, caught.value.value is value) == (name, True)
            assert "finite number of seconds, at least 0" in str(caught.value)
    assert searcher.statistics().open == 0


@given(value=absurd())
def test_another_policy_of_a_request(searcher: Searcher, value: Any) -> None:
    with pytest.raises(InvalidPolicy):
        _begin(searcher.request(KNOWN).choice(value))


@pytest.mark.parametrize("seconds", [20, 20.0, np.float32(20), np.int64(20), Fraction(41, 2), 1e300, 0, -0.0])
def test_a_time_is_any_real_number(searcher: Searcher, seconds: Any) -> None:
    assert searcher.select_blocking(KNOWN, timeout_s=seconds).algorithm == FAST
    assert searcher.request(KNOWN).choice_blocking(timeout_s=seconds).algorithm == FAST


@pytest.mark.parametrize(
    "ops", [None, 5, KNOWN, "ab", b"ab", [None], [KNOWN, "conv"], {"conv": KNOWN}, endless(), Hostile]
)
def test_ops_that_are_none(searcher: Searcher, ops: Any) -> None:
    before = searcher.statistics()
    for call in (lambda: _begin(searcher.select_many(ops)), lambda: searcher.select_many_blocking(ops)):
        with pytest.raises(InvalidOp):
            call()
    assert searcher.statistics() == before


def test_no_ops_are_no_answers(searcher: Searcher) -> None:
    assert searcher.select_many_blocking(iter(())) == []
    assert asyncio.run(searcher.select_many(())) == []


async def test_what_is_equal_to_a_known_op_is_none() -> None:
    async with open_searcher(store="memory:", backends=[scripted(KNOWN)]) as searcher:
        with pytest.raises(InvalidOp):
            await searcher.select(Agreeing(KNOWN))  # type: ignore[arg-type]
        with pytest.raises(InvalidOp):
            await select_algo(5)  # type: ignore[arg-type]


def is_path(value: Any) -> bool:
    return issubclass(type(value), str) and "\0" not in value and value.isascii()


@given(value=absurd() | st.sampled_from([5, b"x", 1.5, True, MemoryStore, object()]))
def test_a_store_that_is_none(value: Any) -> None:
    if is_path(value):
        value = [value]
    with pytest.raises(InvalidSetting) as caught:
        open_searcher(store=value)
    assert (caught.value.name, caught.value.value is value) == ("store", True)


@given(value=absurd() | st.sampled_from([5, "cpu", ["cpu"], SimulatedBackend, SimulatedBackend(), [SimulatedBackend]]))
def test_backends_that_are_none(value: Any) -> None:
    with pytest.raises(InvalidSetting) as caught:
        open_searcher(backends=value)
    assert (caught.value.name, caught.value.value is value) == ("backends", True)


@given(value=absurd() | st.sampled_from([5, [], (), [""], "", ["cpu", 5], [["cpu"]], b"cpu", {"cpu"}, iter(["cpu"])]))
def test_devices_that_are_none(value: Any) -> None:
    if (issubclass(type(value), str) and value) or (type(value) is list and str in map(type, value)):
        value = [[value]]  # a name, or names, but not in a list within a list
    with pytest.raises(InvalidSetting) as caught:
        open_searcher(devices=value)
    assert (caught.value.name, caught.value.value is value or not value) == ("devices", True)


@given(value=absurd())
def test_a_mode_or_a_policy_that_is_none(value: Any) -> None:
    with pytest.raises(InvalidSetting):
        open_searcher(mode=value)
    with pytest.raises(InvalidPolicy):
        open_searcher(policy=value)


def test_one_device_need_not_be_in_a_list() -> None:
    with open_searcher(store="memory:", backends=[scripted(KNOWN)], devices="simulated:0") as searcher:
        assert searcher.select_blocking(KNOWN).algorithm == FAST
    with (
        open_searcher(store="memory:", backends=[scripted(KNOWN)], devices="nonsense") as searcher,
        pytest.raises(UnknownDevice, match="nonsense"),
    ):
        searcher.select_blocking(KNOWN)


def test_names_are_taken_at_what_they_hold(searcher: Searcher) -> None:
    for device in ("simulated", np.str_("simulated:0")):
        assert searcher.select_blocking(KNOWN, device=device).algorithm == FAST


def test_a_relative_store_where_there_is_no_directory(tmp_path: pathlib.Path) -> None:
    with nowhere(tmp_path), pytest.raises(InvalidSetting, match="no current directory"):
        open_searcher(store="somewhere")


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("absolute", [True, False])
async def test_what_is_not_relative_needs_no_current_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, absolute: bool, isolation: Isolation
) -> None:
    store = str(tmp_path / "store") if absolute else "memory:"
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as where Python is used interactively
    with nowhere(tmp_path):
        async with open_searcher(store=store, backends=[scripted(KNOWN)], isolation=isolation) as searcher:
            assert (await searcher.select(KNOWN)).algorithm == FAST


async def test_one_opening_is_one_block() -> None:
    opening = open_searcher(store="memory:", backends=[scripted(KNOWN)])
    async with opening as searcher:
        with pytest.raises(AlreadyEntered):
            async with opening:
                pass
        assert (await searcher.select(KNOWN)).algorithm == FAST
    with pytest.raises(AlreadyEntered):
        async with opening:
            pass
    assert searcher.closed


async def test_two_tasks_enter_one_opening() -> None:
    opening = open_searcher(store="memory:", backends=[scripted(KNOWN)])
    entered = await asyncio.gather(opening.__aenter__(), opening.__aenter__(), return_exceptions=True)
    assert [type(each) for each in entered] == [Searcher, AlreadyEntered]
    await opening.__aexit__(None, None, None)
    await opening.__aexit__(None, None, None)


def test_threads_enter_one_opening() -> None:
    trace: list[TraceEvent] = []
    opening = open_searcher(store="memory:", backends=[scripted(KNOWN, trace=trace)])
    outcomes: list[object] = []
    start = threading.Barrier(8)

    def enter() -> None:
        start.wait()
        try:
            outcomes.append(opening.__enter__().select_blocking(KNOWN, Policy()).algorithm)
        except AlreadyEntered:
            outcomes.append(None)

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    opening.__exit__(None, None, None)
    assert sorted(outcomes, key=str) == [None] * 7 + [FAST]
    assert searches(trace) == 1


async def test_a_block_that_was_never_entered_can_be_left() -> None:
    opening = open_searcher(store="memory:")
    await opening.__aexit__(None, None, None)
    open_searcher(store="memory:").__exit__(None, None, None)
