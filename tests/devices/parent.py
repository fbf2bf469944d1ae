"""A process with a device in a child: `python -m tests.devices.parent HOW`. It says the child's number.

`idle` waits to be killed, `busy` with a candidate that hangs; `returns` comes to its end without closing anything;
`forks` leaves a fork of itself behind that keeps everything open that it can. `opens` says the number and
stops both of them before the device is open, for which there are `OPEN_S`; and says what became of that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from algosearch.backends.simulated import CandidateScript, Fault, ProblemScript, Script, SimulatedBackend
from algosearch.devices.job import Limits
from algosearch.devices.remote.host import ChildHost
from algosearch.devices.remote.process import _CHANNELS
from algosearch.devices.worker import Worker, WorkerRules
from algosearch.errors import DeviceUnavailable
from algosearch.ops import ConvOp, canonical
from algosearch.records import Policy

_LONG_S = 60.0
OPEN_S = 8.0
SAID = threading.Event()
"""The child's number; its first candidate is being launched."""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def open_and_tell() -> None:
    backend = SimulatedBackend()
    worker = Worker(backend, backend.devices()[0], isolation="process", rules=WorkerRules(limits=Limits(open_s=OPEN_S)))
    opening = asyncio.create_task(worker.open())
    while not isinstance(worker._host, ChildHost) or worker._host.pid is None:
        await asyncio.sleep(0.001)
    say(worker._host.pid)
    for pid in (worker._host.pid, os.getpid()):  # as a job that is suspended: nobody gets any further
        os.kill(pid, signal.SIGSTOP)
    try:
        await opening
        say("opened")
    except DeviceUnavailable as error:
        say(error)
    await worker.aclose()


async def use(how: str) -> None:
    op = canonical(ConvOp(input_shape=(1, 8, 12, 12), filter_shape=(8, 8, 3, 3)))
    faults = (Fault(at="launch", does="hangs"),) if how == "busy" else ()
    problem = ProblemScript(op=op, candidates=(CandidateScript(algorithm="simulated/t:a", time_us=9.0, faults=faults),))
    backend = SimulatedBackend(Script(problems=(problem,)))
    worker = Worker(backend, backend.devices()[0], isolation="process")
    await worker.open()
    listing = await worker.enumerate(op, None)

    def launching(algorithm: str) -> None:
        assert isinstance(worker._host, ChildHost)
        say(worker._host.pid)
        SAID.set()

    await worker.search(op, listing, policies=(Policy(),), mode="race", on_launch=launching)
    if how == "forks":
        (channel,) = _CHANNELS
        kept = os.dup(channel.fileno())
        if not os.fork():
            os.set_inheritable(kept, True)
            say("fork", os.getpid())
            time.sleep(_LONG_S)
            os._exit(0)
    if how != "returns":
        await asyncio.sleep(_LONG_S)


if __name__ == "__main__":
    if sys.argv[1] == "opens":
        asyncio.run(open_and_tell())
        sys.exit()
    threading.Thread(target=asyncio.run, args=(use(sys.argv[1]),), daemon=True).start()
    SAID.wait(_LONG_S)
    if sys.argv[1] != "returns":
        time.sleep(_LONG_S)
