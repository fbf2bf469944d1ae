"""Is a kernel's result right? Compared with another kernel's, and where they differ, with the definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from algosearch.backends.cpu.arena import Array
from algosearch.backends.cpu.kernel import compute_type
from algosearch.backends.cpu.norm_reference import norm_elements
from algosearch.backends.cpu.reference import Points, Verdict, conv_elements
from algosearch.backends.cpu.tensors import Tensor
from algosearch.ops import ConvOp, Op

_BLOCK: Final = 1 << 16
"""Elements compared at once, so that comparing needs no memory to speak of."""
_WORST: Final = 4
"""Elements of a tensor that are held against the definition where two kernels differ."""
_SAMPLED: Final = 24
"""The same where there is no other kernel to compare with."""
_SEED: Final = 2_718
_CLOSE: Final = 4.0
"""Two results are the same if they differ by less than so many roundings of their own type, relative to the largest
nearby: whatever differs by more is looked at."""


def differing(found: Array, other: Array) -> Points:
    """Where two results differ by more than rounding may explain; the worst first, a few at most."""
    places: list[tuple[float, int]] = []
    for start in range(0, found.size, _BLOCK):
        here, there = (each[start : start + _BLOCK].astype(np.float64) for each in (found, other))
        with np.errstate(all="ignore"):
            size = np.maximum(np.abs(there), np.sqrt(np.nanmean(np.square(there))) if there.size else 0.0)
            excess = np.abs(here - there) / (_CLOSE * _spacing(found) * size)
        excess[np.isnan(excess) & (here != there)] = np.inf
        suspects = np.flatnonzero(excess > 1)
        worst = suspects[np.argsort(excess[suspects])[::-1][:_WORST]]
        places += [(float(excess[place]), start + int(place)) for place in worst]
    places.sort(reverse=True)
    return np.array([place for _, place in places[:_WORST]], np.intp)


def sampled(found: Array) -> Points:
    """Some places of a result; among them the first that is not finite, if there is one."""
    dice = np.random.default_rng(_SEED)
    places = set(dice.integers(0, found.size, _SAMPLED).tolist()) | {0, found.size - 1}
    if found.dtype != np.int8:
        for start in range(0, found.size, _BLOCK):
            odd = np.flatnonzero(~np.isfinite(found[start : start + _BLOCK]))
            if odd.size:
                places.add(start + int(odd[0]))
                break
    return np.array(sorted(places), np.intp)


def wrong(op: Op, tensors: Mapping[str, Array], tensor: Tensor, found: Array, points: Points) -> str | None:
    """What is wrong with a result at these points, in words; None if it is right there."""
    if not points.size:
        return None
    right, allowed = _right(op, tensors, tensor, points)
    values = found[points].astype(np.float64)
    allowed = allowed + 2 * _spacing(found) * np.abs(right)
    for point, value, expected, margin in zip(points.tolist(), values, right, allowed, strict=True):
        if not abs(value - expected) <= margin:  # so that NaN is wrong
            return f"{tensor.name}[{point}] is {value:.6g}, and should be {expected:.6g} ± {margin:.1g}"
    return None


def _right(op: Op, tensors: Mapping[str, Array], tensor: Tensor, points: Points) -> Verdict:
    if isinstance(op, ConvOp):
        return conv_elements(op, tensors, points, float(np.finfo(compute_type(op)).eps))
    computed = "float64" if op.data_type == "float64" else "float32"
    return norm_elements(op, tensors, tensor.name, points, float(np.finfo(computed).eps))


def _spacing(found: Array) -> float:
    """The relative distance of neighbouring numbers of a result's type; of int8 none is allowed."""
    return 0.0 if found.dtype == np.int8 else float(np.finfo(found.dtype).eps)
