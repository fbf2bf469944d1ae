"""What an ONNX model goes through before its shapes are inferred, so that inference is cheap and means what we mean.

Inference belongs to the onnx package and is asked once for each model. Before that, in place:

- `lighten` drops data that no shape depends on, inline and external alike, so that the size of the weights costs
  nothing and no external file has a reason to be opened. A dropped tensor is marked as external data without a
  location, which inference takes as "unreadable" and nothing can open.
- `complete` adds what inference insists on and many a model lacks: a version for every domain, a type for initializers
  of IR 3 that are no inputs.
- `override` writes the caller's sizes into the inputs; a size of 0 or less becomes an open one. If that changed
  anything, what the model states about its inner values is void, and is left to inference.
- `spell_out` writes what inference would understand in another way: `pads` beside an `auto_pad` (here `auto_pad` wins,
  as in onnxruntime), and a ConvTranspose whose `auto_pad` asks for the input's size times the stride.

Rejected: inference by path, which reads and writes files of its own; and keeping all data, which breaks at the 2 GiB
that one protobuf message may have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Final

import onnx

from algosearch.compiler.onnx_shapes import (
    STANDARD,
    Scope,
    bodies,
    nested,
    position,
    runtime_inputs,
    subgraphs,
    weight_names,
)
from algosearch.errors import InvalidSetting
from algosearch.ops import Shape
from algosearch.ops.types import LARGEST

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


def lighten(model: onnx.ModelProto) -> None:
    """Drop the data of every tensor that no shape is computed from."""
    for graph in bodies(model.graph):
        for tensor in graph.initializer:
            _drop(tensor)
        for sparse in graph.sparse_initializer:
            _drop(sparse.values)
            _drop(sparse.indices)
    for node in _all_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _drop(attribute.t)
            for tensor in attribute.tensors:
                _drop(tensor)


def complete(model: onnx.ModelProto) -> None:
    """Add what inference insists on: a version for every domain in use, a type for every initializer."""
    model.ir_version = max(model.ir_version, 4)  # below, an initializer that is no input is nothing to inference
    _import_domains(model.graph.node, model.opset_import)
    for function in model.functions:
        _import_domains(function.node, function.opset_import)


def override(graph: onnx.GraphProto, batch: int | None, dimensions: Mapping[str, int]) -> None:
    """Write the caller's sizes into the inputs of `graph`. `batch` goes to the first axis of each input of rank 2 and
    more that is no filter, whatever was there, and to every other axis that has the name of such a one.

    Raises:
        InvalidSetting: a size is below 1, or the batch has a name that `dimensions` gives another size.
    """
    if batch is not None and batch < 1:
        raise InvalidSetting("--batch", batch, "must be at least 1")
    for name, size in dimensions.items():
        if size < 1:
            raise InvalidSetting("--dim", f"{name}={size}", "must be at least 1")
    sizes = dict(dimensions)
    if batch is not None:
        for name in batch_names(graph):
            if sizes.setdefault(name, batch) != batch:
                raise InvalidSetting(
                    "--batch", batch, f"the first axis of an input, {name!r}, is {sizes[name]} by --dim"
                )
    restated = _write_sizes(graph, sizes)
    if restated is None:
        return
    for each in bodies(graph):
        _forget_shapes(each, {} if restated else sizes, is_body=each is not graph)


def spell_out(graph: onnx.GraphProto) -> None:
    """Write what inference would understand in another way than the reader does. Wants the final sizes of inputs."""
    for node in nested(graph.node):
        if _auto_pad(node) not in ("", "NOTSET"):
            _remove(node, "pads")
    _spell_out_transposed(graph, Scope(graph))


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from nested(model.graph.node)
    for function in model.functions:
        yield from nested(function.node)


def _drop(tensor: onnx.TensorProto) -> None:
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if not external and (len(tensor.dims) < 2 and prod(tensor.dims) <= _KEPT_ELEMENTS):
        return
    for field in _DATA_FIELDS:
        tensor.ClearField(field)
    tensor.data_location = onnx.TensorProto.EXTERNAL


def _import_domains(nodes: Iterable[onnx.NodeProto], imports: list[onnx.OperatorSetIdProto]) -> None:
    """Give the standard's domain its short name, and every other that is used without a version its first one."""
    for each in imports:
        if each.domain in STANDARD:
            each.domain = ""
    known = {each.domain for each in imports}
    for node in nested(nodes):
        if node.domain in STANDARD:
            node.domain = ""
        elif node.domain not in known:
            known.add(node.domain)
            imports.append(onnx.OperatorSetIdProto(domain=node.domain, version=1))


