"""A run of a CPU kernel uses the workspace that it states: to its end, not beyond it, and nothing beside it."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from algosearch.backends.cpu.arena import ALIGNMENT_BYTES, Arena, Run
from algosearch.backends.cpu.catalogue import kernels
from algosearch.backends.cpu.kernel import Kernel, running
from algosearch.backends.cpu.tensors import fill, tensors_of
from algosearch.ops import BatchNormOp, ConvOp, Direction, Layout, Op, canonical
from tests.backends.reference import Array
from tests.strategies import DIRECTIONS, LAYOUTS, batch_norm_ops, conv_ops

_BESIDE_BYTES: Final = 3 * 1024 * 16 + 8192
"""What numpy may allocate for a moment, whatever the op: a buffer for each of three operands of the widest type, and
small objects."""
_PAINT: Final = 0xFF
_CONVS: Final = {
    "plain": ConvOp(input_shape=(2, 24, 36, 36), filter_shape=(24, 24, 3, 3), padding_low=(1, 1)),
    "pointwise": ConvOp(input_shape=(2, 32, 40, 40), filter_shape=(32, 32, 1, 1)),
    "strided": ConvOp(input_shape=(2, 64, 32, 32), filter_shape=(128, 64, 1, 1), stride=(2, 2)),
    "depthwise": ConvOp(input_shape=(2, 32, 34, 34), filter_shape=(32, 1, 3, 3), groups=32, padding_low=(1, 1)),
    "grouped": ConvOp(input_shape=(2, 16, 60, 50), filter_shape=(24, 4, 3, 5), groups=4, stride=(2, 1)),
    "3-D": ConvOp(input_shape=(2, 8, 14, 18, 18), filter_shape=(8, 8, 3, 3, 2), dilation=(2, 2, 2)),
    "deep": ConvOp(input_shape=(1, 400, 7, 7), filter_shape=(100, 400, 3, 3), padding_low=(1, 1)),
}
_TYPES: Final[dict[str, dict[str, Any]]] = {
    "float16": {"input_type": "float16", "filter_type": "float16", "output_type": "float16"},
    "float32": {},
    "float64": {
        "input_type": "float64",
        "filter_type": "float64",
        "output_type": "float64",
        "accumulate_type": "float64",
    },
}


def _bound(op: Op, kernel: Kernel, workspace_bytes: int) -> tuple[Array, Run]:
    """A painted workspace, and the kernel's run in it, over tensors full of numbers."""
    tensors = {}
    for tensor in tensors_of(op):
        tensors[tensor.name] = np.empty(tensor.size, tensor.data_type)
        fill(tensors[tensor.name], tensor)
    workspace = np.full(workspace_bytes, _PAINT, np.uint8)
    return workspace, kernel.bind(tensors, workspace)


