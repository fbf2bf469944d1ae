"""Problems for a GPU: small, of many kinds, the same ones each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from algosearch.ops import BatchNormOp, ConvOp, canonical

MOST_FLOPS = 50_000_000
"""So that each can be held against the definition, element by element."""
_TYPES = (
    ("float16", "float16", "float32"),
    ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float32", "float32", "float32"),
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    ("int8", "int8", "int32"),
)


def generated_ops(count: int, *, seed: int = 0) -> Iterator[ConvOp]:
    """So many different ones: 1 to 3 dimensions, groups, depthwise, strides, dilation, unequal padding, odd sizes."""
    return _different(count, seed, lambda op: op.flops <= MOST_FLOPS)


def large_ops(count: int, *, seed: int = 0) -> Iterator[ConvOp]:
    """The same, of more operations than that; none in float64."""
    return _different(count, seed, lambda op: op.flops > MOST_FLOPS and op.input_type != "float64")


def generated_norms(count: int, *, seed: int = 0) -> Iterator[BatchNormOp]:
    """So many different batch norms, plain ones: 0 to 3 dimensions, every phase, both statistics, odd sizes."""
    dice, seen = random.Random(seed), set[BatchNormOp]()
    while len(seen) < count:
        op = canonical(_any_norm(dice))
        if op not in seen:
            seen.add(op)
            yield op


def _different(count: int, seed: int, wanted: Callable[[ConvOp], bool]) -> Iterator[ConvOp]:
    dice, seen = random.Random(seed), set[ConvOp]()
    while len(seen) < count:
        op = canonical(_any_op(dice))
        if wanted(op) and op not in seen:
            seen.add(op)
            yield op


def _any_op(dice: random.Random) -> ConvOp:
    axes = dice.choices((1, 2, 3), (1, 6, 1))[0]
    input_type, output_type, accumulate_type = dice.choice(_TYPES)
    direction = "forward" if input_type == "int8" else dice.choice(("forward", "backward_data", "backward_filter"))
    groups = dice.choices((1, 2, 4), (8, 1, 1))[0]
    channels = dice.choice((3, 4, 7, 8, 16, 32, 64)) * groups
    filters = dice.choice((4, 8, 16, 24, 32, 64)) * groups
    if dice.random() < 0.12:  # depthwise
        channels = filters = groups = dice.choice((8, 16, 32))
    taps = [dice.choice((1, 1, 3, 3, 3, 5, 7)) if axis == 0 or dice.random() < 0.3 else 0 for axis in range(axes)]
    taps = [each or taps[0] for each in taps]
    stride = dice.choice((1, 1, 1, 2, 2, 3))
    dilation = dice.choices((1, 2), (6, 1))[0]
    sizes = [max(dice.choice((5, 8, 13, 14, 16)), (each - 1) * dilation + 1) for each in taps]
    low = [dice.choice((0, each // 2 * dilation)) for each in taps]
    high = [each if dice.random() < 0.9 else each + 1 for each in low]
    layout = dice.choice(("channels_first", "channels_last"))
    described: dict[str, Any] = {
        "input_shape": (dice.choice((1, 2, 4, 8)), channels, *sizes),
        "filter_shape": (filters, channels // groups, *taps),
        "direction": direction,
        "stride": (stride,) * axes,
        "dilation": (dilation,) * axes,
        "padding_low": tuple(low),
        "padding_high": tuple(high),
        "groups": groups,
        "input_layout": layout,
        "filter_layout": layout,
        "output_layout": layout,
        "input_type": input_type,
        "filter_type": input_type,
        "output_type": output_type,
        "accumulate_type": accumulate_type,
    }
    return ConvOp(**described)


def _any_norm(dice: random.Random) -> BatchNormOp:
    axes = dice.choices((0, 1, 2, 3), (1, 1, 5, 1))[0]
    statistics = "per_activation" if dice.random() < 0.2 else "per_channel"
    # Of fewer elements a variance may be next to nothing.
    batch = dice.choice((32, 50, 64)) if axes == 0 or statistics == "per_activation" else dice.choice((2, 3, 8, 16))
    sizes = [dice.choice((5, 7, 8, 13, 14)) for _ in range(axes)]
    data_type = dice.choice(("float16", "float16", "bfloat16", "float32", "float32", "float64"))
    described: dict[str, Any] = {
        "shape": (batch, dice.choice((1, 3, 8, 17, 32, 64, 96)), *sizes),
        "phase": dice.choice(("training_forward", "inference", "backward")),
        "statistics": statistics,
        "layout": dice.choice(("channels_first", "channels_last")),
        "data_type": data_type,
        "parameter_type": "float64" if data_type == "float64" else "float32",
    }
    return BatchNormOp(**described)
