"""Which ops are padded, to what, and what is copied where. Pure."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from algosearch.backends.cudnn.candidates import padded_name, without_padding
from algosearch.backends.cudnn.convolution import convolution_tensors
from algosearch.backends.cudnn.gpu import CHUNK_BYTES
from algosearch.backends.cudnn.kinds import kind_of
from algosearch.backends.cudnn.padding import ALIGNMENT_BYTES, padded_to, worthwhile
from algosearch.compiler import ReadOptions
from algosearch.compiler.training import expand
from algosearch.compiler.workloads import build_workload
from algosearch.ops import ConvOp, canonical
from algosearch.ops.conv import DIRECTIONS
from algosearch.records import InvalidAlgorithm

HALVES: Final[dict[str, Any]] = {"input_type": "float16", "filter_type": "float16", "output_type": "float16"}
BRAINS: Final[dict[str, Any]] = dict.fromkeys(HALVES, "bfloat16")
LAST: Final[dict[str, Any]] = {f"{name}_layout": "channels_last" for name in ("input", "filter", "output")}
FIRST: Final = ConvOp(input_shape=(32, 3, 112, 112), filter_shape=(32, 3, 3, 3), padding_low=(1, 1), **HALVES, **LAST)


def test_both_numbers_of_channels_are_filled_up() -> None:
    op = canonical(replace(FIRST, input_shape=(2, 3, 7, 9), filter_shape=(5, 3, 3, 3)))
    padding = padded_to(op, 8)
    assert padding is not None
    assert padding.op.input_shape == (2, 8, 7, 9)
    assert padding.op.filter_shape == (8, 8, 3, 3)
    assert padding.op.output_shape == (2, 8, 7, 9)
    assert canonical(padding.op) == padding.op
    assert [(each.rows, each.width, each.padded_rows, each.padded_width) for each in padding.tensors] == [
        (2 * 7 * 9, 3, 2 * 7 * 9, 8),
        (5 * 9, 3, 8 * 9, 8),
        (2 * 7 * 9, 5, 2 * 7 * 9, 8),
    ]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("filters", [5, 8])
def test_what_is_read_is_copied_in_and_what_is_written_is_copied_out(direction: Any, filters: int) -> None:
    op = canonical(replace(FIRST, filter_shape=(filters, 3, 3, 3), direction=direction))
    padding = padded_to(op, 8)
    assert padding is not None
    changed = {"input", "filter"} | ({"output"} if filters == 5 else set())
    described = {each.uid: each for each in convolution_tensors(op) if each.name in changed}
    assert {each.uid: each.written for each in padding.tensors} == {
        uid: each.written for uid, each in described.items()
    }
    pointers = {uid: 1 << 20 | uid << 10 for uid in (1, 2, 3)}
    for each in padding.tensors:
        copy = each.copy(pointers[each.uid], 1 << 30)
        assert copy.widens != each.written
        assert (copy.target if each.written else copy.source) == pointers[each.uid]
        assert (copy.source if each.written else copy.target) == (1 << 30) + each.offset
    given = padding.pointers(pointers, 1 << 30)
    assert {uid for uid in pointers if given[uid] != pointers[uid]} == set(described)


def test_copies_lie_behind_each_other_and_aligned() -> None:
    padding = padded_to(canonical(replace(FIRST, input_shape=(1, 3, 5, 5), filter_shape=(5, 3, 3, 3))), 8)
    assert padding is not None
    end = 0
    for each in padding.tensors:
        assert each.offset == -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        end = each.offset + each.padded_bytes
    assert padding.scratch_bytes == -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    assert ALIGNMENT_BYTES % CHUNK_BYTES == 0


@pytest.mark.parametrize(
    ("change", "multiple"),
    [
        (dict.fromkeys(LAST, "channels_first"), 8),
        ({"input_layout": "channels_first"}, 8),
        ({"output_layout": "channels_first"}, 8),
        ({"input_shape": (4, 16, 56, 56), "filter_shape": (16, 16, 3, 3)}, 8),
        ({"input_shape": (4, 6, 56, 56), "filter_shape": (16, 3, 3, 3), "groups": 2}, 8),
        (dict.fromkeys(HALVES, "float64") | {"accumulate_type": "float64"}, 8),
        (dict.fromkeys(HALVES, "int8") | {"accumulate_type": "int32"}, 16),
        ({}, 0),
        ({}, -8),
        ({}, 4),
        ({}, 128),
        ({}, 10**18),
        (dict.fromkeys(HALVES, "float32"), 2),
        ({"input_shape": (1, 3, 1 << 14, 1 << 14)}, 8),
    ],
)
def test_what_cannot_be_padded(change: dict[str, Any], multiple: int) -> None:
    assert padded_to(canonical(replace(FIRST, **change)), multiple) is None


@pytest.mark.parametrize(
    "shapes",
    [((2, 1, 28, 28), (8, 1, 5, 5)), ((64, 5, 1, 1), (8, 5, 1, 1)), ((2, 1, 28, 28), (1, 1, 5, 5))],
)
def test_a_layout_that_makes_no_difference_is_no_obstacle(shapes: Any) -> None:
    """One channel, or one place: canonical ops say nothing of such a tensor's layout."""
    op = canonical(
        replace(FIRST, input_shape=shapes[0], filter_shape=shapes[1], padding_low=(0, 0), padding_high=(0, 0))
    )
    padding = padded_to(op, 8)
    assert padding is not None
    assert padding.op.input_shape[1] == 8


