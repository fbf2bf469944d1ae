"""What the tests of this room share: scripted devices, and workers of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from algosearch.backends import Backend
from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Fault,
    Generated,
    ProblemScript,
    Script,
    SimulatedBackend,
    read_trace,
)
from algosearch.devices.job import Found
from algosearch.devices.quiet import Quiet
from algosearch.devices.worker import Worker, WorkerRules
from algosearch.ops import ConvOp, Op, canonical
from algosearch.records import Policy, Trial
from algosearch.settings import Isolation

LIMIT_S = 30.0
"""Longer than anything here takes; a test that waits so long has failed."""


def some_op(n: int = 0) -> Op:
    """A small canonical op; another one for each `n`."""
    return canonical(ConvOp(input_shape=(1 + n, 8, 12, 12), filter_shape=(8, 8, 3, 3)))


OP = some_op()


def candidate(name: str, time_us: float, *faults: Fault, **more: Any) -> CandidateScript:
    return CandidateScript(algorithm=algorithm(name), time_us=time_us, faults=faults, **more)


def algorithm(name: str) -> str:
    return f"simulated/t:{name}"


def script_of(*candidates: CandidateScript, **device: Any) -> Script:
    """One problem with these candidates; all others have two that are good."""
    problems = (ProblemScript(op=OP, candidates=candidates),)
    return Script(
        problems=problems,
        devices=(DeviceScript(**device),),
        generated=Generated(candidates=2, noise=0.0),
        machine="tests/devices",
    )


async def search(worker: Worker, op: Op = OP, **more: Any) -> Found:
    """All candidates of an op, raced by an open worker."""
    with anyio.fail_after(LIMIT_S):
        listing = await worker.enumerate(op, None)
        return await worker.search(op, listing, policies=(Policy(),), mode="race", **more)


def by_name(found: Found) -> dict[str, Trial]:
    return {trial.algorithm.rpartition(":")[2]: trial for trial in found.trials}


def kinds(found: Found) -> dict[str, str | None]:
    """The kind of each candidate's failure; None for those that are good."""
    return {name: None if trial.failure is None else trial.failure.kind for name, trial in by_name(found).items()}


@asynccontextmanager
async def opened(
    backend: Backend, isolation: Isolation, rules: WorkerRules | None = None, quiet: Quiet | None = None
) -> AsyncIterator[Worker]:
    worker = Worker(backend, backend.devices()[0], isolation=isolation, rules=rules, quiet=quiet)
    try:
        with anyio.fail_after(LIMIT_S):
            await worker.open()
        yield worker
    finally:
        with anyio.CancelScope(shield=True):
            await worker.aclose()


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread or process brings about."""
    with anyio.fail_after(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.002)


def counted(trace: Path) -> Counter[str]:
    """How often each call was made, and went well."""
    return Counter(event.call for event in read_trace(trace) if event.outcome == "ok")


def under_way(trace: Path, call: str) -> Callable[[], bool]:
    return lambda: any(event.call == call for event in read_trace(trace))


def traced(script: Script, trace: Path, **more: Any) -> SimulatedBackend:
    return SimulatedBackend(script, trace=trace, **more)
