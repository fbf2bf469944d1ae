"""A backend of one device that is none: the fake libcudnn over host memory; and how tests drive its sessions."""

from __future__ import annotations

from algosearch.backends.base import Device, Recipe
from algosearch.backends.cudnn.session import CudnnSession, Timing
from algosearch.ops import ConvOp, Op, canonical
from algosearch.records import Burst, Environment
from algosearch.settings import Isolation
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.host_gpu import HostGpu
from tests.backends.driven import Driven

DEVICE = Device(backend="cudnn", ordinal=0, kind="Host", identity="GPU-host")
OP = canonical(ConvOp(input_shape=(2, 8, 6, 6), filter_shape=(8, 8, 3, 3), padding_low=(1, 1)))


class HostBackend:
    """A `Backend` of one device that is none."""

    name = "cudnn"
    isolation: Isolation = "thread"

    def __init__(self, fake: FakeCudnn, *, timing: Timing = "warm", gpu: HostGpu | None = None) -> None:
        self.gpu = gpu or HostGpu(l2_bytes=1 << 16)
        self._fake = fake
        self._timing: Timing = timing

    def recipe(self) -> Recipe | None:
        return None

    def devices(self) -> tuple[Device, ...]:
        return (DEVICE,)

    def open(self, device: Device) -> CudnnSession:
        environment = Environment(backend="cudnn", device="Host", facts=tuple(self._fake.library.facts().items()))
        return CudnnSession(self._fake.library, self.gpu, device, environment, timing=self._timing)


def gpu_of(driven: Driven) -> HostGpu:
    session = driven.session
    assert isinstance(session, CudnnSession)
    gpu = session._gpu
    assert isinstance(gpu, HostGpu)
    return gpu


def loaded(driven: Driven, op: Op = OP) -> dict[str, int]:
    """Plans by algorithm, all of them built, loaded and launched."""
    plans = driven.runnable(op)
    driven.load_for(op, plans)
    for _, plan in plans:
        assert isinstance(driven.launch(plan), Burst)
    return {candidate.algorithm: plan for candidate, plan in plans}