def _beside_bytes(run: Run) -> int:
    """The most that a run had allocated at any moment."""
    with running():
        run()  # what is made once, by numpy or by Python, is made now
        tracemalloc.start()
        try:
            run()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("data_type", _TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", _CONVS)
def test_a_convolution_allocates_nothing_beside_its_workspace(
    name: str, direction: Direction, layout: Layout, data_type: str
) -> None:
    # Large enough for any hidden copy of a tensor, or of a part that grows with one, to be found out.
    op = canonical(
        replace(
            _CONVS[name],
            direction=direction,
            input_layout=layout,
            filter_layout=layout,
            output_layout=layout,
            **_TYPES[data_type],
        )
    )
    for algorithm, kernel in kernels(op):
        _, run = _bound(op, kernel, kernel.workspace_bytes)
        assert _beside_bytes(run) <= _BESIDE_BYTES, f"{algorithm} for {op.describe()}"


@pytest.mark.parametrize(
    "layouts", [each for each in itertools.product(LAYOUTS, repeat=3) if len(set(each)) > 1], ids="-".join
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nor_does_one_with_mixed_layouts(direction: Direction, layouts: tuple[Layout, Layout, Layout]) -> None:
    op = canonical(
        replace(
            _CONVS["plain"],
            direction=direction,
            input_layout=layouts[0],
            filter_layout=layouts[1],
            output_layout=layouts[2],
        )
    )
    for algorithm, kernel in kernels(op):
        _, run = _bound(op, kernel, kernel.workspace_bytes)
        assert _beside_bytes(run) <= _BESIDE_BYTES, f"{algorithm} for {op.describe()}"


@pytest.mark.parametrize("data_type", _TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "case",
    [
        {"phase": "training_forward", "fusion": "add_activation"},
        {"phase": "inference"},
        {"phase": "backward", "fusion": "add_activation"},
        {"phase": "training", "fusion": "add_activation"},
        {"phase": "backward"},
        {"phase": "training_forward", "statistics": "per_activation"},
        {"phase": "backward", "statistics": "per_activation"},
    ],
    ids=lambda case: "-".join(case.values()),
)
def test_a_batch_norm_allocates_nothing_beside_its_workspace(
    case: dict[str, Any], layout: Layout, data_type: str
) -> None:
    parameters = "float64" if data_type == "float64" else "float32"
    op: Any = {"shape": (4, 96, 36, 36), "layout": layout, "data_type": data_type, "parameter_type": parameters, **case}
    norm = canonical(BatchNormOp(**op))
    for algorithm, kernel in kernels(norm):
        _, run = _bound(norm, kernel, kernel.workspace_bytes)
        assert _beside_bytes(run) <= _BESIDE_BYTES, f"{algorithm} for {norm.describe()}"


def _uses_its_workspace_to_the_end(op: Op) -> None:
    for algorithm, kernel in kernels(canonical(op)):
        if kernel.workspace_bytes == 0:
            continue
        workspace, run = _bound(canonical(op), kernel, kernel.workspace_bytes)
        with running():
            run()
        assert (workspace[-2:] != _PAINT).any(), f"{algorithm} states more than it uses for {op!r}"
        with pytest.raises(AssertionError, match="does not lie in"):
            _bound(canonical(op), kernel, kernel.workspace_bytes - 1)


@settings(max_examples=150, deadline=None)
@given(conv_ops(input_types=("float16", "float32", "float64", "int8"), largest=7))
def test_a_convolution_uses_its_workspace_to_the_end(op: ConvOp) -> None:
    _uses_its_workspace_to_the_end(op)


@settings(max_examples=60, deadline=None)
@given(batch_norm_ops(data_types=("float16", "float32", "float64")))
def test_a_batch_norm_uses_its_workspace_to_the_end(op: BatchNormOp) -> None:
    _uses_its_workspace_to_the_end(op)


def test_a_pointwise_convolution_needs_no_workspace() -> None:
    for direction, layout in itertools.product(DIRECTIONS, LAYOUTS):
        op = ConvOp(
            input_shape=(1, 256, 56, 56),
            filter_shape=(64, 256, 1, 1),
            direction=direction,
            input_layout=layout,
            filter_layout=layout,
            output_layout=layout,
        )
        assert [kernel.workspace_bytes for _, kernel in kernels(canonical(op))] == [0]


def test_more_samples_in_one_product_need_more_workspace() -> None:
    stated = {str(name): kernel.workspace_bytes for name, kernel in kernels(canonical(_CONVS["plain"]))}
    assert stated["cpu/numpy:im2col?chunk=1"] == 24 * 9 * 36 * 36 * 4
    assert stated["cpu/numpy:im2col?chunk=2"] == 2 * (24 * 9 + 24) * 36 * 36 * 4


def test_regions_are_aligned_and_none_share_a_byte() -> None:
    arena = Arena()
    regions = [arena.take((size,), "float32") for size in (1, 16, 17, 3)]
    workspace = np.zeros(arena.total_bytes, np.uint8)
    for region in regions:
        assert region.offset_bytes % ALIGNMENT_BYTES == 0
        assert not region.of(workspace).any()
        region.of(workspace).fill(1)
    assert arena.total_bytes == regions[-1].offset_bytes + 3 * 4


def test_a_rewound_arena_hands_a_place_out_again_and_states_the_most_that_was_needed() -> None:
    arena = Arena()
    kept = arena.take((10,), "float32")
    mark = arena.mark()
    first = arena.take((100,), "float64")
    arena.rewind(mark)
    second = arena.take((1,), "float16")
    assert kept.offset_bytes + 10 * 4 <= first.offset_bytes == second.offset_bytes
    assert arena.total_bytes == first.offset_bytes + 800
