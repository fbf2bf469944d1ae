"""Where things lie, what is in them, and what a guard notices; on host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from algosearch.backends.cudnn import buffers
from algosearch.backends.cudnn.buffers import (
    ALIGNMENT_BYTES,
    GUARD_BYTES,
    Buffers,
    lay_out,
    most_bytes,
    sets_beyond_cache,
)
from algosearch.backends.cudnn.contents import Range
from algosearch.backends.cudnn.gpu import OutOfDeviceMemory
from algosearch.backends.cudnn.graph import GraphTensor
from tests.backends.cudnn.host_gpu import HostGpu


def unit_range(name: str) -> Range:
    return Range(-1.0, 1.0)


def tensor(uid: int, size: int, *, written: bool = False, element_type: str = "float32") -> GraphTensor:
    size_bytes = size * {"float32": 4, "int8": 1}[element_type]
    return GraphTensor(
        uid=uid,
        name="abcdef"[uid],
        shape=(size,),
        strides=(1,),
        element_type=element_type,
        bytes=size_bytes,
        written=written,
    )


def at(address: int, size_bytes: int) -> bytes:
    return ctypes.string_at(address, size_bytes)


sizes = st.lists(st.tuples(st.integers(1, 5000), st.booleans()), min_size=1, max_size=5)


@given(sizes, st.integers(0, 100_000))
def test_nothing_overlaps_and_every_result_is_between_guards(
    described: Sequence[tuple[int, bool]], workspace_bytes: int
) -> None:
    tensors = [tensor(uid, size, written=written) for uid, (size, written) in enumerate(described)]
    layout = lay_out(tensors, workspace_bytes)
    written = [each for each in tensors if each.written]
    places = [(start, each.bytes) for start, each in zip(layout.tensors, tensors, strict=True)]
    places += [(start, each.bytes) for start, each in zip(layout.copies, written, strict=True)]
    places += [(layout.workspace, workspace_bytes), *((guard, GUARD_BYTES) for guard in layout.guards)]
    ordered = sorted(place for place in places if place[1])
    assert ordered[0][0] == 0
    assert all(start + size <= after for (start, size), (after, _) in pairwise(ordered))
    assert sum(ordered[-1]) <= layout.size_bytes
    assert all(start % ALIGNMENT_BYTES == 0 for start in (*layout.tensors, *layout.copies, layout.workspace))
    for start, each in zip(layout.tensors, tensors, strict=True):
        if each.written:
            assert start + each.bytes in layout.guards
            assert any(start - ALIGNMENT_BYTES < guard + GUARD_BYTES <= start for guard in layout.guards)
    assert layout.workspace + workspace_bytes == layout.guards[-1]


def test_what_is_read_is_random_and_what_is_written_is_no_number() -> None:
    gpu = HostGpu()
    read, also, written = tensor(0, 1000), tensor(1, 1000), tensor(2, 10, written=True)
    loaded = Buffers(gpu, [read, also, written], 64, unit_range)
    values = [np.frombuffer(at(loaded.address(each), each.bytes), np.float32) for each in (read, also, written)]
    assert -1.0 <= values[0].min() < -0.9
    assert 0.9 < values[0].max() <= 1.0
    assert not np.array_equal(values[0], values[1])
    assert np.isnan(values[2]).all()
    again = Buffers(gpu, [read, also, written], 64, unit_range)
    assert at(again.address(read), read.bytes) == at(loaded.address(read), read.bytes)


@pytest.mark.parametrize("beside", ["before", "behind", "workspace"])
@pytest.mark.parametrize("used_bytes", [0, 37, 4096])
def test_a_byte_written_beside_what_was_given_is_noticed(beside: str, used_bytes: int) -> None:
    result = tensor(1, 33, written=True)
    loaded = Buffers(HostGpu(), [tensor(0, 10), result], 4096, unit_range)
    loaded.spoil(used_bytes)
    start = loaded.address(result)
    ctypes.memset(start, 0, result.bytes)
    ctypes.memset(loaded.workspace, 0, used_bytes)
    assert not loaded.is_trespassed(used_bytes)
    where = {"before": start - 1, "behind": start + result.bytes, "workspace": loaded.workspace + used_bytes}
    ctypes.memset(where[beside], 0, 1)
    assert loaded.is_trespassed(used_bytes)


def test_spoiling_leaves_no_result_and_no_workspace() -> None:
    gpu = HostGpu()
    result = tensor(1, 100, written=True, element_type="int8")
    loaded = Buffers(gpu, [tensor(0, 10), result], 256, unit_range)
    ctypes.memset(loaded.address(result), 5, 100)
    loaded.keep_result()
    loaded.spoil(256)
    assert at(loaded.address(result), 100) == b"\xff" * 100
    assert at(loaded.workspace, 256) == b"\xff" * 256
    assert at(loaded.copy_of(result), 100) == b"\x05" * 100


def test_more_than_its_share_is_out_of_memory_and_takes_nothing() -> None:
    gpu = HostGpu(capacity_bytes=10 << 20)
    with pytest.raises(OutOfDeviceMemory, match="may be taken"):
        Buffers(gpu, [tensor(0, 10), tensor(1, 10, written=True)], most_bytes(10 << 20), unit_range)
    assert gpu.taken_bytes == 0
    loaded = Buffers(gpu, [tensor(0, 10), tensor(1, 10, written=True)], 6 << 20, unit_range)
    assert gpu.taken_bytes > 6 << 20
    del loaded
    assert gpu.taken_bytes == 0


def test_a_rotation_goes_through_more_than_the_cache_holds() -> None:
    gpu = HostGpu(l2_bytes=1 << 20)
    tensors = [tensor(0, 10_000), tensor(1, 10_000, written=True)]
    loaded = Buffers(gpu, tensors, 0, unit_range, rotating=True)
    used = sorted(place for places in loaded.sets for place in places.values())
    assert len(used) == len(set(used)) == 2 * len(loaded.sets)
    assert (len(loaded.sets) - 1) * 80_000 > gpu.l2_bytes
    for places in loaded.sets:
        assert at(places[0], 40_000) == at(loaded.sets[0][0], 40_000)


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 30))
def test_a_rotation_has_some_sets_and_not_too_many(tensor_bytes: int, cache_bytes: int) -> None:
    sets = sets_beyond_cache(tensor_bytes, cache_bytes)
    assert 2 <= sets <= buffers.MOST_SETS
    assert sets == buffers.MOST_SETS or (sets - 1) * tensor_bytes > cache_bytes
