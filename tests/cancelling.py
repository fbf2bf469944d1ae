"""Cancel a coroutine at its k-th suspension, for every k in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any


class _CancelAt(Awaitable[Any]):
    """Drives a coroutine by hand and cancels the running task just before its k-th suspension reaches the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], k: int) -> None:
        self._coroutine = coroutine
        self._k = k
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, Any]:
        suspensions = 0
        to_send: Any = None
        error: BaseException | None = None
        while True:
            try:
                if error is not None:
                    pending, error = error, None
                    yielded = self._coroutine.throw(pending)
                else:
                    yielded = self._coroutine.send(to_send)
            except StopIteration as end:
                return end.value
            if suspensions == self._k and not self.cancelled:
                self.cancelled = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            suspensions += 1
            try:
                to_send = yield yielded
            except BaseException as raised:
                error = raised


async def cancel_at_every_suspension(
    scenario: Callable[[], Coroutine[Any, Any, Any]], check: Callable[[bool], Awaitable[None]], *, at_most: int = 200
) -> int:
    """Run `scenario()` again and again, cancelled at its 0th, 1st, 2nd… suspension, until a run ends uncancelled.

    `check(was_cancelled)` is awaited after each run. The number of suspensions is returned.
    """
    for k in range(at_most):
        driver = _CancelAt(scenario(), k)

        async def run(driver: _CancelAt = driver) -> None:
            await driver

        task = asyncio.create_task(run())
        try:
            await task
        except asyncio.CancelledError:
            assert driver.cancelled, "cancelled by somebody else"
        await check(driver.cancelled)
        if not driver.cancelled:
            return k
    raise AssertionError(f"still suspending after {at_most} suspensions")
