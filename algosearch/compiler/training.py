"""From the ops of inference to those of a training step.

A convolution has two gradients, each a convolution problem in another direction; a batch norm takes the statistics of
the batch and is followed by its backward pass. Everything stays in the node's own types and layouts: a gradient lies in
memory as the tensor does that it belongs to.

What is no part of a forward pass is left as it is, so that ops written down from a real training step keep their
meaning: a filter gradient, a batch norm's backward. An op of int8 is left as well, for nothing trains in int8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from algosearch.compiler.model import Node
from algosearch.ops import BatchNormOp, ConvOp, Direction, Op

__all__ = ("expand",)


def expand(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes of a training step, each followed by its gradients as `NAME.input_gradient`, `NAME.filter_gradient`
    and, for a batch norm, `NAME.backward`. A node that needs no input gradient gets none."""
    return tuple(each for node in nodes for each in _expand(node))


def _expand(node: Node) -> Iterator[Node]:
    match node.op:
        case BatchNormOp():
            yield from _expand_batch_norm(node, node.op)
        case ConvOp():
            yield from _expand_conv(node, node.op)


def _expand_batch_norm(node: Node, op: BatchNormOp) -> Iterator[Node]:
    if op.phase in ("backward", "training"):
        yield node
        return

    yield replace(node, op=replace(op, phase="training_forward"))
    yield _gradient(f"{node.name}.backward", replace(op, phase="backward"))


def _expand_conv(node: Node, op: ConvOp) -> Iterator[Node]:
    yield node
    if op.input_type == "int8" or op.direction == "backward_filter":
        return

    if node.needs_input_gradient:
        # A transposed convolution is a backward_data, so that its own input gradient is the forward convolution.
        opposite: Direction = "backward_data" if op.direction == "forward" else "forward"
        yield _gradient(f"{node.name}.input_gradient", _turned(op, opposite))
    yield _gradient(f"{node.name}.filter_gradient", _turned(op, "backward_filter"))


def _gradient(name: str, op: Op) -> Node:
    return Node(name=name, op=op, is_gradient=True)


def _turned(op: ConvOp, direction: Direction) -> ConvOp:
    # A forward op may write float32 from halves; no gradient may read it, so the framework casts that one down.
    return replace(op, direction=direction, output_type=op.input_type)
