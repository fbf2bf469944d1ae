"""From the graph of inference to that of a training step: loss, gradients, updates.

Reverse-mode differentiation, node by node. A convolution has two gradients, each a convolution problem of its own; a
batch norm takes the statistics of the batch, and its backward reads what its forward saved; any other node has one node
that reads the gradients of whatever it wrote, as far as they have one (the others count as zeros), and writes those of
whatever it read. A gradient lies in memory as the tensor does that it belongs to, and has
its type.

What is not trained gets no gradient: tensors that no parameter comes before, and integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from msgspec.structs import replace

from algosearch.compiler.graph import Graph, GraphBuilder, GraphNode
from algosearch.compiler.inference import Conv, Norm, Other
from algosearch.errors import InvalidGraph
from algosearch.ops import Direction, ElementType

__all__ = ("with_gradients",)


class _Saved(NamedTuple):
    """What the backward of a function reads again, besides the gradient."""

    inputs: bool
    output: bool
    mask: bool = False
    """What it writes second."""


_SAVED: Final[Mapping[str, _Saved]] = {
    "relu": _Saved(inputs=False, output=True),
    "softmax": _Saved(inputs=False, output=True),
    "max_pool": _Saved(inputs=True, output=True),
    # Without a mask it drops nothing.
    "dropout": _Saved(inputs=False, output=False, mask=True),
    **dict.fromkeys(("add", "mean_pool", "flatten", "cast", "relayout"), _Saved(inputs=False, output=False)),
}
_BY_DEFAULT: Final = _Saved(inputs=True, output=False)
"""Of a function that is not in the table: safe, since everything can be computed from the inputs."""

_TRAINED_TYPES: Final = frozenset(("float16", "bfloat16", "float32", "float64"))


def with_gradients(graph: Graph, builder: GraphBuilder) -> Graph:
    """The training step of an inference graph, made in `builder`, which is fresh.

    The graph's outputs give one scalar, `loss`; each parameter that it depends on has an `update` node, which reads the
    parameter and its gradient. `loss` is the only output.

    Raises:
        InvalidGraph: a node cannot be trained: an int8 convolution, or one that is a gradient of a filter already; or
            there are no outputs.
    """
    return _Backward(graph, builder).run()


class _Backward:
    """One differentiation."""

    def __init__(self, graph: Graph, builder: GraphBuilder) -> None:
        self._graph = graph
        self._builder = builder
        self._trained: set[str] = set()
        self._parts: dict[str, list[str]] = {}
        """What has been found so far of each tensor's gradient: to be summed once its producer's turn comes."""
        self._made: list[GraphNode] = []
        builder.reserve_names_of(graph)

    def run(self) -> Graph:
        if not self._graph.outputs:
            raise InvalidGraph(self._graph.name, "its end", "it has no outputs to be trained for")
        self._forward()
        (loss,) = self._builder.invent("loss", Other(function="loss", shapes=((),)), self._graph.outputs)
        for output in self._graph.outputs:
            if output in self._trained:
                self._gradient_of_loss(output)
        for node in reversed(self._made):
            self._visit(node)
        for tensor in self._graph.tensors.values():
            if tensor.role == "parameter" and tensor.name in self._parts:
                gradient = self._gathered(tensor.name)
                update = Other(function="update", shapes=())
                self._builder.invent(f"{tensor.name}.update", update, [tensor.name, gradient])
        return self._builder.finish([loss])

    def _forward(self) -> None:
        for tensor in self._graph.tensors.values():
            if tensor.outlives_step:
                self._builder.enter(tensor)
                if tensor.role == "parameter" and tensor.element_type in _TRAINED_TYPES:
                    self._trained.add(tensor.name)
        for node in self._graph.nodes:
            attributes, outputs = node.attributes, node.outputs
            if isinstance(attributes, Norm) and attributes.phase == "inference":
                attributes = replace(attributes, phase="training_forward")
                outputs = outputs[:1]  # the saved statistics are new ones
            names = self._builder.add(node.name, attributes, node.inputs, outputs)
            self._made.append(replace(node, attributes=attributes, outputs=names))
            if not self._trained.isdisjoint(node.inputs):
                # Nothing is learned through the statistics that a batch norm saves.
                learned = names[:1] if isinstance(attributes, Norm) else names
                self._trained.update(name for name in learned if self._builder[name].element_type in _TRAINED_TYPES)

    def _gradient_of_loss(self, output: str) -> None:
        tensor = self._builder[output]
        attributes = Other(
            function="loss_gradient",
            shapes=(tensor.shape,),
            element_types=(tensor.element_type,),
            layout=tensor.layout,
            gradient=True,
        )
        self._parts.setdefault(output, []).extend(self._builder.invent(f"{output}.loss_gradient", attributes, [output]))

    def _visit(self, node: GraphNode) -> None:
        """Send the gradients of what a node wrote on to what it read."""
        arriving = [self._gathered(output) for output in node.outputs if output in self._parts]
        if arriving:
            match node.attributes:
                case Conv():
                    self._conv(node, node.attributes, arriving[0])
                case Norm():
                    self._norm(node, node.attributes, arriving[0])
                case Other():
                    self._other(node, node.attributes, arriving)

    def _gathered(self, tensor: str) -> str:
        """The whole gradient of a tensor: the sum of its parts, each of which came from one reader."""
        parts = self._parts[tensor]
        if len(parts) > 1:
            shape = self._builder[tensor].shape
            attributes = Other(function="add", shapes=(shape,), gradient=True)
            self._parts[tensor] = parts = list(self._builder.invent(f"{tensor}.gradient", attributes, parts))
        return parts[0]

    def _conv(self, node: GraphNode, conv: Conv, arriving: str) -> None:
        first, weight = node.inputs
        if first in self._trained:
            # A transposed convolution is a backward_data, so that its own input gradient is the forward convolution.
            opposite: Direction = "backward_data" if conv.direction == "forward" else "forward"
            self._add_conv(f"{node.name}.input_gradient", conv, opposite, (arriving, weight), first)
        if weight in self._trained:
            reads = (first, arriving) if conv.direction == "forward" else (arriving, first)
            self._add_conv(f"{node.name}.filter_gradient", conv, "backward_filter", reads, weight)

    def _add_conv(self, name: str, conv: Conv, direction: Direction, reads: tuple[str, str], of: str) -> None:
        tensor = self._builder[of]
        attributes = replace(
            conv,
            direction=direction,
            result_shape=() if direction == "forward" else tensor.shape,
            result_type=cast("ElementType", tensor.element_type),
        )
        self._parts.setdefault(of, []).extend(self._builder.invent(name, attributes, reads))

    def _norm(self, node: GraphNode, norm: Norm, arriving: str) -> None:
        x, scale, bias = node.inputs[:3]
        reads = [arriving, x, scale, *node.outputs[1:3]]
        if norm.fusion != "none":
            reads += [node.outputs[0], node.outputs[3]]
        written = self._builder.invent(f"{node.name}.backward", replace(norm, phase="backward"), reads)
        read = [x, scale, bias, *node.inputs[5:]]
        for tensor, gradient in zip(read, written, strict=True):
            if tensor in self._trained:
                self._parts.setdefault(tensor, []).append(gradient)

    def _other(self, node: GraphNode, other: Other, arriving: list[str]) -> None:
        wanted = [self._builder[tensor] for tensor in dict.fromkeys(node.inputs) if tensor in self._trained]
        if not wanted:
            return
        if other.function == "add" and all(each.shape == self._builder[arriving[0]].shape for each in wanted):
            for each in node.inputs:  # a sum sends the same gradient everywhere: nothing is computed
                if each in self._trained:
                    self._parts.setdefault(each, []).append(arriving[0])
            return
        saved = _SAVED.get(other.function, _BY_DEFAULT)
        kept = [*(node.inputs if saved.inputs else ()), *(node.outputs[:1] if saved.output else ())]
        reads = [*arriving, *kept, *(node.outputs[1:2] if saved.mask else ())]
        attributes = Other(
            function=f"{other.function}_gradient",
            shapes=tuple(each.shape for each in wanted),
            element_types=tuple(each.element_type for each in wanted),
            layout=wanted[0].layout,
            gradient=True,
        )
        written = self._builder.invent(f"{node.name}.backward", attributes, reads)
        for tensor, gradient in zip(wanted, written, strict=True):
            self._parts.setdefault(tensor.name, []).append(gradient)
