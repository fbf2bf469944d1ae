"""Where cuDNN reads the parameters of a batch norm with statistics of each activation: what the descriptor that it
derives says, and what it does. If this fails, its message says which order of axes is right."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import addressof, byref, c_float, c_int, c_void_p
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from algosearch.backends.cudnn.enums import LegacyMode
from algosearch.backends.cudnn.graph import DATA_TYPES, strides_of
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.legacy_norm import LegacyNorm
from algosearch.backends.cudnn.library import Library
from algosearch.ops import BatchNormOp, Layout, Shape
from tests.backends import reference

pytestmark = pytest.mark.timeout(120)
SHAPE: Final = (6, 3, 4, 5)
PARAMETERS: Final = (1, *SHAPE[1:])
LAYOUTS: Final[tuple[Layout, ...]] = ("channels_first", "channels_last")
EPSILON: Final = 1e-3


class Found(msgspec.Struct, frozen=True):
    """Of an input of one layout."""

    strides: dict[str, tuple[Shape, Shape]]
    """(sizes, strides) of what is derived from it, by mode."""
    right: list[Layout]
    """Orders of the parameters for which the result is that of the definition."""


@pytest.fixture
def handle() -> Iterator[Handle]:
    import cupy

    cupy.cuda.runtime.setDevice(0)
    cupy.cuda.runtime.free(0)
    handle = Handle(Library.load())
    LegacyNorm(handle, BatchNormOp(shape=SHAPE)).candidates()  # declares the calls
    yield handle
    handle.destroy()


def descriptor(calls: Any) -> c_void_p:
    pointer = c_void_p()
    assert calls.cudnnCreateTensorDescriptor(byref(pointer)) == 0
    return pointer


def derived(calls: Any, x: c_void_p, target: c_void_p, mode: LegacyMode) -> tuple[Shape, Shape]:
    assert calls.cudnnDeriveBNTensorDescriptor(target, x, mode) == 0
    kind, rank, sizes, strides = c_int(), c_int(), (c_int * 8)(), (c_int * 8)()
    assert calls.cudnnGetTensorNdDescriptor(target, 8, byref(kind), byref(rank), sizes, strides) == 0
    assert kind.value == DATA_TYPES["float32"]
    return tuple(sizes[: rank.value]), tuple(strides[: rank.value])


def found_of(handle: Handle, layout: Layout) -> Found:
    calls = handle.library.short
    x, parameters = descriptor(calls), descriptor(calls)
    numbers = c_int * len(SHAPE)
    told = numbers(*SHAPE), numbers(*strides_of(SHAPE, layout))
    assert calls.cudnnSetTensorNdDescriptor(x, DATA_TYPES["float32"], len(SHAPE), *told) == 0
    strides = {
        mode.name: derived(calls, x, parameters, mode)
        for mode in (LegacyMode.SPATIAL, LegacyMode.SPATIAL_PERSISTENT, LegacyMode.PER_ACTIVATION)
    }
    right = [order for order in LAYOUTS if is_right(handle, layout, x, order, parameters)]
    for each in (x, parameters):
        assert calls.cudnnDestroyTensorDescriptor(each) == 0
    return Found(strides, right)


def is_right(handle: Handle, layout: Layout, x: c_void_p, order: Layout, parameters: c_void_p) -> bool:
    """Whether inference is, if the parameters lie in this order; not if it is refused."""
    import cupy

    dice = np.random.default_rng(1)
    row = dice.uniform(-1, 3, SHAPE)
    scale, bias, mean, variance = (dice.uniform(0.5, 1.5, PARAMETERS) for _ in range(4))
    there = [
        cupy.asarray(reference.in_memory(each, layout if each is row else order).astype(np.float32))
        for each in (row, scale, bias, mean, variance)
    ]
    result = cupy.zeros_like(there[0])
    one, zero = c_float(1.0), c_float(0.0)
    status = handle.library.long.cudnnBatchNormalizationForwardInference(
        *(handle.pointer, LegacyMode.PER_ACTIVATION, addressof(one), addressof(zero)),
        *(x, there[0].data.ptr, x, result.data.ptr, parameters, *(each.data.ptr for each in there[1:]), EPSILON),
    )
    if status:
        return False
    cupy.cuda.runtime.deviceSynchronize()
    expected = scale * (row - mean) / np.sqrt(variance + EPSILON) + bias
    return bool(np.allclose(reference.logical(result.get(), SHAPE, layout), expected, rtol=1e-4, atol=1e-4))


def test_parameters_of_channels_first_lie_as_the_derived_descriptor_says(handle: Handle) -> None:
    """Which is what is used of it: `legacy_norm` tells channels last as channels first."""
    found = {layout: found_of(handle, layout) for layout in LAYOUTS}
    told = "\n".join(
        f"input {layout}: right if the parameters are {' or '.join(each.right) or 'in neither order'}; {each.strides}"
        for layout, each in found.items()
    )
    print(told)  # noqa: T201  (shown with -rP)
    first = found["channels_first"]
    assert first.right == ["channels_first"], told
    assert first.strides["PER_ACTIVATION"] == (PARAMETERS, strides_of(PARAMETERS, "channels_first")), told
    for mode in ("SPATIAL", "SPATIAL_PERSISTENT"):
        for each in found.values():
            sizes, strides = each.strides[mode]
            assert sizes == (1, SHAPE[1], 1, 1), told
            assert strides[1] == 1, told
