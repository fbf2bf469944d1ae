"""The interpreter's exit: two seconds at most, whoever waits for an answer, and in which way."""

from __future__ import annotations

import os
import time

import pytest

from tests.search.processes import run_python

PROLOGUE = """
import asyncio, concurrent.futures, os, threading, time
from algosearch import AlgosearchError, ConvOp, open_searcher, select_algo
from algosearch.backends import discover
from algosearch.backends.simulated import SimulatedBackend
from tests.search.gated import GatedBackend

op = ConvOp(input_shape=(1, 8, 8, 8), filter_shape=(8, 8, 3, 3))
backend = GatedBackend(SimulatedBackend())
backend.gates["launch"].close()
reached = backend.gates["launch"].reached

def say(call):
    try:
        call()
    except AlgosearchError as error:
        print(type(error).__name__, flush=True)

def opened():
    return open_searcher(store="memory:", backends=[backend]).__enter__()
"""
EPILOGUE = """
assert reached.wait(20)
while True:  # until somebody waits
    if waiting(): break
    time.sleep(0.001)
print(time.monotonic(), flush=True)
"""
LONGEST_S = 15.0
"""Two seconds, and the process's own, on a machine that is busy with others. Whatever hangs here hangs for longer."""
ANYBODY = "waiting = lambda: True\n"
BLOCKED = "waiting = lambda: any(inquiry.answered.waiting for inquiry in searcher._answers.pending)\n"
WAYS = {
    "blocked": BLOCKED
    + "searcher = opened()\nthreading.Thread(target=say, args=[lambda: searcher.select_blocking(op)]).start()",
    "blocked by a request": BLOCKED
    + "searcher = opened()\nrequest = searcher.request(op)\n"
    + "threading.Thread(target=say, args=[request.choice_blocking]).start()",
    "blocked in a pool": BLOCKED
    + "searcher = opened()\npool = concurrent.futures.ThreadPoolExecutor()\n"
    + "pool.submit(say, lambda: searcher.select_blocking(op))",
    "on a loop of a thread": BLOCKED
    + "searcher = opened()\n"
    + "threading.Thread(target=say, args=[lambda: asyncio.run(searcher.select(op))]).start()",
    "in the default searcher": ANYBODY
    + "discover.default_backends = lambda: (backend,)\n"
    + "threading.Thread(target=say, args=[lambda: asyncio.run(select_algo(op))]).start()",
    "while its devices are looked for": ANYBODY
    + "gate = backend.gates['launch']\nbackend.devices = gate.pass_through\n"
    + "threading.Thread(target=say, args=[opened]).start()",
    "while its store opens": ANYBODY
    + "from algosearch.stores import MemoryStore\n"
    + "class Slow(MemoryStore):\n"
    + "    async def open(self):\n"
    + "        reached.set()\n"
    + "        await asyncio.Event().wait()\n"
    + "opening = open_searcher(store=Slow(), backends=[backend])\n"
    + "threading.Thread(target=say, args=[opening.__enter__]).start()",
    "whose store stops the engine": BLOCKED
    + "from algosearch.stores import MemoryStore\n"
    + "class Blocking(MemoryStore):\n"
    + "    async def get_many(self, keys):\n"
    + "        reached.set()\n"
    + "        time.sleep(60)\n"
    + "searcher = open_searcher(store=Blocking(), backends=[backend]).__enter__()\n"
    + "threading.Thread(target=say, args=[lambda: searcher.select_blocking(op)]).start()",
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_thread_that_waits_hears_of_the_exit(way: str) -> None:
    done = run_python(PROLOGUE + way + "\n" + EPILOGUE)
    ended = time.monotonic()
    assert done.stderr.replace("simulated:0 is still busy; its threads are left to end by themselves\n", "") == ""
    began, *said = done.stdout.split()
    assert said == ["SearcherClosed"]
    assert done.returncode == 0
    assert ended - float(began) < LONGEST_S


def test_without_a_private_function_of_threading_it_still_exits_in_order() -> None:
    """Daemon threads are closed by what atexit calls; only threads that are none are waited for before."""
    without = "import threading\nimport concurrent.futures.thread\ndel threading._register_atexit\n"
    done = run_python(without + PROLOGUE + ANYBODY + "searcher = opened()\nsearcher.request(op)\n" + EPILOGUE)
    assert done.stderr.replace("simulated:0 is still busy; its threads are left to end by themselves\n", "") == ""
    assert time.monotonic() - float(done.stdout.split()[-1]) < LONGEST_S
    assert done.returncode == 0


def test_nothing_is_opened_while_the_interpreter_exits() -> None:
    done = run_python(
        PROLOGUE
        + """
searcher = opened()

def insist():
    say(lambda: searcher.select_blocking(op))
    say(lambda: searcher.select_blocking(op))
    say(opened)
    say(lambda: asyncio.run(select_algo(op)))

threading.Thread(target=insist).start()
"""
        + BLOCKED
        + EPILOGUE
    )
    assert done.returncode == 0
    assert done.stdout.split()[1:] == ["SearcherClosed"] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_of_a_fork_exits_in_time() -> None:
    """By the interpreter's own exit, not by `os._exit`; what the parent waits for is none of its concern."""
    done = run_python(
        PROLOGUE
        + """
backend.gates["launch"].open()
gate = backend.gates["build"]  # not in the lane: for the device itself a child has to wait
gate.close()
searcher = opened()
request = searcher.request(op)
assert gate.reached.wait(20)
if os.fork() == 0:
    gate.open()
    print(searcher.select_blocking(op).precision, flush=True)
    gate.close()
    searcher.request(ConvOp(input_shape=(2, 8, 8, 8), filter_shape=(8, 8, 3, 3)))
else:
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)
    gate.open()
    print(request.choice_blocking().precision)
"""
    )
    assert done.stdout.split() == ["final", "0", "final"]
    assert done.returncode == 0
