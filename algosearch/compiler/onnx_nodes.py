"""One ONNX node as an op: `Conv`, `ConvTranspose` and `BatchNormalization`, of every opset.

Everything that the standard leaves implicit is made explicit here, so that two nodes that state one problem in two
ways become one op: `auto_pad` (it wins over `pads`), a missing `kernel_shape`, `output_shape`, the training mode.

A node can fail in three ways, which the reader treats apart: `Unresolved` (a size is not known), `Unusable` (no op
describes it; it is listed and the rest is read) and `Contradiction` (the model cannot be right).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypedDict, cast

import onnx

from algosearch.compiler.model import ReadOptions
from algosearch.compiler.onnx_shapes import Scope, Tensor
from algosearch.errors import InvalidOp
from algosearch.ops import AccumulateType, BatchNormOp, ConvOp, ElementType, Layout, Op, Phase, Shape

READ_KINDS: Final = frozenset(("Conv", "ConvTranspose", "BatchNormalization"))
OTHER_KINDS: Final[Mapping[str, str]] = {
    "QLinearConv": "a quantized convolution with scales and zero points",
    "QLinearConvTranspose": "a quantized transposed convolution with scales and zero points",
    "ConvInteger": "an integer convolution with zero points and an int32 result",
    "ConvTransposeWithDynamicPads": "a transposed convolution whose padding is computed",
    "DeformConv": "a convolution with offsets for each tap",
    "CausalConvWithState": "a causal convolution that carries a state over",
    "FusedConv": "a convolution fused with an activation",
    "NhwcConv": "a convolution with its channels last",
    "NhwcFusedConv": "a convolution with its channels last, fused with an activation",
    "NhwcMaxPoolConv": "a max pool with its channels last",
}
"""Relatives of a convolution, of any domain, that no op describes, and what they are: reported, so that nobody
wonders."""

_ELEMENT_TYPES: Final[dict[int, ElementType]] = {
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.DOUBLE: "float64",
}
_AUTO_PADS: Final = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


class Unresolved(Exception):
    """The shape of `tensor` is not known in full."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor
        super().__init__(tensor)


class Unusable(Exception):
    """No op describes this node; the text says what about it."""


class Contradiction(Exception):
    """What the node says cannot be; the text says what."""


class Site(NamedTuple):
    """One node where it stands."""

    node: onnx.NodeProto
    scope: Scope
    opset: int

    def integers(self, name: str) -> Shape | None:
        """An attribute that is a list of integers; None if it is left out or empty."""
        stated = self._stated(name, onnx.AttributeProto.INTS)
        return (tuple(stated.ints) or None) if stated is not None else None

    def integer(self, name: str, default: int) -> int:
        stated = self._stated(name, onnx.AttributeProto.INT)
        return default if stated is None else int(stated.i)

    def text(self, name: str, default: str) -> str:
        stated = self._stated(name, onnx.AttributeProto.STRING)
        return (b"" if stated is None else stated.s).decode("ascii", "replace") or default

    def _stated(self, name: str, kind: onnx.AttributeProto.AttributeType) -> onnx.AttributeProto | None:
        """An attribute, if it is stated. The oldest files do not say of what type it is.

        Raises:
            Contradiction: it is of another type; its default would be another problem than the one that was meant.
        """
        stated = next((each for each in self.node.attribute if each.name == name), None)
        if stated is not None and stated.type not in (onnx.AttributeProto.UNDEFINED, kind):
            types = onnx.AttributeProto.AttributeType
            said = types.Name(stated.type) if stated.type in types.values() else stated.type
            raise Contradiction(f"has {name} of type {said}; it is {types.Name(kind)}")
        return stated

    def tensor(self, index: int) -> Tensor:
        """What is known of an input.

        Raises:
            Contradiction: it is left out, or nothing makes it.
        """
        name = self.input(index)
        if not name:
            raise Contradiction(f"has no input {index}")
        if not self.scope.exists(name):
            raise Contradiction(f"takes {name!r}, which nothing makes")
        return self.scope.tensor(name)

    def shape(self, index: int) -> Shape:
        """The shape of an input.

        Raises:
            Unresolved: it is not known in full.
        """
        shape = self.tensor(index).shape
        if shape is None or None in shape:
            raise Unresolved(self.input(index))
        return cast("Shape", shape)

    def input(self, index: int) -> str:
        """The name of an input; empty if it is left out, in either of the two ways to do so."""
        return str(self.node.input[index]) if index < len(self.node.input) else ""


class _Windows(NamedTuple):
    """What both kinds of convolution say about their windows, one entry for each spatial axis."""

    stride: Shape
    dilation: Shape
    extent: Shape
    """What a dilated filter covers: (taps - 1) * dilation + 1."""
    low: Shape
    high: Shape
    auto_pad: str


