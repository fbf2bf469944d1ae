"""What the tests of this room share: small distinct ops, scripted backends, and opened searchers."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

from algosearch.backends.simulated import CandidateScript, ProblemScript, Script, SimulatedBackend, TraceEvent
from algosearch.ops import ConvOp, Op
from algosearch.search import Searcher

FAST = "simulated/t:fast"
SMALL = "simulated/t:small"
SLOW = "simulated/t:slow"


def some_op(n: int = 0) -> ConvOp:
    """A small op; another one for each `n`."""
    return ConvOp(input_shape=(1 + n, 8, 12, 12), filter_shape=(8, 8, 3, 3), padding_low=(1, 1))


def some_ops(count: int) -> list[ConvOp]:
    return [some_op(n) for n in range(count)]


def three_candidates(op: ConvOp) -> ProblemScript:
    """Fast with much workspace and not deterministic; less fast with little; slow with none."""
    return ProblemScript(
        op=op,
        candidates=(
            CandidateScript(algorithm=SLOW, time_us=300.0),
            CandidateScript(algorithm=FAST, time_us=100.0, workspace_bytes=4 << 20, notes=("nondeterministic",)),
            CandidateScript(algorithm=SMALL, time_us=130.0, workspace_bytes=1 << 10),
        ),
    )


def scripted(*ops: ConvOp, trace: list[TraceEvent] | None = None) -> SimulatedBackend:
    """A backend on which each of these ops has the three candidates."""
    return SimulatedBackend(Script(problems=tuple(map(three_candidates, ops))), trace=trace)


def named(name: str, time_us: float, **more: Any) -> CandidateScript:
    """A candidate of a script of the test's own."""
    return CandidateScript(algorithm=f"simulated/c:{name}", time_us=time_us, **more)


def script_of(op: Op, *candidates: CandidateScript, **more: Any) -> Script:
    """A script of one problem."""
    return Script(problems=(ProblemScript(op=op, candidates=candidates),), **more)


def states(searcher: Searcher) -> dict[str, int]:
    """How many flights are in each state. Most states pass: to be waited for is one in which all of them stay."""
    return dict(Counter(flight.state for flight in searcher.flights()))


def not_before_it_waits(searcher: Searcher) -> None:
    """Let the engine do nothing until the running task has suspended, and those made before it have begun: else it may
    be the faster one."""
    may = threading.Event()
    loop = searcher._engine._loop
    assert loop is not None
    loop.call_soon_threadsafe(may.wait, _PATIENCE_S)
    asyncio.get_running_loop().call_soon(may.set)


_PATIENCE_S = 20.0
"""Far more than anything here takes; what a pulse of a store finds may be seconds late."""


async def until(condition: Callable[[], Any]) -> None:
    """Until the background has done it."""
    deadline = monotonic() + _PATIENCE_S
    while monotonic() < deadline:
        outcome = condition()
        if await outcome if inspect.isawaitable(outcome) else outcome:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never happened")
