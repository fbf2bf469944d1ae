"""What is in an ONNX file, counted without the package: from the raw graph, with a shape propagation of its own.

Written from the ONNX standard and from the rules that `algosearch.ops.canonical` states in words; shares no code with
either the reader or the ops, and not the onnx package's shape inference. It knows the kinds of node that the light
models use and fails on any other, rather than guess.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, Final

import onnx

Shape = tuple[int, ...]
Problem = tuple[object, ...]

LIGHT: Final[tuple[Path, ...]] = tuple(
    sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))
)
"""The real graphs that the onnx package carries, with their weights left out."""


def count(path: Path) -> tuple[int, int]:
    """Convolution and batch-norm nodes of a light model, and the distinct problems among them."""
    problems = listed(path)
    return len(problems), len(set(problems))


def count_training(path: Path) -> tuple[int, int]:
    """The nodes of one training step of a light model, and the distinct problems among them.

    A convolution has a gradient by its filter, and one by its input unless nothing before it has parameters; a batch
    norm takes the statistics of its batch, and has one backward pass.
    """
    problems: list[Problem] = []
    for problem, after_parameters in zip(listed(path), _after_parameters(path), strict=True):
        kind, *rest = problem
        if kind == "conv":
            directions = ("forward", "filter", "input") if after_parameters else ("forward", "filter")
            problems += [(kind, direction, *rest) for direction in directions]
        else:
            problems += [(kind, direction, *rest[1:]) for direction in ("forward", "backward")]
    return len(problems), len(set(problems))


def _after_parameters(path: Path) -> list[bool]:
    """For each convolution and batch norm, in the graph's order, whether anything with parameters comes before it."""
    model: Any = onnx.ModelProto()
    model.ParseFromString(path.read_bytes())
    reached: set[str] = set()
    found = []
    for node in model.graph.node:
        after = not reached.isdisjoint(node.input)
        if node.op_type in ("Conv", "BatchNormalization"):
            found.append(node.input[0] in reached)
        if after or node.op_type in ("Conv", "BatchNormalization", "Gemm", "Mul", "Add"):
            reached.update(node.output)
    return found


def listed(path: Path) -> list[Problem]:
    """One canonical tuple for each convolution and batch norm, in the graph's order."""
    model: Any = onnx.ModelProto()
    model.ParseFromString(path.read_bytes())
    shapes: dict[str, Shape] = {}
    integers: dict[str, Shape] = {}
    for value in model.graph.input:
        shapes[value.name] = tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
    for tensor in model.graph.initializer:
        shapes[tensor.name] = tuple(tensor.dims)
        if tensor.data_type == onnx.TensorProto.INT64:
            raw = tensor.raw_data
            integers[tensor.name] = tuple(tensor.int64_data) or tuple(
                int.from_bytes(raw[at : at + 8], "little", signed=True) for at in range(0, len(raw), 8)
            )
    problems: list[Problem] = []
    for node in model.graph.node:
        attributes = {each.name: each for each in node.attribute}
        taken = [shapes[name] for name in node.input if name]
        if node.op_type == "Conv":
            low, high = _pads(attributes, taken[0], taken[1][2:])
            problems.append(_conv(attributes, taken[0], taken[1], low, high))
        elif node.op_type == "BatchNormalization":
            problems.append(("batch_norm", sum(map(bool, node.output)) > 1, *_filled(taken[0])))
        made = _made(node, attributes, taken, integers)
        for name in node.output:
            shapes[name] = made
    return problems


def _ints(attributes: dict[str, Any], name: str, default: Shape) -> Shape:
    return tuple(attributes[name].ints) if name in attributes else default


def _pads(attributes: dict[str, Any], data: Shape, window: Shape) -> tuple[Shape, Shape]:
    axes = len(window)
    auto = attributes["auto_pad"].s if "auto_pad" in attributes else b"NOTSET"
    if auto == b"NOTSET":
        pads = _ints(attributes, "pads", (0,) * (2 * axes))
        return pads[:axes], pads[axes:]
    if auto == b"VALID":
        return (0,) * axes, (0,) * axes
    strides, dilations = _ints(attributes, "strides", (1,) * axes), _ints(attributes, "dilations", (1,) * axes)
    low, high = [], []
    for size, taps, step, spread in zip(data[2:], window, strides, dilations, strict=True):
        outputs = (size + step - 1) // step
        total = max((outputs - 1) * step + (taps - 1) * spread + 1 - size, 0)
        small, large = total // 2, total - total // 2
        low.append(small if auto == b"SAME_UPPER" else large)
        high.append(large if auto == b"SAME_UPPER" else small)
    return tuple(low), tuple(high)


