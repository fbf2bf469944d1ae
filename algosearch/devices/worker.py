"""`Worker`: one open device, driven by two pinned threads.

*Prepare* enumerates, probes and builds; the *lane* runs, times and checks, alone on the device. While the lane times
one key, prepare is at the next. The race itself (`algosearch.race`) runs in whichever thread carries out its
instructions: no loop and no other thread stands between two timed runs.

Guarantees:
- A session's calls come from these two threads only, one at a time on each.
- A search that is cancelled, or caught by `aclose`, stops between two instructions; a call that has begun is never
  interrupted, since a running kernel cannot be.
- Plans built for a search are destroyed, by the lane, whatever became of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from algosearch.backends import Backend, Device, Session
from algosearch.devices.lane import lane_of
from algosearch.ops import Op
from algosearch.pinned import PinnedThread
from algosearch.race import Build, Check, Finished, Instruction, Launch, Race, Time, Widen
from algosearch.records import Built, Burst, Environment, Failure, Listing, Policy, SearchMode, Trial

T = TypeVar("T")

logger = logging.getLogger("algosearch.devices")

_JOIN_S: Final = 1.0
"""How long `aclose` waits for a call that is under way before it leaves the daemon thread to itself."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker brings back from one key."""

    trials: tuple[Trial, ...]
    complete: bool
    seconds: float
    """At work on it in both threads; waiting for a turn not counted."""


class SearchStopped(Exception):
    """A search was given up between two instructions because its worker closes. Never reaches a caller."""


