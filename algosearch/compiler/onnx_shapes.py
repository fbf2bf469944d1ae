"""The shapes of an ONNX graph, as the model states them and as inference completes them; and how its parts are reached.

Rejected: one flat table of all values. The two branches of an If may give different things the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import onnx

STANDARD: Final = ("", "ai.onnx")
"""The two names of the standard's own domain."""
_CONVOLUTIONS: Final = ("Conv", "ConvTranspose")


class Tensor(NamedTuple):
    """What is known of one value."""

    element_type: int
    """A member of `onnx.TensorProto.DataType`; 0 when unknown."""
    shape: tuple[int | None, ...] | None
    """None for an axis of unknown size, or altogether when not even the rank is known."""


class Scope:
    """The values of one graph by name; those of the graphs around it are seen from within it."""

    __slots__ = ("_declared", "_outer", "_tensors")

    def __init__(self, graph: onnx.GraphProto, outer: Scope | None = None) -> None:
        self._outer = outer
        self._tensors: dict[str, Tensor] = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            known = _declared(value.type)
            if known.shape is not None or value.name not in self._tensors:  # an output is in value_info as well
                self._tensors[value.name] = known
        for initializer in graph.initializer:
            self._tensors[initializer.name] = Tensor(initializer.data_type, tuple(initializer.dims))
        for sparse in graph.sparse_initializer:
            self._tensors[sparse.values.name] = Tensor(sparse.values.data_type, tuple(sparse.dims))
        for name, constant in _constants(graph):
            self._tensors[name] = Tensor(constant.data_type, tuple(constant.dims))
        # A graph's outputs and value_info only speak of values; they do not make them.
        self._declared = {value.name for value in graph.input}
        self._declared.update(initializer.name for initializer in graph.initializer)
        self._declared.update(sparse.values.name for sparse in graph.sparse_initializer)
        self._declared.update(output for node in graph.node for output in node.output)

    def exists(self, name: str) -> bool:
        """Whether anything makes this value."""
        return name in self._declared or (self._outer is not None and self._outer.exists(name))

    def tensor(self, name: str) -> Tensor:
        """What is known of a value; a name that says nothing is a tensor of which nothing is known."""
        if self._outer is None or name in self._declared:
            return self._tensors.get(name, Tensor(0, None))
        return self._outer.tensor(name)


class OpenDimension(NamedTuple):
    """One axis of a graph's input whose size nobody gave."""

    name: str
    """The model's own name for it, or `INPUT.AXIS`."""
    flag: str
    """What to add to the command line."""


def weight_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Values that some convolution takes as its filter."""
    taking = (node for node in nested(graph.node) if node.op_type in _CONVOLUTIONS and len(node.input) > 1)
    return frozenset(node.input[1] for node in taking)


def bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph, and every graph nested in it."""
    waiting = [graph]
    while waiting:
        current = waiting.pop()
        yield current
        for node in current.node:
            for _, body in subgraphs(node):
                waiting.append(body)


def words(model: onnx.ModelProto) -> Iterator[object]:
    """Every name that reading a model looks at. A damaged one comes out of protobuf as bytes, not as an error."""
    for opset in model.opset_import:
        yield opset.domain
    for function in model.functions:
        yield from (function.domain, function.name)
        yield from _node_words(function.node)
    yield from _node_words(model.graph.node)
    for graph in bodies(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (axis.dim_param for axis in value.type.tensor_type.shape.dim)
        for tensor in graph.initializer:
            yield tensor.name
        for sparse in graph.sparse_initializer:
            yield sparse.values.name


def nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and every node of the graphs nested in them."""
    for node in nodes:
        yield node
        for _, body in subgraphs(node):
            yield from nested(body.node)


def subgraphs(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The bodies of an If, Loop or Scan, or of anything else that has some, each with its attribute's name."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for body in attribute.graphs:
            yield attribute.name, body


def runtime_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that somebody has to give: those that no initializer stands for."""
    given = {initializer.name for initializer in graph.initializer}
    return [value for value in graph.input if value.name not in given]


def open_dimensions(graph: onnx.GraphProto, reached: frozenset[str]) -> tuple[OpenDimension, ...]:
    """The open axes of those inputs that are in `reached`, each name once."""
    weights = weight_names(graph)
    found: dict[str, OpenDimension] = {}
    for value in runtime_inputs(graph):
        if value.name not in reached:
            continue
        axes = value.type.tensor_type.shape.dim
        for axis, dimension in enumerate(axes):
            if dimension.dim_value < 1:
                name = dimension.dim_param or position(value.name, axis)
                is_batch = axis == 0 and len(axes) > 1 and value.name not in weights
                found.setdefault(name, OpenDimension(name, "--batch N" if is_batch else f"--dim {name}=N"))
    return tuple(found.values())


def axis_names(graph: onnx.GraphProto) -> tuple[tuple[str, str], ...]:
    """Of every axis of an input its place, `INPUT.AXIS`, and the model's own name for it, or again its place."""
    return tuple(
        (position(value.name, axis), dimension.dim_param or position(value.name, axis))
        for value in runtime_inputs(graph)
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim)
    )


def position(name: str, axis: int) -> str:
    """What an axis is called that the model has no name for. Not `name[axis]`, which a shell may take for a pattern."""
    return f"{name}.{axis}"


def _node_words(nodes: Iterable[onnx.NodeProto]) -> Iterator[object]:
    for node in nested(nodes):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _declared(declared: onnx.TypeProto) -> Tensor:
    kind = declared.tensor_type
    if not kind.HasField("shape"):
        return Tensor(kind.elem_type, None)
    return Tensor(kind.elem_type, tuple(axis.dim_value if axis.dim_value > 0 else None for axis in kind.shape.dim))


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in STANDARD and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    yield node.output[0], attribute.t
