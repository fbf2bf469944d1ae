"""Preparing one key while another is timed: the wall is the longer of the two, not their sum.

The simulated backend sleeps for what preparing (listing, building) and timing (launching, running, checking) take. Its
trace says how long each took in all; the wall is measured around `select_many`. Then the same keys over eight devices.

    python bench/overlap.py --json bench/results/overlap.json
"""

from __future__ import annotations

import asyncio
import os
from time import perf_counter

from msgspec.structs import replace
from report import arguments, report

import algosearch
from algosearch.backends.simulated import Generated, Script, SimulatedBackend, TraceEvent, searches, spent_us

KEYS = 100
DEVICES = 8
CHEAP = algosearch.Policy(allow_runtime_compiled=False)
"""What is compiled at run time has a thread of its own, and would be a third sum."""


def all_ops() -> list[algosearch.ConvOp]:
    return [algosearch.ConvOp(input_shape=(1 + i, 16, 14, 14), filter_shape=(16, 16, 3, 3)) for i in range(KEYS)]


async def search_all(devices: int, script: Script) -> tuple[float, float, float]:
    """(wall, preparing, timing) in seconds."""
    events: list[TraceEvent] = []
    # A machine of its own: simulated devices of one name on one machine exclude each other, whoever runs them.
    script = replace(script, machine=f"overlap {os.getpid()}")
    backend = SimulatedBackend(script, devices=devices, trace=events, pace="real")
    async with algosearch.open_searcher(store="memory:", backends=[backend]) as searcher:
        start = perf_counter()
        await searcher.select_many(all_ops(), CHEAP)
        wall = perf_counter() - start
    assert searches(events) == KEYS
    preparing = spent_us(events, ("enumerate", "build")) / 1e6
    timing = spent_us(events, ("launch", "time", "check")) / 1e6
    return wall, preparing, timing


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    scripts = {
        "prepare_bound": Script(generated=Generated(prepare_us=40_000, build_us=6_000, time_us=50.0)),
        "timing_bound": Script(generated=Generated(prepare_us=40_000, build_us=4_000, time_us=3_000.0)),
    }
    figures: dict[str, float] = {}
    limits: dict[str, str] = {}
    for name, script in scripts.items():
        wall, preparing, timing = asyncio.run(search_all(1, script))
        longer = max(preparing, timing)
        spread_wall, *spread = asyncio.run(search_all(DEVICES, script))
        figures |= {
            f"{name}_preparing_s": preparing,
            f"{name}_timing_s": timing,
            f"{name}_wall_s": wall,
            f"{name}_ratio": wall / longer,
            f"{name}_8_devices_wall_s": spread_wall,
            f"{name}_8_devices_ratio": spread_wall / (max(spread) / DEVICES),
        }
        limits |= {f"{name}_ratio": "≤ 1.10", f"{name}_8_devices_ratio": "≤ 1.15"}
    report(figures, limits, options.json)


if __name__ == "__main__":
    main()
