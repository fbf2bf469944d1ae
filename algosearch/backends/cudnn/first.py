"""The first run of a plan: how long a run takes once its code is loaded, from as few runs as will tell.

The very first one loads code, and its time is an upper bound. So it is run once more behind a short gate, which proves
itself as in `gate`; unless the first run has said enough: it is hopeless, or so near to the fastest that it is timed
anyhow.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

import msgspec

from algosearch.backends.cudnn.gate import OPENED_EARLY
from algosearch.backends.cudnn.gpu import Gpu
from algosearch.backends.cudnn.plan import VariantPack

_AGAIN_US: Final = 5_000.0
"""A run that was waited for longer is not run again: beside that, what loading its code took is little."""
_HOPELESS: Final = 3.0
_HOPELESS_US: Final = 1_000.0
"""Nor is one that was waited for so many times as long as the fastest run of this op takes, and for so long that it was
not this thread that came late."""
_NEAR: Final = 1.3
"""Nor one that is as near to the fastest as that."""
_HOLDS_US: Final = (20.0, 60.0, 200.0)
"""Of the gate: long enough to queue one run behind it, unless something comes between."""
_POLLS: Final = 40
"""A tenth of a millisecond. To give the interpreter's lock up for less, and win it back, takes longer than that."""


class First(msgspec.Struct, frozen=True):
    """What a first run tells."""

    time_us: float
    """Of one run; 0.0 if one failed."""
    status: int = 0
    """The library's; 0 if it ran."""
    disturbed: str | None = None


class _Run(NamedTuple):
    status: int
    took_us: float
    waited_us: float
    """From when it had been queued. Code is loaded before anything is queued, so that this is the run's alone."""
    early: bool
    """Whether the gate had opened by then, so that something of the host's may be in the time."""


def first_run(gpu: Gpu, pack: VariantPack, best_us: float) -> First:
    """Run a plan for the first time; blocks.

    Args:
        pack: the plan, bound.
        best_us: the fastest run of this op so far; `inf` if this is the first.

    Raises:
        CudaFault: something that was queued failed.
    """
    run = _alone(gpu, pack.launch_long, 0.0)
    if run.status:
        return First(0.0, run.status)
    if run.waited_us > max(_HOPELESS_US, _HOPELESS * best_us):
        return First(min(run.took_us, run.waited_us))
    if run.waited_us > _AGAIN_US or run.took_us <= _NEAR * best_us < inf:
        return First(run.took_us)
    took_us = run.took_us
    for hold_us in _HOLDS_US:
        run = _alone(gpu, pack.launch, hold_us)
        if run.status:
            return First(0.0, run.status)
        took_us = min(took_us, run.took_us)
        if not run.early:
            return First(took_us)
    return First(took_us, disturbed=OPENED_EARLY)


def _alone(gpu: Gpu, execute: Callable[[], int], hold_us: float) -> _Run:
    first, last = gpu.events(2)[:2]
    if hold_us:
        gpu.spin(hold_us)
    gpu.record(first)
    status = execute()
    gpu.record(last)
    early = gpu.is_ready(first)
    queued_us = gpu.clock_us()
    if not any(gpu.is_ready(last) for _ in range(_POLLS)):
        gpu.synchronize()
    waited_us = gpu.clock_us() - queued_us
    return _Run(status, 0.0 if status else max(gpu.elapsed_us(first, last), 1e-3), waited_us, early)
