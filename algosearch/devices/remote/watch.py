"""`Watch`: what a child is doing, and whether that has gone on for too long. On the engine's loop, never a caller's.

Time in which this process did not run does not count: whatever stopped it (a scheduler that suspends a job, a container
that is paused) has stopped the child as well, and then nobody hangs. So the watch looks at the clock every second, and
takes what it was late by for lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from algosearch.devices.blame import Blame
from algosearch.devices.job import Side, Step
from algosearch.devices.remote.patience import LOST_S, PULSE_S
from algosearch.records import Failure

_GRACE_S: Final = 0.05
"""What was overdue is looked at again after so long: if this process had been stopped, the child's word that it has
gone on has not been read yet."""


class Watch:
    """One timer for whatever is due first.

    Args:
        silent_s: how long a child may say nothing while it owes an answer and does nothing that it has announced.
        owes: whether it owes an answer now.
        on_overdue: told why, and whose fault it is; then the watch is over.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        silent_s: float,
        *,
        owes: Callable[[], bool],
        on_overdue: Callable[[str, tuple[Blame, ...]], None],
    ) -> None:
        self._loop = loop
        self._silent_s = silent_s
        self._owes = owes
        self._on_overdue = on_overdue
        self._steps: dict[Side, tuple[Step, float]] = {}
        """What each side is doing, and when it is overdue."""
        self._heard = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is being done: of somebody who waits for the device nothing can be said."""
        return tuple(step for step, _ in self._steps.values() if step.deed != "wait")

    def begins(self, step: Step) -> None:
        """A side begins something."""
        self._steps[step.side] = step, self._loop.time() + step.limit_s
        self.look()

    def rests(self, side: Side) -> None:
        """A side has nothing to do."""
        self._steps.pop(side, None)

    def heard(self) -> None:
        """The child has said something, or has just been asked."""
        self._heard = self._loop.time()
        self.look()

    def look(self) -> None:
        """See to it that the timer wakes when something is due."""
        due = self._due()
        if due is None or self._stopped:
            return
        due = min(due, self._loop.time() + PULSE_S)
        if self._timer is None or due < self._timer.when():
            self._cancel()
            self._timer = self._loop.call_at(due, self._suspect)

    def stop(self) -> None:
        """It does not matter any more."""
        self._stopped = True
        self._cancel()

    def _due(self) -> float | None:
        if self._steps:
            return min(due for _, due in self._steps.values())
        return self._heard + self._silent_s if self._owes() else None

    def _suspect(self) -> None:
        """Something may be overdue, or what was is done."""
        self._count_lost_time()
        due = self._due()
        if due is None or due > self._loop.time():
            self.look()
        else:
            suspects = tuple(step for step, _ in self._steps.values())
            self._timer = self._loop.call_later(_GRACE_S, self._judge, suspects, self._heard)

    def _judge(self, suspects: tuple[Step, ...], heard: float) -> None:
        self._count_lost_time()
        now = self._loop.time()
        for step, due in self._steps.values():
            if due <= now and any(step is before for before in suspects):
                self.stop()
                self._on_overdue(f"{step.describe()} took longer than {step.limit_s:g} s", (_blame(step),))
                return
        if not self._steps and not suspects and self._heard == heard and self._owes():
            self.stop()
            self._on_overdue(f"its process has said nothing for {self._silent_s:g} s", ())
            return
        self.look()

    def _count_lost_time(self) -> None:
        """The timer has fired: if it should have long before, nobody was there to see what happened since."""
        assert self._timer is not None
        missed, now = self._timer.when(), self._loop.time()
        self._timer = None
        if now - missed < LOST_S:
            return
        for side, (step, due) in self._steps.items():
            began = due - step.limit_s
            self._steps[side] = step, due + now - min(max(missed, began), now)
        self._heard += now - min(max(missed, self._heard), now)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _blame(step: Step) -> Blame:
    failure = Failure("timed_out", f"{step.describe()} hung", (("limit_s", f"{step.limit_s:g}"),))
    return Blame(job=step.job, algorithms=step.algorithms, failure=failure)
