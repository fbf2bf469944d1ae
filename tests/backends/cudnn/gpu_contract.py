"""What every `Gpu` does, the real one and the fake on the host: one suite for both.

Subclass `GpuContract` as a class whose name begins with `Test`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from ctypes import c_void_p

import numpy as np
import pytest
from msgspec.structs import replace

from algosearch.backends.cudnn import gate
from algosearch.backends.cudnn.buffers import on_host
from algosearch.backends.cudnn.gpu import Block, Gpu, OutOfDeviceMemory, RowCopy
from algosearch.ops import ELEMENT_BYTES

TYPES = ("float16", "bfloat16", "float32", "float64", "int8")
COUNT = 100_003


def drawn(gpu: Gpu, element_type: str, *, seed: int = 1, low: float = -2.0, high: float = 3.0) -> np.ndarray:
    size_bytes = COUNT * ELEMENT_BYTES[element_type]
    block = gpu.allocate(size_bytes)
    gpu.draw(block.address, element_type, COUNT, low=low, high=high, seed=seed)
    return on_host(gpu.read([(block.address, size_bytes)])[0], element_type).astype(np.float64)


class GpuContract(ABC):
    """Not collected by itself."""

    @pytest.fixture
    @abstractmethod
    def gpu(self) -> Gpu:
        """An open one."""

    @abstractmethod
    def lose_10_ms(self, gpu: Gpu) -> None:
        """The host does nothing for so long."""

    @pytest.mark.parametrize("element_type", TYPES)
    def test_random_elements_are_even_and_the_same_each_time(self, gpu: Gpu, element_type: str) -> None:
        values = drawn(gpu, element_type)
        assert np.array_equal(values, drawn(gpu, element_type))
        assert not np.array_equal(values, drawn(gpu, element_type, seed=2))
        if element_type == "int8":
            found, counts = np.unique(values, return_counts=True)
            assert found.tolist() == [-2, -1, 0, 1, 2]
            assert counts.min() > 0.9 * COUNT / 5
        else:
            assert -2.0 <= values.min() < -1.98  # bfloat16 has steps of 0.016 there
            assert 2.98 < values.max() <= 3.0
            assert abs(values.mean() - 0.5) < 0.02
            assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02
            assert abs(np.corrcoef(values[:-64], values[64:])[0, 1]) < 0.02

    @pytest.mark.parametrize("element_type", TYPES)
    def test_comparing_finds_what_differs_and_where_it_is_worst(self, gpu: Gpu, element_type: str) -> None:
        size = ELEMENT_BYTES[element_type]
        first, second = (gpu.allocate(COUNT * size) for _ in range(2))
        for block in (first, second):
            gpu.draw(block.address, element_type, COUNT, low=1.0, high=3.0, seed=9)
        same = gpu.compare(first.address, second.address, element_type, COUNT, absolute=0.0, relative=0.0)
        assert (same.differing, same.worst) == (0, None)
        gpu.set_bytes(first.address + 777 * size, 0xFF, size)  # no number, or -1
        gpu.set_bytes(first.address + 5 * size, 0, size)
        found = gpu.compare(first.address, second.address, element_type, COUNT, absolute=0.25, relative=0.1)
        assert found.differing == 2
        assert found.worst == 777
        ample = gpu.compare(first.address, second.address, element_type, COUNT, absolute=9.0, relative=0.0)
        assert ample.differing == (0 if element_type == "int8" else 1), "what is no number differs from everything"

    @pytest.mark.parametrize(
        ("dtype", "rows", "width", "padded_rows", "padded_width"),
        [
            ("u2", 70_001, 3, 70_001, 8),
            ("u2", 5_000, 37, 5_000, 40),
            ("u2", 7, 8, 16, 8),
            ("u2", 1, 1, 3, 16),
            ("u4", 70_001, 1, 70_001, 4),
            ("u4", 900, 13, 1_000, 16),
        ],
    )
    def test_rows_are_padded_and_cut_again(
        self, gpu: Gpu, dtype: str, rows: int, width: int, padded_rows: int, padded_width: int
    ) -> None:
        """Two at once, the other one being of another size."""
        size = np.dtype(dtype).itemsize
        shapes = [((rows, width), (padded_rows, padded_width)), ((33, 5), (40, 8))]
        narrow = [gpu.allocate(np.prod(shape).item() * size + 2) for shape, _ in shapes]
        wide = [gpu.allocate(np.prod(shape).item() * size + 2) for _, shape in shapes]
        for number, block in enumerate([*narrow, *wide]):
            gpu.draw(block.address, "int8", block.size_bytes, low=-100.0, high=100.0, seed=number)

        def bytes_of(block: Block) -> bytes:
            return gpu.read([(block.address, block.size_bytes)])[0]

        before = [bytes_of(block) for block in (*narrow, *wide)]
        there = [
            RowCopy(
                source=block.address,
                target=other.address,
                element_bytes=size,
                source_rows=shape[0],
                source_width=shape[1],
                target_rows=padded[0],
                target_width=padded[1],
            )
            for block, other, (shape, padded) in zip(narrow, wide, shapes, strict=True)
        ]
        gpu.prepare_rows()
        stream = c_void_p(gpu.stream)
        gpu.row_copier(there, stream)()
        gpu.row_copier(there[:1], stream)()
        for raw, old, block, (shape, padded) in zip(before[:2], before[2:], wide, shapes, strict=True):
            right = np.zeros(padded, dtype)
            right[: shape[0], : shape[1]] = np.frombuffer(raw[:-2], dtype).reshape(shape)
            assert bytes_of(block) == right.tobytes() + old[-2:]
        back = [
            replace(
                each,
                source=each.target,
                target=each.source,
                source_rows=each.target_rows,
                source_width=each.target_width,
                target_rows=each.source_rows,
                target_width=each.source_width,
            )
            for each in there
        ]
        for block in narrow:
            gpu.set_bytes(block.address, 0xEE, block.size_bytes)
        gpu.row_copier(back, stream)()
        for raw, block in zip(before[:2], narrow, strict=True):
            assert bytes_of(block) == raw[:-2] + b"\xee\xee"

    def test_a_spin_holds_the_stream_for_as_long_as_asked(self, gpu: Gpu) -> None:
        first, last = gpu.events(2)[:2]
        for hold_us in (200.0, 3_000.0):
            gpu.record(first)
            gpu.spin(hold_us)
            gpu.record(last)
            assert not gpu.is_ready(last)
            gpu.synchronize()
            assert gpu.is_ready(last)
            assert hold_us - 5.0 < gpu.elapsed_us(first, last) < hold_us + 100.0

    def test_bytes_are_set_copied_and_read(self, gpu: Gpu) -> None:
        size = (3 << 20) + 5
        first, second = gpu.allocate(size), gpu.allocate(size)
        gpu.set_bytes(first.address, 7, size)
        gpu.set_bytes(first.address + size - 1, 9, 1)
        gpu.copy(second.address, first.address, size)
        whole, end = gpu.read([(second.address, size), (second.address + size - 2, 2)])
        assert whole == b"\x07" * (size - 1) + b"\x09"
        assert end == b"\x07\x09"

    def test_what_is_dropped_is_free_again_and_too_much_is_refused(self, gpu: Gpu) -> None:
        before = gpu.free_bytes()
        block = gpu.allocate(64 << 20)
        assert gpu.free_bytes() <= before - (64 << 20) + (2 << 20)
        del block
        assert gpu.free_bytes() >= before - (2 << 20)
        with pytest.raises(OutOfDeviceMemory):
            gpu.allocate(1 << 50)
        assert gpu.is_healthy()

    def test_runs_behind_a_gate_leave_no_gap_between_them(self, gpu: Gpu) -> None:
        def short() -> int:
            gpu.spin(2.0)
            return 0

        held = gate.Gate()
        timed = gate.run(gpu, held, [gate.Burst((short,) * 40, 0.0)] * 6)
        assert all(each.disturbed is None for each in timed)
        times = [each.burst_us / 40 for each in timed]
        assert max(times) < 8.0, "a run of 2 µs, and what it takes the device to begin one"
        assert max(times) < 1.1 * min(times)

    def test_a_gate_that_is_too_short_is_noticed_and_doubled(self, gpu: Gpu) -> None:
        """The host is made slow for one burst: what was queued too late does not count."""
        slept: list[float] = []

        def short() -> int:
            gpu.spin(2.0)
            return 0

        def slow_once() -> int:
            if not slept:
                self.lose_10_ms(gpu)
                slept.append(0.01)
            return short()

        held = gate.Gate()
        (timed,) = gate.run(gpu, held, [gate.Burst((short, slow_once, *(short,) * 38), 0.0)])
        assert slept
        assert timed.disturbed is None
        assert timed.burst_us < 40 * 8.0, "the ten milliseconds are not in it"
