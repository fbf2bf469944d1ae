"""What a session sets up ahead: in the compile thread, beside others, and still while somebody wants quiet."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest

from algosearch.backends import Device, Session
from algosearch.backends.simulated import ProblemScript, Script, SimulatedBackend
from algosearch.devices.quiet import Quiet
from tests.devices.helpers import LIMIT_S, candidate, kinds, opened, search, some_op
from tests.search.gated import Gate, GatedBackend

PROBLEMS = tuple(
    ProblemScript(op=some_op(n), candidates=(candidate("one", 50.0), candidate("other", 20.0))) for n in range(3)
)


class _Warm:
    """A session, and what it sets up."""

    def __init__(self, backend: WarmingBackend, inner: Session) -> None:
        self._backend = backend
        self._inner = inner
        self.environment = inner.environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def warm_up(self) -> None:
        backend = self._backend
        backend.threads.append(threading.current_thread().name)
        backend.gate.pass_through()
        if backend.error is not None:
            raise backend.error


class WarmingBackend(GatedBackend):
    """Its sessions set something up when `gate` is open."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__(SimulatedBackend(Script(problems=PROBLEMS)))
        self.gate = Gate()
        self.threads: list[str] = []
        """In which it was asked for, one each time."""
        self.error = error

    def open(self, device: Device) -> Session:
        return _Warm(self, super().open(device))


@pytest.mark.parametrize("error", [None, RuntimeError("as told"), SystemExit(3)])
async def test_once_in_the_compile_thread_while_others_are_searched(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    backend = WarmingBackend(error)
    backend.gate.close()
    async with opened(backend, "thread") as worker:
        assert not backend.threads
        for n in range(3):
            assert kinds(await search(worker, some_op(n))) == {"one": None, "other": None}
        assert await asyncio.to_thread(backend.gate.reached.wait, LIMIT_S)
        backend.gate.open()
    assert [name.partition("-simulated")[0] for name in backend.threads] == ["algosearch-compile"]
    assert ("warming simulated:0 up failed" in caplog.text) == (error is not None)


async def test_who_wants_quiet_waits_for_its_end() -> None:
    backend, quiet = WarmingBackend(), Quiet()
    backend.gate.close()
    async with opened(backend, "thread", quiet=quiet) as worker:
        await worker.enumerate(some_op(), None)
        assert await asyncio.to_thread(backend.gate.reached.wait, LIMIT_S)
        quiet.begin()
        resting = asyncio.create_task(worker.rest())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(resting), 0.05)
        backend.gate.open()
        with anyio.fail_after(LIMIT_S):
            await resting
        quiet.end()
        worker.resume()


async def test_it_does_not_begin_while_somebody_wants_quiet() -> None:
    backend, quiet = WarmingBackend(), Quiet()
    backend.gates["enumerate"].close()
    async with opened(backend, "thread", quiet=quiet) as worker:
        listing = asyncio.create_task(worker.enumerate(some_op(), None))
        assert await asyncio.to_thread(backend.gates["enumerate"].reached.wait, LIMIT_S)
        quiet.begin()
        resting = asyncio.create_task(worker.rest())
        await anyio.wait_all_tasks_blocked()
        backend.gates["enumerate"].open()
        with anyio.fail_after(LIMIT_S):
            await asyncio.gather(listing, resting)
        backend.gate.close()
        assert not await asyncio.to_thread(backend.gate.reached.wait, 0.05)
        quiet.end()
        worker.resume()
        assert await asyncio.to_thread(backend.gate.reached.wait, LIMIT_S)
        backend.gate.open()
