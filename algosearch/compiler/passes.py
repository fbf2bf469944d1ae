"""Passes: each makes a new graph of the one before, in a fresh `GraphBuilder`, so that all of it is inferred anew.

None of them asks a device anything. A pass is a function; its name is what a trace shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from algosearch.compiler.graph import Graph, GraphBuilder, GraphNode, Tensor
from algosearch.compiler.inference import Conv, Norm, Other
from algosearch.errors import InvalidSetting
from algosearch.ops import ElementType

__all__ = (
    "Pass",
    "Placement",
    "channels_last",
    "drop_dead",
    "fuse_batch_norms",
    "mixed_precision",
    "place",
    "with_batch_statistics",
)

Pass = Callable[[Graph, GraphBuilder], Graph]


MOST_DEVICES: Final = 1 << 20
"""A plan names each of them, and each of them asks."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Data parallelism: every device does the same step on a batch of its own."""

    nodes: int = 1
    devices_per_node: int = 1

    def __post_init__(self) -> None:
        for field in ("nodes", "devices_per_node"):
            count: object = getattr(self, field)
            if type(count) is not int or count < 1:
                raise InvalidSetting(field, count, "must be at least 1, and an integer")

        if self.count > MOST_DEVICES:
            raise InvalidSetting("nodes × devices_per_node", self.count, f"must be at most {MOST_DEVICES}")

    @property
    def count(self) -> int:
        """Of devices."""
        return self.nodes * self.devices_per_node

    @property
    def devices(self) -> tuple[str, ...]:
        """The name of every device, `node0/device3`."""
        return tuple(
            f"node{node}/device{device}" for node in range(self.nodes) for device in range(self.devices_per_node)
        )


