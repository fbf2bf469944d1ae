"""`Plan`: what was picked, made runnable in the caller's process; `Workshop`: where a searcher builds them.

A choice is an identity, so a plan is rebuilt from it: opening the device for that loads its library, seconds at worst,
and building takes milliseconds. Both happen in a thread of the workshop's own, made with the first build.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Any, Final, Self

from algosearch.backends import Backend, Device
from algosearch.backends.arrays import seen
from algosearch.backends.running import RESERVE, Executable, Runner, RunsPicks, Slot, check_bytes, check_place, slot_of
from algosearch.errors import (
    AlgosearchError,
    InvalidCall,
    NotBuilt,
    NotRunnable,
    OtherEnvironment,
    RequestWithdrawn,
    SearcherClosed,
)
from algosearch.forks import renew_in_children
from algosearch.ops import BatchNormOp, Op
from algosearch.pinned import PinnedThread, as_exception
from algosearch.records import Algorithm, Choice, Environment, Failure, Key
from algosearch.search.engine import Engine
from algosearch.search.milestone import Milestone

_RESERVE_ALIGNMENT_BYTES: Final = 16


class Plan:
    """A callable for one op: `plan(input=x, filter=w, output=y)`. Made by `Searcher.build`; outlives the searcher.

    Tensors are passed by name, results too: their owner is the caller. A convolution has `input`, `filter` and
    `output`; what a batch norm has, `slots` says. On a GPU they are CuPy arrays, PyTorch tensors, or whatever has
    `__cuda_array_interface__` or DLPack; on the CPU numpy arrays or DLPack. Each has the op's own shape
    ([N, C, spatial…], also in channels-last order: a transposed view then), is dense in the op's layout and as aligned
    as the op promises. What is written has a place of its own; only running statistics may take that of the previous
    ones.

    *Threads.* May be called from any thread, also at once: calls for one device take turns, for as long as a launch
    takes. *Streams.* Nothing is waited for, as with any kernel: the arrays must be ready by the order of the stream
    that the call names, and stay until it is through. *Workspace.* Left out, the plan keeps one for each stream that it
    was called on; one that is given is the caller's to keep apart. *CUDA graphs.* A call may be captured after one that
    was not, which loads code; the workspace must be given, or be there from an earlier call on the same stream. The
    plan must outlive the graph and all that was made of it: whoever keeps the graph keeps the plan, and closes it last.
    """

    def __init__(self, op: Op, choice: Choice, executable: Executable) -> None:
        self.op = op
        self.choice = choice
        self.workspace_bytes = executable.workspace_bytes
        """What a run needs; 0 if nothing."""
        self.reserve_bytes = executable.reserve_bytes
        """Of the array `reserve`, which a fused batch norm's forward pass writes for the backward pass of the same
        algorithm; 0 if there is none."""
        self.slots: dict[str, Slot] = {name: slot_of(op, name, written=written) for name, written in executable.names}
        """What each array must be."""
        self._usual = {name: (slot.shape, slot.strides, slot.element_type) for name, slot in self.slots.items()}
        """What most arrays are, to the letter: to see that takes a third of working it out."""
        self._wanted = {*self.slots, RESERVE} if self.reserve_bytes else {*self.slots}
        self._executable = executable
        self._closed = False

    def __repr__(self) -> str:
        return f"<Plan {self.choice.algorithm} for {self.op.describe()}{', closed' if self._closed else ''}>"

    def __call__(
        self,
        *,
        stream: Any = None,
        workspace: Any = None,
        epsilon: Any = None,  # as the others, so that a dictionary of arrays can be unpacked here in typed code
        momentum: Any = None,
        **tensors: Any,
    ) -> None:
        """Run it once; on a GPU, queue it.

        Args:
            stream: of CUDA: its number, or CuPy's or PyTorch's object; left out, the thread's current stream, PyTorch's
                if one of the arrays is its tensor, else CuPy's.
            workspace: an array of at least `workspace_bytes` bytes, of any type; left out, the plan's own.
            epsilon, momentum: numbers, of a batch norm; left out, 1e-5 and 0.1.
            tensors: the arrays, by the names in `slots`, and `reserve` if there is one.

        Raises:
            InvalidCall: an array is missing, or of a wrong shape, type, device, alignment or stride; one that is
                written overlaps another (on a GPU); or nothing of this kind can be run on.
            RunFailed: the library or the driver refuses; or the plan was closed.
        """
        if tensors.keys() != self._wanted:
            raise InvalidCall("tensors", sorted(tensors), f"must be {', '.join(sorted(self._wanted))}")
        arrays = {name: seen(name, array) for name, array in tensors.items()}
        executable = self._executable
        for name, slot in self.slots.items():
            array = arrays[name]
            if (array.shape, array.strides, array.element_type) == self._usual[name]:
                check_place(name, array, executable.alignment_bytes, written=slot.written)
            else:
                slot.check(array, executable.alignment_bytes)
        if self.reserve_bytes:
            check_bytes(RESERVE, arrays[RESERVE], self.reserve_bytes, _RESERVE_ALIGNMENT_BYTES)
        room = None
        if workspace is not None:
            room = seen("workspace", workspace)
            check_bytes("workspace", room, self.workspace_bytes, executable.workspace_alignment_bytes)
        numbers = self._numbers(epsilon=epsilon, momentum=momentum)
        executable.run(arrays, numbers=numbers, workspace=room, stream=stream)

    def _numbers(self, **given: object) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, value in given.items():
            if value is None:
                continue
            if not isinstance(self.op, BatchNormOp):
                raise InvalidCall(name, value, "is a batch norm's")
            if not isinstance(value, int | float) or not 0 <= value < inf:
                raise InvalidCall(name, value, "must be a finite number, at least 0")
            found[name] = float(value)
        return found

    def close(self) -> None:
        """Give it back, and the workspace that it allocated. May wait for the device; harmless if called twice. No
        graph that was captured from it may run afterwards."""
        if not self._closed:
            self._closed = True
            self._executable.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # It destroys nothing: that waits for the device, in whatever thread collects garbage.
        if not getattr(self, "_closed", True):
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)


class Workshop:
    """One searcher's. Usable from any thread and any loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """Threads and opened devices are the parent's."""
        self._lock = threading.Lock()
        self._thread: PinnedThread | None = None
        self._closed = False
        self._runners: dict[str, Runner] = {}
        """By the device's name; touched in the thread alone."""

    async def build(self, op: Op, choice: Choice, device: str | None) -> Plan:
        """As `Searcher.build`."""
        built = self._begin(op, choice, device)
        try:
            return await built.wait()
        except asyncio.CancelledError:
            self._abandon(built, op)
            raise

    def build_blocking(self, op: Op, choice: Choice, device: str | None, timeout_s: float | None) -> Plan:
        """As `Searcher.build_blocking`."""
        built = self._begin(op, choice, device)
        if not built.wait_blocking(timeout_s):
            self._abandon(built, op)
            raise TimeoutError(f"no plan within {timeout_s} s for {op.describe()}")
        return built.result()

    def close(self) -> None:
        """Build nothing any more, and give back what building needed. Harmless if called twice; plans live on."""
        self._post(self._close_runners, begin=False)
        self.stop()

    def stop(self) -> None:
        """Build nothing any more."""
        with self._lock:
            self._closed = True
            if self._thread is not None:
                self._thread.stop()

    def _begin(self, op: Op, choice: Choice, device: str | None) -> Milestone[Plan]:
        built: Milestone[Plan] = Milestone()

        def job() -> None:
            try:
                plan = self._build(op, choice, device)
            except AlgosearchError as error:
                built.fail(error)
            except BaseException as error:  # somebody waits
                broken = NotBuilt(op.describe(), choice.algorithm, type(error).__name__, str(error))
                broken.__cause__ = as_exception(error)
                built.fail(broken)
            else:
                if not built.set(plan):  # nobody waits any more
                    plan.close()

        if not self._post(job):
            raise SearcherClosed
        return built

    def _abandon(self, built: Milestone[Plan], op: Op) -> None:
        """Nobody takes what comes, or has come."""
        if not built.fail(RequestWithdrawn(op.describe())):
            try:
                plan = built.result()
            except AlgosearchError:
                return
            if not self._post(plan.close):
                plan.close()

    def _post(self, job: Callable[[], None], *, begin: bool = True) -> bool:
        with self._lock:
            if self._closed or (self._thread is None and not begin):
                return False
            if self._thread is None:
                self._thread = PinnedThread("algosearch-build")
            return self._thread.post(job)

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _build(self, op: Op, choice: Choice, device: str | None) -> Plan:
        wanted = Algorithm.parse(choice.algorithm).backend
        runner = self._runner(wanted, device)
        if choice.digest and Key.of(op, runner.environment).digest != choice.digest:
            raise OtherEnvironment(op.describe(), self._differences(op, choice, runner.environment))
        built = runner.build(op, choice.algorithm)
        if isinstance(built, Failure):
            raise NotBuilt(op.describe(), choice.algorithm, built.kind, built.message)
        return Plan(op, choice, built)

    def _runner(self, wanted: str, device: str | None) -> Runner:
        backend, found = self._device(wanted, device)
        runner = self._runners.get(found.name)
        if runner is None:
            if not isinstance(backend, RunsPicks):
                raise NotRunnable(wanted)
            runner = self._runners[found.name] = backend.runner(found)
        return runner

    def _device(self, wanted: str, device: str | None) -> tuple[Backend, Device]:
        devices = self._engine.lineup.devices
        for backend, found in devices:
            if found.backend == wanted and device in (None, found.name, found.backend):
                return backend, found
        raise self._engine.lineup.unknown(
            [device or wanted], [found.name for _, found in devices if found.backend == wanted]
        )

    def _differences(self, op: Op, choice: Choice, here: Environment) -> tuple[tuple[str, str | None, str | None], ...]:
        """What is another, if an environment in which this engine searches is the choice's."""
        for there in self._engine.environments():
            key = Key.of(op, there)
            if key.digest == choice.digest:
                return key.difference(Key.of(op, here))
        return ()

    def _close_runners(self) -> None:
        while self._runners:
            self._runners.popitem()[1].close()
