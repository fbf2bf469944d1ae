"""`Engine`: the one place where searches happen: a loop of its own in one daemon thread of the process.

Callers' loops hold nothing but waiters. So searches go on while a caller computes, all loops and threads of the process
share one flight a key, and opening a searcher holds no scope in the caller's task. Rejected: a task group in the
caller's task (measured: 1.6 s instead of 1.0 for a caller that computes while 100 keys are searched).

Callers' threads only post messages; everything else happens on the loop. `serve` is an ordinary coroutine, so that
tests drive it on a loop of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Final, Literal
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

from algosearch.backends import Backend, Device
from algosearch.devices.pool import Pool
from algosearch.errors import AlgosearchError, SearcherClosed
from algosearch.forks import renew_in_children
from algosearch.records import Environment, Record
from algosearch.search.answers import Answers
from algosearch.search.callbacks import context_of_callbacks
from algosearch.search.claims import EXPIRY_S, PATIENCE_S, Claims
from algosearch.search.contained import ContainedStore
from algosearch.search.counts import ClaimCounts, Counts
from algosearch.search.inquiry import Inquiries, Inquiry
from algosearch.search.lineup import Lineup
from algosearch.search.loop import run
from algosearch.search.milestone import Milestone, gathering
from algosearch.search.statistics import EngineStatistics, FlightStatus
from algosearch.search.stillness import Hush, Stillness
from algosearch.search.tiers import Tiers
from algosearch.search.tower import Tower
from algosearch.search.verification import Verification, Verifier
from algosearch.settings import Isolation
from algosearch.stores.base import Store

logger = logging.getLogger("algosearch.engine")

Message = Literal["submit", "withdraw", "list", "hush", "resume", "verify"]
Subject = Inquiries | Hush | Verification
_ANSWERED: Final[frozenset[Message]] = frozenset({"submit", "hush", "verify"})
"""Messages whose sender waits for something."""


class Engine:
    """Owns the tiers, the pools, the tower and its claims. Made stopped; `start` it in a thread, or `serve` it on a
    loop.

    Args:
        lineup: the devices to serve.
        home: makes the store, anew in each process that this engine comes to live in.
        base: makes the store that is only read, likewise; None if there is none.
        isolation: where the devices' sessions live; None for what each backend says.
        expiry_s: how long a key that this engine has claimed holds other processes up after its last sign of life.
        patience_s: how long it waits for another process that keeps a claim alive and shows no progress.

    Fork: in the child it is as new but for the records that it remembers, and asleep until something is submitted.
    Nothing else that it owned in the parent is used.
    """

    def __init__(
        self,
        lineup: Lineup,
        home: Callable[[], Store],
        *,
        base: Callable[[], Store] | None = None,
        isolation: Isolation | None = None,
        expiry_s: float = EXPIRY_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.lineup = lineup
        self._home = home
        self._base = base
        self._isolation = isolation
        self._lease = {"expiry_s": expiry_s, "patience_s": patience_s}
        self._stopping = False
        self._tables: WeakSet[Answers] = WeakSet()
        """Of answers that were given."""
        self._store = ContainedStore(home())
        self._tiers = Tiers(self._store, base=None if base is None else ContainedStore(base()))
        self._reset()
        renew_in_children(self)

    def _reset(self) -> None:
        self.ready: Milestone[tuple[Device, ...]] = Milestone()
        """The store is open (or given up) and there is somebody to ask."""
        self.ended: Milestone[None] = Milestone()
        """Everything is closed."""
        self._stillness = Stillness(self._all_pools)
        self._tasks: TaskGroup | None = None
        self._pools: dict[str, Pool] = {}
        """By device name; devices of one kind share one."""
        self._tower: Tower | None = None
        """From the moment that it serves."""
        self._verifier: Verifier | None = None
        """While it serves."""
        self._inbox: deque[tuple[Message, Subject]] = deque()
        self._inbox_lock = threading.Lock()
        self._woken = False
        self._serving = False
        """True once what is posted can be worked on."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = copy_context()
        """Of callbacks."""
        self._stop = asyncio.Event()
        self._asleep = False
        """True in a child until the first question, or until it is woken."""

    def renew_after_fork(self) -> None:
        """As `Renewable`."""
        over = self._stopping or self.ended.happened
        self._store = ContainedStore(self._home())
        self._tiers = self._tiers.renewed(self._store, None if self._base is None else ContainedStore(self._base()))
        self._reset()
        self._asleep = not over
        if over:
            self._bury(SearcherClosed())

    def __repr__(self) -> str:
        state = "ended" if self.ended.happened else "stopping" if self._stopping else "serving"
        return f"<Engine {state}, {len(self.flights())} flights, {len(self._pools)} devices>"

    # -- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Serve in a daemon thread of its own."""
        threading.Thread(target=self._run, name="algosearch-engine", daemon=True).start()

    @property
    def asleep(self) -> bool:
        """True in a child that has asked nothing yet."""
        return self._asleep

    def wake(self) -> None:
        """Start it if it is asleep."""
        with self._inbox_lock:
            asleep, self._asleep = self._asleep, False
        if asleep:
            self.start()

    def keep_true(self, table: Answers) -> None:
        """Have a table of answers revised with whatever all hosts agree on later, for as long as it lives."""
        self._tables.add(table)

    def submit(self, inquiries: Iterable[Inquiry]) -> None:
        """Take inquiries, all for one device; each will be answered or failed."""
        self._post("submit", Inquiries(inquiries))

    def withdraw(self, inquiry: Inquiry) -> None:
        """Nobody has an open request for it any more."""
        self._post("withdraw", Inquiries([inquiry]))

    def list_now(self, inquiry: Inquiry) -> None:
        """Ask for the candidates of its key at once, before its turn: a deadline has passed."""
        self._post("list", Inquiries([inquiry]))

    def verify(self, verification: Verification) -> None:
        """Take a verification; it will be decided or failed."""
        self._post("verify", verification)

    def give_up(self, verification: Verification) -> None:
        """Nobody waits for a verification any more."""
        with self._inbox_lock:
            if self._loop is not None and not self._stopping:
                self._loop.call_soon_threadsafe(verification.give_up)

    def hush(self) -> Hush:
        """Let every device rest, from `Hush.held` on until `resume`."""
        hush = Hush()
        self._post("hush", hush)
        return hush

    def resume(self, hush: Hush) -> None:
        """Go on, unless somebody else wants quiet."""
        self._post("resume", hush)

    def stop(self) -> None:
        """Begin to end, even while it opens; `ended` happens when all is closed. Harmless if called twice."""
        with self._inbox_lock:
            self._stopping = True
            loop = self._loop
            asleep, self._asleep = self._asleep, False
        if asleep:
            self._bury(SearcherClosed())
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(self._stop.set)

    def flights(self) -> tuple[FlightStatus, ...]:
        """What is under way."""
        return () if self._tower is None else self._tower.flights()

    def environments(self) -> list[Environment]:
        """Those of the devices that were opened so far."""
        known = [pool.known_environment for pool in self._all_pools()]
        return [environment for environment in known if environment is not None]

    def statistics(self) -> EngineStatistics:
        """A snapshot."""
        counts = Counts() if self._tower is None else self._tower.counts
        claims = ClaimCounts() if self._tower is None else self._tower.claims.counts
        store, base = self._tiers.store, self._tiers.base
        return EngineStatistics(
            store=None if store is None else store.location,
            store_trouble=self._tiers.trouble,
            base=None if base is None else base.location,
            not_kept=self._store.not_kept,
            incomplete={
                f"{environment.backend} on {environment.device}": environment.incomplete
                for environment in self.environments()
                if environment.incomplete is not None
            },
            **counts.facts(),
            **claims.facts(),
        )

    def _post(self, message: Message, subject: Subject) -> None:
        try:
            with self._inbox_lock:
                refused = self._stopping
                if not refused:
                    self._inbox.append((message, subject))
                    wake = not self._woken and self._serving
                    self._woken = self._woken or wake
            if refused:
                if message in _ANSWERED:
                    subject.fail(SearcherClosed())
            elif wake:
                assert self._loop is not None
                with contextlib.suppress(RuntimeError):  # ended in between: `_bury` has emptied the inbox
                    self._loop.call_soon_threadsafe(self._drain, context=self._context)
            elif message in _ANSWERED and self._asleep:
                self.wake()
        except BaseException:  # a signal's, Ctrl-C say: nobody else would wake it ever again
            self._woken = False
            raise

    # -- in the engine's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            run(self.serve())
        except BaseException:  # a task of a store's or backend's own may have raised whatever it likes
            logger.exception("the engine broke")
        finally:  # harmless if it ended in good order
            self._bury(SearcherClosed("its engine broke, as the log says; open another searcher"))

    async def serve(self) -> None:
        """Serve until `stop`, then close everything and fail what is still open.

        Cancellation: the same as `stop`.
        """
        with gathering():
            try:
                with self._inbox_lock:
                    self._loop = asyncio.get_running_loop()
                    self._context = context_of_callbacks()
                    if self._stopping:
                        self._stop.set()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._open, tasks)
                    await self._stop.wait()
                    tasks.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._close()

    async def _open(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        claims = Claims(self._tiers, tasks, **self._lease)
        self._tower = Tower(self._tiers, tasks, claims)
        self._store.watch(self._revised)
        self._verifier = Verifier(self._tiers, tasks, self._all_pools)
        await self._tiers.open()
        self._sort_devices(tasks, claims)
        with self._inbox_lock:
            self._serving = True
        self.ready.set(tuple(device for _, device in self.lineup.devices))
        self._drain()

    def _sort_devices(self, tasks: TaskGroup, claims: Claims) -> None:
        quiet = self._stillness.quiet
        kinds: dict[tuple[int, str], list[tuple[Backend, Device]]] = {}
        for backend, device in self.lineup.devices:
            kinds.setdefault((id(backend), device.kind), []).append((backend, device))
        for members in kinds.values():
            backend, devices = members[0][0], [device for _, device in members]
            pool = Pool(backend, devices, tasks, rivals=claims.rivals, isolation=self._isolation, quiet=quiet)
            self._pools |= {device.name: pool for device in pool.devices}
        for _, device in self.lineup.devices:
            self._pools.setdefault(device.backend, self._pools[device.name])

    def _all_pools(self) -> tuple[Pool, ...]:
        return tuple(dict.fromkeys(self._pools.values()))

    def _pool_of(self, device: str | None) -> Pool:
        if device is None:
            if not self.lineup.devices:
                raise self.lineup.refusal()
            return self._pools[self.lineup.names[0]]
        try:
            return self._pools[device]
        except KeyError:
            raise self.lineup.unknown([device], tuple(self._pools)) from None

    def _drain(self) -> None:
        """Take what was posted; questions asked in one turn are read from the store in one trip."""
        with self._inbox_lock:
            messages = tuple(self._inbox)
            self._inbox.clear()
            self._woken = False
        try:
            self._hand_out(messages)
        except Exception:  # a bug of ours, or it is ending: even so nobody waits for ever
            logger.exception("taking what was posted broke")
            for message, subject in messages:
                if message in _ANSWERED:
                    subject.fail(SearcherClosed("its engine broke over this, as the log says"))

    def _hand_out(self, messages: Sequence[tuple[Message, Subject]]) -> None:
        assert self._tower is not None
        assert self._tasks is not None
        submitted: dict[Pool, list[Inquiry]] = {}
        for message, subject in messages:
            if isinstance(subject, Hush):
                if message == "hush":
                    self._stillness.begin(subject, self._tasks)
                else:
                    self._stillness.end(subject)
                continue
            if isinstance(subject, Verification):
                if self._verifier is None:
                    subject.fail(SearcherClosed())
                else:
                    self._verifier.begin(subject)
                continue
            try:
                pool = self._pool_of(subject[0].question.device)
            except AlgosearchError as error:
                subject.fail(error)
                continue
            if message == "submit":
                submitted.setdefault(pool, []).extend(subject)
            elif message == "withdraw":
                self._tower.withdraw(pool, subject[0])
            else:
                self._tower.list_now(pool, subject[0])
        for pool, inquiries in submitted.items():
            self._tower.admit(pool, inquiries)

    def _revised(self, pairs: Sequence[tuple[Record, Record]]) -> None:
        """All hosts have agreed on these, whatever was given before."""
        if self._tower is None:
            return
        after = {record.key.digest: record for _, record in pairs}
        self._tower.revised(after)
        changed = sum(table.revise(after) for table in tuple(self._tables))
        self._tower.counts.note_agreement(pairs, changed)

    async def _close(self) -> None:
        self._verifier = None
        with self._inbox_lock:
            asked, self._stopping = self._stopping, True
        closed = "the searcher was closed before this was answered"
        error = SearcherClosed(closed if asked else "its engine broke before this was answered, as the log says")
        self._stillness.fail_all(error)
        if self._tower is not None:
            self._tower.fail_all(error)
        try:
            if self._tower is not None:
                await self._tower.claims.aclose()
            async with anyio.create_task_group() as tasks:
                for pool in self._all_pools():
                    tasks.start_soon(pool.aclose)
                tasks.start_soon(self._tiers.aclose)
        finally:  # whatever breaks while it closes, nobody waits for its end for ever
            self._bury(error)

    def _bury(self, error: SearcherClosed) -> None:
        """The end: nothing is answered any more. Harmless if called twice."""
        with self._inbox_lock:
            self._stopping = True
            messages = tuple(self._inbox)
            self._inbox.clear()
        for message, subject in messages:
            if message in _ANSWERED:
                subject.fail(error.again())
        self.ready.fail(error)
        self.ended.set(None)