def _slid(attributes: dict[str, Any], data: Shape, window: Shape) -> Shape:
    """Spatial sizes after a convolution or a pooling."""
    axes = len(window)
    low, high = _pads(attributes, data, window)
    strides, dilations = _ints(attributes, "strides", (1,) * axes), _ints(attributes, "dilations", (1,) * axes)
    rounds_up = "ceil_mode" in attributes and attributes["ceil_mode"].i
    sizes = []
    for axis in range(axes):
        room = data[2 + axis] + low[axis] + high[axis] - (window[axis] - 1) * dilations[axis] - 1
        sizes.append((room + (strides[axis] - 1 if rounds_up else 0)) // strides[axis] + 1)
    return tuple(sizes)


def _filled(shape: Shape) -> Shape:
    """Axes of size 1 dropped, then filled up to two in front: rule 1 for a batch norm."""
    spatial = [size for size in shape[2:] if size > 1]
    return (*shape[:2], *[1] * (2 - len(spatial)), *spatial)


def _conv(attributes: dict[str, Any], data: Shape, weight: Shape, low: Shape, high: Shape) -> Problem:
    """Everything that makes a convolution another problem, and nothing else."""
    axes = len(data) - 2
    outputs = _slid(attributes, data, weight[2:])
    strides, dilations = _ints(attributes, "strides", (1,) * axes), _ints(attributes, "dilations", (1,) * axes)
    described = []
    for axis in range(axes):
        size, taps, before, after = data[2 + axis], weight[2 + axis], low[axis], high[axis]
        if size == taps == 1 and before == after == 0:
            continue
        # What is computed on an axis: where the first window lies, how far apart they are, how many there are.
        spread = dilations[axis] if taps > 1 else 0
        step = strides[axis] if outputs[axis] > 1 else 0
        described.append((size, taps, before, step, spread, outputs[axis]))
    described = [(1, 1, 0, 0, 0, 1)] * (2 - len(described)) + described
    groups = attributes["group"].i if "group" in attributes else 1
    return ("conv", data[:2], weight[:2], groups, *described)


def _reshaped(data: Shape, target: Shape) -> Shape:
    sizes = [data[axis] if size == 0 else size for axis, size in enumerate(target)]
    if -1 in sizes:
        sizes[sizes.index(-1)] = prod(data) // -prod(sizes)
    return tuple(sizes)


def _broadcast(shapes: list[Shape]) -> Shape:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _same(_attributes: dict[str, Any], taken: list[Shape]) -> Shape:
    return taken[0]


def _pool(attributes: dict[str, Any], taken: list[Shape]) -> Shape:
    return taken[0][:2] + _slid(attributes, taken[0], tuple(attributes["kernel_shape"].ints))


def _concat(attributes: dict[str, Any], taken: list[Shape]) -> Shape:
    axis = attributes["axis"].i % len(taken[0])
    return (*taken[0][:axis], sum(each[axis] for each in taken), *taken[0][axis + 1 :])


def _gemm(attributes: dict[str, Any], taken: list[Shape]) -> Shape:
    left = taken[0][::-1] if "transA" in attributes and attributes["transA"].i else taken[0]
    right = taken[1][::-1] if "transB" in attributes and attributes["transB"].i else taken[1]
    return left[0], right[1]


def _flattened(attributes: dict[str, Any], taken: list[Shape]) -> Shape:
    axis = attributes["axis"].i if "axis" in attributes else 1
    return prod(taken[0][:axis]), prod(taken[0][axis:])


def _unsqueezed(attributes: dict[str, Any], taken: list[Shape]) -> Shape:
    sizes = list(taken[0])
    for axis in sorted(attributes["axes"].ints):
        sizes.insert(axis, 1)
    return tuple(sizes)


_SHAPED: Final[dict[str, Callable[[dict[str, Any], list[Shape]], Shape]]] = {
    "Relu": _same,
    "Softmax": _same,
    "Dropout": _same,
    "LRN": _same,
    "BatchNormalization": _same,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "Concat": _concat,
    "Gemm": _gemm,
    "Flatten": _flattened,
    "Unsqueeze": _unsqueezed,
    "Conv": lambda attributes, taken: (taken[0][0], taken[1][0], *_slid(attributes, taken[0], taken[1][2:])),
    "GlobalAveragePool": lambda _, taken: taken[0][:2] + (1,) * (len(taken[0]) - 2),
    "Transpose": lambda attributes, taken: tuple(taken[0][axis] for axis in attributes["perm"].ints),
    "Add": lambda _, taken: _broadcast(taken),
    "Mul": lambda _, taken: _broadcast(taken),
    "Sum": lambda _, taken: _broadcast(taken),
}


def _made(node: Any, attributes: dict[str, Any], taken: list[Shape], integers: dict[str, Shape]) -> Shape:
    if node.op_type == "ConstantOfShape":
        return integers[node.input[0]]
    if node.op_type == "Reshape":
        return _reshaped(taken[0], integers[node.input[1]])
    return _SHAPED[node.op_type](attributes, taken)
