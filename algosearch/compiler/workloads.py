"""Built-in workloads: the graphs of well-known networks, written from their architectures.

They stand for six characters: `resnet50` the ordinary, `mobilenet_v2` depthwise, `r3d18` 3-D, `replknet31b` large
depthwise filters, `wavenet` 1-D and dilated, `vit_b16` a transformer encoder behind one convolution of patches.

Rejected: model files in the package (weights or not, nobody can read them, and one batch size each).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from algosearch.compiler.graph import Graph
from algosearch.compiler.layers import Layers
from algosearch.compiler.model import AS_STATED, Model, Node, ReadOptions, Skipped
from algosearch.errors import InvalidOp
from algosearch.ops import Shape
from algosearch.ops.types import LARGEST

__all__ = ("WORKLOADS", "Workload", "build_graph", "build_workload")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A network that comes with the package."""

    description: str
    """One line for people."""
    input_shape: Shape
    """[C, spatial…] of what goes in."""
    build: Callable[[Layers, str], str]
    """Adds every layer, given the tensor that goes in, and returns the one that comes out."""


def build_graph(name: str, options: ReadOptions = AS_STATED) -> tuple[Graph, tuple[Skipped, ...]]:
    """The inference graph of the workload `name`, and what it leaves out; of `options`, batch, data_type and layout
    count.

    In int8 there is no batch norm: each is skipped, because it is folded into the convolution before it.

    Raises:
        KeyError: there is no workload of that name.
        InvalidOp: the batch is none.
    """
    workload = WORKLOADS[name]
    layers = Layers(name, data_type=options.data_type or "float32", layout=options.layout or "channels_first")
    batch = 1 if options.batch is None else options.batch
    if not 1 <= batch <= LARGEST:
        raise InvalidOp("input_shape", batch, "must be from 1 to 2**63 - 1")
    entering = layers.enter("input", (batch, *workload.input_shape))
    return layers.finish(workload.build(layers, entering)), tuple(layers.skipped)


def build_workload(name: str, options: ReadOptions = AS_STATED) -> Model:
    """The inference ops of the workload `name`, as `build_graph` has them.

    Raises:
        KeyError, InvalidOp: as `build_graph`.
    """
    graph, skipped = build_graph(name, options)
    trained = {tensor.name for tensor in graph.tensors.values() if tensor.role == "parameter"}
    nodes = []
    for node in graph.nodes:
        if node.op is not None:
            nodes.append(Node(name=node.name, op=node.op, needs_input_gradient=node.inputs[0] in trained))
        if not trained.isdisjoint(node.inputs):
            trained.update(node.outputs)
    ignored = ReadOptions(dimensions=options.dimensions).flags
    return Model(source=name, nodes=tuple(nodes), skipped=skipped, ignored=ignored)


def _resnet50(net: Layers, image: str) -> str:
    """He et al. 2015 in its version 1.5, which every framework trains: a stage's stride is at its 3×3, not its 1×1."""
    x = net.halve("stem.pool", net.conv_norm("stem", image, 64, 7, stride=2))
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            y = net.conv_norm(f"{name}.reduce", x, width, 1)
            y = net.conv_norm(f"{name}.conv", y, width, 3, stride=stride)
            y = net.conv_norm(f"{name}.expand", y, 4 * width, 1, relu=False)
            if block == 0:
                x = net.conv_norm(f"{name}.shortcut", x, 4 * width, 1, stride=stride, relu=False)
            x = net.relu(f"{name}.relu", net.add(f"{name}.add", y, x))
    return net.classify("classes", x, 1000)


def _mobilenet_v2(net: Layers, image: str) -> str:
    """Sandler et al. 2018: inverted residuals, their 3×3 a filter of its own for each channel."""
    x = net.conv_norm("stem", image, 32, 3, stride=2)
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for stage, (expansion, filters, blocks, first_stride) in enumerate(stages, 1):
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            stride = first_stride if block == 0 else 1
            width = expansion * net.shape(x)[1]
            y = x if expansion == 1 else net.conv_norm(f"{name}.expand", x, width, 1)
            y = net.conv_norm(f"{name}.depthwise", y, width, 3, stride=stride, groups=width)
            y = net.conv_norm(f"{name}.project", y, filters, 1, relu=False)
            x = net.add(f"{name}.add", y, x) if net.shape(x) == net.shape(y) else y
    return net.classify("classes", net.conv_norm("head", x, 1280, 1), 1000)


