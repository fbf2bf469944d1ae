"""`Engine`: the one place where searches happen: a loop of its own in one daemon thread of the process.

Callers' loops hold nothing but waiters. So searches go on while a caller computes, all loops and threads of the process
share one flight a key, and opening a searcher holds no scope in the caller's task. Rejected: a task group in the
caller's task (measured: 1.6 s instead of 1.0 for a caller that computes while 100 keys are searched).

Callers' threads only post messages; everything else happens on the loop. `serve` is an ordinary coroutine, so that
tests drive it on a loop of theirs.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

import anyio
from anyio.abc import TaskGroup

from algosearch.backends import Backend, Device
from algosearch.devices.pool import Pool
from algosearch.errors import DeviceUnavailable, SearcherClosed, UnknownDevice
from algosearch.pinned import PinnedThread
from algosearch.search.inquiry import Inquiry
from algosearch.search.milestone import Milestone, gathering
from algosearch.search.statistics import EngineStatistics, FlightStatus
from algosearch.search.tiers import Tiers
from algosearch.search.tower import Counts, Tower
from algosearch.stores.base import Store

logger = logging.getLogger("algosearch.engine")

EXIT_S: Final = 2.0
"""The longest that engines may hold up the interpreter's exit, all together."""

Message = Literal["submit", "withdraw", "list"]


