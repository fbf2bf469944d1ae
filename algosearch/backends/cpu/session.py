"""`CpuSession`: kernels built, run and timed in the threads of whoever opened it.

A plan is a kernel, which is immutable and touches no memory: the prepare thread makes them, the lane binds them to the
buffers that are loaded, once for each load, and runs them. Nothing is kept beyond `unload` but the kernels.

A run cannot be stopped: a limit is looked at after each run, and what ran longer is `timed_out`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from time import perf_counter, perf_counter_ns
from typing import Final

import msgspec

from algosearch.backends.base import Device
from algosearch.backends.cpu import checking, machine
from algosearch.backends.cpu.arena import Array, Run
from algosearch.backends.cpu.buffers import Buffers, needed_bytes
from algosearch.backends.cpu.catalogue import Catalogue, candidates
from algosearch.backends.cpu.disturbance import Watch
from algosearch.backends.cpu.kernel import Kernel, running
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate, Environment, Failure, Listing

TIMING: Final = "wall,warm"
_MEMORY_SHARE: Final = 0.5
"""Of the machine's memory, for one op. What needs more would push everything else out of it."""


class _Plan(msgspec.Struct, frozen=True):
    op: Op
    algorithm: str
    kernel: Kernel


class _Loaded:
    """An op's buffers and the runs that are bound to them."""

    def __init__(self, op: Op, workspace_bytes: int) -> None:
        self.op = op
        self.buffers = Buffers(op, workspace_bytes)
        self.right: tuple[int, dict[str, Array]] | None = None
        """The first plan that passed its check, with its result: so that the others need not run it again."""
        self._runs: dict[int, Run] = {}

    def run_of(self, number: int, plan: _Plan) -> Run:
        """The run of a plan over these buffers."""
        run = self._runs.get(number)
        if run is None:
            workspace = self.buffers.workspace(plan.kernel.workspace_bytes)
            run = self._runs[number] = plan.kernel.bind(self.buffers.tensors, workspace)
        return run

    def forget(self, number: int) -> None:
        self._runs.pop(number, None)
        if self.right is not None and self.right[0] == number:
            self.right = None


