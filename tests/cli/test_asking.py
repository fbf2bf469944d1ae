"""Asking about many ops at once: in order, with progress, until all are answered or it is time to end."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest

from algosearch import open_searcher
from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Fault,
    Generated,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
)
from algosearch.cli.asking import ask_all
from algosearch.cli.progress import Moment
from algosearch.errors import DeviceUnavailable, NoAlgorithm, NotCached
from algosearch.records import Key
from algosearch.stores import MemoryStore
from tests.cli.helpers import tiny_op

OPS = [tiny_op(n) for n in range(4)]


def never() -> bool:
    return False


def test_every_op_is_answered_and_progress_is_shown() -> None:
    trace: list[TraceEvent] = []
    moments: list[Moment] = []
    with open_searcher(store="memory:", backends=[SimulatedBackend(trace=trace)]) as searcher:
        answers = ask_all(searcher, OPS, show=moments.append, ended=never)
        again = ask_all(searcher, OPS, show=lambda moment: None, ended=never)
    assert [answer.op for answer in answers] == OPS
    assert [answer.source for answer in answers] == ["search"] * 4
    assert [answer.source for answer in again] == ["memory"] * 4
    assert all(answer.choice is not None and answer.error is None and not answer.open for answer in answers)
    assert moments[0].answered == 0
    assert {moment.total for moment in moments} == {4}
    assert all(a.answered <= b.answered for a, b in pairwise(moments))


def test_no_ops_no_questions() -> None:
    with open_searcher(store="memory:", backends=[SimulatedBackend()]) as searcher:
        assert ask_all(searcher, [], show=lambda moment: pytest.fail("nothing to show"), ended=never) == ()


def test_an_op_without_an_algorithm_is_an_answer_with_an_error() -> None:
    backend = SimulatedBackend(Script(problems=(ProblemScript(op=OPS[1]),)))
    with open_searcher(store="memory:", backends=[backend]) as searcher:
        answers = ask_all(searcher, OPS, show=lambda moment: None, ended=never)
    assert [type(answer.error) for answer in answers] == [type(None), NoAlgorithm, type(None), type(None)]
    assert not any(answer.open for answer in answers)


def test_mode_cached_gives_reasons() -> None:
    with open_searcher(store="memory:", backends=[SimulatedBackend()], mode="cached") as searcher:
        answers = ask_all(searcher, OPS, show=lambda moment: None, ended=never)
    assert {type(answer.error) for answer in answers} == {NotCached}


@pytest.mark.parametrize(
    "backend",
    [SimulatedBackend(devices=0), SimulatedBackend(Script(devices=(DeviceScript(unavailable="it is gone"),)))],
)
def test_without_a_device_the_error_is_raised(backend: SimulatedBackend) -> None:
    with (
        open_searcher(store="memory:", backends=[backend]) as searcher,
        pytest.raises(DeviceUnavailable),
    ):
        ask_all(searcher, OPS, show=lambda moment: None, ended=never)


def test_told_to_end_it_withdraws_what_is_open() -> None:
    hangs = CandidateScript(algorithm="simulated/t:hangs", time_us=5.0, faults=(Fault(at="launch", does="hangs"),))
    script = Script(problems=(ProblemScript(op=OPS[1], candidates=(hangs,)),), generated=Generated(candidates=3))
    release = threading.Event()
    backend = SimulatedBackend(script, release=release)
    answered = 0

    def show(moment: Moment) -> None:
        nonlocal answered
        answered = moment.answered

    def ended() -> bool:  # the first answer may still be on its way when the second op hangs
        return backend.hanging.is_set() and answered > 0

    with open_searcher(store="memory:", backends=[backend]) as searcher:
        answers = ask_all(searcher, OPS, show=show, ended=ended)
        release.set()
    assert answers[0].choice is not None
    assert [answer.open for answer in answers] == [False, True, True, True]


def test_whom_it_waits_for_is_named() -> None:
    """C25: another process is at it, and whoever looks on is told which."""
    backend = SimulatedBackend()
    store = MemoryStore()
    key = Key.of(OPS[0], backend.open(backend.devices()[0]).environment)
    claim = asyncio.run(store.claim(key.digest, "host:17:x", expiry_s=1e9))
    seen: list[str] = []

    def show(moment: Moment) -> None:
        if moment.trying:
            seen.append(moment.trying)
            asyncio.run(store.release(claim))

    with open_searcher(store=MemoryStore(beside=store), backends=[backend]) as searcher:
        (answer,) = ask_all(searcher, OPS[:1], show=show, ended=never)
    assert seen[0] == f"waiting for host:17: {OPS[0].describe()}"
    assert answer.choice is not None


def test_what_is_under_way_is_named() -> None:
    hangs = CandidateScript(algorithm="simulated/t:hangs", time_us=5.0, faults=(Fault(at="launch", does="hangs"),))
    release = threading.Event()
    backend = SimulatedBackend(Script(problems=(ProblemScript(op=OPS[0], candidates=(hangs,)),)), release=release)
    seen: list[str] = []

    def show(moment: Moment) -> None:
        if backend.hanging.is_set():
            seen.append(moment.trying)
        if len(seen) == 2:  # the first moment may have been taken before it hung
            release.set()

    with open_searcher(store="memory:", backends=[backend]) as searcher:
        ask_all(searcher, OPS, show=show, ended=never)
    assert seen[1] == f"first run of simulated/t:hangs: {OPS[0].describe()}"