class Engine:
    """Owns the tiers, the pools and the tower. Made stopped; `start` it in a thread, or `serve` it on a loop."""

    def __init__(
        self,
        backends: Sequence[Backend],
        store: Store | None,
        *,
        devices: Sequence[str] | None = None,
        base: Store | None = None,
    ) -> None:
        self.ready: Milestone[tuple[Device, ...]] = Milestone()
        """The store is open (or given up) and the devices are known."""
        self.ended: Milestone[None] = Milestone()
        """Everything is closed."""
        self._backends = tuple(backends)
        self._wanted_devices = None if devices is None else tuple(devices)
        self._tiers = Tiers(store, base=base)
        self._pools: dict[str, Pool] = {}
        """By device name; devices of one kind share one."""
        self._default_pool: Pool | None = None
        self._found_devices: tuple[str, ...] = ()
        """Names of all, wanted or not."""
        self._tower: Tower | None = None
        """From the moment that it serves."""
        self._inbox: deque[tuple[Message, Inquiry]] = deque()
        self._inbox_lock = threading.Lock()
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "ended" if self.ended.happened else "stopping" if self._stopping else "serving"
        return f"<Engine {state}, {len(self.flights())} flights, {len(self._pools)} devices>"

    # -- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Serve in a daemon thread of its own."""
        self._thread = threading.Thread(target=self._run, name="algosearch-engine", daemon=True)
        _RUNNING.add(self)
        self._thread.start()

    def submit(self, inquiry: Inquiry) -> None:
        """Take an inquiry; it will be answered or failed."""
        self._post("submit", inquiry)

    def withdraw(self, inquiry: Inquiry) -> None:
        """Nobody has an open request for it any more."""
        self._post("withdraw", inquiry)

    def list_now(self, inquiry: Inquiry) -> None:
        """Ask for the candidates of its key at once, before its turn: a deadline has passed."""
        self._post("list", inquiry)

    def stop(self) -> None:
        """Begin to end; `ended` happens when all is closed. Harmless if called twice."""
        with self._inbox_lock:
            self._stopping = True
            loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(self._stop.set)

    def flights(self) -> tuple[FlightStatus, ...]:
        """What is under way."""
        return () if self._tower is None else self._tower.flights()

    def statistics(self) -> EngineStatistics:
        """A snapshot."""
        counts = Counts() if self._tower is None else self._tower.counts
        store, base = self._tiers.store, self._tiers.base
        return EngineStatistics(
            store=None if store is None else store.location,
            store_trouble=self._tiers.trouble,
            base=None if base is None else base.location,
            store_hits=counts.store_hits,
            store_misses=dict(counts.store_misses),
            memory_hits=counts.memory_hits,
            listings=counts.listings,
            searched=counts.searched,
            trials=counts.trials,
            failed=counts.failed,
            dropped=counts.dropped,
            search_seconds=counts.search_seconds,
        )

    def _post(self, message: Message, inquiry: Inquiry) -> None:
        with self._inbox_lock:
            refused = self._stopping
            if not refused:
                self._inbox.append((message, inquiry))
                wake = not self._woken and self._loop is not None
                self._woken = self._woken or wake
        if refused:
            if message == "submit":
                inquiry.fail(SearcherClosed())
        elif wake:
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # ended in between: `_close` has emptied the inbox
                self._loop.call_soon_threadsafe(self._drain)

    # -- in the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self.serve())
        except Exception:
            logger.exception("the engine broke")
        finally:
            _RUNNING.discard(self)

    async def serve(self) -> None:
        """Serve until `stop`, then close everything and fail what is still open.

        Cancellation: the same as `stop`.
        """
        with gathering():
            await self._serve()

    async def _serve(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tower = Tower(self._tiers, tasks)
                await self._tiers.open()
                self._sort_devices(await self._find_devices(), tasks)
                with self._inbox_lock:
                    self._loop = asyncio.get_running_loop()
                    stopping = self._stopping
                if not stopping:
                    self.ready.set(tuple(device for pool in self._all_pools() for device in pool.devices))
                    self._drain()
                    await self._stop.wait()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()

    async def _find_devices(self) -> tuple[tuple[Backend, Device], ...]:
        finder = PinnedThread("algosearch-find-devices")  # looking for a device may load a library
        try:
            found = []
            for backend in self._backends:
                try:
                    found += [(backend, device) for device in await finder.run(backend.devices)]
                except Exception:  # a broken library must not cost the others' devices
                    logger.exception("looking for devices of %s broke", backend.name)
        finally:
            finder.stop()
        self._found_devices = tuple(device.name for _, device in found)
        wanted = self._wanted_devices
        return tuple((b, d) for b, d in found if wanted is None or d.name in wanted or d.backend in wanted)

    def _sort_devices(self, found: Sequence[tuple[Backend, Device]], tasks: TaskGroup) -> None:
        kinds: dict[tuple[int, str], list[tuple[Backend, Device]]] = {}
        for backend, device in found:
            kinds.setdefault((id(backend), device.kind), []).append((backend, device))
        for members in kinds.values():
            pool = Pool(members[0][0], [device for _, device in members], tasks)
            for device in pool.devices:
                self._pools[device.name] = pool
        for backend, device in found:
            self._pools.setdefault(backend.name, self._pools[device.name])
        self._default_pool = self._pools[found[0][1].name] if found else None

    def _all_pools(self) -> tuple[Pool, ...]:
        return tuple(dict.fromkeys(self._pools.values()))

    def _pool_of(self, device: str | None) -> Pool:
        if device is None:
            if self._default_pool is None and self._wanted_devices is not None:
                raise UnknownDevice(", ".join(self._wanted_devices), self._found_devices)
            if self._default_pool is None:
                raise DeviceUnavailable(
                    ", ".join(backend.name for backend in self._backends) or "no backend",
                    "it found no device",
                    "name another backend, or install what this one needs",
                )
            return self._default_pool
        try:
            return self._pools[device]
        except KeyError:
            raise UnknownDevice(device, tuple(self._pools)) from None

    def _drain(self) -> None:
        """Take what was posted; questions asked in one turn are read from the store in one trip."""
        with self._inbox_lock:
            messages = tuple(self._inbox)
            self._inbox.clear()
            self._woken = False
        assert self._tower is not None
        submitted: dict[Pool, list[Inquiry]] = {}
        for message, inquiry in messages:
            try:
                pool = self._pool_of(inquiry.question.device)
            except (DeviceUnavailable, UnknownDevice) as error:
                inquiry.fail(error)
                continue
            if message == "submit":
                submitted.setdefault(pool, []).append(inquiry)
            elif message == "withdraw":
                self._tower.withdraw(pool, inquiry)
            else:
                self._tower.list_now(pool, inquiry)
        for pool, inquiries in submitted.items():
            self._tower.admit(pool, inquiries)

    async def _close(self) -> None:
        with self._inbox_lock:
            self._stopping = True
            messages = tuple(self._inbox)
            self._inbox.clear()
        closed = SearcherClosed("the searcher was closed before this was answered")
        for message, inquiry in messages:
            if message == "submit":
                inquiry.fail(closed.again())
        if self._tower is not None:
            self._tower.fail_all(closed)
        try:
            async with anyio.create_task_group() as tasks:
                for pool in self._all_pools():
                    tasks.start_soon(pool.aclose)
                tasks.start_soon(self._tiers.aclose)
        finally:  # whatever breaks while it closes, nobody waits for its end for ever
            self.ready.fail(closed)
            self.ended.set(None)


_RUNNING: weakref.WeakSet[Engine] = weakref.WeakSet()


def _stop_all() -> None:
    """At interpreter exit: daemon threads are about to freeze, so whatever still serves gets its chance to close."""
    engines = tuple(_RUNNING)
    for engine in engines:
        engine.stop()
    deadline = time.monotonic() + EXIT_S
    for engine in engines:
        engine.ended.wait_blocking(max(0.0, deadline - time.monotonic()))


atexit.register(_stop_all)