class CpuSession:
    """A `Session` of this machine's processor. Made by `CpuBackend.open`."""

    def __init__(self, device: Device, environment: Environment, catalogue: Catalogue) -> None:
        self.device = device
        self.environment = environment
        self._catalogue = catalogue
        self._numbers = itertools.count(1)
        # Added to by prepare, looked up and removed by the lane; one dictionary operation each, hence no lock.
        self._plans: dict[int, _Plan] = {}
        self._loaded: _Loaded | None = None
        self._watch = Watch()

    def __repr__(self) -> str:
        loaded = self._loaded.op.describe() if self._loaded else "nothing"
        return f"<CpuSession {self.device.name}, {loaded} loaded, {len(self._plans)} plans>"

    @property
    def buffers(self) -> Buffers | None:
        """What is loaded, to be looked at; None if nothing is."""
        return None if self._loaded is None else self._loaded.buffers

    # -- the prepare side --------------------------------------------------------------------------------------------

    def enumerate(self, op: Op, width: int | None) -> Listing:
        """As the contract says. The list is short and known at once, so that it is always given whole."""
        return Listing(candidates=candidates(op, self._catalogue), complete=True)

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        """As the contract says."""
        start = perf_counter()
        for algorithm, kernel in self._catalogue(op):
            if str(algorithm) == candidate.algorithm:
                number = next(self._numbers)
                self._plans[number] = _Plan(op, candidate.algorithm, kernel)
                return Built(number, (perf_counter() - start) * 1e6)
        return Failure("not_supported", f"no {candidate.algorithm} for {op.describe()}")

    # -- the lane ----------------------------------------------------------------------------------------------------

    def load(self, op: Op, workspace_bytes: int) -> Failure | None:
        """As the contract says."""
        if self._loaded is not None:
            raise AssertionError(f"loading over {self._loaded.op.describe()}, which would leak")
        wanted_bytes = needed_bytes(op, workspace_bytes)
        most_bytes = _most_bytes()
        if most_bytes is not None and wanted_bytes > most_bytes:
            return _out_of_memory(f"{wanted_bytes} bytes are needed, and {most_bytes} may be taken")
        try:
            self._loaded = _Loaded(op, workspace_bytes)
        except MemoryError as error:
            return _out_of_memory(str(error))
        return None

    def launch(self, plan: int, limit_us: float | None) -> Burst | Failure:
        """As the contract says."""
        return self._burst(plan, 1, limit_us)

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        """As the contract says. The limit is for each single run."""
        return tuple(self._burst(plan, repeats, limit_us) for plan, repeats in bursts)

    def check(self, plan: int, against: int | None) -> Failure | None:
        """As the contract says. Where two plans differ, the definition decides, in float64, at the worst places."""
        try:
            found = self._result_of(plan)
            if isinstance(found, Failure):
                return found
            other = None if against is None or against == plan else self._known_result_of(against)
            wrong = self._judge(found, None if isinstance(other, Failure) else other)
            if wrong is None and self._loaded is not None and self._loaded.right is None:
                self._loaded.right = plan, found
            return wrong
        except MemoryError as error:
            return _out_of_memory(str(error))

    def healthy(self) -> Failure | None:
        """As the contract says: always."""
        return None

    def unload(self) -> None:
        """As the contract says."""
        self._loaded = None

    def destroy(self, plans: Sequence[int]) -> None:
        """As the contract says."""
        for number in plans:
            self._plans.pop(number, None)
            if self._loaded is not None:
                self._loaded.forget(number)

    def close(self) -> None:
        """As the contract says."""
        self._loaded = None
        self._plans.clear()
        self._watch.close()

    # -- what they have in common ------------------------------------------------------------------------------------

    def _ready(self, number: int) -> tuple[_Plan, _Loaded]:
        """A plan that may run on what is loaded."""
        plan, loaded = self._plans.get(number), self._loaded
        if plan is None:
            raise AssertionError(f"there is no plan {number}")
        if loaded is None or loaded.op != plan.op:
            raise AssertionError(f"plan {number} is for {plan.op.describe()}; {self!r}")
        return plan, loaded

    def _burst(self, number: int, repeats: int, limit_us: float | None) -> Burst | Failure:
        if repeats < 1:
            raise AssertionError(f"a burst of {repeats} runs")
        plan, loaded = self._ready(number)
        limit_ns = None if limit_us is None else limit_us * 1e3
        try:
            with running():
                run = loaded.run_of(number, plan)
                self._watch.begin()
                start = before = perf_counter_ns()
                for _ in range(repeats):
                    run()
                    now = perf_counter_ns()
                    if limit_ns is not None and now - before > limit_ns:
                        return Failure(
                            "timed_out",
                            f"a run of {plan.algorithm} took {(now - before) / 1e3:.1f} µs",
                            (("limit_us", str(limit_us)),),
                        )
                    before = now
        except MemoryError as error:
            return _out_of_memory(str(error))
        burst_ns = max(before - start, 1)
        disturbed = self._watch.end(burst_ns)
        return Burst(time_us=burst_ns / 1e3 / repeats, repeats=repeats, timing=TIMING, disturbed=disturbed)

    def _result_of(self, number: int) -> dict[str, Array] | Failure:
        """Copies of what a plan writes, after a run into buffers that hold nothing like it."""
        plan, loaded = self._ready(number)
        buffers, workspace_bytes = loaded.buffers, plan.kernel.workspace_bytes
        buffers.spoil(workspace_bytes)
        with running():
            loaded.run_of(number, plan)()
        trespassed = buffers.trespassed(workspace_bytes)
        if trespassed is not None:
            return Failure("out_of_bounds", f"{plan.algorithm} wrote beside the {trespassed}")
        return {tensor.name: buffers.tensors[tensor.name].copy() for tensor in buffers.written}

    def _known_result_of(self, number: int) -> dict[str, Array] | Failure:
        _, loaded = self._ready(number)
        return loaded.right[1] if loaded.right is not None and loaded.right[0] == number else self._result_of(number)

    def _judge(self, found: dict[str, Array], other: dict[str, Array] | None) -> Failure | None:
        assert self._loaded is not None
        buffers = self._loaded.buffers
        # In the buffers may be what another plan has written since, from which a pair's gradients would not follow.
        tensors = buffers.tensors | found
        for tensor in buffers.written:
            result = found[tensor.name]
            points = checking.sampled(result) if other is None else checking.differing(result, other[tensor.name])
            what = checking.wrong(self._loaded.op, tensors, tensor, result, points)
            if what is not None:
                return Failure("wrong_result", what)
        return None


def _most_bytes() -> int | None:
    """The most memory that an op may take; None where the system does not tell."""
    total, free = machine.memory_bytes(), machine.free_bytes()
    limits = [] if total is None else [int(total * _MEMORY_SHARE)]
    return min([*limits, *([] if free is None else [free])], default=None)


def _out_of_memory(message: str) -> Failure:
    free = machine.free_bytes()
    return Failure("out_of_memory", message, (("free_bytes", "unknown" if free is None else str(free)),))
