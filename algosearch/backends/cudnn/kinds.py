"""Which kind of convolution an op is, for how far the library's own order of its engines can be trusted.

Measured on an H200 with cuDNN 9.19: every candidate of 27 shapes that no network is made of, in three directions and
two types, and of ResNet-50, MobileNet V2, R3D-18 and Wavenet (`docs/decisions/0014-what-is-looked-at.md`).
"""

from __future__ import annotations

from math import prod
from typing import Final, Literal

from algosearch.ops import ConvOp

Kind = Literal["plain", "volume", "stem", "depthwise", "other"]

_USUAL_CHANNELS: Final = 32
_POINTWISE_CHANNELS: Final = 16
"""With a filter of one tap that many are usual, too: MobileNet V2's 16 and 24."""
_USUAL_TAPS: Final = 3
_EVEN_CHANNELS: Final = 8
_STEM_CHANNELS: Final = 3
_STEM_TAPS: Final = 7
_DEPTHWISE_TAPS: Final = 7
_USUAL_SIDE: Final = 512
_USUAL_POINTS: Final = 2048
"""Of the output, in all images: with fewer, engines that split the sum between blocks win, which INSTANT lists late or
not at all: by up to half."""
_VOLUME_POINTS: Final = 4096
"""The same of three dimensions: with 3,136 the best were at places 0 to 43, with 6,272 INSTANT had them."""


def kind_of(op: ConvOp) -> Kind:
    """Of a canonical op, which has two dimensions or three. `plain` is what networks are mostly made of, and what the
    heuristics were made for: a good one is among the first that they list. A `volume` is the same in three dimensions;
    its good ones stand a little further down. `stem` is like the first convolution of most networks for images of three
    colours: mode INSTANT has a good one somewhere, and what FALLBACK has and what is compiled at run time is not. A
    `depthwise` one has one channel and one filter in each group, which is no product of matrices: what uses tensor
    cores goes from group to group, and was 11 to 150 times slower than the best. Of an `other`, all that is not
    hopeless must be looked at: the first six were up to 60 % slower than the best, which mode B or FALLBACK listed."""
    if not _is_usual(op):
        return "other"
    if op.spatial_dimensions == 3:
        return "volume" if _has_usual_filter(op) and _points(op) >= _VOLUME_POINTS else "other"
    if op.groups > 1:
        return "depthwise" if _is_depthwise(op) else "other"
    if _has_usual_filter(op):
        return "plain"
    return "stem" if _is_stem(op) else "other"


def fills_the_device(op: ConvOp) -> bool:
    """Whether it is dense, has no dilated filter, and points enough: what FALLBACK has for such a one, compiled at run
    time, never won; for others it does."""
    return op.groups == 1 and set(op.dilation) == {1} and _points(op) >= _USUAL_POINTS


def _is_usual(op: ConvOp) -> bool:
    return (
        op.input_type != "int8"
        and set(op.dilation) == {1}
        and op.padding_low == op.padding_high
        and len(set(op.filter_shape[2:])) == 1
        and _points(op) >= _USUAL_POINTS
        and max(op.output_shape[2:]) <= _USUAL_SIDE
    )


def _has_usual_filter(op: ConvOp) -> bool:
    filters, channels, *taps = op.filter_shape
    fewest = _POINTWISE_CHANNELS if max(taps) == 1 else _USUAL_CHANNELS
    return (
        op.groups == 1
        and max(taps) <= _USUAL_TAPS
        and min(filters, channels) >= fewest
        and filters % _EVEN_CHANNELS == channels % _EVEN_CHANNELS == 0
    )


def _is_stem(op: ConvOp) -> bool:
    filters, channels, *taps = op.filter_shape
    return max(taps) <= _STEM_TAPS and channels == _STEM_CHANNELS and filters >= _USUAL_CHANNELS


def _is_depthwise(op: ConvOp) -> bool:
    filters, channels, *taps = op.filter_shape
    return channels == 1 and filters == op.groups and max(taps) <= _DEPTHWISE_TAPS


def _points(op: ConvOp) -> int:
    return op.output_shape[0] * prod(op.output_shape[2:])
