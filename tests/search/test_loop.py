"""The engine's loop: woken from any thread, and otherwise asyncio's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import pytest

from algosearch.search import loop as module
from algosearch.search.loop import EngineLoop, run
from algosearch.unyielding import AVAILABLE, UnyieldingSocket
from tests.forking import in_child

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="asyncio's own loop is used")

POSTS = 2_000
THREADS = 4
_LIMIT_S = 30.0


class Counting(EngineLoop):
    """Counts how often it was rung for."""

    rings = 0

    def _ring(self) -> None:
        self.rings += 1
        super()._ring()


def played(main: Callable[[Counting], Coroutine[Any, Any, None]]) -> Counting:
    """Run a coroutine function on such a loop, and close it."""
    loop = Counting()
    loop.set_debug(False)  # whatever the environment says: in debug mode it is asyncio's that posts
    try:
        loop.run_until_complete(asyncio.wait_for(main(loop), _LIMIT_S))
    finally:
        loop.close()
    return loop


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_it_is_what_engines_run_on() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())

    run(main())
    assert isinstance(loops[0], EngineLoop)
    assert loops[0].is_closed()


def test_elsewhere_it_is_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AVAILABLE", False)
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())

    run(main())
    assert not isinstance(loops[0], EngineLoop)


def test_whoever_posts_wakes_a_loop_that_sleeps() -> None:
    async def main(loop: Counting) -> None:
        for _ in range(200):
            woken = loop.create_future()
            thread = in_thread(partial(loop.call_soon_threadsafe, woken.set_result, None))
            await woken
            thread.join(_LIMIT_S)

    played(main)


def test_posts_of_several_threads_all_come_each_threads_in_order() -> None:
    arrived: list[tuple[int, int]] = []

    def post(loop: EngineLoop, thread: int) -> None:
        for n in range(POSTS):
            loop.call_soon_threadsafe(arrived.append, (thread, n))

    async def main(loop: Counting) -> None:
        threads = [in_thread(partial(post, loop, n)) for n in range(THREADS)]
        while len(arrived) < POSTS * THREADS:
            await asyncio.sleep(0.001)
        for thread in threads:
            thread.join(_LIMIT_S)
        await asyncio.sleep(0)

    played(main)
    for thread in range(THREADS):
        assert [n for who, n in arrived if who == thread] == list(range(POSTS))


def test_what_comes_before_it_is_awake_rings_once() -> None:
    arrived: list[int] = []

    def post(loop: EngineLoop) -> None:
        for n in range(POSTS):
            loop.call_soon_threadsafe(arrived.append, n)

    async def main(loop: Counting) -> None:
        for round_ in range(1, 3):
            in_thread(partial(post, loop)).join(_LIMIT_S)  # the loop does not turn meanwhile
            while len(arrived) < POSTS * round_:
                await asyncio.sleep(0)
            await asyncio.sleep(0.001)  # the byte is read
            assert loop.rings == round_

    played(main)


def test_a_full_socket_loses_nothing() -> None:
    async def main(loop: Counting) -> None:
        while loop._send(b"\0" * 1000):
            pass
        woken = loop.create_future()
        thread = in_thread(partial(loop.call_soon_threadsafe, woken.set_result, None))
        await woken
        thread.join(_LIMIT_S)
        again = loop.create_future()
        in_thread(partial(loop.call_soon_threadsafe, again.set_result, None)).join(_LIMIT_S)
        await again

    played(main)


def test_a_signal_that_is_raised_in_who_rings_costs_no_wake_up() -> None:
    """Neither its own nor that of another thread, which has seen that somebody rings."""

    class Signal(BaseException):
        pass

    def post_and_be_interrupted(loop: Counting, own: Callable[[], None], others: Callable[[], None]) -> None:
        def send(raw: bytes) -> int:
            loop._send = sends
            in_thread(partial(loop.call_soon_threadsafe, others)).join(_LIMIT_S)
            raise Signal

        sends, loop._send = loop._send, send
        with pytest.raises(Signal):
            loop.call_soon_threadsafe(own)

    async def main(loop: Counting) -> None:
        own, others, later = asyncio.Event(), asyncio.Event(), asyncio.Event()
        thread = in_thread(partial(post_and_be_interrupted, loop, own.set, others.set))
        await own.wait()
        await others.wait()
        thread.join(_LIMIT_S)
        rings = loop.rings
        in_thread(partial(loop.call_soon_threadsafe, later.set)).join(_LIMIT_S)
        await later.wait()
        assert loop.rings == rings + 1, "whoever comes rings again"

    played(main)


@pytest.mark.parametrize("times", [1, 3])
def test_whoever_ends_the_loop_does_not_end_what_it_is_run_for(times: int) -> None:
    ended: list[str] = []

    def end() -> None:
        raise SystemExit(3)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(end)
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(times - 1):
                loop.call_soon(end)
                await asyncio.sleep(0.001)
            ended.append("in good order")

    with pytest.raises(SystemExit):
        run(main())
    assert ended == ["in good order"]


def test_a_closed_loop_refuses_and_is_closed_twice() -> None:
    async def main(loop: Counting) -> None:
        pass

    loop = played(main)
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon_threadsafe(print)


def test_it_cannot_be_closed_while_it_runs() -> None:
    async def main(loop: Counting) -> None:
        with pytest.raises(RuntimeError, match="running"):
            loop.close()
        woken = loop.create_future()
        in_thread(partial(loop.call_soon_threadsafe, woken.set_result, None))
        await woken

    played(main)


def test_threads_that_post_while_it_is_closed_write_to_no_other_file() -> None:
    """Whoever gets the number of a closed file hears nothing of it."""
    for _ in range(50):
        loop = EngineLoop()
        ready = threading.Event()

        def post(loop: EngineLoop = loop, ready: threading.Event = ready) -> None:
            with contextlib.suppress(RuntimeError):  # it is closed
                while True:
                    loop.call_soon_threadsafe(int)
                    loop._rung = False  # so that each of them rings
                    ready.set()

        thread = in_thread(post)
        assert ready.wait(_LIMIT_S)
        loop.close()
        others = [socket.socketpair() for _ in range(4)]
        thread.join(_LIMIT_S)
        for pair in others:
            for end in pair:
                end.setblocking(False)
                with pytest.raises(BlockingIOError):
                    end.recv(1)
        for pair in others:
            for end in pair:
                end.close()


def test_its_files_are_closed_with_it() -> None:
    def left() -> int:
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            loop = EngineLoop()
            loop.close()
            del loop
        gc.collect()
        return len(os.listdir("/proc/self/fd")) - before

    assert in_child(left) == "0", "where no thread of another test opens and closes any"


def test_a_post_can_be_taken_back_and_keeps_its_context() -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")
    context = copy_context()
    context.run(name.set, "somebody")
    seen: list[str] = []

    async def main(loop: Counting) -> None:
        loop.call_soon_threadsafe(lambda: seen.append("taken back")).cancel()
        loop.call_soon_threadsafe(lambda: seen.append(name.get()), context=context)
        loop.call_soon_threadsafe(lambda: seen.append(name.get()))
        await asyncio.sleep(0.01)

    played(main)
    assert seen == ["somebody", "nobody"]


def test_in_debug_mode_it_is_woken_as_well() -> None:
    async def main(loop: Counting) -> None:
        loop.set_debug(True)
        woken = loop.create_future()
        thread = in_thread(partial(loop.call_soon_threadsafe, woken.set_result, None))
        await woken
        thread.join(_LIMIT_S)

    played(main)


def test_timers_and_much_traffic_on_many_sockets() -> None:
    """Both ways at once, more than a socket holds, over transports of asyncio's."""
    payload = bytes(range(256)) * 8192

    async def main(loop: Counting) -> None:
        async def exchange(end: socket.socket) -> bytes:
            reader, writer = await asyncio.open_unix_connection(sock=end)
            writer.write(payload)
            received = await reader.readexactly(len(payload))
            writer.close()
            await writer.wait_closed()
            return received

        ends = [end for _ in range(40) for end in UnyieldingSocket.pair()]
        before = loop.time()
        received, _ = await asyncio.gather(asyncio.gather(*map(exchange, ends)), asyncio.sleep(0.05))
        assert loop.time() - before >= 0.05
        assert all(each == payload for each in received)

    played(main)


def test_a_fork_that_posts_to_it_leaves_the_parents_loop_alone() -> None:
    async def main(loop: Counting) -> None:
        arrived: list[str] = []
        assert in_child(lambda: loop.call_soon_threadsafe(arrived.append, "child").cancelled()) == "False"
        loop.call_soon_threadsafe(arrived.append, "parent")
        await asyncio.sleep(0.01)
        assert arrived == ["parent"]

    played(main)
