"""`Buffers`: the memory of one op while it is raced, as one block: what is written, between guards; one workspace; what
is read; and room for a second result to compare with.

Nothing but the lane's stream touches it. A kernel that starves beside another stream's, or works on memory that another
stream still writes, hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from algosearch.backends.cudnn.contents import Range
from algosearch.backends.cudnn.gpu import Gpu, OutOfDeviceMemory
from algosearch.backends.cudnn.graph import GraphTensor
from algosearch.ops import ELEMENT_BYTES

GUARD_BYTES: Final = 1 << 16
ALIGNMENT_BYTES: Final = 1024
"""Of everything in the block."""
_PATTERN: Final = 0x6D
_NAN: Final = 0xFF
"""Of these bytes every floating-point type is NaN, and int8 is -1."""
_SHARE: Final = 0.8
"""Of the free memory, for one op: libraries and whoever else is on the device need some too."""
MOST_SETS: Final = 64
_BEYOND_CACHE: Final = 2.0
"""How much more than the cache holds a rotation goes through."""


class Layout(msgspec.Struct, frozen=True):
    """Where everything lies in the block, from its beginning. Decided before any memory exists."""

    tensors: tuple[int, ...]
    """Of each tensor, in their order."""
    workspace: int
    copies: tuple[int, ...]
    """Of each written tensor, in their order: room for another result."""
    guards: tuple[int, ...]
    """Of each guard: before and behind each written tensor, and behind the whole workspace."""
    size_bytes: int


def lay_out(tensors: Sequence[GraphTensor], workspace_bytes: int) -> Layout:
    """Written tensors first and the workspace behind them, guards between; then what no run should write."""
    guards, at = [0], GUARD_BYTES
    places: dict[int, int] = {}
    for number, tensor in enumerate(tensors):
        if tensor.written:
            places[number] = at
            guards.append(at + tensor.bytes)
            at = _aligned(at + tensor.bytes + GUARD_BYTES)
    workspace = at
    guards.append(at + workspace_bytes)
    at = _aligned(at + workspace_bytes + GUARD_BYTES)
    for number, tensor in enumerate(tensors):
        if not tensor.written:
            places[number] = at
            at = _aligned(at + tensor.bytes)
    copies = []
    for tensor in tensors:
        if tensor.written:
            copies.append(at)
            at = _aligned(at + tensor.bytes)
    return Layout(tuple(places[number] for number in range(len(tensors))), workspace, tuple(copies), tuple(guards), at)


def sets_beyond_cache(tensor_bytes: int, cache_bytes: int) -> int:
    """How many sets of tensors a rotation needs so that each run finds none of its own in the cache."""
    return min(MOST_SETS, int(_BEYOND_CACHE * cache_bytes // max(1, tensor_bytes)) + 2)


def most_bytes(free_bytes: int) -> int:
    """What an op may take when so much is free."""
    return int(free_bytes * _SHARE)


def is_whole(guard: bytes) -> bool:
    """Whether a guard is as it was painted."""
    return bool((np.frombuffer(guard, np.uint8) == _PATTERN).all())


def on_host(raw: bytes, element_type: str) -> npt.NDArray[Any]:
    """Elements as numpy has them; bfloat16, which it has not, as float32."""
    if element_type == "bfloat16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, element_type)


class Buffers:
    """Allocated and filled, on the lane's stream.

    Args:
        range_of: what a tensor that is read is drawn from, by its name.
        rotating: whether there are to be so many sets of tensors that no run finds its own in the cache.

    Raises:
        OutOfDeviceMemory: it does not fit, or would take more than its share.
    """

    def __init__(
        self,
        gpu: Gpu,
        tensors: Sequence[GraphTensor],
        workspace_bytes: int,
        range_of: Callable[[str], Range],
        *,
        rotating: bool = False,
    ) -> None:
        self.tensors = tuple(tensors)
        self.workspace_bytes = workspace_bytes
        self._gpu = gpu
        self._layout = lay_out(tensors, workspace_bytes)
        set_bytes = sum(_aligned(tensor.bytes) for tensor in tensors)
        sets = sets_beyond_cache(set_bytes, gpu.l2_bytes) if rotating else 1
        wanted_bytes = self._layout.size_bytes + (sets - 1) * set_bytes
        most = most_bytes(gpu.free_bytes())
        if wanted_bytes > most:
            raise OutOfDeviceMemory(wanted_bytes, f"{most} bytes may be taken")
        self._block = gpu.allocate(self._layout.size_bytes)
        self._further = [gpu.allocate(set_bytes) for _ in range(sets - 1)]
        base = self._block.address
        self.workspace = base + self._layout.workspace
        self.sets: list[dict[int, int]] = [
            {tensor.uid: base + place for tensor, place in zip(tensors, self._layout.tensors, strict=True)}
        ]
        """Of each set, the tensors' addresses by their number in the graph."""
        for block in self._further:
            at, places = block.address, {}
            for tensor in tensors:
                places[tensor.uid] = at
                at += _aligned(tensor.bytes)
            self.sets.append(places)
        self._fill(range_of)

    def address(self, tensor: GraphTensor) -> int:
        """Of a tensor of the first set."""
        return self.sets[0][tensor.uid]

    @property
    def written(self) -> tuple[GraphTensor, ...]:
        """What a run writes."""
        return tuple(tensor for tensor in self.tensors if tensor.written)

    def copy_of(self, tensor: GraphTensor) -> int:
        """Where the other result of a written tensor is."""
        return self._block.address + self._layout.copies[self.written.index(tensor)]

    def contents(self, tensor: GraphTensor) -> npt.NDArray[Any]:
        """The elements of a tensor of the first set, on the host; blocks. bfloat16, which numpy has not, as float32."""
        (raw,) = self._gpu.read([(self.address(tensor), tensor.bytes)])
        return on_host(raw, tensor.element_type)

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy tensors to others of their size: (from, to) by uid, in every set."""
        size_of = {tensor.uid: tensor.bytes for tensor in self.tensors}
        for source, target in pairs:
            for places in self.sets:
                self._gpu.copy(places[target], places[source], size_of[target])

    def keep_result(self) -> None:
        """Make what was written last the other result."""
        for tensor in self.written:
            self._gpu.copy(self.copy_of(tensor), self.address(tensor), tensor.bytes)

    def spoil(self, workspace_bytes: int) -> None:
        """Make of all that a run with this workspace may write something that no run leaves behind."""
        assert workspace_bytes <= self.workspace_bytes, f"{workspace_bytes} bytes, of {self.workspace_bytes}"
        for tensor in self.written:
            self._gpu.set_bytes(self.address(tensor), _NAN, tensor.bytes)
        if workspace_bytes:
            self._gpu.set_bytes(self.workspace, _NAN, workspace_bytes)
        for guard in self._guards(workspace_bytes):
            self._gpu.set_bytes(guard, _PATTERN, GUARD_BYTES)

    def is_trespassed(self, workspace_bytes: int) -> bool:
        """Whether anything beside what it was given was written since `spoil`; blocks."""
        guards = self._gpu.read([(guard, GUARD_BYTES) for guard in self._guards(workspace_bytes)])
        return not all(map(is_whole, guards))

    def _guards(self, workspace_bytes: int) -> list[int]:
        """The last one moves up to where a smaller workspace ends."""
        base = self._block.address
        return [*(base + guard for guard in self._layout.guards[:-1]), self.workspace + workspace_bytes]

    def _fill(self, range_of: Callable[[str], Range]) -> None:
        for places in self.sets:
            for tensor in self.tensors:
                if tensor.written:
                    self._gpu.set_bytes(places[tensor.uid], _NAN, tensor.bytes)
                    continue
                drawn = range_of(tensor.name)
                self._gpu.draw(
                    places[tensor.uid],
                    tensor.element_type,
                    tensor.bytes // ELEMENT_BYTES[tensor.element_type],
                    low=drawn.low,
                    high=drawn.high,
                    seed=tensor.uid,
                )


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
