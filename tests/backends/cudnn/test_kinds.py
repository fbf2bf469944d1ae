"""Which kind of convolution an op is."""

from __future__ import annotations

import pytest

from algosearch.backends.cudnn.kinds import Kind, fills_the_device, kind_of
from algosearch.ops import ConvOp, canonical

PLAIN = {"input_shape": (2, 32, 40, 40), "filter_shape": (32, 32, 3, 3), "padding_low": (1, 1)}
VOLUME = {"input_shape": (1, 32, 16, 16, 16), "filter_shape": (32, 32, 3, 3, 3), "padding_low": (1, 1, 1)}
DEPTHWISE = {"input_shape": (2, 24, 40, 40), "filter_shape": (24, 1, 3, 3), "padding_low": (1, 1), "groups": 24}
STEM = {"input_shape": (2, 3, 80, 80), "filter_shape": (32, 3, 7, 7), "stride": (2, 2)}


@pytest.mark.parametrize(
    ("start", "change", "kind"),
    [
        (PLAIN, {}, "plain"),
        (PLAIN, {"direction": "backward_filter"}, "plain"),
        (PLAIN, {"filter_shape": (40, 32, 1, 1), "padding_low": ()}, "plain"),
        (PLAIN, {"input_shape": (2, 36, 40, 40), "filter_shape": (32, 36, 3, 3)}, "other"),
        (PLAIN, {"input_shape": (2, 24, 40, 40), "filter_shape": (32, 24, 3, 3)}, "other"),
        (PLAIN, {"filter_shape": (36, 32, 3, 3)}, "other"),
        (PLAIN, {"filter_shape": (32, 16, 3, 3), "groups": 2}, "other"),
        (PLAIN, {"filter_shape": (32, 32, 1, 3), "padding_low": (0, 1)}, "other"),
        (PLAIN, {"filter_shape": (32, 32, 5, 5), "padding_low": (2, 2)}, "other"),
        (PLAIN, {"dilation": (2, 2)}, "other"),
        (PLAIN, {"padding_low": (0, 0), "padding_high": (1, 1)}, "other"),
        (PLAIN, {"input_shape": (1, 32, 40, 40)}, "other"),
        (PLAIN, {"input_shape": (2, 32, 32, 32)}, "plain"),
        (PLAIN, {"input_shape": (1, 32, 23, 89)}, "other"),
        (PLAIN, {"input_shape": (1, 32, 512, 40)}, "plain"),
        (PLAIN, {"input_shape": (1, 32, 513, 40)}, "other"),
        (PLAIN, {"input_shape": (16, 32, 400), "filter_shape": (32, 32, 1), "padding_low": ()}, "plain"),
        (PLAIN, {"input_shape": (1, 32, 4000), "filter_shape": (32, 32, 3), "padding_low": (1,)}, "other"),
        (PLAIN, {"input_shape": (2, 24, 40, 40), "filter_shape": (16, 24, 1, 1), "padding_low": ()}, "plain"),
        (PLAIN, {"input_shape": (2, 24, 40, 40), "filter_shape": (8, 24, 1, 1), "padding_low": ()}, "other"),
        (VOLUME, {}, "volume"),
        (VOLUME, {"direction": "backward_data", "filter_shape": (40, 32, 1, 1, 1), "padding_low": ()}, "volume"),
        (VOLUME, {"input_shape": (1, 32, 15, 13, 21)}, "other"),
        (VOLUME, {"input_shape": (1, 64, 16, 16, 16), "filter_shape": (64, 32, 3, 3, 3), "groups": 2}, "other"),
        (VOLUME, {"filter_shape": (32, 32, 3, 1, 1), "padding_low": (1, 0, 0)}, "other"),
        (VOLUME, {"filter_shape": (32, 16, 3, 3, 3), "groups": 2}, "other"),
        (VOLUME, {"filter_shape": (32, 1, 3, 3, 3), "groups": 32}, "other"),
        (VOLUME, {"filter_shape": (32, 32, 5, 5, 5), "padding_low": (2, 2, 2)}, "other"),
        (VOLUME, {"input_shape": (1, 3, 16, 16, 16), "filter_shape": (32, 3, 3, 3, 3)}, "other"),
        (VOLUME, {"dilation": (2, 2, 2), "padding_low": (2, 2, 2)}, "other"),
        (DEPTHWISE, {}, "depthwise"),
        (DEPTHWISE, {"direction": "backward_filter", "input_shape": (2, 24, 80, 80), "stride": (2, 2)}, "depthwise"),
        (DEPTHWISE, {"filter_shape": (24, 1, 7, 7), "padding_low": (3, 3)}, "depthwise"),
        (DEPTHWISE, {"filter_shape": (24, 1, 9, 9), "padding_low": (4, 4)}, "other"),
        (DEPTHWISE, {"filter_shape": (48, 1, 3, 3)}, "other"),
        (DEPTHWISE, {"filter_shape": (24, 2, 3, 3), "groups": 12}, "other"),
        (DEPTHWISE, {"filter_shape": (12, 2, 3, 3), "groups": 12}, "other"),
        (DEPTHWISE, {"dilation": (2, 2)}, "other"),
        (DEPTHWISE, {"input_shape": (1, 24, 40, 40)}, "other"),
        (STEM, {}, "stem"),
        (STEM, {"filter_shape": (32, 3, 3, 3)}, "stem"),
        (STEM, {"filter_shape": (32, 3, 8, 8), "stride": (1, 1)}, "other"),
        (STEM, {"filter_shape": (16, 3, 7, 7)}, "other"),
        (STEM, {"input_shape": (2, 4, 80, 80), "filter_shape": (32, 4, 7, 7)}, "other"),
    ],
)
def test_kinds(start: dict[str, object], change: dict[str, object], kind: Kind) -> None:
    assert kind_of(canonical(ConvOp(**{**start, **change}))) == kind  # type: ignore[arg-type]


def test_whole_numbers_are_of_their_own() -> None:
    whole = {"input_type": "int8", "filter_type": "int8", "accumulate_type": "int32"}
    assert kind_of(canonical(ConvOp(**{**PLAIN, **whole}))) == "other"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "fills"),
    [
        ({}, True),
        ({"input_shape": (2, 8, 40, 40), "filter_shape": (8, 8, 1, 1), "padding_low": ()}, True),
        ({"input_shape": (1, 32, 40, 40)}, False),
        ({"dilation": (1, 2)}, False),
        ({"filter_shape": (32, 16, 3, 3), "groups": 2}, False),
    ],
)
def test_what_fills_the_device(change: dict[str, object], fills: bool) -> None:
    assert fills_the_device(canonical(ConvOp(**{**PLAIN, **change}))) is fills  # type: ignore[arg-type]
