"""An open simulated device: plays the script, and holds its caller to the contract.

Whoever breaks a rule of `algosearch.backends.base` gets an AssertionError that names it: two calls at a time on one
side, a side whose calls come from two threads, a plan that is unknown, of another op than what is loaded, or that needs
more workspace than there is, buffers loaded over others, anything after `close`. A thread that is on two sides is no
breach: a caller may have fewer threads than there are sides.

A run is repeatable. The noise of a burst depends on the seed, the problem, the algorithm and the burst's number for
that candidate in this session, never on the clock, the device or on what other threads do.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from math import exp
from typing import Final, cast

from algosearch.backends.base import Device
from algosearch.backends.simulated.device import Clock, Memory, Pacer
from algosearch.backends.simulated.library import Library, Problem
from algosearch.backends.simulated.script import (
    ACCIDENTS,
    NONSENSE,
    CandidateScript,
    DeviceScript,
    Fault,
    FaultStage,
    first_fault,
)
from algosearch.backends.simulated.side import Side
from algosearch.backends.simulated.trace import Gathered, Tracer
from algosearch.ops import Op
from algosearch.records import FACTS, Built, Burst, Candidate, Failure, FailureKind, Listing

TIMING: Final = "virtual,warm"
_DISTURBED_FACTOR: Final = 1.5


class _Plan:
    """A built candidate."""

    __slots__ = ("candidate", "fresh", "problem")

    def __init__(self, problem: Problem, candidate: CandidateScript) -> None:
        self.problem = problem
        self.candidate = candidate
        self.fresh = True
        """Never launched."""


class _Loaded:
    """The buffers of an op and its workspace."""

    __slots__ = ("problem", "taken_bytes", "workspace_bytes")

    def __init__(self, problem: Problem, workspace_bytes: int, taken_bytes: int) -> None:
        self.problem = problem
        self.workspace_bytes = workspace_bytes
        self.taken_bytes = taken_bytes


class SimulatedSession:
    """A `Session` of a simulated device. Made by `SimulatedBackend.open`."""

    def __init__(
        self,
        device: Device,
        script: DeviceScript,
        library: Library,
        memory: Memory,
        tracer: Tracer,
        *,
        scale: float | None,
        hanging: threading.Event,
        release: threading.Event,
    ) -> None:
        self.device = device
        self.environment = library.environment(script)
        self._script = script
        self._library = library
        self._memory = memory
        self._tracer = tracer
        self._rounds = Gathered(tracer)
        self._hanging = hanging
        self._release = release
        self._prepare = Side("prepare", Pacer(scale))
        self._compile = Side("compile", Pacer(scale))
        self._lane = Side("lane", Pacer(scale))
        self._clock = Clock(script)
        self._numbers = itertools.count(1)
        # Added to by who builds, looked up and removed by the lane; one dictionary operation each, hence no lock.
        self._plans: dict[int, _Plan] = {}
        self._loaded: _Loaded | None = None
        # By (what, problem, algorithm). Each of these is counted by one side only.
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._poisoned: str | None = None
        """By whom; then it fails until it is closed."""
        self._closed = False
        tracer.write(tracer.event("open"))

    def __repr__(self) -> str:
        state = "closed" if self._closed else "loaded" if self._loaded else "open"
        return f"<SimulatedSession {self.device.name} {state}, {len(self._plans)} plans>"

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def plans(self) -> int:
        """How many plans were built and not destroyed."""
        return len(self._plans)

    # -- the prepare side, and for what is dear the compile side -----------------------------------------------------

    def enumerate(self, op: Op, width: int | None) -> Listing:
        """As the contract says."""
        with self._prepare:
            problem = self._problem(op)
            script = problem.script
            step = self._begin("enumerate", problem, script.faults)
            self._prepare.pacer.pass_us(script.prepare_us)
            step.end(us=script.prepare_us)
            if step.fault is not None:
                return Listing(candidates=(), complete=True)
            count = len(script.candidates) if width is None else max(width, script.least_width)
            candidates = tuple(
                Candidate(
                    algorithm=each.algorithm,
                    rank=rank,
                    workspace_bytes=each.workspace_bytes,
                    notes=each.notes,
                    reserve_bytes=each.reserve_bytes,
                )
                for rank, each in enumerate(script.candidates[:count])
            )
            return Listing(
                candidates=candidates, complete=len(candidates) == len(script.candidates), look_at=script.look_at
            )

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        """As the contract says."""
        with self._compile if candidate.is_dear else self._prepare as side:
            problem = self._problem(op)
            scripted = problem.by_name.get(candidate.algorithm)
            if scripted is None:
                self._tracer.write(
                    self._tracer.event("build", problem.digest, candidate.algorithm, outcome="not_supported")
                )
                return Failure("not_supported", f"no {candidate.algorithm} for {op.describe()}")
            step = self._begin("build", problem, scripted.faults, scripted.algorithm)
            side.pacer.pass_us(scripted.build_us)
            step.end(us=scripted.build_us)
            if step.fault is not None:
                return self._failure(step.fault)
            number = next(self._numbers)
            self._plans[number] = _Plan(problem, scripted)
            return Built(number, float(scripted.build_us))

    # -- the lane ----------------------------------------------------------------------------------------------------

    def load(self, op: Op, workspace_bytes: int) -> Failure | None:
        """As the contract says."""
        with self._lane:
            problem = self._problem(op)
            if self._loaded is not None:
                raise AssertionError(f"loading over {self._loaded.problem!r}, which would leak")
            step = self._begin("load", problem, problem.script.faults)
            if step.fault is not None:
                step.end()
                return self._failure(step.fault)
            needed_bytes = op.bytes_moved + workspace_bytes  # what is read twice counts twice: near enough
            free_bytes = self._memory.take(needed_bytes)
            if free_bytes is not None:
                step.end("out_of_memory")
                return Failure(
                    "out_of_memory",
                    f"{needed_bytes} bytes are needed and {free_bytes} are free",
                    (("free_bytes", str(free_bytes)), ("needed_bytes", str(needed_bytes))),
                )
            self._loaded = _Loaded(problem, workspace_bytes, needed_bytes)
            self._clock.rest()
            step.end()
            return None

    def launch(self, plan: int, limit_us: float | None) -> Burst | Failure:
        """As the contract says. The limit is for the run with the loading of its code."""
        with self._lane:
            return self._burst("launch", self._ready(plan), 1, limit_us)

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        """As the contract says. The limit is for each single run."""
        with self._lane, self._rounds:
            return tuple(self._burst("time", self._ready(plan), repeats, limit_us) for plan, repeats in bursts)

    def check(self, plan: int, against: int | None) -> Failure | None:
        """As the contract says. A wrong plan is wrong whatever it is compared with."""
        with self._lane:
            ready = self._ready(plan)
            if against is not None:
                self._ready(against)
            step = self._begin("check", ready.problem, ready.candidate.faults, ready.candidate.algorithm)
            step.end()
            return None if step.fault is None else self._failure(step.fault)

    def healthy(self) -> Failure | None:
        """As the contract says: until something poisons it."""
        self._assert_open()
        if self._poisoned is None:
            return None
        return Failure("launch_failed", self._poisoned, (("device", self.device.name),))

    def unload(self) -> None:
        """As the contract says."""
        with self._lane:
            self._assert_open()
            self._unload()

    def destroy(self, plans: Sequence[int]) -> None:
        """As the contract says."""
        with self._lane:
            self._assert_open()
            gone = [plan for number in plans if (plan := self._plans.pop(number, None)) is not None]
            self._tracer.write(
                *(self._tracer.event("destroy", plan.problem.digest, plan.candidate.algorithm) for plan in gone)
            )

    def close(self) -> None:
        """As the contract says. From any thread, while no other call is under way."""
        if self._closed:
            return
        for side in (self._prepare, self._compile, self._lane):
            if side.busy:
                raise AssertionError(f"{self!r} is closed while a call is under way")
        self._unload()
        self._plans.clear()
        self._closed = True
        self._tracer.write(self._tracer.event("close"))
        self._tracer.close()

    # -- what they have in common ------------------------------------------------------------------------------------

    def _assert_open(self) -> None:
        if self._closed:
            raise AssertionError(f"a call after close: {self!r}")

    def _problem(self, op: Op) -> Problem:
        self._assert_open()
        return self._library.problem(op)

    def _ready(self, number: int) -> _Plan:
        """A plan that may run on what is loaded."""
        self._assert_open()
        plan, loaded = self._plans.get(number), self._loaded
        if plan is None:
            raise AssertionError(f"there is no plan {number}")
        if loaded is None or loaded.problem is not plan.problem:
            raise AssertionError(f"plan {number} is for {plan.problem!r}; loaded is {loaded and loaded.problem!r}")
        if plan.candidate.workspace_bytes > loaded.workspace_bytes:
            raise AssertionError(
                f"{plan.candidate.algorithm} needs {plan.candidate.workspace_bytes} bytes of workspace; "
                f"{loaded.workspace_bytes} are loaded"
            )
        return plan

    def _unload(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._memory.give_back(loaded.taken_bytes)
            self._tracer.write(self._tracer.event("unload", loaded.problem.digest))

    def _count(self, what: str, problem: Problem, algorithm: str) -> int:
        """How many of these there were before."""
        key = (what, problem.digest, algorithm)
        before = self._counts[key]
        self._counts[key] = before + 1
        return before

    def _begin(self, call: FaultStage, problem: Problem, faults: Sequence[Fault], algorithm: str = "") -> _Step:
        """Begin a call that may go wrong, and suffer what does not come back, or late."""
        fault = first_fault(faults, call, self._count(call, problem, algorithm)) if faults else None
        if self._poisoned is not None and call != "enumerate":
            fault = Fault(at=call, does="build_failed" if call == "build" else "launch_failed", message=self._poisoned)
        tracer = self._rounds if call == "time" else self._tracer
        step = _Step(tracer, call, problem.digest, algorithm, fault)
        if fault is not None and fault.does == "poisons":
            self._poisoned = f"the device is unusable since {call} of {algorithm}"
        if fault is not None and fault.does in ACCIDENTS:
            step.end()  # now, for it may be the last thing that this process does
            tracer.flush()
            step.fault = None
            self._suffer(fault)
        return step

    def _suffer(self, fault: Fault) -> None:
        match fault.does:
            case "hangs":
                self._hanging.set()
                self._release.wait(self._library.script.hang_s)
            case "crashes" | "killed":
                os.kill(os.getpid(), signal.SIGSEGV if fault.does == "crashes" else signal.SIGKILL)
                threading.Event().wait()  # the signal may reach another thread first; this one must not go on
            case _:
                raise RuntimeError(fault.message or f"scripted at {fault.at}")

    def _failure(self, fault: Fault, limit_us: float | None = None) -> Failure:
        kind = "launch_failed" if fault.does == "poisons" else cast("FailureKind", fault.does)
        circumstances = {} if kind in FACTS else {"device": self.device.name}
        if kind == "out_of_memory":
            circumstances["free_bytes"] = str(self._memory.free_bytes)
        elif kind == "timed_out" and limit_us is not None:
            circumstances["limit_us"] = str(limit_us)
        return Failure(kind, fault.message or f"scripted at {fault.at}", tuple(circumstances.items()))

    def _burst(self, call: FaultStage, plan: _Plan, repeats: int, limit_us: float | None) -> Burst | Failure:
        if repeats < 1:
            raise AssertionError(f"a burst of {repeats} runs")
        candidate = plan.candidate
        step = self._begin(call, plan.problem, candidate.faults, candidate.algorithm)
        fault = step.fault
        if fault is not None:
            step.end()
            if fault.does in NONSENSE:
                return Burst(time_us=NONSENSE[fault.does], repeats=repeats, timing=TIMING)
            return self._failure(fault, limit_us)
        extra_us, plan.fresh = (candidate.first_us if plan.fresh else 0.0), False
        runs_us, disturbed = self._run(plan, repeats, can_be_disturbed=call == "time")
        runs_us[0] += extra_us
        total_us = sum(runs_us)
        self._lane.pacer.pass_us(total_us)
        if limit_us is not None and max(runs_us) > limit_us:
            step.end("timed_out", us=total_us)
            return Failure("timed_out", f"a run took {max(runs_us):.1f} µs", (("limit_us", str(limit_us)),))
        step.end("disturbed" if disturbed else "ok", us=total_us)
        return Burst(
            time_us=self._measured(total_us) / repeats,
            repeats=repeats,
            timing=TIMING,
            disturbed="scripted: something else used the device" if disturbed else None,
        )

    def _run(self, plan: _Plan, repeats: int, *, can_be_disturbed: bool) -> tuple[list[float], bool]:
        """The time of each of some runs in a row, and whether they were disturbed."""
        candidate, digest = plan.candidate, plan.problem.digest
        burst = self._count("bursts", plan.problem, candidate.algorithm)
        key = ("runs", digest, candidate.algorithm)
        first = self._counts[key]
        self._counts[key] = first + repeats
        times_us = [candidate.run_us(run) for run in range(first, first + repeats)]
        disturbed = False
        if candidate.noise or self._script.disturbed:
            dice = random.Random(f"{self._library.script.seed} {digest} {candidate.algorithm} {burst}")
            disturbed = can_be_disturbed and dice.random() < self._script.disturbed
            sigma = candidate.noise
            if sigma:
                times_us = [time_us * exp(dice.gauss(-sigma * sigma / 2, sigma)) for time_us in times_us]
            if disturbed:
                times_us = [time_us * _DISTURBED_FACTOR for time_us in times_us]
        return [self._clock.run(time_us) for time_us in times_us], disturbed

    def _measured(self, total_us: float) -> float:
        tick_us = self._script.resolution_us
        return max(1, round(total_us / tick_us)) * tick_us if tick_us else total_us


class _Step:
    """One call that may go wrong, and its one line in the trace."""

    __slots__ = ("_algorithm", "_call", "_digest", "_ended", "_tracer", "fault")

    def __init__(
        self, tracer: Tracer | Gathered, call: FaultStage, digest: str, algorithm: str, fault: Fault | None
    ) -> None:
        self.fault = fault
        """What the call must answer with; None if all is well."""
        self._tracer = tracer
        self._call = call
        self._digest = digest
        self._algorithm = algorithm
        self._ended = False

    def end(self, outcome: str = "ok", us: float = 0.0) -> None:
        """Write the line, unless that was done before the accident."""
        if not self._ended:
            self._ended = True
            outcome = self.fault.does if self.fault is not None else outcome
            self._tracer.write(self._tracer.event(self._call, self._digest, self._algorithm, outcome, us))
