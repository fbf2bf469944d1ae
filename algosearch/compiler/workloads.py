"""Built-in workloads: the ops of well-known networks, written from their architectures.

They stand for five characters: `resnet50` the ordinary, `mobilenet_v2` depthwise, `r3d18` 3-D, `replknet31b` large
depthwise filters, `wavenet` 1-D and dilated. A network is a function over `_Net`, in which a tensor is its shape and
nothing else: branches are then plain variables, and no shape is written down twice.

Rejected: model files in the package (weights or not, nobody can read them, and one batch size each).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from algosearch.compiler.model import AS_STATED, Model, Node, ReadOptions, Skipped
from algosearch.ops import BatchNormOp, ConvOp, ElementType, Layout, NormType, Shape
from algosearch.ops.types import ACCUMULATES

__all__ = ("WORKLOADS", "Workload", "build_workload")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A network that comes with the package."""

    description: str
    """One line for people."""
    input_shape: Shape
    """[C, spatial…] of what goes in."""
    build: Callable[[_Net, Shape], None]
    """Adds every op to a net, given the input as [N, C, spatial…]."""


def build_workload(name: str, options: ReadOptions = AS_STATED) -> Model:
    """The inference ops of the workload `name`; of `options`, batch, data_type and layout count.

    In int8 there is no batch norm: each is skipped, because it is folded into the convolution before it.

    Raises:
        KeyError: there is no workload of that name.
        InvalidOp: the batch is none.
    """
    workload = WORKLOADS[name]
    net = _Net(data_type=options.data_type or "float32", layout=options.layout or "channels_first")
    batch = 1 if options.batch is None else options.batch
    workload.build(net, (batch, *workload.input_shape))
    ignored = ReadOptions(dimensions=options.dimensions).flags
    return Model(source=name, nodes=tuple(net.nodes), skipped=tuple(net.skipped), ignored=ignored)


