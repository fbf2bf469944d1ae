"""The cases of `offbeat.py --list padding`: channels that tensor cores do not take as they are, and the first
convolution of ResNet, which is not padded. Each is also timed padded, whether or not a search would list that: to see
where it wins, and whether `algosearch.backends.cudnn.padding.worthwhile` knows."""

from __future__ import annotations

from typing import Any

from algosearch.backends.base import Session
from algosearch.backends.cudnn.candidates import padded_candidate, without_padding
from algosearch.backends.cudnn.padding import padded_to, worthwhile
from algosearch.ops import ConvOp
from algosearch.records import Candidate
from algosearch.records.trial import RUNTIME_COMPILED

FEW = 10
"""Padded candidates that are timed."""

CASES: dict[str, dict[str, Any]] = {
    "fp16_nhwc": {"data_type": "float16", "layout": "channels_last"},
    "fp32_nhwc": {"data_type": "float32", "layout": "channels_last"},
}
SHAPES: dict[str, dict[str, Any]] = {
    # as in `offbeat.py`
    "stem": {"input": (64, 3, 224, 224), "filter": (64, 3, 7, 7), "padding": 3, "stride": 2},
    "stem_1": {"input": (1, 3, 224, 224), "filter": (64, 3, 7, 7), "padding": 3, "stride": 2},
    "three_channels": {"input": (32, 3, 224, 224), "filter": (32, 3, 3, 3), "padding": 1, "stride": 2},
    "three_channels_1": {"input": (64, 3, 224, 224), "filter": (64, 3, 3, 3), "padding": 1},
    "three_channels_11": {"input": (64, 3, 224, 224), "filter": (64, 3, 11, 11), "padding": 2, "stride": 4},
    "three_channels_patch": {"input": (32, 3, 224, 224), "filter": (384, 3, 16, 16), "stride": 16},
    "three_channels_patch_4": {"input": (32, 3, 224, 224), "filter": (96, 3, 4, 4), "stride": 4},
    "one_channel": {"input": (64, 1, 64, 64), "filter": (32, 1, 5, 5), "padding": 2},
    "two_channels": {"input": (32, 2, 128, 128), "filter": (64, 2, 7, 7), "padding": 3},
    "four_channels": {"input": (8, 4, 64, 64), "filter": (320, 4, 3, 3), "padding": 1},
    "nine_channels": {"input": (8, 9, 64, 64), "filter": (320, 9, 3, 3), "padding": 1},
    "odd_channels": {"input": (16, 37, 28, 28), "filter": (53, 37, 3, 3), "padding": 1},
    "odd_channels_large": {"input": (32, 67, 56, 56), "filter": (131, 67, 3, 3), "padding": 1},
    "three_filters": {"input": (8, 64, 128, 128), "filter": (3, 64, 3, 3), "padding": 1},
    "filters_255": {"input": (16, 256, 52, 52), "filter": (255, 256, 1, 1)},
    "filters_21": {"input": (16, 256, 65, 65), "filter": (21, 256, 1, 1)},
    "cube_3": {"input": (8, 3, 16, 112, 112), "filter": (64, 3, 3, 7, 7), "padding": (1, 3, 3), "stride": (1, 2, 2)},
    "cube_1": {"input": (2, 1, 64, 96, 96), "filter": (32, 1, 3, 3, 3), "padding": 1},
}


def candidates(session: Session, op: ConvOp) -> list[Candidate]:
    """Padded ones."""
    padding = padded_to(op, 4 if op.input_type == "float32" else 8)
    if padding is None:
        return []
    listed = [each for each in session.enumerate(padding.op, 1).candidates if RUNTIME_COMPILED not in each.notes]
    return [padded_candidate(each, padding) for each in listed[:FEW]]


def figures(op: ConvOp, times: dict[str, float], pick: str) -> dict[str, Any]:
    """Of the times of candidates by algorithm: the best padded one's and the best other one's, None if there is no such
    one near the best; what the rule says; and what was picked."""
    padded = [us for name, us in times.items() if without_padding(name)[1] is not None]
    others = [us for name, us in times.items() if without_padding(name)[1] is None]
    return {
        "padded_us": min(padded, default=None),
        "others_us": min(others, default=None),
        "worthwhile": worthwhile(op) is not None,
        "picked_padded": without_padding(pick)[1] is not None,
    }


def line(case: dict[str, Any]) -> str:
    """How much faster it is padded, and whether that was known and used."""
    padded_us, others_us = case["padded_us"], case["others_us"]
    if padded_us is None:
        ratio = "  much slower" if others_us else "  -"
    else:
        ratio = "  much faster" if others_us is None else f"  padded {others_us / padded_us:.2f} times as fast"
    return f"{ratio}{', listed' if case['worthwhile'] else ''}{', picked' if case['picked_padded'] else ''}"
