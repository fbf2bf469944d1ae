"""Tiny ONNX models for the tests of the reader."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from algosearch.compiler.model import Model, ReadOptions
from algosearch.compiler.onnx_reader import read_onnx
from algosearch.ops import BatchNormOp, ConvOp

Sizes = Sequence[int | str | None]


def value(name: str, shape: Sizes | None, element_type: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, element_type, shape)


def weight(name: str, shape: Sequence[int], element_type: int = TensorProto.FLOAT) -> Any:
    """An initializer whose data is there, all zeros."""
    tensor = TensorProto(name=name, data_type=element_type, dims=shape)
    narrow = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    tensor.raw_data = bytes(
        prod(shape) * (2 if element_type in narrow else 8 if element_type == TensorProto.DOUBLE else 4)
    )
    return tensor


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), name: str = "", **attributes: Any) -> Any:
    return helper.make_node(kind, list(inputs), list(outputs), name=name, **attributes)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    initializers: Sequence[Any] = (),
    *,
    opset: int = 17,
    ir: int = 8,
    outputs: Sequence[Any] | None = None,
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> Any:
    ends = [helper.make_empty_tensor_value_info("y")] if outputs is None else list(outputs)
    graph = helper.make_graph(list(nodes), "g", list(inputs), ends, list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(each, 1) for each in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=list(functions))


def write(directory: Path, proto: Any, name: str = "model.onnx") -> Path:
    path = directory / name
    path.write_bytes(proto.SerializeToString())
    return path


def read(directory: Path, proto: Any, **options: Any) -> Model:
    return read_onnx(write(directory, proto), ReadOptions(**options))


def only_conv(found: Model) -> ConvOp:
    assert not found.skipped
    (each,) = found.nodes
    assert isinstance(each.op, ConvOp)
    return each.op


def only_norm(found: Model) -> BatchNormOp:
    (each,) = found.nodes
    assert isinstance(each.op, BatchNormOp)
    return each.op


def conv_model(data: Sizes | None, filters: Sequence[int], kind: str = "Conv", **attributes: Any) -> Any:
    """One convolution, its weight an initializer."""
    return model([node(kind, ["x", "w"], name="c1", **attributes)], [value("x", data)], [weight("w", filters)])


def inferred_shape(proto: Any) -> tuple[int, ...]:
    """What the onnx package says about the model's one output."""
    done = onnx.shape_inference.infer_shapes(proto)
    return tuple(axis.dim_value for axis in done.graph.output[0].type.tensor_type.shape.dim)
