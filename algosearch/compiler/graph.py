"""The op graph: tensors with logical shapes, and nodes in an order in which each is computed before it is read.

A `Graph` is a value. A pass makes another one, node by node, through a `GraphBuilder`, which infers every tensor anew:
so a shape, a type or a layout is written down where it begins and follows from there, and no pass leaves a stale one.

Logical inference is pure: it knows no device and awaits nothing. The one shape that it cannot know is that of a fused
batch norm's reserve, which depends on the algorithm; such a tensor is `deferred` until somebody has asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Final, Literal, get_args

import msgspec

from algosearch.compiler.inference import Attributes, Written, infer
from algosearch.errors import InvalidGraph, InvalidOp
from algosearch.ops import Layout, Op, Shape
from algosearch.ops.types import ELEMENT_BYTES, LARGEST

__all__ = ("Graph", "GraphBuilder", "GraphNode", "Role", "Tensor", "TensorType")

Role = Literal["input", "parameter", "state", "activation", "gradient", "reserve"]
"""What a tensor is for. Inputs, parameters and state (running statistics) outlive a step; the rest is made in it."""

TensorType = str
"""An element type of an op, or one of those that only other nodes have: `int32`, `int64`, `bool`, `uint8`."""

BYTES_OF: Final[Mapping[TensorType, int]] = {
    **ELEMENT_BYTES,
    "bool": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
}


class Tensor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One logical tensor."""

    name: str
    shape: Shape
    """Written channels first, whatever the layout; empty for a scalar."""
    element_type: TensorType
    layout: Layout = "channels_first"
    role: Role = "activation"
    deferred: bool = False
    """True while the shape is not known, because it depends on the algorithm of the node that writes it."""

    @property
    def bytes(self) -> int:
        """Dense; 0 while it is deferred."""
        return 0 if self.deferred else prod(self.shape) * BYTES_OF[self.element_type]

    @property
    def outlives_step(self) -> bool:
        """True if it is not made anew in each step, so that it has no place in a step's arena."""
        return self.role in ("input", "parameter", "state")


class GraphNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One node. Which tensors it reads and writes, by name, and what it computes."""

    name: str
    attributes: Attributes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    op: Op | None
    """The problem that an algorithm is searched for, as inferred from the tensors; None for every other kind."""

    @property
    def kind(self) -> str:
        """`conv`, `batch_norm`, or what another node is called: `relu`, `all_reduce`."""
        return self.attributes.kind


class Graph(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A whole graph. Made by `GraphBuilder.finish`, which has checked it."""

    name: str
    tensors: Mapping[str, Tensor]
    nodes: tuple[GraphNode, ...]
    outputs: tuple[str, ...]
    """What must be there at the end; all else may be dropped once it has been read."""

    @cached_property
    def producers(self) -> Mapping[str, GraphNode]:
        """The node that writes each tensor that is computed."""
        return {output: node for node in self.nodes for output in node.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[GraphNode, ...]]:
        """The nodes that read each tensor, in order."""
        readers: dict[str, list[GraphNode]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in readers.items()}

    @property
    def ops(self) -> Iterator[Op]:
        """The problem of every node that has one, equal ones too."""
        return (node.op for node in self.nodes if node.op is not None)

    def only_reader(self, tensor: str) -> GraphNode | None:
        """The one node that reads it, if there is just one and nobody wants it at the end."""
        readers = self.consumers.get(tensor, ())
        return readers[0] if len(readers) == 1 and tensor not in self.outputs else None


_ATTRIBUTES: Final = frozenset(get_args(Attributes))
_ROLES: Final = frozenset(get_args(Role))
_LAYOUTS: Final = frozenset(get_args(Layout))


def _what_is_wrong(tensor: object) -> str | None:
    """Why it is no tensor, in words; None if it is one."""
    if not isinstance(tensor, Tensor):
        return f"a Tensor is wanted, not {tensor!r}"
    words: tuple[object, ...] = (tensor.name, tensor.element_type, tensor.layout, tensor.role)
    if not all(isinstance(word, str) for word in words):
        return f"its name, element type, layout and role are strings, not {words!r}"
    if tensor.element_type not in BYTES_OF:
        return f"no tensor has elements of type {tensor.element_type!r}"
    if tensor.layout not in _LAYOUTS or tensor.role not in _ROLES:
        return f"no tensor has layout {tensor.layout!r} and role {tensor.role!r}"
    shape: object = tensor.shape
    if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size <= LARGEST for size in shape):
        return f"a shape is a tuple of integers from 0 to 2**63 - 1, not {shape!r}"
    return None