def _r3d18(net: Layers, clip: str) -> str:
    """Tran et al. 2018: ResNet-18 with a third axis, time, which the stem does not stride over."""
    x = net.conv_norm("stem", clip, 64, (3, 7, 7), stride=(1, 2, 2))
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"stage{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            y = net.conv_norm(f"{name}.first", x, width, 3, stride=stride)
            y = net.conv_norm(f"{name}.second", y, width, 3, relu=False)
            if stride != 1:
                x = net.conv_norm(f"{name}.shortcut", x, width, 1, stride=stride, relu=False)
            x = net.relu(f"{name}.relu", net.add(f"{name}.add", y, x))
    return net.classify("classes", x, 400)


def _replknet31b(net: Layers, image: str) -> str:
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
            large = net.conv_norm(f"{name}.large", y, width, taps, groups=width, relu=False)
            small = net.conv_norm(f"{name}.small", y, width, 5, groups=width, relu=False)
            y = net.relu(f"{name}.both.relu", net.add(f"{name}.both", large, small))
            x = net.add(f"{name}.add", net.conv_norm(f"{name}.leave", y, width, 1, relu=False), x)
            y = net.conv_norm(f"{name}.widen", net.norm(f"{name}.mlp_norm", x), 4 * width, 1, relu=False)
            y = net.conv_norm(f"{name}.narrow", net.other(f"{name}.gelu", "gelu", [y]), width, 1, relu=False)
            x = net.add(f"{name}.mlp_add", y, x)
    return net.classify("classes", net.norm("norm", x), 1000)


def _wavenet(net: Layers, samples: str) -> str:
    """Van den Oord et al. 2016: three rounds of dilations 1 to 512, one convolution for both halves of each gate."""
    x = net.conv("enter", samples, 64, 2, causal=True)
    dilations = [1 << power for _ in range(3) for power in range(10)]
    skips = []
    for layer, dilation in enumerate(dilations):
        name = f"layer{layer}"
        gates = net.conv(f"{name}.gate", x, 128, 2, dilation=dilation, causal=True)
        batch, channels, length = net.shape(gates)
        gated = net.other(f"{name}.gated", "gated_tanh", [gates], (batch, channels // 2, length))
        skips.append(net.conv(f"{name}.skip", gated, 256, 1))
        if layer < len(dilations) - 1:  # nothing comes after the last that could read it
            x = net.add(f"{name}.add", net.conv(f"{name}.residual", gated, 64, 1), x)
    mixed = net.relu("skips.relu", net.other("skips", "add", skips))
    return net.conv("leave", net.relu("mix.relu", net.conv("mix", mixed, 256, 1)), 256, 1)


def _vit_b16(net: Layers, image: str) -> str:
    """Dosovitskiy et al. 2020: patches of 16×16 by one convolution, then twelve blocks of attention and MLP."""
    x = net.flatten("tokens", net.conv("patches", image, 768, 16, stride=16, padded=False))
    for layer in range(12):
        name = f"layer{layer}"
        y = net.attention(f"{name}.attention", net.layer_norm(f"{name}.norm", x), heads=12)
        x = net.add(f"{name}.add", y, x)
        y = net.linear(f"{name}.widen", net.layer_norm(f"{name}.mlp_norm", x), 3072)
        y = net.linear(f"{name}.narrow", net.other(f"{name}.gelu", "gelu", [y]), 768)
        x = net.add(f"{name}.mlp_add", y, x)
    normed = net.layer_norm("norm", x)
    batch, _, features = net.shape(normed)
    return net.linear("classes", net.other("pool", "mean_pool", [normed], (batch, features)), 1000)


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
    "vit_b16": Workload(
        description="ViT-B/16: one convolution of patches, then a transformer encoder; 224×224 images",
        input_shape=(3, 224, 224),
        build=_vit_b16,
    ),
}
