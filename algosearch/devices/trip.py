"""`Trip`: one key's way through the threads of a device, from listing to trials.

The race (`algosearch.race`) runs in whichever thread carries out its instructions, and they hand the trip over to each
other: no loop and no other thread stands between two timed runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from algosearch.devices.blame import HARMLESS, Blame, DeviceSpoilt, whose_fault
from algosearch.devices.job import FOR_EVER_S, Deed, Found, Job, MustCompile, SearchStopped, Side, Step, Worked
from algosearch.ops import Op
from algosearch.pinned import as_exception
from algosearch.race import Build, Check, Finished, Instruction, Launch, Race, Time, Widen
from algosearch.records import Built, Burst, Failure, Listing

if TYPE_CHECKING:
    from algosearch.devices.threads import DeviceThreads

logger = logging.getLogger("algosearch.devices")

T = TypeVar("T")

_LONGER: Final = 10.0
"""A round may take so many times what its first runs took, on top of the limit for a run."""


def worked(side: Side, op: Op, began_s: float, waited_s: float) -> Worked:
    """The turn that ends now."""
    return Worked(side=side, problem=op.describe(), began_s=began_s, ended_s=perf_counter(), waited_s=waited_s)


class Trip:
    """One search. Only one of the threads touches it at a time."""

    def __init__(
        self,
        threads: DeviceThreads,
        number: int,
        job: Job,
        then: Callable[[Found | None, BaseException | None], None],
        *,
        listed: Callable[[Listing], None],
    ) -> None:
        self._threads = threads
        self._number = number
        self._job = job
        self._racing = None if job.listing is None else self._race_of(job.listing)
        self._then = then
        self._listed = listed
        self._stopped = threading.Event()
        self._built: dict[int, Built | Failure] = {}
        """By rank, what became so far of those that the race has asked to build."""
        self._has_built = False
        self._plans: dict[int, int] = {}
        """Plan numbers by rank."""
        self._spare: dict[int, int] = {}
        """The same of those whose workspace found no memory."""
        self._short: set[int] = set()
        """Who failed for want of memory."""
        self._is_second_try = False
        self._launch_us: dict[int, float] = {}
        self._busy_s = 0.0
        self._idle_s = 0.0
        """Of the busy seconds: spent waiting."""
        self._lane_wait_s = 0.0
        self._turn_began: tuple[float, float] = (0.0, 0.0)
        """When this turn had its thread, and in the lane the device; and `_idle_s` then."""

    def begin(self) -> None:
        """Set out."""
        # What is in hand before what is yet to be listed: the sooner the lane has something to do.
        self._hand_over("prepare", urgent=self._racing is not None)

    def stop(self) -> None:
        """Nobody wants it any more; from any thread."""
        self._stopped.set()

    # -- from thread to thread ---------------------------------------------------------------------------------------

    def _hand_over(self, side: Side, *, urgent: bool = True) -> None:
        if not self._threads.post(side, lambda: self._take_turn(side), urgent=urgent and side == "prepare"):
            self._end(None, SearchStopped())

    def _take_turn(self, side: Side) -> None:
        """Whatever it comes to, another thread has it next, or whoever waits for it is told."""
        try:
            following = self._turn(side)
        except BaseException as error:
            self._end(None, as_exception(error))
            return
        if isinstance(following, Found):
            self._end(following, None)
        else:
            self._hand_over(following)

    def _turn(self, side: Side) -> Side | Found:
        """Which thread has it next, or what was found."""
        instruction = self._carry_out(side)
        match instruction:
            case Finished():
                return "prepare" if self._tries_again() else self._found(instruction)
            case Widen():
                return "prepare"
            case Build():
                return "compile" if side == "prepare" else "prepare"
        return "lane"

    def _carry_out(self, side: Side) -> Instruction:
        begin = perf_counter()
        self._turn_began = begin, self._idle_s
        try:
            match side:
                case "prepare":
                    return self._prepare()
                case "compile":
                    return self._compile()
            return self._run()
        finally:
            self._busy_s += perf_counter() - begin
            began, idle_s = self._turn_began
            self._threads.rest(side, worked(side, self._job.op, began, self._idle_s - idle_s))

    def _tries_again(self) -> bool:
        """Whether there is more to do after all: whoever found no memory gets another chance, once, now that nothing of
        this search is loaded."""
        if self._is_second_try or not self._short:
            return False
        self._is_second_try = True
        self._race.forgive(self._short)
        self._plans |= self._spare
        self._spare = {}
        return True

    def _found(self, finished: Finished) -> Found:
        seconds = max(0.0, self._busy_s - self._idle_s)
        found = Found(
            trials=finished.trials, complete=finished.complete, seconds=seconds, lane_wait_s=self._lane_wait_s
        )
        self._threads.yardstick.note(self._job.op, found)
        return found

    def _end(self, found: Found | None, error: BaseException | None) -> None:
        # Before anybody is told, so that whoever closes the device then closes it behind this.
        if self._has_built:
            self._threads.lane.post(self._destroy)
        self._then(found, error)

    def _destroy(self) -> None:
        plans = (*self._plans.values(), *self._spare.values())
        self._plans, self._spare = {}, {}
        if not self._threads.is_open:
            return
        began, waited = perf_counter(), 0.0
        try:
            with self._threads.step(self._step("lane", "clean", self._threads.limits.other_s)) as waited:
                self._threads.session.destroy(plans)
        except BaseException:  # nobody waits for this who could be told
            logger.exception("destroying plans failed")
        finally:
            self._threads.rest("lane", worked("lane", self._job.op, began, waited))

    # -- in the prepare thread ---------------------------------------------------------------------------------------

    def _prepare(self) -> Instruction:
        """Carry out what is for the prepare thread, until another one's turn or the end."""
        if self._racing is None:
            self._check_wanted()
            listing = self._list(self._job.width)
            self._listed(listing)
            self._racing = self._race_of(listing)
        while True:
            instruction = self._next()
            if isinstance(instruction, Build):
                if not self._job.compiles and any(self._race.candidates[rank].is_dear for rank in instruction.ranks):
                    raise MustCompile
                if not self._build_those(instruction, "prepare"):
                    return instruction
            elif isinstance(instruction, Widen):
                self._race.tell(self._list(instruction.width))
            else:
                return instruction

    def _list(self, width: int | None) -> Listing:
        with self._doing("prepare", "list", self._threads.limits.list_s):
            return self._threads.listing_of(self._job.op, width)

    def _race_of(self, listing: Listing) -> Race:
        return Race(listing, policies=self._job.policies, mode=self._job.mode, failed=self._job.failed)

    @property
    def _race(self) -> Race:
        """Once the candidates are known."""
        assert self._racing is not None, "raced before it was listed"
        return self._racing

    # -- there, or in the compile thread -----------------------------------------------------------------------------

    def _compile(self) -> Instruction:
        """Build what is dear of those that were asked for, and go on."""
        asked = self._next()
        assert isinstance(asked, Build), f"{asked} is not for the compile thread"
        built = self._build_those(asked, "compile")
        assert built, "prepare has left something"
        return self._next()

    def _build_those(self, asked: Build, side: Side) -> bool:
        """Build those which are for this thread. Whether that was the last of them; then the race is told."""
        for rank in asked.ranks:
            if rank not in self._built and self._race.candidates[rank].is_dear == (side == "compile"):
                self._built[rank] = self._build(side, rank)
        if len(self._built) < len(asked.ranks):
            return False
        self._race.tell(tuple(self._built[rank] for rank in asked.ranks))
        self._built = {}
        return True

    def _build(self, side: Side, rank: int) -> Built | Failure:
        self._check_wanted()
        self._has_built = True
        with self._doing(side, "build", self._threads.limits.build_s, rank):
            built = self._threads.session.build(self._job.op, self._race.candidates[rank])
            if isinstance(built, Failure):
                self._examine(side, (rank,), built)
                return self._noted(rank, built)
        self._plans[rank] = built.plan
        return built

    # -- in the lane -------------------------------------------------------------------------------------------------

    def _run(self) -> Instruction:
        """Take the lane, load the buffers and carry out what is for the lane, until another's turn or the end."""
        begin = perf_counter()
        self._threads.announce(self._step("lane", "wait", FOR_EVER_S))
        with self._threads.lane_right:
            waited_s = perf_counter() - begin
            self._idle_s += waited_s
            self._lane_wait_s += waited_s
            self._turn_began = begin + waited_s, self._idle_s
            self._threads.pause.lane_taken = True
            try:
                return self._loaded()
            finally:
                self._threads.pause.lane_taken = False

    def _loaded(self) -> Instruction:
        try:
            instruction = self._load()
            while True:
                match instruction:
                    case Launch(ranks, limit_us):
                        self._race.tell(tuple(self._launch(rank, limit_us) for rank in ranks))
                    case Time(bursts, limit_us):
                        self._race.tell(self._time(bursts, limit_us))
                    case Check(rank, against):
                        self._race.tell(self._check(rank, against))
                    case _:
                        return instruction
                instruction = self._next()
        finally:
            with self._threads.step(self._step("lane", "clean", self._threads.limits.other_s)):
                self._threads.session.unload()

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
            with self._doing("lane", "load", self._threads.limits.other_s):
                failure = self._threads.session.load(self._job.op, most)
                if failure is None:
                    return instruction
                self._examine("lane", (), failure)
            for rank in hungriest_first:
                if self._race.candidates[rank].workspace_bytes == most:
                    self._spare[rank] = self._plans.pop(rank)
                    self._race.drop((rank,), self._noted(rank, failure))

    def _launch(self, rank: int, limit_us: float) -> Burst | Failure:
        self._check_wanted()
        with self._doing("lane", "launch", self._run_limit_s(limit_us), rank):
            burst = self._threads.session.launch(self._plans[rank], limit_us)
            if isinstance(burst, Failure):
                self._examine("lane", (rank,), burst)
            else:
                self._launch_us[rank] = burst.time_us
        return self._noted(rank, burst)

    def _time(self, bursts: Sequence[tuple[int, int]], limit_us: float) -> tuple[Burst | Failure, ...]:
        """One round, without a gap; or, carefully, each burst by itself, so that it is known who is at work."""
        rounds = [[burst] for burst in bursts] if self._job.careful else [bursts]
        outcomes: list[Burst | Failure] = []
        for each in rounds:
            self._check_wanted()
            ranks = tuple(dict.fromkeys(rank for rank, _ in each))
            usual_s = sum(self._launch_us[rank] * repeats for rank, repeats in each) * 1e-6
            limit_s = self._run_limit_s(limit_us) + _LONGER * usual_s
            with self._doing("lane", "time", limit_s, *ranks):
                plans = [(self._plans[rank], repeats) for rank, repeats in each]
                timed = self._threads.session.time(plans, limit_us)
                for failure in dict.fromkeys(outcome for outcome in timed if isinstance(outcome, Failure)):
                    # What is said of several alike may be the fault of each of them.
                    alike = (rank for (rank, _), outcome in zip(each, timed, strict=True) if outcome == failure)
                    self._examine("lane", tuple(dict.fromkeys(alike)), failure)
            outcomes += [self._noted(rank, outcome) for (rank, _), outcome in zip(each, timed, strict=True)]
        return tuple(outcomes)

    def _check(self, rank: int, against: int | None) -> Failure | None:
        """Two candidates run, and it is not known who of them spoils the device; carefully, it is held against what its
        backend can do without another one."""
        other = None if self._job.careful else against
        ranks = (rank,) if other is None else (rank, other)
        with self._doing("lane", "check", self._threads.limits.other_s, *ranks):
            plan = None if other is None else self._plans[other]
            failure = self._threads.session.check(self._plans[rank], plan)
            if failure is not None:
                self._examine("lane", ranks, failure)
        return failure

    def _run_limit_s(self, limit_us: float) -> float:
        """After so long a run hangs."""
        limits = self._threads.limits
        if self._launch_us:
            return max(limits.run_s, limit_us * 1e-6)
        # The first run of a problem, or the next if that one was given up: then it may be that all take so long.
        expected_s = self._threads.yardstick.expected_s(self._job.op)
        if expected_s is None or any(failure.kind == "timed_out" for failure in self._job.failed.values()):
            return limits.first_run_s
        return min(limits.first_run_s, max(limits.run_s, limits.hopeless * expected_s))

    # -- in either ---------------------------------------------------------------------------------------------------

    def _next(self) -> Instruction:
        self._check_wanted()
        return self._race.next()

    def _check_wanted(self) -> None:
        if self._stopped.is_set() or self._threads.closing.is_set():
            raise SearchStopped

    @contextmanager
    def _doing(self, side: Side, deed: Deed, limit_s: float, *ranks: int) -> Iterator[None]:
        """Around each call of the session but those that tidy up."""
        with self._threads.step(self._step(side, deed, limit_s, *ranks)) as waited_s:
            self._idle_s += waited_s
            if waited_s:
                self._check_wanted()  # it may have waited for the end of a quiet, and be wanted no longer
            yield

    def _step(self, side: Side, deed: Deed, limit_s: float, *ranks: int) -> Step:
        algorithms = tuple(self._race.candidates[rank].algorithm for rank in ranks)
        return Step(side=side, deed=deed, job=self._number, limit_s=limit_s, algorithms=algorithms)

    def _noted(self, rank: int, outcome: T) -> T | Failure:
        """An outcome; who had no memory is written down, and how often."""
        if not isinstance(outcome, Failure) or outcome.kind != "out_of_memory":
            return outcome
        if rank not in self._short:
            self._short.add(rank)
            return outcome
        return replace(outcome, circumstances=(*outcome.circumstances, ("attempts", "2")))

    def _examine(self, side: Side, ranks: tuple[int, ...], failure: Failure) -> None:
        """After a failure: is it the candidate's alone, or is the device spoilt?

        Raises:
            DeviceSpoilt.
        """
        sick = None if failure.kind in HARMLESS else self._threads.session.healthy()
        if sick is not None:
            algorithms = tuple(self._race.candidates[rank].algorithm for rank in ranks)
            mine = Blame(job=self._number, algorithms=algorithms, failure=failure)
            self._threads.lose(whose_fault(mine, side, sick, running=self._threads.steps.get("lane")))
            raise DeviceSpoilt(sick.message)
