"""What every reader of models gives: the ops of one graph, in its own order, and what was left out.

A `Model` is facts only. It keeps every node, equal ones too: how often a problem occurs is worth knowing, and
`distinct` says what there is to search. Rejected: keeping the graph's edges, which no search needs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from algosearch.ops import ElementType, Layout, Op, searched_as

__all__ = ("Node", "Skipped", "Model", "ReadOptions", "AS_STATED")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One convolution or batch norm of a graph."""

    name: str
    """The node's name in its graph, or one made up from its place there."""
    op: Op
    """The problem, as the graph states it: not canonical."""
    needs_input_gradient: bool = True
    """False when nothing before the node is trained, as for the first convolution of a network."""
    is_gradient: bool = False
    """True if the graph has no such node: reading it for training added this one."""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A node that could have been an op, and why it is none; or a remark on how a contradictory one was read."""

    name: str
    """As `Node.name`."""
    kind: str
    """The graph's own word for it, such as `Conv`."""
    reason: str
    """For people: what about it no op can describe. Without names, so that equal ones can be counted together."""
    about: str = ""
    """The tensor that the reason speaks of, if it speaks of one."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of one graph."""

    source: str
    """Where it came from: a path, or the name of a built-in workload."""
    nodes: tuple[Node, ...]
    """Every op, in the graph's order; a training op follows its forward one."""
    skipped: tuple[Skipped, ...] = ()
    """What was left out; empty when the model was understood in full."""
    dimensions: tuple[str, ...] = ()
    """What `ReadOptions.dimensions` may name: the axes of the inputs, by the model's own name or as `INPUT.AXIS`."""
    ignored: tuple[str, ...] = ()
    """The options of reading for which there was nothing here that they could change, as `ReadOptions.flags`."""

    @property
    def operations(self) -> int:
        """Convolutions and batch norms of the graph: gradients that were added are not counted."""
        return sum(not node.is_gradient for node in self.nodes)

    @property
    def distinct(self) -> tuple[Op, ...]:
        """What is to be searched, each once, in the order in which it is first met; the passes of a fused batch norm of
        training are one (`ops.searched_as`)."""
        return tuple(dict.fromkeys(searched_as(node.op) for node in self.nodes))


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read a model.

    JSON lines are ops already, so that only `training` concerns them; `dimensions` concern ONNX alone.
    """

    batch: int | None = None
    """Images at once; None: what the model says, and 1 for a built-in workload."""
    dimensions: tuple[tuple[str, int], ...] = ()
    """Sizes for the model's named dimensions, as (name, size)."""
    data_type: ElementType | None = None
    """The element type of every tensor; None: what the model says, and float32 for a built-in workload."""
    layout: Layout | None = None
    """The layout of every tensor; None: channels first."""
    training: bool = False
    """Whether the ops of a training step are wanted as well as those of inference."""

    @property
    def flags(self) -> tuple[str, ...]:
        """What of it was asked for, `training` apart, as on the command line."""
        named = (("--batch", self.batch), ("--dtype", self.data_type), ("--layout", self.layout))
        sizes = (f"--dim {name}={size}" for name, size in self.dimensions)
        return (*(f"{flag} {value}" for flag, value in named if value is not None), *sizes)


AS_STATED: Final = ReadOptions()
"""Everything as the model states it."""