class _Net:
    """Collects ops. Every method takes the shape that goes in and returns the shape that comes out."""

    def __init__(self, *, data_type: ElementType, layout: Layout) -> None:
        self.nodes: list[Node] = []
        self.skipped: list[Skipped] = []
        self._data_type, self._layout = data_type, layout

    def conv(
        self,
        name: str,
        entering: Shape,
        filters: int,
        taps: int | Shape,
        *,
        stride: int | Shape = 1,
        dilation: int = 1,
        groups: int = 1,
        causal: bool = False,
    ) -> Shape:
        """A convolution padded so that, at stride 1, it keeps its size: on both sides, or all of it before (causal)."""
        axes = len(entering) - 2
        taps = _per_axis(taps, axes)
        reach = tuple((each - 1) * dilation for each in taps)
        low = reach if causal else tuple(each // 2 for each in reach)
        op = ConvOp(
            input_shape=entering,
            filter_shape=(filters, entering[1] // groups, *taps),
            stride=_per_axis(stride, axes),
            dilation=(dilation,) * axes,
            padding_low=low,
            padding_high=tuple(all_of_it - before for all_of_it, before in zip(reach, low, strict=True)),
            groups=groups,
            input_layout=self._layout,
            filter_layout=self._layout,
            output_layout=self._layout,
            input_type=self._data_type,
            filter_type=self._data_type,
            output_type=self._data_type,
            accumulate_type=ACCUMULATES[self._data_type][0],  # type: ignore[arg-type]
        )
        # All of them have one input, read by their first convolution alone.
        self.nodes.append(Node(name=name, op=op, needs_input_gradient=bool(self.nodes)))
        return op.output_shape

    def norm(self, name: str, entering: Shape) -> Shape:
        """A batch norm as inference has it."""
        if self._data_type == "int8":
            reason = "int8 has no batch norm: it folds into the convolution before it"
            self.skipped.append(Skipped(name=name, kind="BatchNormalization", reason=reason))
            return entering

        data_type: NormType = self._data_type
        op = BatchNormOp(
            shape=entering,
            phase="inference",
            layout=self._layout,
            data_type=data_type,
            parameter_type="float64" if data_type == "float64" else "float32",
        )
        self.nodes.append(Node(name=name, op=op))
        return entering

    def conv_norm(
        self,
        name: str,
        entering: Shape,
        filters: int,
        taps: int | Shape,
        *,
        stride: int | Shape = 1,
        groups: int = 1,
    ) -> Shape:
        """A convolution and its batch norm, `NAME` and `NAME.norm`."""
        leaving = self.conv(name, entering, filters, taps, stride=stride, groups=groups)
        return self.norm(f"{name}.norm", leaving)


def _per_axis(value: int | Shape, axes: int) -> Shape:
    return (value,) * axes if isinstance(value, int) else value


def _halved(entering: Shape) -> Shape:
    """What a max pool of 3 by 3, stride 2, padding 1 leaves."""
    return (*entering[:2], *((size + 1) // 2 for size in entering[2:]))


def _resnet50(net: _Net, image: Shape) -> None:
    """He et al. 2015 in its version 1.5, which every framework trains: a stage's stride is at its 3×3, not its 1×1."""
    x = _halved(net.conv_norm("stem", image, 64, 7, stride=2))
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            y = net.conv_norm(f"{name}.reduce", x, width, 1)
            y = net.conv_norm(f"{name}.conv", y, width, 3, stride=stride)
            y = net.conv_norm(f"{name}.expand", y, 4 * width, 1)
            if block == 0:
                net.conv_norm(f"{name}.shortcut", x, 4 * width, 1, stride=stride)
            x = y


def _mobilenet_v2(net: _Net, image: Shape) -> None:
    """Sandler et al. 2018: inverted residuals, their 3×3 a filter of its own for each channel."""
    x = net.conv_norm("stem", image, 32, 3, stride=2)
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for stage, (expansion, filters, blocks, first_stride) in enumerate(stages, 1):
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            width = expansion * x[1]
            y = x if expansion == 1 else net.conv_norm(f"{name}.expand", x, width, 1)
            y = net.conv_norm(f"{name}.depthwise", y, width, 3, stride=first_stride if block == 0 else 1, groups=width)
            x = net.conv_norm(f"{name}.project", y, filters, 1)
    net.conv_norm("head", x, 1280, 1)


def _r3d18(net: _Net, clip: Shape) -> None:
    """Tran et al. 2018: ResNet-18 with a third axis, time, which the stem does not stride over."""
    x = net.conv_norm("stem", clip, 64, (3, 7, 7), stride=(1, 2, 2))
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"stage{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            y = net.conv_norm(f"{name}.first", x, width, 3, stride=stride)
            y = net.conv_norm(f"{name}.second", y, width, 3)
            if stride != 1:
                net.conv_norm(f"{name}.shortcut", x, width, 1, stride=stride)
            x = y


def _replknet31b(net: _Net, image: Shape) -> None:
    """Ding et al. 2022: depthwise filters up to 31×31, each with a 5×5 beside it, as they are before that is merged."""
    x = net.conv_norm("stem.conv", image, 128, 3, stride=2)
    x = net.conv_norm("stem.depthwise", x, 128, 3, groups=128)
    x = net.conv_norm("stem.pointwise", x, 128, 1)
    x = net.conv_norm("stem.shrink", x, 128, 3, stride=2, groups=128)
    for stage, (width, blocks, taps) in enumerate(((128, 2, 31), (256, 2, 29), (512, 18, 27), (1024, 2, 13)), 1):
        if stage > 1:
            x = net.conv_norm(f"shrink{stage}.pointwise", x, width, 1)
            x = net.conv_norm(f"shrink{stage}.depthwise", x, width, 3, stride=2, groups=width)
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            y = net.conv_norm(f"{name}.enter", net.norm(f"{name}.norm", x), width, 1)
            large = net.conv_norm(f"{name}.large", y, width, taps, groups=width)
            net.conv_norm(f"{name}.small", y, width, 5, groups=width)
            x = net.conv_norm(f"{name}.leave", large, width, 1)
            y = net.conv_norm(f"{name}.widen", net.norm(f"{name}.mlp_norm", x), 4 * width, 1)
            x = net.conv_norm(f"{name}.narrow", y, width, 1)
    net.norm("norm", x)


def _wavenet(net: _Net, samples: Shape) -> None:
    """Van den Oord et al. 2016: three rounds of dilations 1 to 512, one convolution for both halves of each gate."""
    x = net.conv("enter", samples, 64, 2, causal=True)
    dilations = [1 << power for _ in range(3) for power in range(10)]
    skip = x
    for layer, dilation in enumerate(dilations):
        batch, gates, length = net.conv(f"layer{layer}.gate", x, 128, 2, dilation=dilation, causal=True)
        gated = (batch, gates // 2, length)
        skip = net.conv(f"layer{layer}.skip", gated, 256, 1)
        if layer < len(dilations) - 1:  # nothing comes after the last that could read it
            x = net.conv(f"layer{layer}.residual", gated, 64, 1)
    net.conv("leave", net.conv("mix", skip, 256, 1), 256, 1)


WORKLOADS: Final[dict[str, Workload]] = {
    "resnet50": Workload(
        description="ResNet-50 v1.5: 2-D, 224×224 images",
        input_shape=(3, 224, 224),
        build=_resnet50,
    ),
    "mobilenet_v2": Workload(
        description="MobileNetV2: depthwise 3×3, 224×224 images",
        input_shape=(3, 224, 224),
        build=_mobilenet_v2,
    ),
    "r3d18": Workload(
        description="R3D-18: 3-D, clips of 16 frames of 112×112",
        input_shape=(3, 16, 112, 112),
        build=_r3d18,
    ),
    "replknet31b": Workload(
        description="RepLKNet-31B: depthwise up to 31×31, 224×224 images",
        input_shape=(3, 224, 224),
        build=_replknet31b,
    ),
    "wavenet": Workload(
        description="WaveNet: 1-D, causal and dilated, 16,000 samples of 256 levels",
        input_shape=(256, 16_000),
        build=_wavenet,
    ),
}
