"""`CudnnRunner`: plans of cuDNN rebuilt from engine and knobs in the caller's process, and run on the caller's arrays.

Two handles: one that builds, in the thread of whoever owns the runner, and one that executes, in any thread, under one
lock for all plans of a device: cuDNN allows neither a handle nor a plan to be used by two threads at once. The lock is
held for as long as a launch takes, which is microseconds, and up to a second for a plan's first one, which may load
code. Rejected: a handle for each thread (4 ms each, and nobody hears when a thread ends).

A plan that a CUDA graph was recorded from must outlive it: it owns the code that the graph runs, and the workspace
unless its caller gave one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from ctypes import addressof, c_double, c_float
from itertools import combinations
from typing import Final

import msgspec

from algosearch.backends.arrays import HOST, Seen
from algosearch.backends.cudnn.convolution import alignment_told, convolution_tensors
from algosearch.backends.cudnn.gpu import Block, CudaFault, OutOfDeviceMemory
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.home import PER_THREAD_STREAM, Home
from algosearch.backends.cudnn.legacy_norm import IN_PLACE
from algosearch.backends.cudnn.library import Library
from algosearch.backends.cudnn.norm import UIDS, norm_tensors
from algosearch.backends.cudnn.norm_graph import ALIGNMENT_BYTES as NORM_ALIGNMENT_BYTES
from algosearch.backends.cudnn.offer import Made, offer_of
from algosearch.backends.cudnn.plan import VariantPack
from algosearch.backends.cudnn.status import CudnnError
from algosearch.errors import InvalidCall, RunFailed
from algosearch.ops import ConvOp, Op, canonical
from algosearch.records import Environment, Failure

WORKSPACE_ALIGNMENT_BYTES: Final = 256
"""What the driver's own allocations keep."""
_PACKS: Final = 8
"""Kept of each plan: for so many sets of arrays, a call is one launch."""
_NUMBERS: Final = {
    "training_forward": ("epsilon", "momentum"),
    "inference": ("epsilon",),
    "backward": ("epsilon",),
    "training": ("epsilon", "momentum"),
}
"""What a phase of batch norm may be told."""
_UPDATED: Final = frozenset(
    frozenset(pair) for pair in (("previous_mean", "running_mean"), ("previous_variance", "running_variance"))
)
"""What may lie in one place."""
_NEW: Final = -1
"""No stream: what a handle is set to before it is first used."""


class CudnnRunner:
    """A `Runner` of one GPU. Made by `CudnnBackend.runner`."""

    def __init__(self, library: Library, home: Home, environment: Environment) -> None:
        self.environment = environment
        self.home = home
        self.lock = threading.Lock()
        """Of the handle that executes, and of all that is made with it."""
        self.library = library
        self._building: Handle | None = None
        self._executing: Handle | None = None
        self._stream = _NEW
        self._open: set[CudnnExecutable] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<CudnnRunner {self.home!r}, {len(self._open)} plans{', closed' if self._closed else ''}>"

    def build(self, op: Op, algorithm: str) -> CudnnExecutable | Failure:
        """As the contract says.

        Raises:
            CudnnError: the library cannot be asked.
        """
        if self._closed:
            raise AssertionError("building on a runner that was closed")
        op = canonical(op)
        with self.home.current():
            if self._building is None:
                self._building = Handle(self.library)
            offer = offer_of(self._building, op, self.home)
            if offer is None:
                return Failure("not_supported", f"the library cannot do {op.describe()}")
            try:
                made = offer.make(algorithm)
            finally:
                offer.destroy()
            if isinstance(made, Failure):
                return made
            built = CudnnExecutable(self, op, algorithm, made)
        with self.lock:
            self._open.add(built)
        return built

    def handle(self, stream: int) -> Handle:
        """The handle that executes, set to a stream. Under the lock, the device being current.

        Raises:
            CudnnError: it is no stream of this device.
        """
        if self._executing is None:
            self._executing = Handle(self.library)
        if stream != self._stream:
            self._stream = _NEW
            self._executing.set_stream(stream)
            self._stream = stream
        return self._executing

    def forget(self, plan: CudnnExecutable) -> None:
        """A plan is closed. Under the lock."""
        self._open.discard(plan)
        self._end()

    def close(self) -> None:
        """As the contract says. The handles go with the last plan: it was made with one, and runs with the other."""
        with self.lock, self.home.current():
            self._closed = True
            self._end()

    def _end(self) -> None:
        if not self._closed or self._open:
            return
        for handle in (self._executing, self._building):
            if handle is not None:
                handle.destroy()
        self._executing = self._building = None


