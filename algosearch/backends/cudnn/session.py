"""`CudnnSession`: candidates listed and built in the prepare thread, run, timed and checked in the lane.

Each thread has its own handle, made when it first calls: prepare, the lane, and compile, where engines are built whose
code cuDNN compiles for that. Those that build never execute anything; the lane's handle executes on the lane's stream,
and on nothing else. Plans are made by the ones, then run and destroyed by the other, never both at once: cuDNN does not
allow a plan to be shared between threads.

More threads that compile would gain nothing: two engines built side by side took as long as one after the other.

Rejected: to give the interpreter's lock up at every call of the prepare thread, in favour of the lane. It took the
lane's launches from 1.1 to 0.9 s, and everything in the prepare thread twice as long.

Destroying a plan may unload code and waits for the device, so it is done in `destroy` and `close`, never by the garbage
collector.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Final, Literal, TypeVar

from algosearch.backends.base import Device
from algosearch.backends.cudnn import gate
from algosearch.backends.cudnn.buffers import Buffers
from algosearch.backends.cudnn.checking import Judgement
from algosearch.backends.cudnn.first import first_run
from algosearch.backends.cudnn.gpu import CudaFault, Gpu, OutOfDeviceMemory
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.loaded import BuiltPlan, Loaded
from algosearch.backends.cudnn.offer import Made
from algosearch.backends.cudnn.offers import Offers
from algosearch.backends.cudnn.plan import Runnable, VariantPack
from algosearch.backends.cudnn.problem import RESERVE_UID, problem_of
from algosearch.backends.cudnn.status import CudnnError, suspects_context
from algosearch.backends.cudnn.warming import ask_ahead
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate, Environment, Failure, InvalidAlgorithm, Listing

Timing = Literal["warm", "rotating"]
"""Whether runs find their tensors in the cache, as far as they fit into it, or never do."""

_KEPT_BYTES: Final = 1 << 30
"""Of memory that no op uses at the moment: to allocate it anew for each would take as long as a race."""

T = TypeVar("T")


class CudnnSession:
    """A `Session` of one GPU. Made by `CudnnBackend.open`."""

    def __init__(
        self, library: Library, gpu: Gpu, device: Device, environment: Environment, *, timing: Timing = "warm"
    ) -> None:
        self.device = device
        self.environment = environment
        self._library = library
        self._gpu = gpu
        self._timing: Timing = timing
        self._gate = gate.Gate()
        self._numbers = itertools.count(1)
        # Added to by who builds, looked up and removed by the lane; one dictionary operation each, hence no lock.
        self._plans: dict[int, BuiltPlan] = {}
        self._refused: list[Made] = []
        """Plans that were made and will not run. Added to by who builds, destroyed by the lane."""
        self._prepare = Offers(library, gpu)
        self._compile = Offers(library, gpu)
        self._lane: Handle | None = None
        self._loaded: Loaded | None = None
        self._sick: Failure | None = None
        """Why nothing runs on the device any more."""
        self._closed = False

    def __repr__(self) -> str:
        loaded = self._loaded.op.describe() if self._loaded else "nothing"
        return f"<CudnnSession {self.device.name}, {loaded} loaded, {len(self._plans)} plans>"

    @property
    def buffers(self) -> Buffers | None:
        """What is loaded, to be looked at from the lane; None if nothing is."""
        return None if self._loaded is None else self._loaded.buffers

    # -- the prepare side, and for what is dear the compile side -----------------------------------------------------

    def enumerate(self, op: Op, width: int | None) -> Listing:
        """As the contract says."""
        offer = self._prepare.of(op)
        return Listing(candidates=(), complete=True) if offer is None else offer.listing(width)

    def warm_up(self) -> None:
        """As `WarmsUp` says."""
        ask_ahead(self._library, self._gpu)

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        """As the contract says."""
        start = perf_counter()
        try:
            offer = (self._compile if candidate.is_dear else self._prepare).of(op)
        except CudnnError as error:
            return error.failure("building")
        if offer is None:
            return Failure("not_supported", f"the library cannot do {op.describe()}")
        try:
            made = offer.make(candidate.algorithm)
        except InvalidAlgorithm as error:
            return Failure("not_supported", str(error))
        if isinstance(made, Failure):
            return made
        if made.plan.workspace_bytes > candidate.workspace_bytes:
            self._refused.append(made)
            what = f"{candidate.algorithm} was listed with {candidate.workspace_bytes} bytes of workspace"
            return Failure("not_supported", f"{what}, and needs {made.plan.workspace_bytes}")
        number = next(self._numbers)
        self._plans[number] = BuiltPlan(op, candidate, made)
        return Built(number, (perf_counter() - start) * 1e6)

    # -- the lane ----------------------------------------------------------------------------------------------------

    def load(self, op: Op, workspace_bytes: int) -> Failure | None:
        """As the contract says."""
        if self._loaded is not None:
            raise AssertionError(f"loading over {self._loaded.op.describe()}, which would leak")
        try:
            self._enter_lane()
        except CudnnError as error:
            if error.fault != "memory":
                raise
            return self._out_of_memory(str(error))
        made = [built.made for built in tuple(self._plans.values()) if built.op == op]
        problem = problem_of(op, max((each.plan.reserve_bytes for each in made), default=0))
        rotating = self._timing == "rotating"
        try:
            buffers = Buffers(self._gpu, problem.tensors, workspace_bytes, problem.range_of, rotating=rotating)
        except OutOfDeviceMemory as error:
            return self._out_of_memory(str(error))
        self._loaded = Loaded(op, problem, buffers)
        buffers.copy(problem.copied)
        return None

    def launch(self, plan: int, limit_us: float | None) -> Burst | Failure:
        """As the contract says."""
        built, loaded = self._ready(plan)
        return self._surviving([built], lambda: self._launch(plan, built, loaded, limit_us))

    def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
        """As the contract says. The limit is for the mean of a burst."""
        if not bursts:
            return ()
        ran = [self._ready(plan)[0] for plan, _ in bursts]

        def run() -> list[gate.Timed]:
            return gate.run(self._gpu, self._gate, [self._burst(plan, repeats) for plan, repeats in bursts])

        timed = self._surviving(ran, run)
        if isinstance(timed, Failure):  # whose fault it was cannot be told: they ran one behind the other
            return (timed,) * len(ran)
        return tuple(
            self._outcome(built, each, repeats, limit_us)
            for built, each, (_, repeats) in zip(ran, timed, bursts, strict=True)
        )

    def check(self, plan: int, against: int | None) -> Failure | None:
        """As the contract says. Where two plans differ, the definition decides, in float64, at the worst place."""
        built, loaded = self._ready(plan)
        if against is not None and against not in loaded.agreeing and against != plan:
            other, _ = self._ready(against)
            failure = self._surviving([other], lambda: self._result_of(against, other, loaded))
            if failure is None:
                loaded.buffers.keep_result()
                loaded.agreeing = {against}
            elif self._sick is not None:
                return failure  # nothing that would run now says anything of `plan`
        failure = self._surviving([built], lambda: self._result_of(plan, built, loaded))
        if failure is None:
            failure = self._surviving([built], lambda: self._judge(built, loaded))
        if failure is None:
            loaded.agreeing.add(plan)
        return failure

    def healthy(self) -> Failure | None:
        """As the contract says: as the lane found it, when a candidate failed and it may not be its fault alone."""
        return self._sick

    def unload(self) -> None:
        """As the contract says. Some of the memory stays the session's, for the next op."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        for number in tuple(loaded.packs):
            loaded.forget(number)
        del loaded
        self._gpu.trim(_KEPT_BYTES)

    def destroy(self, plans: Sequence[int]) -> None:
        """As the contract says."""
        if self._lane is None:
            self._gpu.enter()
        for number in plans:
            if self._loaded is not None:
                self._loaded.forget(number)
            built = self._plans.pop(number, None)
            if built is not None:
                built.made.destroy()

        while self._refused:
            self._refused.pop().destroy()

    def close(self) -> None:
        """As the contract says."""
        if self._closed:
            return
        self._closed = True
        self._gpu.enter()
        self.unload()
        self.destroy(tuple(self._plans))
        for offers in (self._prepare, self._compile):
            offers.destroy()
        if self._lane is not None:
            self._lane.destroy()
        self._gpu.close()

    # -- one run -----------------------------------------------------------------------------------------------------

    def _launch(self, number: int, built: BuiltPlan, loaded: Loaded, limit_us: float | None) -> Burst | Failure:
        first = first_run(self._gpu, self._packs(number, built, loaded)[0], loaded.best_us)
        failure = self._failure_of(first.status, built)
        if failure is not None:
            return failure
        loaded.best_us = min(loaded.best_us, first.time_us)
        built.expected_us = first.time_us
        if limit_us is not None and first.time_us > limit_us:
            return _timed_out(built, first.time_us, limit_us)
        timing = f"ungated,{self._timing}"
        return Burst(time_us=first.time_us, repeats=1, timing=timing, disturbed=first.disturbed)

    def _burst(self, number: int, repeats: int) -> gate.Burst:
        if repeats < 1:
            raise AssertionError(f"a burst of {repeats} runs")
        built, loaded = self._ready(number)
        packs = self._packs(number, built, loaded)
        first, loaded.turn = loaded.turn, loaded.turn + repeats
        launches = tuple(packs[turn % len(packs)].launch for turn in range(first, first + repeats))
        return gate.Burst(launches, built.expected_us, built.made.plan.queued)

    def _outcome(self, built: BuiltPlan, timed: gate.Timed, repeats: int, limit_us: float | None) -> Burst | Failure:
        failure = self._failure_of(timed.status, built)
        if failure is not None:
            return failure
        run_us = max(timed.burst_us / repeats, 1e-3)
        built.expected_us = run_us
        if limit_us is not None and run_us > limit_us:
            return _timed_out(built, run_us, limit_us)
        timing = f"gated,{self._timing}"
        return Burst(time_us=run_us, repeats=repeats, timing=timing, disturbed=timed.disturbed)

    def _result_of(self, number: int, built: BuiltPlan, loaded: Loaded) -> Failure | None:
        """Run a plan into buffers that hold nothing like its result."""
        workspace_bytes = built.candidate.workspace_bytes
        loaded.buffers.spoil(workspace_bytes)
        loaded.buffers.copy(loaded.problem.copied)
        failure = self._failure_of(self._packs(number, built, loaded)[0].launch(), built)
        if failure is not None:
            return failure
        if loaded.buffers.is_trespassed(workspace_bytes):
            loaded.agreeing.clear()
            what = f"{built.candidate.algorithm} wrote beside its result or its workspace of {workspace_bytes} bytes"
            return Failure("out_of_bounds", what)
        return None

    def _judge(self, built: BuiltPlan, loaded: Loaded) -> Failure | None:
        """Whether the result that a plan left is right."""
        others = {note for number in loaded.agreeing for note in self._plans[number].candidate.notes}
        judgement = Judgement(
            self._gpu, loaded.problem, loaded.buffers, built.candidate.notes, others if loaded.agreeing else None
        )
        what = judgement.what_is_wrong()
        if what is not None:
            return Failure("wrong_result", what)
        if not loaded.agreeing or judgement.differs:  # this one is right: what comes later is held against it
            loaded.buffers.keep_result()
            loaded.agreeing.clear()
        return None

    # -- what they have in common ------------------------------------------------------------------------------------

    def _enter_lane(self) -> Handle:
        if self._lane is None:
            self._gpu.enter()
            handle = Handle(self._library)
            try:
                handle.set_stream(self._gpu.stream)
            except BaseException:
                handle.destroy()  # else it would be taken for the lane's, and run elsewhere
                raise
            self._lane = handle
        return self._lane

    def _ready(self, number: int) -> tuple[BuiltPlan, Loaded]:
        """A plan that may run on what is loaded."""
        built, loaded = self._plans.get(number), self._loaded
        if built is None:
            raise AssertionError(f"there is no plan {number}")
        if loaded is None or loaded.op != built.op:
            raise AssertionError(f"plan {number} is for {built.op.describe()}; {self!r}")
        if built.candidate.workspace_bytes > loaded.buffers.workspace_bytes:
            raise AssertionError(f"plan {number} needs more than {loaded.buffers.workspace_bytes} bytes of workspace")
        return built, loaded

    def _packs(self, number: int, built: BuiltPlan, loaded: Loaded) -> list[VariantPack]:
        packs = loaded.packs.get(number)
        if packs is None:
            packs = [self._pack(built.made.plan, loaded, places) for places in loaded.buffers.sets]
            loaded.packs[number] = packs
        return packs

    def _pack(self, plan: Runnable, loaded: Loaded, places: Mapping[int, int]) -> VariantPack:
        taken = {uid: address for uid, address in places.items() if plan.reserve_bytes or uid != RESERVE_UID}
        return plan.variant_pack(taken, loaded.buffers.workspace, handle=self._enter_lane())

    def _failure_of(self, status: int, built: BuiltPlan) -> Failure | None:
        """What a status of the latest execution means for the plan; None if it succeeded."""
        if not status:
            return None
        if suspects_context(status) and not self._gpu.is_healthy():
            return self._lost([built], f"status {status}")
        try:
            self._library.check(status, f"running {built.candidate.algorithm}")
        except CudnnError as error:
            return error.failure("running")
        return None

    def _surviving(self, ran: Sequence[BuiltPlan], run: Callable[[], T]) -> T | Failure:
        """What `run` returns; a failure if something that it queued failed, or could not be bound to its addresses.

        Raises:
            CudnnError: the library was called wrongly.
        """
        try:
            return run()
        except CudaFault as fault:
            if not self._gpu.is_healthy():
                return self._lost(ran, str(fault))
            return Failure("launch_failed", str(fault), (("status", str(fault.status)),))
        except CudnnError as error:
            return error.failure("running")

    def _lost(self, ran: Sequence[BuiltPlan], what: str) -> Failure:
        """One of these candidates has made the device useless to this process."""
        names = " or ".join(dict.fromkeys(built.candidate.algorithm for built in ran))
        reason = f"nothing runs any more since {names} ran for {ran[0].op.describe()}: {what}"
        self._sick = Failure("launch_failed", reason, (("device", self.device.name),))
        return self._sick

    def _out_of_memory(self, message: str) -> Failure:
        return Failure("out_of_memory", message, (("free_bytes", str(self._gpu.free_bytes())),))


def _timed_out(built: BuiltPlan, run_us: float, limit_us: float) -> Failure:
    what = f"a run of {built.candidate.algorithm} took {run_us:.1f} µs"
    return Failure("timed_out", what, (("limit_us", str(limit_us)),))
