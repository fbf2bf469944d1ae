"""Is a plan's result right? Compared on the device with another plan's; where they differ, or there is no other, a few
elements with the definition, in float64 on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from algosearch.backends.cpu.reference import conv_elements
from algosearch.backends.cudnn.buffers import Buffers, TensorPlace, on_host
from algosearch.backends.cudnn.contents import Allowance
from algosearch.backends.cudnn.gpu import Gpu, Verdict
from algosearch.ops import ELEMENT_BYTES, ConvOp

_SAMPLED: Final = 24
"""Elements that are held against the definition where there is no other result."""
_SEED: Final = 2_718
MOST_READ_BYTES: Final = 1 << 28
"""Of the tensors that the definition needs. Beyond, it would take seconds, and is left out."""

Array = npt.NDArray[Any]


def compare(gpu: Gpu, buffers: Buffers, tensor: TensorPlace, allowance: Allowance) -> Verdict:
    """Where the latest result differs from the other result, if each may be off by half of this."""
    return _compare(gpu, buffers, tensor, buffers.copy_of(tensor), allowance)


def unwritten(gpu: Gpu, buffers: Buffers, tensor: TensorPlace) -> Verdict:
    """Where the latest result is no number: not written, or not finite."""
    return _compare(gpu, buffers, tensor, buffers.address(tensor), Allowance(0.0, 0.0))


def sampled(tensor: TensorPlace) -> list[int]:
    """Some places of a tensor, its first and last among them."""
    size = _size(tensor)
    dice = np.random.default_rng(_SEED)
    return sorted({0, size - 1, *dice.integers(0, size, _SAMPLED).tolist()})


def wrong(
    gpu: Gpu, buffers: Buffers, op: ConvOp, tensor: TensorPlace, places: Sequence[int], allowance: Allowance
) -> str | None:
    """What is wrong with the latest result at these places, in words; None if it is right there, or cannot be told."""
    if sum(each.bytes for each in buffers.tensors if not each.written) > MOST_READ_BYTES:
        return None
    size = ELEMENT_BYTES[tensor.element_type]
    raw = gpu.read([(buffers.address(tensor) + place * size, size) for place in places])
    found = on_host(b"".join(raw), tensor.element_type).astype(np.float64)
    right = _defined(buffers, op, places)
    for place, value, expected in zip(places, found.tolist(), right.tolist(), strict=True):
        margin = allowance.absolute + allowance.relative * abs(expected)
        if not abs(value - expected) <= margin:  # so that NaN is wrong
            return f"{tensor.name}[{place}] is {value:.6g}, and should be {expected:.6g} ± {margin:.1g}"
    return None


def _defined(buffers: Buffers, op: ConvOp, places: Sequence[int]) -> Array:
    tensors = {each.name: buffers.contents(each) for each in buffers.tensors if not each.written}
    values, _ = conv_elements(op, tensors, np.array(places, np.intp), 0.0)
    return values


def _compare(gpu: Gpu, buffers: Buffers, tensor: TensorPlace, other: int, allowance: Allowance) -> Verdict:
    return gpu.compare(
        buffers.address(tensor),
        other,
        tensor.element_type,
        _size(tensor),
        absolute=allowance.absolute,
        relative=allowance.relative,
    )


def _size(tensor: TensorPlace) -> int:
    return tensor.bytes // ELEMENT_BYTES[tensor.element_type]