def _auto_pad(node: onnx.NodeProto) -> str:
    return next((each.s.decode("ascii", "replace") for each in node.attribute if each.name == "auto_pad"), "")


def _remove(node: onnx.NodeProto, *names: str) -> None:
    kept = [each for each in node.attribute if each.name not in names]
    if len(kept) < len(node.attribute):
        del node.attribute[:]
        node.attribute.extend(kept)


def _spell_out_transposed(graph: onnx.GraphProto, scope: Scope) -> None:
    for node in graph.node:
        if node.op_type == "ConvTranspose" and node.domain == "" and len(node.input) > 1:
            weight = scope.tensor(node.input[1]).shape
            if weight is not None and None not in weight and len(weight) > 2:
                _spell_out_output(node, tuple(size or 0 for size in weight[2:]))
        for _, body in subgraphs(node):
            _spell_out_transposed(body, Scope(body, scope))


def _spell_out_output(node: onnx.NodeProto, taps: Shape) -> None:
    """Say the size of a ConvTranspose's output as inference understands it: in an `output_shape` of the spatial axes
    alone, or by `pads` and `output_padding` that make it the input's times the stride."""
    for attribute in node.attribute:
        if attribute.name == "output_shape" and attribute.ints:
            if len(attribute.ints) == len(taps) + 2:
                del attribute.ints[:2]
            return
    auto_pad = _auto_pad(node)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return
    strides, dilations = _per_axis(node, "strides", taps, 1), _per_axis(node, "dilations", taps, 1)
    extra = _per_axis(node, "output_padding", taps, 0)
    if not len(taps) == len(strides) == len(dilations) == len(extra):
        return  # the reader says so
    axes = zip(taps, strides, dilations, extra, strict=True)
    excess = [(tap - 1) * dilation + 1 + more - stride for tap, stride, dilation, more in axes]
    if max(map(abs, excess)) > LARGEST // 2:
        return
    small = [max(0, each) // 2 for each in excess]
    large = [max(0, each) - less for each, less in zip(excess, small, strict=True)]
    low, high = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    _remove(node, "auto_pad", "output_padding")
    node.attribute.append(onnx.helper.make_attribute("pads", low + high))
    extended = [more + max(0, -each) for more, each in zip(extra, excess, strict=True)]
    node.attribute.append(onnx.helper.make_attribute("output_padding", extended))


def _per_axis(node: onnx.NodeProto, name: str, taps: Shape, default: int) -> Shape:
    stated = next((tuple(each.ints) for each in node.attribute if each.name == name and each.ints), None)
    return (default,) * len(taps) if stated is None else stated


def batch_names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of every first axis that a batch goes to."""
    weights = weight_names(graph)
    for value in runtime_inputs(graph):
        axes = value.type.tensor_type.shape.dim
        if len(axes) > 1 and value.name not in weights:
            yield position(value.name, 0)
            if axes[0].dim_param:
                yield axes[0].dim_param


def _write_sizes(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> bool | None:
    """Write sizes by name. None if nothing changed; True if a size that was stated is now another, or none."""
    restated = None
    for value in runtime_inputs(graph):
        if not value.type.tensor_type.HasField("shape"):
            continue
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            stated = dimension.HasField("dim_value")
            size = sizes.get(position(value.name, axis), sizes.get(dimension.dim_param))
            if size is not None and size != dimension.dim_value:
                dimension.dim_value = size
            elif stated and dimension.dim_value < 1:
                dimension.ClearField("dim_value")
            else:
                continue
            restated = bool(restated) or stated
    return restated


def _forget_shapes(graph: onnx.GraphProto, sizes: Mapping[str, int], *, is_body: bool) -> None:
    """Leave the shapes of a graph's values to inference, except those that inference cannot know: what a node of
    another domain makes, and what enters a body. Of those, the axes named in `sizes` are written; without any `sizes`
    they are forgotten as well."""
    kept = {output for node in graph.node if node.domain not in STANDARD for output in node.output} if sizes else set()
    entering = graph.input if is_body else ()
    if sizes:
        kept.update(value.name for value in entering)
    stated = [value for value in graph.value_info if value.name in kept]
    del graph.value_info[:]
    graph.value_info.extend(stated)
    for value in (*graph.value_info, *graph.output, *entering):
        kind = value.type.tensor_type
        if not kind.HasField("shape"):
            continue
        if value.name not in kept:
            kind.ClearField("shape")
            continue
        for dimension in kind.shape.dim:
            if dimension.dim_param in sizes:
                dimension.dim_value = sizes[dimension.dim_param]