class Worker:
    """One device at work. Made closed; `open` it, and `aclose` it whatever happened."""

    def __init__(self, backend: Backend, device: Device) -> None:
        self.device = device
        self._backend = backend
        self._session: Session | None = None
        self._closing = threading.Event()
        self._prepare = PinnedThread(f"algosearch-prepare-{device.name}")
        self._lane = PinnedThread(f"algosearch-lane-{device.name}")

    def __repr__(self) -> str:
        state = "closing" if self._closing.is_set() else "open" if self._session else "not open"
        return f"<Worker {self.device.name} {state}>"

    @property
    def session(self) -> Session:
        """The open session."""
        assert self._session is not None, f"{self!r} is used before it is open"
        return self._session

    @property
    def survives_crashes(self) -> bool:
        """Whether this process outlives a candidate that kills the one in which it runs. If not, who wants to know what
        killed it must have written it down before the launch."""
        return False

    async def open(self) -> Environment:
        """Open the device, in the prepare thread.

        Raises:
            DeviceUnavailable: with the reason and the remedy.

        Cancellation: the opening goes on; `aclose` closes what it brings.
        """
        await self._prepare.run(self._open)
        return self.session.environment

    def _open(self) -> None:
        if not self._closing.is_set():
            self._session = self._backend.open(self.device)

    async def enumerate(self, op: Op, width: int | None) -> Listing:
        """The candidates of a canonical op, as `Session.enumerate`.

        Cancellation: what has begun ends by itself, its result dropped.
        """
        return await self._prepare.run(self.session.enumerate, op, width)

    async def search(
        self,
        op: Op,
        listing: Listing,
        *,
        policies: Sequence[Policy],
        mode: SearchMode,
        failed: Mapping[str, Failure] | None = None,
        on_trying: Callable[[str], None] = lambda trying: None,
        on_launch: Callable[[str], None] = lambda algorithm: None,
    ) -> Found:
        """Race the candidates of a canonical op. What finds no memory is tried once more at the end.

        Args:
            failed: what is known to fail, by algorithm: it is not tried.
            on_trying: told what comes next, in the worker's threads, for a progress line.
            on_launch: told the algorithm that is about to be run for the first time, in the lane's thread, which waits
                until it returns.

        Raises:
            whatever the backend raises, which is a broken contract; SearchStopped if the worker closes meanwhile.

        Cancellation: the search stops between two instructions; its plans are destroyed.
        """
        race = Race(listing, policies=tuple(policies), mode=mode, failed=failed)
        trip = _Trip(self.session, op, race, on_trying, on_launch, self._closing)
        try:
            while True:
                instruction = await self._prepare.run(trip.prepare)
                if not isinstance(instruction, Finished):
                    instruction = await self._lane.run(self._in_lane, trip)
                if isinstance(instruction, Finished) and not trip.try_again():
                    return Found(trials=instruction.trials, complete=instruction.complete, seconds=trip.seconds)
        finally:
            trip.stopped.set()
            self._lane.post(lambda: trip.destroy() if self._session is not None else None)

    def _in_lane(self, trip: _Trip) -> Instruction:
        with lane_of(self.device.identity):
            return trip.run_lane()

    async def aclose(self) -> None:
        """Stop both threads and close the session. Searches under way end between two instructions.

        Waits a second for calls under way, then leaves their daemon threads to themselves. Harmless if called twice.
        Must be shielded by the caller: it is short.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        closed = threading.Event()

        def close() -> None:
            # In the lane, behind what it has: nothing else may run beside it there.
            session, self._session = self._session, None
            if session is not None:
                try:
                    session.close()
                except BaseException:  # whatever it raises, `aclose` is to hear that it is over
                    logger.exception("closing %s failed", self.device.name)
            closed.set()

        # Behind whatever prepare is doing, then behind whatever the lane is doing.
        self._prepare.post(lambda: None if self._lane.post(close) else closed.set())
        self._prepare.stop()
        janitor = PinnedThread(f"algosearch-close-{self.device.name}")
        try:
            if not await janitor.run(closed.wait, _JOIN_S):
                logger.warning("%s is still busy; its thread is left to end by itself", self.device.name)
        finally:
            janitor.stop()
            self._lane.stop()


class _Trip:
    """One key's way through the two threads. Only one of them touches it at a time."""

    def __init__(
        self,
        session: Session,
        op: Op,
        race: Race,
        on_trying: Callable[[str], None],
        on_launch: Callable[[str], None],
        closing: threading.Event,
    ) -> None:
        self.stopped = threading.Event()
        """Set when whoever asked for the search has gone."""
        self.seconds = 0.0
        self._session = session
        self._op = op
        self._race = race
        self._on_trying = on_trying
        self._on_launch = on_launch
        self._closing = closing
        self._plans: dict[int, int] = {}
        """Plan numbers by rank."""
        self._spare: dict[int, int] = {}
        """The same of those whose workspace found no memory."""
        self._short: set[int] = set()
        """Who failed for want of memory."""
        self._is_second_try = False

    def prepare(self) -> Instruction:
        """Carry out what is for the prepare thread, until the lane's turn or the end."""
        start = perf_counter()
        try:
            while True:
                instruction = self._next()
                if isinstance(instruction, Build | Widen):
                    self._on_trying(self._race.trying)
                if isinstance(instruction, Build):
                    self._race.tell(tuple(self._build(rank) for rank in instruction.ranks))
                elif isinstance(instruction, Widen):
                    self._race.tell(self._session.enumerate(self._op, instruction.width))
                else:
                    return instruction
        finally:
            self.seconds += perf_counter() - start

    def run_lane(self) -> Instruction:
        """Load the buffers and carry out what is for the lane, until prepare's turn or the end."""
        start = perf_counter()
        try:
            instruction = self._load()
            while True:
                self._on_trying(self._race.trying)
                if isinstance(instruction, Launch):
                    self._race.tell(tuple(self._launch(rank, instruction.limit_us) for rank in instruction.ranks))
                elif isinstance(instruction, Time):
                    bursts = tuple((self._plans[rank], repeats) for rank, repeats in instruction.bursts)
                    ranks = (rank for rank, _ in instruction.bursts)
                    self._race.tell(tuple(map(self._noted, ranks, self._session.time(bursts, instruction.limit_us))))
                elif isinstance(instruction, Check):
                    against = None if instruction.against is None else self._plans[instruction.against]
                    self._race.tell(self._session.check(self._plans[instruction.rank], against))
                else:
                    return instruction
                instruction = self._next()
        finally:
            self._session.unload()
            self.seconds += perf_counter() - start

    def try_again(self) -> bool:
        """Whether there is more to do after all: whoever found no memory gets another chance, once, now that nothing of
        this search is loaded. To be called between two instructions."""
        if self._is_second_try or not self._short:
            return False
        self._is_second_try = True
        self._race.forgive(self._short)
        self._plans |= self._spare
        self._spare = {}
        return True

    def destroy(self) -> None:
        """Give every plan back; in the lane."""
        plans = (*self._plans.values(), *self._spare.values())
        self._plans, self._spare = {}, {}
        try:
            self._session.destroy(plans)
        except BaseException:  # nobody waits for this who could be told
            logger.exception("destroying plans failed")

    def _check_wanted(self) -> None:
        if self.stopped.is_set() or self._closing.is_set():
            raise SearchStopped

    def _next(self) -> Instruction:
        self._check_wanted()
        return self._race.next()

    def _build(self, rank: int) -> Built | Failure:
        self._check_wanted()
        built = self._session.build(self._op, self._race.candidates[rank])
        if isinstance(built, Failure):
            return self._noted(rank, built)
        self._plans[rank] = built.plan
        return built

    def _launch(self, rank: int, limit_us: float | None) -> Burst | Failure:
        self._check_wanted()
        self._on_launch(self._race.candidates[rank].algorithm)
        return self._noted(rank, self._session.launch(self._plans[rank], limit_us))

    def _noted(self, rank: int, outcome: T) -> T | Failure:
        """An outcome; who had no memory is written down, and how often."""
        if not isinstance(outcome, Failure) or outcome.kind != "out_of_memory":
            return outcome
        if rank not in self._short:
            self._short.add(rank)
            return outcome
        return replace(outcome, circumstances=(*outcome.circumstances, ("attempts", "2")))

    def _load(self) -> Instruction:
        """Buffers for the op and the largest workspace among the built; out of memory means fewer candidates."""
        while True:
            instruction = self._next()
            if isinstance(instruction, Finished):
                return instruction
            hungriest_first = sorted(
                self._plans, key=lambda rank: self._race.candidates[rank].workspace_bytes, reverse=True
            )
            if not hungriest_first:
                return instruction
            most = self._race.candidates[hungriest_first[0]].workspace_bytes
            failure = self._session.load(self._op, most)
            if failure is None:
                return instruction
            dropped = tuple(rank for rank in hungriest_first if self._race.candidates[rank].workspace_bytes == most)
            for rank in dropped:
                self._spare[rank] = self._plans.pop(rank)
                self._race.drop((rank,), self._noted(rank, failure))