class GraphBuilder:
    """Makes a graph, node by node, in order. What each node reads must be there before it.

    Args:
        inferred: told of every node as soon as its shapes are known.
    """

    def __init__(self, name: str, *, inferred: Callable[[GraphNode], None] | None = None) -> None:
        self._name = name
        self._tensors: dict[str, Tensor] = {}
        self._nodes: dict[str, GraphNode] = {}
        self._inferred = inferred
        self._reserved: set[str] = set()

    def __getitem__(self, tensor: str) -> Tensor:
        """A tensor that is there already."""
        return self._tensors[tensor]

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._tensors

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names for nodes and tensors that are still to come: no invented name is one of them."""
        self._reserved.update(names)

    def reserve_names_of(self, graph: Graph) -> None:
        """Keep every name of a graph that is made over."""
        self.reserve(graph.tensors)
        self.reserve(node.name for node in graph.nodes)

    def enter(self, tensor: Tensor) -> str:
        """Add a tensor that no node computes: an input, a parameter, a state. Its name is returned.

        Raises:
            InvalidGraph: it is no tensor, or its name is taken.
        """
        wrong = _what_is_wrong(tensor)
        if wrong is not None:
            raise InvalidGraph(self._name, str(getattr(tensor, "name", "")), wrong)
        if tensor.name in self._tensors:
            raise InvalidGraph(self._name, tensor.name, "two tensors have this name")
        self._tensors[tensor.name] = tensor
        return tensor.name

    def require(self, node: str, inputs: Iterable[str]) -> None:
        """Check that what a node is to read is there.

        Raises:
            InvalidGraph: something is not.
        """
        for tensor in inputs:
            if tensor not in self._tensors:
                raise InvalidGraph(self._name, node, f"reads {tensor!r}, which nothing has written before it")

    def add(
        self, name: str, attributes: Attributes, inputs: Sequence[str], outputs: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Add a node and infer what it writes; the names of its outputs are returned.

        Args:
            outputs: their names. Left out, or fewer than there are: the node's own for the first, and for each other
                `NAME.WORD`, or what is nearly so and free.

        Raises:
            InvalidGraph: an input is not there, a name is taken, or the node and its inputs do not fit.
            InvalidOp: they make no valid op.
        """
        if name in self._nodes:
            raise InvalidGraph(self._name, name, "two nodes have this name")
        if type(attributes) not in _ATTRIBUTES:
            raise InvalidGraph(self._name, name, f"attributes are a Conv, a Norm or an Other, not {attributes!r}")
        inputs, outputs = self._checked_names(name, inputs), self._checked_names(name, outputs)
        self.require(name, inputs)
        try:
            result = infer(attributes, [self._tensors[tensor] for tensor in inputs])
        except InvalidOp:
            raise
        except ValueError as error:
            raise InvalidGraph(self._name, name, str(error)) from None
        if len(outputs) > len(result.outputs):
            raise InvalidGraph(self._name, name, f"writes {len(result.outputs)} tensors, not {len(outputs)}")
        names = (*outputs, *self._default_names(name, result.outputs[len(outputs) :]))
        for written, each in zip(names, result.outputs, strict=True):
            self.enter(
                Tensor(
                    name=written,
                    shape=each.shape,
                    element_type=each.element_type,
                    layout=each.layout,
                    role=each.role,
                    deferred=each.deferred,
                )
            )
        node = GraphNode(name=name, attributes=attributes, inputs=tuple(inputs), outputs=names, op=result.op)
        self._nodes[name] = node
        if self._inferred is not None:
            self._inferred(node)
        return names

    def _checked_names(self, where: str, names: object) -> tuple[str, ...]:
        """Names of tensors. A single string would pass for as many names as it has letters.

        Raises:
            InvalidGraph: they are none.
        """
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise InvalidGraph(self._name, where, f"tensors are named by a sequence of strings, not {names!r}")
        listed = tuple(names)
        for each in listed:
            if not isinstance(each, str):
                raise InvalidGraph(self._name, where, f"the name of a tensor is a string, not {each!r}")
        return listed

    def _default_names(self, node: str, outputs: Iterable[Written]) -> Iterator[str]:
        for each in outputs:
            yield self.free_name(f"{node}.{each.word}") if each.word else node

    def invent(self, wanted: str, attributes: Attributes, inputs: Sequence[str]) -> tuple[str, ...]:
        """Add a node that a pass or a reader adds on its own, called `wanted` or, where that is taken, nearly so; the
        names of its outputs are returned."""
        return self.add(self.free_name(wanted), attributes, inputs)

    def free_name(self, wanted: str) -> str:
        """`wanted`, primed until no node or tensor has the name, or has it reserved."""
        while wanted in self._nodes or wanted in self._tensors or wanted in self._reserved:
            wanted += "'"
        return wanted

    def finish(self, outputs: Iterable[str]) -> Graph:
        """The graph of what was added.

        Raises:
            InvalidGraph: an output is not there.
        """
        wanted = tuple(dict.fromkeys(self._checked_names("its end", outputs)))
        for tensor in wanted:
            if tensor not in self._tensors:
                raise InvalidGraph(self._name, tensor, "is to be an output, and nothing writes it")
        return Graph(name=self._name, tensors=dict(self._tensors), nodes=tuple(self._nodes.values()), outputs=wanted)