WORTH: Final = [
    {},
    {"direction": "backward_data"},
    {"direction": "backward_filter"},
    {**BRAINS},
    {"input_shape": (64, 1, 64, 64), "filter_shape": (32, 1, 5, 5)},
    {"input_shape": (16, 37, 28, 28), "filter_shape": (53, 37, 3, 3)},
    {"input_shape": (16, 64, 56, 56), "filter_shape": (255, 64, 1, 1), "padding_low": (0, 0), "padding_high": (0, 0)},
    {"output_type": "float32"},
    dict.fromkeys(HALVES, "float32"),
    {"dilation": (2, 2), "padding_low": (2, 2), "padding_high": (2, 2)},
    {"filter_shape": (32, 3, 7, 7)},
    {"filter_shape": (64, 3, 7, 7), "stride": (2, 2), "direction": "backward_data"},  # the stem's
    {"input_shape": (32, 3, 224, 224), "filter_shape": (384, 3, 16, 16), "stride": (16, 16)},
]
NOT_WORTH: Final = [
    {"filter_shape": (64, 3, 7, 7), "stride": (2, 2)},  # the stem
    {"filter_shape": (64, 3, 7, 7), "stride": (2, 2), "direction": "backward_filter"},
    {"input_shape": (1, 3, 32, 32)},  # small
    {
        "input_shape": (32, 3, 224, 224),
        "filter_shape": (16, 3, 16, 16),
        "stride": (16, 16),
    },  # copies more than it does
    {"input_shape": (32, 16, 56, 56), "filter_shape": (64, 16, 3, 3)},
    {"input_shape": (32, 96, 56, 56), "filter_shape": (96, 1, 3, 3), "groups": 96},
    dict.fromkeys(LAST, "channels_first"),
    dict.fromkeys(HALVES, "float64") | {"accumulate_type": "float64"},
]


@pytest.mark.parametrize(
    ("change", "worth"), [*((each, True) for each in WORTH), *((each, False) for each in NOT_WORTH)]
)
def test_where_it_may_win(change: dict[str, Any], worth: bool) -> None:
    op = canonical(replace(FIRST, **change))
    padding = worthwhile(op)
    assert (padding is not None) == worth
    assert padding is None or padding.multiple == (4 if op.input_type == "float32" else 8)
    assert not (worth and kind_of(op) == "plain"), "of plain ops no more is asked than is needed"


@pytest.mark.parametrize("batch", [1, 64])
def test_the_search_of_resnet_50_is_no_longer_for_it(batch: int) -> None:
    options = ReadOptions(batch=batch, data_type="float16", layout="channels_last")
    nodes = expand(build_workload("resnet50", options).nodes)
    ops = {canonical(node.op) for node in nodes if isinstance(node.op, ConvOp)}
    assert len(ops) > 20
    assert not any(map(worthwhile, ops))


def test_names_tell_the_padding() -> None:
    for name in ("cudnn/graph:63", "cudnn/graph:1?13=0&2=4"):
        padded = padded_name(name, 8)
        assert padded == name + ("&" if "?" in name else "?") + "pad=8"
        assert without_padding(padded) == (name, 8)
        assert without_padding(name) == (name, None)
    with pytest.raises(InvalidAlgorithm):
        without_padding("nonsense")
