"""The trace: whole lines from many threads and processes, and searches counted without asking the engine."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from algosearch.backends.simulated import (
    Call,
    Script,
    SimulatedBackend,
    TraceEvent,
    problem_digest,
    read_trace,
    searched,
    searches,
    spent_us,
)
from algosearch.backends.simulated.trace import Tracer
from algosearch.errors import InvalidSetting
from algosearch.ops import Op, canonical
from algosearch.records import Built
from tests.backends.simulated import CONV, NORM, A, B, C, opened, ready


def event(call: Call, problem: str = "p", algorithm: str = "", us: float = 0.0, device: str = "d:0") -> TraceEvent:
    return TraceEvent(t=0.0, pid=1, thread="t", device=device, call=call, problem=problem, algorithm=algorithm, us=us)


def search(backend: SimulatedBackend, op: Op, candidates: int) -> None:
    """A small search of its own: list twice, build some, run them, destroy them, on a session of its own."""
    session = opened(backend)
    session.enumerate(op, 1)
    plans = []
    for candidate in session.enumerate(op, candidates).candidates[:candidates]:
        built = session.build(op, candidate)
        assert isinstance(built, Built)
        plans.append(built.plan)
    for _ in range(2):
        assert session.load(op, 1 << 30) is None
        session.time([(plan, 1) for plan in plans], None)
        session.unload()
    session.destroy(plans)
    session.close()


def test_searches_are_counted_whatever_way_they_go() -> None:
    events: list[TraceEvent] = []
    backend = SimulatedBackend(devices=2, trace=events)
    search(backend, canonical(CONV), candidates=2)
    search(backend, canonical(CONV), candidates=9)
    search(backend, canonical(NORM), candidates=1)
    opened(backend).enumerate(canonical(NORM), None)
    assert searched(events) == {problem_digest(CONV): 2, problem_digest(NORM): 1}
    assert searches(events) == 3
    assert searches([]) == 0


@settings(deadline=None, max_examples=50)
@given(
    plan=st.lists(st.tuples(st.sampled_from("pqr"), st.integers(1, 3), st.sampled_from(("d:0", "d:1"))), max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_the_count_does_not_depend_on_order_or_place(plan: list[tuple[str, int, str]], order: random.Random) -> None:
    """Each search builds the first candidates of its problem; their events are shuffled as threads would."""
    events = [
        event("build", problem, algorithm, device=device)
        for problem, width, device in plan
        for algorithm in (A, B, C)[:width]
    ]
    order.shuffle(events)
    assert searches(events) == len(plan)
    assert searched(events) == Counter(problem for problem, _, _ in plan)


@settings(deadline=None, max_examples=50)
@given(
    plan=st.lists(st.sampled_from((("ok",), ("out_of_memory", "ok"), ("out_of_memory", "out_of_memory"))), min_size=1),
    order=st.randoms(use_true_random=False),
)
def test_a_second_try_for_want_of_memory_is_no_search(plan: list[tuple[str, ...]], order: random.Random) -> None:
    outcomes = [outcome for each in plan for outcome in each]
    events = [replace(event("build", "p", A), t=float(t), outcome=outcome) for t, outcome in enumerate(outcomes)]
    order.shuffle(events)
    assert searches(events) == len(plan)


def test_what_calls_took_is_added_up() -> None:
    events = [event("enumerate", us=5.0), event("build", us=2.0), event("time", us=7.0), event("launch", us=1.0)]
    assert spent_us(events, ("enumerate", "build")) == 7.0
    assert spent_us(events, ("time",)) == 7.0


def test_a_file_holds_what_a_list_holds(tmp_path: Path) -> None:
    path, events = tmp_path / "trace", list[TraceEvent]()
    for trace in (path, events):
        session, plans = ready(SimulatedBackend(Script(seed=1), trace=trace))
        session.time([(plan, 2) for plan in plans], None)
        session.destroy(plans)
        session.close()
    written = read_trace(path)

    def same(event: TraceEvent) -> tuple[object, ...]:
        return event.device, event.call, event.problem, event.algorithm, event.outcome, event.us

    assert [same(each) for each in written] == [same(each) for each in events]
    assert len(events) > 30


def test_threads_and_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    code = (
        "import sys; from algosearch.backends.simulated import *; from tests.backends.test_simulated_trace import *\n"
        f"backend = SimulatedBackend(devices=2, trace={str(path)!r})\n"
        "for _ in range(20): search(backend, canonical(CONV), candidates=10)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    backend = SimulatedBackend(devices=2, trace=path)

    def work() -> None:
        for _ in range(20):
            search(backend, canonical(CONV), candidates=10)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.wait(50) == 0
    events = read_trace(path)
    assert searches(events) == 80
    assert len({each.pid for each in events}) == 2
    assert Counter(each.call for each in events)["time"] == 80 * 10 * 2
    assert all(each.call != "destroy" or each.algorithm for each in events)


def test_a_line_that_is_being_written_is_no_event_yet(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    backend = SimulatedBackend(Script(), trace=path)
    opened(backend).enumerate(CONV, 1)
    raw, events = path.read_bytes(), read_trace(path)
    for length in range(raw.rindex(b"{"), len(raw)):
        path.write_bytes(raw[:length])
        assert read_trace(path) == events[:-1]


def test_a_trace_that_is_not_there_or_is_none(tmp_path: Path) -> None:
    assert read_trace(tmp_path / "absent") == ()
    torn = tmp_path / "torn"
    torn.write_text('{"t": 1.0, "pid"\n')
    with pytest.raises(InvalidSetting, match="is not a trace"):
        read_trace(torn)


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot be written: Is a directory"):
        opened(SimulatedBackend(trace=tmp_path))


def test_what_outlives_its_session_writes_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    tracer = Tracer(path, "d:0")
    tracer.write(tracer.event("open"))
    tracer.close()
    with open(tmp_path / "another", "wb") as other:  # gets the number of the closed file
        tracer.write(tracer.event("close"))
        tracer.close()
        assert other.tell() == 0
    assert (tmp_path / "another").read_bytes() == b""
    assert [each.call for each in read_trace(path)] == ["open"]