def read_node(site: Site, options: ReadOptions) -> tuple[Op, str | None]:
    """The forward op of a node of `READ_KINDS`, and a remark if it does not mean what it says.

    Raises:
        Unresolved, Unusable, Contradiction: as the module says.
    """
    for index, name in enumerate(site.node.input):
        if name:
            site.tensor(index)  # a bias that nothing makes is an error, not an absent bias
    if site.node.op_type == "BatchNormalization":
        return _batch_norm(site, options)
    convolution = _conv if site.node.op_type == "Conv" else _conv_transpose
    try:
        return convolution(site, options), None
    except InvalidOp as error:
        if options.data_type == "int8" and error.field == "direction":
            raise Unusable(error.rule) from None
        raise Contradiction(str(error)) from None


def _conv(site: Site, options: ReadOptions) -> ConvOp:
    data, weight = _both_shapes(site)
    windows = _windows(site, weight)
    low, high = windows.low, windows.high
    if windows.auto_pad.startswith("SAME"):
        axes = zip(data[2:], windows.stride, windows.extent, strict=True)
        totals = [max(0, (-(-size // step) - 1) * step + extent - size) for size, step, extent in axes]
        low, high = _halves(totals, larger_high=windows.auto_pad == "SAME_UPPER")
    return ConvOp(
        input_shape=data,
        filter_shape=weight,
        stride=windows.stride,
        dilation=windows.dilation,
        padding_low=low,
        padding_high=high,
        groups=site.integer("group", 1),
        **_types_and_layouts(site, options),
    )


def _conv_transpose(site: Site, options: ReadOptions) -> ConvOp:
    """A transposed convolution, as the data gradient of the forward one whose output its input is."""
    data, weight = _both_shapes(site)
    windows = _windows(site, weight)
    groups = site.integer("group", 1)
    sizes, low = _transposed_sizes(site, data[2:], windows)
    # Of the forward convolution's high padding we only know that it gives `data` again, which the extra rows of an
    # output_padding do as a tail that no window reaches. What was written is kept if it does.
    high: list[int] = []
    for axis, (size, inner) in enumerate(zip(sizes, data[2:], strict=True)):
        step = windows.stride[axis]
        least = (inner - 1) * step + windows.extent[axis] - size - low[axis]
        written = windows.high[axis]
        fits = least <= written < least + step
        high.append(written if fits else max(0, least))
        if high[-1] >= least + step:
            raise Unusable(f"its output of {size} on axis {axis} reaches beyond every window")
    return ConvOp(
        direction="backward_data",
        input_shape=(data[0], weight[1] * groups, *sizes),
        filter_shape=(data[1], *weight[1:]) if weight[0] == data[1] else _wrong_channels(data, weight),
        stride=windows.stride,
        dilation=windows.dilation,
        padding_low=low,
        padding_high=tuple(high),
        groups=groups,
        **_types_and_layouts(site, options),
    )


def _transposed_sizes(site: Site, data: Shape, windows: _Windows) -> tuple[Shape, Shape]:
    """The spatial sizes of a ConvTranspose's result, and the low padding that goes with them."""
    axes = len(data)
    extra = _per_axis(site, "output_padding", axes, 0, least=0)
    wanted = site.integers("output_shape")
    same = windows.auto_pad.startswith("SAME")
    full = [
        (size - 1) * step + extent + more
        for size, step, extent, more in zip(data, windows.stride, windows.extent, extra, strict=True)
    ]
    if wanted is None and not same:
        sizes = tuple(size - low - high for size, low, high in zip(full, windows.low, windows.high, strict=True))
        return sizes, windows.low
    if wanted is None:
        sizes = tuple(size * step for size, step in zip(data, windows.stride, strict=True))
    else:
        sizes = wanted[-axes:]  # some exporters write the batch and the channels as well
        if len(wanted) not in (axes, axes + 2) or min(sizes) < 1:
            raise Contradiction(f"has output_shape {wanted} for {axes} spatial dimensions")
    totals = [max(0, size - wish) for size, wish in zip(full, sizes, strict=True)]
    return sizes, _halves(totals, larger_high=windows.auto_pad == "SAME_UPPER")[0]


def _both_shapes(site: Site) -> tuple[Shape, Shape]:
    """The shapes of data and weight, which agree in rank."""
    data, weight = site.shape(0), site.shape(1)
    if not 3 <= len(data) == len(weight):
        raise Contradiction(f"has data of shape {data} and a weight of shape {weight}")
    if len(data) > 5:
        raise Unusable(f"has {len(data) - 2} spatial dimensions; an op has 1 to 3")
    if min(data + weight) < 1:
        raise Contradiction(f"has an empty tensor: data {data}, weight {weight}")
    return data, weight


def _windows(site: Site, weight: Shape) -> _Windows:
    taps = weight[2:]
    stated = site.integers("kernel_shape")
    if stated is not None and stated != taps:
        raise Contradiction(f"has kernel_shape {stated} and a weight of shape {weight}")
    axes = len(taps)
    auto_pad = site.text("auto_pad", "NOTSET")
    if auto_pad not in _AUTO_PADS:
        raise Contradiction(f"has auto_pad {auto_pad!r}")
    dilation = _per_axis(site, "dilations", axes, 1, least=1)
    pads = _per_axis(site, "pads", 2 * axes, 0, least=0) if auto_pad == "NOTSET" else (0,) * (2 * axes)
    return _Windows(
        stride=_per_axis(site, "strides", axes, 1, least=1),
        dilation=dilation,
        extent=tuple((each - 1) * step + 1 for each, step in zip(taps, dilation, strict=True)),
        low=pads[:axes],
        high=pads[axes:],
        auto_pad=auto_pad,
    )


def _per_axis(site: Site, name: str, entries: int, default: int, *, least: int) -> Shape:
    values = site.integers(name) or (default,) * entries
    if len(values) != entries or min(values) < least:
        raise Contradiction(f"has {name} {values}; it takes {entries} integers, each at least {least}")
    return values


def _halves(totals: list[int], *, larger_high: bool) -> tuple[Shape, Shape]:
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (small, large) if larger_high else (large, small)


def _wrong_channels(data: Shape, weight: Shape) -> Shape:
    raise Contradiction(f"has data of {data[1]} channels and a weight for {weight[0]}")


def _element_type(site: Site, options: ReadOptions, indices: tuple[int, ...]) -> ElementType:
    if options.data_type is not None:
        return options.data_type
    for index in indices:
        number = site.tensor(index).element_type
        if number in _ELEMENT_TYPES:
            return _ELEMENT_TYPES[number]
        if number:
            raise Unusable(f"no op computes in {_type_name(number)}")
    raise Unusable("its element type is unknown")


class _Common(TypedDict):
    input_type: ElementType
    filter_type: ElementType
    output_type: ElementType
    accumulate_type: AccumulateType
    input_layout: Layout
    filter_layout: Layout
    output_layout: Layout


def _type_name(number: int) -> str:
    known = onnx.TensorProto.DataType
    return str(known.Name(number)).lower() if number in known.values() else f"type {number}"


def _types_and_layouts(site: Site, options: ReadOptions) -> _Common:
    data_type = _element_type(site, options, (0, 1))
    numbers = {site.tensor(index).element_type for index in (0, 1)} - {0}
    if options.data_type is None and len(numbers) > 1:
        raise Contradiction(f"has data and a weight of two types, {' and '.join(sorted(map(_type_name, numbers)))}")
    accumulates: dict[str, AccumulateType] = {"float64": "float64", "int8": "int32"}
    layout = options.layout or "channels_first"
    return _Common(
        input_type=data_type,
        filter_type=data_type,
        output_type=data_type,
        accumulate_type=accumulates.get(data_type, "float32"),
        input_layout=layout,
        filter_layout=layout,
        output_layout=layout,
    )


def _batch_norm(site: Site, options: ReadOptions) -> tuple[BatchNormOp, str | None]:
    shape = site.shape(0)
    data_type = _element_type(site, options, (0, 1))
    if data_type == "int8":
        raise Unusable("no batch norm computes in int8")
    if not 2 <= len(shape) <= 5:
        raise Unusable(f"has {len(shape) - 2} spatial dimensions; an op has 0 to 3")
    # Before opset 9, spatial=0 asked for statistics of each activation; exporters wrote it beside per-channel
    # parameters all the same, and those are what the model was trained with.
    asked = "per_activation" if site.opset < 9 and site.integer("spatial", 1) == 0 else "per_channel"
    fitting = {"per_channel": shape[1:2], "per_activation": shape[1:]}
    scale = site.tensor(1).shape
    remark = None
    if scale is not None and None not in scale and scale != fitting[asked]:
        if scale not in fitting.values():
            raise Contradiction(f"has data of shape {shape} and a scale of shape {scale}")
        remark = f"contradiction: {asked} statistics beside a scale of shape {scale}; read as per_channel"
        asked = "per_channel"
    try:
        op = BatchNormOp(
            shape=shape,
            phase=_phase(site),
            statistics="per_activation" if asked == "per_activation" else "per_channel",
            layout=options.layout or "channels_first",
            data_type=data_type,
            parameter_type="float64" if data_type == "float64" else "float32",
        )
    except InvalidOp as error:
        raise Contradiction(str(error)) from None
    return op, remark


def _phase(site: Site) -> Phase:
    """Training or not: said by `is_test` up to opset 6, by the number of outputs to 13, then by `training_mode`."""
    if site.opset <= 6:
        training = site.integer("is_test", 0) == 0
    elif site.opset <= 13:
        training = sum(1 for name in site.node.output if name) > 1
    else:
        training = site.integer("training_mode", 0) == 1
    return "training_forward" if training else "inference"
