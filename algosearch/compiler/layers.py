"""Layers: a graph written down from a network's architecture, one call a layer.

A tensor is its name, so that branches are plain variables, and no shape is written down twice. Parameters come into
being with the layer that has them.
"""

from __future__ import annotations

from math import prod

from algosearch.compiler.graph import Graph, GraphBuilder, Role, Tensor
from algosearch.compiler.inference import Conv, Norm, Other
from algosearch.compiler.model import Skipped
from algosearch.ops import ElementType, Layout, Shape

__all__ = ("Layers",)


class Layers:
    """Collects layers. Every method takes the name of the tensor that goes in, and returns that of what comes out."""

    def __init__(self, name: str, *, data_type: ElementType, layout: Layout) -> None:
        self.skipped: list[Skipped] = []
        self._builder = GraphBuilder(name)
        self._data_type, self._layout = data_type, layout

    def shape(self, tensor: str) -> Shape:
        """Of a tensor that is there already."""
        return self._builder[tensor].shape

    def finish(self, output: str) -> Graph:
        """The graph, of which `output` is what is wanted."""
        return self._builder.finish([output])

    def enter(self, name: str, shape: Shape) -> str:
        """What goes into the network."""
        return self._enter(name, shape, "input", self._layout)

    def conv(
        self,
        name: str,
        x: str,
        filters: int,
        taps: int | Shape,
        *,
        stride: int | Shape = 1,
        dilation: int = 1,
        groups: int = 1,
        padded: bool = True,
        causal: bool = False,
    ) -> str:
        """A convolution padded so that, at stride 1, it keeps its size: on both sides, or all of it before (causal)."""
        entering = self.shape(x)
        axes = len(entering) - 2
        taps = _per_axis(taps, axes)
        reach = tuple((each - 1) * dilation if padded else 0 for each in taps)
        low = reach if causal else tuple(each // 2 for each in reach)
        weight = self._enter(f"{name}.filter", (filters, entering[1] // groups, *taps), "parameter", self._layout)
        attributes = Conv(
            stride=_per_axis(stride, axes),
            dilation=(dilation,) * axes,
            padding_low=low,
            padding_high=tuple(all_of_it - before for all_of_it, before in zip(reach, low, strict=True)),
            groups=groups,
        )
        return self._builder.add(name, attributes, [x, weight])[0]

    def norm(self, name: str, x: str) -> str:
        """A batch norm as inference has it. In int8 there is none: it folds into the convolution before it."""
        if self._data_type == "int8":
            reason = "int8 has no batch norm: it folds into the convolution before it"
            self.skipped.append(Skipped(name=name, kind="BatchNormalization", reason=reason))
            return x

        channels = self.shape(x)[1:2]
        parameters = "float64" if self._data_type == "float64" else "float32"
        roles: dict[str, Role] = {
            "scale": "parameter",
            "bias": "parameter",
            "running_mean": "state",
            "running_variance": "state",
        }
        entered = [self._enter(f"{name}.{word}", channels, role, None, parameters) for word, role in roles.items()]
        return self._builder.add(name, Norm(phase="inference"), [x, *entered])[0]

    def other(self, name: str, function: str, inputs: list[str], shape: Shape | None = None) -> str:
        """Any other layer: one output, of the first input's shape if none is said."""
        written = self.shape(inputs[0]) if shape is None else shape
        return self._builder.add(name, Other(function=function, shapes=(written,)), inputs)[0]

    def relu(self, name: str, x: str) -> str:
        """A rectifier."""
        return self.other(name, "relu", [x])

    def add(self, name: str, left: str, right: str) -> str:
        """A sum of two tensors of one shape."""
        return self.other(name, "add", [left, right])

    def halve(self, name: str, x: str) -> str:
        """A max pool of 3 by 3, stride 2, padding 1."""
        shape = self.shape(x)
        return self.other(name, "max_pool", [x], (*shape[:2], *((size + 1) // 2 for size in shape[2:])))

    def classify(self, name: str, x: str, classes: int) -> str:
        """The mean of every channel, and a matrix product to the classes."""
        batch, channels = self.shape(x)[:2]
        pooled = self.other(f"{name}.pool", "mean_pool", [x], (batch, channels))
        return self.linear(name, pooled, classes)

    def linear(self, name: str, x: str, features: int) -> str:
        """A matrix product with a weight, and a bias, over the last axis."""
        shape = self.shape(x)
        weight = self._enter(f"{name}.weight", (shape[-1], features), "parameter", None)
        bias = self._enter(f"{name}.bias", (features,), "parameter", None)
        return self.other(name, "linear", [x, weight, bias], (*shape[:-1], features))

    def layer_norm(self, name: str, x: str) -> str:
        """A norm over the last axis."""
        size = self.shape(x)[-1:]
        scale, bias = (self._enter(f"{name}.{word}", size, "parameter", None) for word in ("scale", "bias"))
        return self.other(name, "layer_norm", [x, scale, bias])

    def attention(self, name: str, x: str, heads: int) -> str:
        """Self-attention over [N, tokens, features]: query, key and value in one product, scores, and a projection."""
        batch, tokens, features = self.shape(x)
        mixed = self.linear(f"{name}.qkv", x, 3 * features)
        scores = self.other(f"{name}.scores", "attention_scores", [mixed], (batch, heads, tokens, tokens))
        weights = self.other(f"{name}.softmax", "softmax", [scores])
        gathered = self.other(f"{name}.gather", "attention_gather", [weights, mixed], (batch, tokens, features))
        return self.linear(f"{name}.project", gathered, features)

    def flatten(self, name: str, x: str) -> str:
        """[N, C, spatial…] as [N, tokens, C]."""
        shape = self.shape(x)
        return self.other(name, "flatten", [x], (shape[0], prod(shape[2:]), shape[1]))

    def conv_norm(
        self,
        name: str,
        x: str,
        filters: int,
        taps: int | Shape,
        *,
        stride: int | Shape = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> str:
        """A convolution, its batch norm and a rectifier: `NAME`, `NAME.norm` and `NAME.relu`."""
        normed = self.norm(f"{name}.norm", self.conv(name, x, filters, taps, stride=stride, groups=groups))
        return self.relu(f"{name}.relu", normed) if relu else normed

    def _enter(
        self, name: str, shape: Shape, role: Role, layout: Layout | None, element_type: str | None = None
    ) -> str:
        tensor = Tensor(
            name=name,
            shape=shape,
            element_type=element_type or self._data_type,
            layout=layout or "channels_first",
            role=role,
        )
        return self._builder.enter(tensor)


def _per_axis(value: int | Shape, axes: int) -> Shape:
    return (value,) * axes if isinstance(value, int) else value