class _Rewriting:
    """The common part of a pass: what each tensor of the old graph is called in the new one."""

    def __init__(self, graph: Graph, builder: GraphBuilder) -> None:
        self.graph = graph
        self.builder = builder
        self.new: dict[str, str] = {}
        builder.reserve_names_of(graph)

    def enter_all(self, change: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> None:
        """Bring over every tensor that no node computes."""
        for tensor in self.graph.tensors.values():
            if tensor.outlives_step:
                self.new[tensor.name] = self.builder.enter(change(tensor))

    def inputs(self, node: GraphNode) -> list[str]:
        """What a node reads, by its new names."""
        return [self.new[tensor] for tensor in node.inputs]

    def copy(self, node: GraphNode, *, inputs: Sequence[str] | None = None) -> None:
        """Bring a node over, reading `inputs` if it is to read something else."""
        reads = self.inputs(node) if inputs is None else inputs
        self.builder.add(node.name, node.attributes, reads, node.outputs)
        self.new.update((output, output) for output in node.outputs)

    def finish(self) -> Graph:
        """The new graph."""
        return self.builder.finish(self.new[output] for output in self.graph.outputs)


def mixed_precision(graph: Graph, builder: GraphBuilder, *, half: ElementType = "float16") -> Graph:
    """Compute in halves what is stated in float32. Parameters stay float32 and are cast where they are read; scales,
    biases and statistics are left as they are, and so is what leaves the graph."""
    work = _Rewriting(graph, builder)
    work.enter_all()
    cast: dict[str, str] = {}

    def in_half(tensor: str) -> str:
        if work.builder[tensor].element_type != "float32":
            return tensor
        if tensor not in cast:
            shape = work.builder[tensor].shape
            attributes = Other(function="cast", shapes=(shape,), element_types=(half,))
            (cast[tensor],) = work.builder.invent(f"{tensor}.half", attributes, [tensor])
        return cast[tensor]

    for node in graph.nodes:
        reads = work.inputs(node)
        match node.attributes:
            case Norm():
                reads[0] = in_half(reads[0])
                if node.attributes.fusion == "add_activation" and node.attributes.phase != "backward":
                    reads[5] = in_half(reads[5])
            case _:
                reads = [in_half(each) if len(work.builder[each].shape) > 1 else each for each in reads]
        work.copy(node, inputs=reads)
    for output in graph.outputs:
        tensor = work.builder[work.new[output]]
        if tensor.element_type == half and graph.tensors[output].element_type == "float32":
            attributes = Other(function="cast", shapes=(tensor.shape,), element_types=("float32",))
            (work.new[output],) = work.builder.invent(f"{output}.single", attributes, [tensor.name])
    return work.finish()


def channels_last(graph: Graph, builder: GraphBuilder) -> Graph:
    """Lay every tensor that a convolution or a batch norm touches out with its channels last. What enters the graph is
    laid out anew by a node of its own, and so is what leaves it; filters are parameters, ours to keep as we like."""
    work = _Rewriting(graph, builder)
    touched = _touched(graph)
    filters = {node.inputs[1] for node in graph.nodes if isinstance(node.attributes, Conv)}
    origins = {_origin(graph, name) for name in filters}
    work.enter_all(lambda tensor: replace(tensor, layout="channels_last") if tensor.name in origins else tensor)
    for tensor in graph.tensors.values():
        if tensor.role == "input" and tensor.name in touched and tensor.layout == "channels_first":
            attributes = Other(function="relayout", shapes=(tensor.shape,), layout="channels_last")
            (work.new[tensor.name],) = builder.invent(f"{tensor.name}.channels_last", attributes, [tensor.name])
    for node in graph.nodes:
        work.copy(node)
    for output in graph.outputs:
        tensor, layout = work.builder[work.new[output]], graph.tensors[output].layout
        if tensor.layout != layout and not tensor.outlives_step:
            attributes = Other(function="relayout", shapes=(tensor.shape,), layout=layout)
            (work.new[output],) = builder.invent(f"{output}.{layout}", attributes, [tensor.name])
    return work.finish()


def _touched(graph: Graph) -> set[str]:
    """Every tensor whose layout a convolution or a batch norm decides: what it reads and writes, and what stands beside
    that, with as many dimensions, in any other node."""
    touched: set[str] = set()
    found = -1
    while found < len(touched):  # once forward and once backward, but for graphs that go to and fro
        found = len(touched)
        for node in (*graph.nodes, *reversed(graph.nodes)):
            tensors = [graph.tensors[each] for each in (*node.inputs, *node.outputs)]
            decides = not isinstance(node.attributes, Other)
            ranks = {len(each.shape) for each in tensors if decides or each.name in touched}
            touched.update(each.name for each in tensors if len(each.shape) > 2 and len(each.shape) in ranks)
    return touched


def _origin(graph: Graph, tensor: str) -> str:
    """The tensor that another one is a cast of, if it is one."""
    producer = graph.producers.get(tensor)
    while producer is not None and producer.kind == "cast":
        tensor = producer.inputs[0]
        producer = graph.producers.get(tensor)
    return tensor


def with_batch_statistics(graph: Graph, builder: GraphBuilder) -> Graph:
    """Let every batch norm of inference take the statistics of the batch, as a training step has them."""
    work = _Rewriting(graph, builder)
    work.enter_all()
    for node in graph.nodes:
        attributes = node.attributes
        if isinstance(attributes, Norm) and attributes.phase == "inference":
            attributes = replace(attributes, phase="training_forward")
            builder.add(node.name, attributes, work.inputs(node), node.outputs)
            work.new.update((output, output) for output in node.outputs)
        else:
            work.copy(node)
    return work.finish()


def fuse_batch_norms(graph: Graph, builder: GraphBuilder) -> Graph:
    """Fuse each batch norm of a training step's forward with the rectifier behind it, and with the addition between.

    Where both sides of an addition are batch norms, the first one is fused. A fused one stands where the rectifier
    stood, for what is added may be computed later than what is normalised; what updates the running statistics comes
    behind it. To be done before the gradients are made.
    """
    work = _Rewriting(graph, builder)
    work.enter_all()
    fusions = _fusions(graph)
    gone = {node.name for fusion in fusions.values() for node in fusion.absorbed}
    late: list[GraphNode] = []
    for node in graph.nodes:
        fusion = fusions.get(node.name)
        if fusion is not None:
            norm = fusion.absorbed[0]
            addend = [] if fusion.addend is None else [work.new[fusion.addend]]
            attributes = Norm(phase="training_forward", fusion="add_activation" if addend else "activation")
            written = (node.outputs[0], *norm.outputs[1:])
            builder.add(norm.name, attributes, [*work.inputs(norm), *addend], written)
            work.new.update((output, output) for output in written)
            for each in [each for each in late if work.new.keys() >= set(each.inputs)]:
                late.remove(each)
                work.copy(each)
        elif work.new.keys() >= set(node.inputs) and node.name not in gone:
            work.copy(node)
        elif node.name not in gone:
            late.append(node)
    return work.finish()


class _FusionFound(msgspec.Struct, frozen=True):
    """A batch norm, perhaps an addition, and (the key that it is found under) a rectifier."""

    absorbed: tuple[GraphNode, ...]
    """The batch norm first."""
    addend: str | None


_ADDITIONS: Final = frozenset({"add", "Sum"})
"""`Sum` is what ONNX calls one of any number of tensors."""


def _fusions(graph: Graph) -> dict[str, _FusionFound]:
    """Every fusion to be made, by the name of its rectifier."""
    found: dict[str, _FusionFound] = {}
    for node in graph.nodes:
        attributes = node.attributes
        if not (
            isinstance(attributes, Norm) and attributes.phase == "training_forward" and attributes.fusion == "none"
        ):
            continue
        if attributes.per_activation or not _may_come_late(graph, node.outputs[1:]):
            continue
        behind = graph.only_reader(node.outputs[0])
        if behind is None:
            continue
        if behind.kind == "relu":
            found[behind.name] = _FusionFound((node,), None)
        elif behind.kind in _ADDITIONS and len(behind.inputs) == 2 and len(set(behind.inputs)) == 2:
            last = graph.only_reader(behind.outputs[0])
            addend = next(each for each in behind.inputs if each != node.outputs[0])
            alike = graph.tensors[addend].shape == graph.tensors[node.outputs[0]].shape
            if last is not None and last.kind == "relu" and alike and last.name not in found:
                found[last.name] = _FusionFound((node, behind), addend)
    return found


def _may_come_late(graph: Graph, statistics: Sequence[str]) -> bool:
    """Whether nothing depends on the statistics that a batch norm saves, but for the running ones at the end."""
    readers = [reader for each in statistics for reader in graph.consumers.get(each, ())]
    return all(
        reader.kind == "update_statistics" and not any(graph.consumers.get(each) for each in reader.outputs)
        for reader in readers
    )


def drop_dead(graph: Graph, builder: GraphBuilder) -> Graph:
    """Leave out each node whose outputs nobody reads. A node that writes nothing is there for its effect, and stays."""
    work = _Rewriting(graph, builder)
    wanted = set(graph.outputs)
    kept: set[str] = set()
    for node in reversed(graph.nodes):
        if not node.outputs or not wanted.isdisjoint(node.outputs):
            kept.add(node.name)
            wanted.update(node.inputs)
    for tensor in graph.tensors.values():
        if tensor.outlives_step and tensor.name in wanted:
            work.new[tensor.name] = builder.enter(tensor)
    for node in graph.nodes:
        if node.name in kept:
            work.copy(node)
    return work.finish()


def place(graph: Graph, builder: GraphBuilder, *, placement: Placement) -> Graph:
    """Let every parameter's gradient be summed over all devices before it is used, if there is more than one."""
    work = _Rewriting(graph, builder)
    work.enter_all()
    alone = placement.count == 1
    for node in graph.nodes:
        if node.kind == "update" and not alone:
            parameter, gradient = work.inputs(node)
            attributes = Other(function="all_reduce", shapes=(builder[gradient].shape,), gradient=True)
            (reduced,) = builder.invent(f"{parameter}.all_reduce", attributes, [gradient])
            work.copy(node, inputs=[parameter, reduced])
        else:
            work.copy(node)
    return work.finish()
