"""The time of a run in a CUDA graph of many, replayed: what it costs when no host is in the way. Ours and PyTorch's
alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

import algosearch
from algosearch.backends.running import Slot
from algosearch.ops import ELEMENT_BYTES

RUNS = 20
REPLAYS = 7


def plan_us(plan: algosearch.Plan) -> float | None:
    """Of a plan, on random arrays; None if it cannot be captured."""
    import cupy

    arrays = {name: DeviceArray(slot) for name, slot in plan.slots.items()}
    if plan.reserve_bytes:
        arrays["reserve"] = cupy.empty(plan.reserve_bytes, np.uint8)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        plan(**arrays)
        stream.synchronize()
        try:
            stream.begin_capture()
            for _ in range(RUNS):
                plan(**arrays)
            graph = stream.end_capture()
        except (algosearch.RunFailed, cupy.cuda.runtime.CUDARuntimeError):
            return None
        found = _replayed(partial(graph.launch, stream), stream)
        stream.synchronize()
        del graph  # before its plan, and when it has run
    return found


def torch_us(run: Callable[[], Any]) -> float | None:
    """Of something that PyTorch does; None if it cannot be captured."""
    import cupy
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(RUNS):
                    run()
        except RuntimeError:
            return None
        return _replayed(graph.replay, cupy.cuda.Stream.from_external(stream))


def _replayed(replay: Callable[[], Any], stream: Any) -> float:
    import cupy

    first, last = cupy.cuda.Event(), cupy.cuda.Event()
    times = []
    for _ in range(REPLAYS + 1):
        first.record(stream)
        replay()
        last.record(stream)
        last.synchronize()
        times.append(float(cupy.cuda.get_elapsed_time(first, last)) * 1e3 / RUNS)
    return statistics.median(times[1:])


class DeviceArray:
    """An array for a slot, in device memory."""

    def __init__(self, slot: Slot) -> None:
        import cupy

        size, count = ELEMENT_BYTES[slot.element_type], prod(slot.shape)
        some = np.random.default_rng(0).uniform(0.5, 1.0, min(count, 65_521)).astype(np.float32)
        if slot.element_type == "bfloat16":
            kept = (some.view(np.uint32) >> 16).astype(np.uint16)
        else:
            kept = some.astype(slot.element_type)
        self.memory = cupy.asarray(np.resize(kept, count))
        self.__cuda_array_interface__ = {
            "shape": slot.shape,
            "typestr": "<V2" if slot.element_type == "bfloat16" else kept.dtype.str,
            "data": (self.memory.data.ptr, False),
            "strides": tuple(each * size for each in slot.strides),
            "version": 3,
        }