class _Bound(msgspec.Struct):
    """A plan bound to arrays, and the numbers that it reads from host memory."""

    pack: VariantPack
    numbers: tuple[c_float | c_double, ...]


class CudnnExecutable:
    """An `Executable`: a plan of cuDNN's."""

    def __init__(self, runner: CudnnRunner, op: Op, algorithm: str, made: Made) -> None:
        self._runner, self._made = runner, made
        self._problem, self._algorithm, self._op = op.describe(), algorithm, op
        tensors = convolution_tensors(op) if isinstance(op, ConvOp) else norm_tensors(op)
        self.names: tuple[tuple[str, bool], ...] = tuple((each.name, each.written) for each in tensors)
        self.workspace_bytes = made.plan.workspace_bytes
        self.reserve_bytes = made.plan.reserve_bytes
        self.alignment_bytes = alignment_told(op) if isinstance(op, ConvOp) else NORM_ALIGNMENT_BYTES
        self.workspace_alignment_bytes = WORKSPACE_ALIGNMENT_BYTES
        self._uids = {each.name: each.uid for each in tensors}
        if self.reserve_bytes:
            self._uids["reserve"] = UIDS["reserve"]
        self._bytes = {each.uid: each.bytes for each in tensors}
        self._bytes.setdefault(UIDS["reserve"], self.reserve_bytes)
        training = not isinstance(op, ConvOp) and op.phase in ("training_forward", "training")
        self._copied = IN_PLACE if training and made.is_legacy else ()
        self._bound: dict[tuple[object, ...], _Bound] = {}
        self._rooms: dict[tuple[int, int], Block] = {}
        """By stream, and by thread where each has a stream of that name: two runs at once need two workspaces."""
        self._loaded = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<CudnnExecutable {self._algorithm} for {self._problem}{', closed' if self._closed else ''}>"

    def run(
        self,
        tensors: Mapping[str, Seen],
        *,
        numbers: Mapping[str, float],
        workspace: Seen | None,
        stream: object,
    ) -> None:
        """As the contract says: queued, not waited for."""
        runner, home = self._runner, self._runner.home
        try:
            for name, array in tensors.items():
                self._check_device(name, array)
            if workspace is not None:
                self._check_device("workspace", workspace)
            with runner.lock, home.current():
                if self._closed:
                    raise RunFailed(self._problem, self._algorithm, "its plan was closed")
                number = self._stream_of(stream, tensors)
                room = self._room(number) if workspace is None else workspace.address
                handle = runner.handle(number)
                # In the plan's order, not the caller's: what was bound is known by them.
                addresses = {uid: tensors[name].address for name, uid in self._uids.items()}
                bound = self._bind(handle, addresses, room, numbers)
                for source, target in self._copied:
                    if addresses[source] != addresses[target]:
                        home.copy(addresses[target], addresses[source], self._bytes[target], number)
                self._launch(bound.pack)
        except (CudnnError, CudaFault, OutOfDeviceMemory) as error:
            raise RunFailed(self._problem, self._algorithm, str(error)) from error

    def close(self) -> None:
        """As the contract says."""
        runner = self._runner
        with runner.lock, runner.home.current():
            if self._closed:
                return
            self._closed = True
            self._bound.clear()
            self._made.plan.destroy()  # and its packs
            self._rooms.clear()
            runner.forget(self)

    def _launch(self, pack: VariantPack) -> None:
        launch: Callable[[], int] = pack.launch if self._loaded else pack.launch_long
        status = launch()
        if status:
            raise self._runner.library.error(status, "its launch")
        self._loaded = True

    def _bind(self, handle: Handle, addresses: dict[int, int], room: int, numbers: Mapping[str, float]) -> _Bound:
        """The plan bound to these addresses, made anew if it was bound to others since."""
        key = (*addresses.values(), room, *numbers.items())
        bound = self._bound.pop(key, None)
        if bound is None:
            self._check_apart(addresses, room)
            told = self._numbers(numbers)
            pointers = addresses | {UIDS[name]: addressof(value) for name, value in told.items()}
            bound = _Bound(self._made.plan.variant_pack(pointers, room, handle=handle), tuple(told.values()))
        self._bound[key] = bound  # the latest one last
        if len(self._bound) > _PACKS:
            self._bound.pop(next(iter(self._bound))).pack.destroy()
        return bound

    def _check_apart(self, addresses: Mapping[int, int], room: int) -> None:
        """What is written must be nobody else's place: no candidate was checked on anything else. Running statistics
        may be updated where they are.

        Raises:
            InvalidCall: two arrays overlap, of which one is written.
        """
        written = {name for name, is_written in self.names if is_written} | {"reserve", "workspace"}
        places = [(name, addresses[uid], self._bytes[uid]) for name, uid in self._uids.items()]
        if self.workspace_bytes:
            places.append(("workspace", room, self.workspace_bytes))
        for (one, first, size), (other, second, other_size) in combinations(places, 2):
            if first >= second + other_size or second >= first + size or written.isdisjoint((one, other)):
                continue
            if first != second or {one, other} not in _UPDATED:
                raise InvalidCall(other, second, f"overlaps with {one}, and one of them is written")

    def _numbers(self, given: Mapping[str, float]) -> dict[str, c_float | c_double]:
        op = self._op
        if isinstance(op, ConvOp) or (op.phase == "backward" and not self._made.is_legacy):
            return {}  # a graph is told only what it has
        kind = c_double if op.parameter_type == "float64" else c_float
        return {name: kind(given[name]) for name in _NUMBERS[op.phase] if name in given}

    def _room(self, stream: int) -> int:
        """The address of a workspace of its own, for this stream."""
        if not self.workspace_bytes:
            return 0
        whose = stream, threading.get_ident() if stream == PER_THREAD_STREAM else 0
        room = self._rooms.get(whose)
        if room is None:
            if self._runner.home.is_capturing(stream):
                rule = f"of {self.workspace_bytes} bytes must be given to a call that is captured, or call once before"
                raise InvalidCall("workspace", None, rule)
            room = self._rooms[whose] = self._runner.home.allocate(self.workspace_bytes)
        return room.address

    def _check_device(self, name: str, array: Seen) -> None:
        home = self._runner.home
        device = home.device_of(array.address) if array.device is None else array.device
        if device != home.ordinal:
            where = "the host's memory" if device == HOST else f"device {device}"
            raise InvalidCall(name, where, f"must be on device {home.ordinal}")

    def _stream_of(self, stream: object, tensors: Mapping[str, Seen]) -> int:
        if stream is None:
            return self._runner.home.usual_stream(of_torch=any(each.of_torch for each in tensors.values()))
        return stream_number(stream)


def stream_number(stream: object) -> int:
    """The `cudaStream_t` that a caller names: a number, or whatever has `__cuda_stream__`, `cuda_stream` (PyTorch's) or
    `ptr` (CuPy's).

    Raises:
        InvalidCall: it is no stream.
    """
    found: object = stream
    try:
        if hasattr(stream, "__cuda_stream__"):
            found = stream.__cuda_stream__()[1]
        elif not isinstance(stream, int):
            found = getattr(stream, "cuda_stream", None)
            found = getattr(stream, "ptr", None) if found is None else found
    except Exception as error:  # a stranger's object may raise anything
        raise InvalidCall("stream", stream, f"cannot be read: {error}") from error
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 1 << 64:
        raise InvalidCall("stream", stream, "must be a stream of CuPy or PyTorch, or the number of one")
    return found
