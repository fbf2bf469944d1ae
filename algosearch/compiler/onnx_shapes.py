"""The shapes of an ONNX graph: what the model declares, what the caller overrides, and what inference makes of both.

Inference belongs to the onnx package and is asked once for each model. `prepare` makes the model ready for it:

- Data that no shape depends on is dropped, inline and external alike, so that the size of the weights costs nothing
  and no external file has a reason to be opened. A dropped tensor is marked as external data without a location,
  which inference takes as "unreadable" and nothing can open.
- The caller's sizes are written into the graph's inputs; a size of 0 or less becomes an open one. If that changed
  anything, every shape that the model states about its inner values is void and is cleared, in bodies as well.
- `pads` beside an `auto_pad` other than NOTSET is removed: here `auto_pad` wins, and inference would prefer `pads`.

Rejected: inference by path, which reads and writes files of its own; and keeping all data, which breaks at the 2 GiB
that one protobuf message may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final, NamedTuple

import onnx

from algosearch.errors import InvalidSetting

_KEPT_ELEMENTS: Final = 256
"""Elements of the largest tensor whose data is kept. A tensor that shapes are computed from has one for each axis."""
_DATA_FIELDS: Final = (
    "raw_data",
    "float_data",
    "double_data",
    "int32_data",
    "int64_data",
    "uint64_data",
    "string_data",
    "external_data",
)
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
    """The model's own name for it, or `input[axis]`."""
    flag: str
    """What to add to the command line."""


def weight_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Values that some convolution takes as its filter."""
    nodes = (node for each in bodies(graph) for node in each.node)
    return frozenset(node.input[1] for node in nodes if node.op_type in _CONVOLUTIONS and len(node.input) > 1)


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
        for node in function.node:
            yield from (node.domain, node.op_type)
    for graph in bodies(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (axis.dim_param for axis in value.type.tensor_type.shape.dim)
        for tensor in graph.initializer:
            yield tensor.name
        for sparse in graph.sparse_initializer:
            yield sparse.values.name
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (attribute.name for attribute in node.attribute)


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


def prepare(model: onnx.ModelProto, batch: int | None, dimensions: Mapping[str, int]) -> None:
    """Make `model` ready for inference, in place.

    Raises:
        InvalidSetting: a size of the caller's is below 1.
    """
    if batch is not None and batch < 1:
        raise InvalidSetting("--batch", batch, "must be at least 1")
    for name, size in dimensions.items():
        if size < 1:
            raise InvalidSetting("--dim", f"{name}={size}", "must be at least 1")
    changed = _override(model.graph, batch, dimensions)
    for graph in bodies(model.graph):
        _drop_data(graph)
        _drop_overruled_pads(graph)
        if changed:
            _forget_shapes(graph)


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
                name = dimension.dim_param or _position(value.name, axis)
                is_batch = axis == 0 and len(axes) > 1 and value.name not in weights
                found.setdefault(name, OpenDimension(name, "--batch N" if is_batch else f"--dim {name}=N"))
    return tuple(found.values())


def _declared(declared: onnx.TypeProto) -> Tensor:
    kind = declared.tensor_type
    if not kind.HasField("shape"):
        return Tensor(kind.elem_type, None)
    return Tensor(kind.elem_type, tuple(axis.dim_value if axis.dim_value > 0 else None for axis in kind.shape.dim))


def _position(name: str, axis: int) -> str:
    return f"{name}[{axis}]"


def _override(graph: onnx.GraphProto, batch: int | None, dimensions: Mapping[str, int]) -> bool:
    """Write the caller's sizes into the inputs; True if any size is now another."""
    weights = weight_names(graph)
    inputs = runtime_inputs(graph)
    sizes = dict(dimensions)
    if batch is not None:
        # The symbol of a first axis is the batch wherever it stands, such as in a mask of rank 1.
        for value in inputs:
            axes = value.type.tensor_type.shape.dim
            if len(axes) > 1 and value.name not in weights and axes[0].dim_param:
                sizes.setdefault(axes[0].dim_param, batch)
    changed = False
    for value in inputs:
        if not value.type.tensor_type.HasField("shape"):
            continue
        axes = value.type.tensor_type.shape.dim
        for axis, dimension in enumerate(axes):
            size = sizes.get(_position(value.name, axis), sizes.get(dimension.dim_param))
            if batch is not None and axis == 0 and len(axes) > 1 and value.name not in weights:
                size = batch
            if size is not None and size != dimension.dim_value:
                dimension.dim_value = size
                changed = True
            elif dimension.HasField("dim_value") and dimension.dim_value < 1:
                dimension.ClearField("dim_value")
                changed = True
    return changed


def _forget_shapes(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")


def _drop_data(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _drop(tensor)
    for sparse in graph.sparse_initializer:
        _drop(sparse.values)
        _drop(sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _drop(attribute.t)
            for tensor in attribute.tensors:
                _drop(tensor)


def _drop(tensor: onnx.TensorProto) -> None:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if not external and (len(tensor.dims) < 2 and prod(tensor.dims) <= _KEPT_ELEMENTS):
        return
    for field in _DATA_FIELDS:
        tensor.ClearField(field)
    tensor.data_location = onnx.TensorProto.EXTERNAL


def _drop_overruled_pads(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if any(each.name == "auto_pad" and each.s not in (b"", b"NOTSET") for each in node.attribute):
            kept = [each for each in node.attribute if each.name != "pads"]
            if len(kept) < len(node.attribute):
                del node.attribute[:]
                node.attribute.extend(kept)
