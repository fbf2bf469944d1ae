"""The ground of `bench/injection.py` that needs no GPU: the fake libcudnn over the host's memory.

Its device has as much memory as a file says, of which every process on it takes its own; a neighbour is whoever writes
less into the file. Engines differ in what they need, and in how long they are said to take.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from injection import Ground, Misdeeds, follow_runs

from algosearch.backends.base import Backend, Device, Recipe
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.ops import ConvOp, Op, canonical
from algosearch.records import Built, Candidate, Environment, Failure
from algosearch.settings import Isolation
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.host_gpu import HostGpu

LIBRARY: Final = "ALGOSEARCH_TEST_FAKE_CUDNN"
MEMORY: Final = "ALGOSEARCH_TEST_MEMORY"
"""Environment variables: the compiled library, and the file."""
CAPACITY_BYTES: Final = 1 << 28
WORKSPACES: Final = (0, 1 << 16, 1 << 20, 2 << 20, 4 << 20)
"""Of an engine each. The hungriest tend to be the fastest."""
FIRST_ENGINE: Final = 20
OPS: Final = 12


class HostGround:
    """A `Ground`."""

    slack_bytes = 0

    def backend(self) -> Backend:
        return HostBackend()

    def ops(self, network: str, case: str, batch: int) -> list[ConvOp]:
        shapes = [(1 + n % 2, 4, 4 + n, 5) for n in range(OPS)]
        return [canonical(ConvOp(input_shape=shape, filter_shape=(4, 4, 3, 3))) for shape in shapes]

    def misdeeds(self, session: CudnnSession) -> Misdeeds:
        return HostMisdeeds(session)

    def take_memory(self, leave_bytes: int) -> Callable[[], None]:
        set_memory(min(leave_bytes, CAPACITY_BYTES))
        return lambda: set_memory(CAPACITY_BYTES)


def set_memory(free_bytes: int) -> None:
    """What there is on the device, for each process."""
    file = Path(os.environ[MEMORY])
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(str(free_bytes))
    fresh.rename(file)


class SharedGpu(HostGpu):
    """Whose memory a neighbour may have, and whose runs take as long as somebody says."""

    def __init__(self) -> None:
        super().__init__(executed_us=lambda: self.ran_us, capacity_bytes=CAPACITY_BYTES, l2_bytes=1 << 16)
        self.ran_us = 0.0

    def free_bytes(self) -> int:
        return int(Path(os.environ[MEMORY]).read_text()) - self.taken_bytes

    def run_for(self, run_us: float) -> None:
        self.ran_us += run_us


class HostSession(CudnnSession):
    """Whose plans take a time of their own, by their names."""

    def build(self, op: Op, candidate: Candidate) -> Built | Failure:
        built = super().build(op, candidate)
        if isinstance(built, Built):
            run_us = random.Random(f"{op} {candidate.algorithm}").uniform(20.0, 60.0)
            run_us /= 1.0 + candidate.workspace_bytes / WORKSPACES[-1]
            gpu = self._gpu
            assert isinstance(gpu, SharedGpu)
            follow_runs(self, built.plan, lambda: gpu.run_for(run_us))
        return built


class HostBackend:
    """A `Backend` of one device that is none."""

    name = "cudnn"
    isolation: Isolation = "thread"

    def recipe(self) -> Recipe | None:
        return None

    def devices(self) -> tuple[Device, ...]:
        # Another one for each memory: who shares none is not to wait for the other's lane.
        return (Device(backend="cudnn", ordinal=0, kind="Host", identity=f"GPU-{os.environ[MEMORY]}"),)

    def open(self, device: Device) -> HostSession:
        fake = FakeCudnn(Path(os.environ[LIBRARY]))
        fake.forget_engines()
        for engine, workspace_bytes in enumerate(WORKSPACES, FIRST_ENGINE):
            fake.engine(engine)
            fake.config(engine, workspace_bytes=workspace_bytes)
        environment = Environment(backend="cudnn", device="Host", facts=tuple(fake.library.facts().items()))
        return HostSession(fake.library, SharedGpu(), device, environment)


class HostMisdeeds:
    """`Misdeeds` of one session. What is queued is done at once, and so what never ends never returns."""

    def __init__(self, session: CudnnSession) -> None:
        self._session = session

    def hang(self) -> None:
        threading.Event().wait()

    def overrun(self) -> None:
        buffers = self._session.buffers
        assert buffers is not None, "nothing is loaded"
        tensor = buffers.written[0]
        self._session._gpu.set_bytes(buffers.address(tensor) + tensor.bytes, 0, 256)

    def run_wild(self) -> None:
        gpu = self._session._gpu
        assert isinstance(gpu, SharedGpu)
        gpu.lost = True


def ground() -> Ground:
    """As `Ground` says."""
    return HostGround()
