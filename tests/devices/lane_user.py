"""A process that uses a lane: `python -m tests.devices.lane_user HOW ...`.

`search TRACE` says that it is ready, waits for a line and searches one key after the other in real time, until its
standard input ends; `hold IDENTITY` takes the lane, says so and keeps it; `take IDENTITY` takes it, says so and ends;
`fork IDENTITY` takes it, leaves a fork behind that says its number, and gives it back.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time

from algosearch.backends.simulated import Generated, Script, SimulatedBackend
from algosearch.backends.simulated.device import Pacer
from algosearch.devices.lane import lane_of
from tests.devices.helpers import opened, search, some_op

_LONG_S = 60.0


def sleep_in_full(pacer: Pacer, us: float) -> None:
    """Else one that took too long shortens the next ones, and those would seem to have begun before they did."""
    time.sleep(us * 1e-6)


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def search_keys(trace: str) -> None:
    Pacer.pass_us = sleep_in_full  # type: ignore[method-assign,assignment]
    script = Script(generated=Generated(candidates=3, noise=0.0, time_us=500.0), machine="tests/lane")
    async with opened(SimulatedBackend(script, trace=trace, pace="real"), "thread") as worker:
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        over = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        numbers = itertools.count()

        async def search_some() -> None:
            while not over.done():
                await search(worker, some_op(next(numbers)))

        await asyncio.gather(*(search_some() for _ in range(3)))


def main(how: str, *arguments: str) -> None:
    if how == "search":
        asyncio.run(search_keys(arguments[0]))
        return
    lane = lane_of(arguments[0])
    lane.take()
    if how == "fork":
        if not os.fork():
            say(os.getpid())
            time.sleep(_LONG_S)
            os._exit(0)
        lane.give_back()
        time.sleep(_LONG_S)
    say("taken")
    if how == "hold":
        time.sleep(_LONG_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
