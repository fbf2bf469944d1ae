"""`read_onnx_graph`: an ONNX file as an op graph, every node of it.

Convolutions and batch norms are read as `read_onnx` reads them, so that both name the same problems. Every other node
takes part with its memory: the shapes that it writes are those of ONNX's own inference. What has no known shape takes
part without memory and is reported, and so is a convolution or a batch norm in the body of another node.

Initializers of a floating type are parameters, and a training step trains them; others are state, and so are the
running statistics of a batch norm. So is whatever is
computed from nothing else: it is the same in every step, and a compiler computes it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, cast

import onnx

from algosearch.compiler.graph import BYTES_OF, Graph, GraphBuilder, Tensor
from algosearch.compiler.inference import Conv, Norm, Other
from algosearch.compiler.model import AS_STATED, Model, ReadOptions, Skipped
from algosearch.compiler.onnx_nodes import READ_KINDS, Contradiction, Site, Unresolved, Unusable, read_node
from algosearch.compiler.onnx_reader import load_onnx
from algosearch.compiler.onnx_shapes import STANDARD, Scope, nested, open_dimensions, runtime_inputs, subgraphs
from algosearch.errors import InvalidGraph, UnknownDimension
from algosearch.ops import BatchNormOp, ConvOp, Op, Shape

__all__ = ("read_onnx_graph",)

_TYPE_NAMES: Final[dict[int, str]] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.DOUBLE: "float64",
    **{number: name.lower() for name, number in onnx.TensorProto.DataType.items() if name.lower() in BYTES_OF},
}
_FLOATS: Final = frozenset(("float16", "bfloat16", "float32", "float64"))
_AT_RANDOM: Final = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout")
)
_UNKNOWN: Final = "uint8"
"""The type of what has none here: strings, sequences, numbers of four bits. It is counted as a byte an element."""


def read_onnx_graph(path: Path, options: ReadOptions = AS_STATED) -> tuple[Graph, Model]:
    """The op graph of an ONNX file, and the list of its ops with what was left out. Of `options`, `batch` and
    `dimensions` count: types and layouts are for passes to change.

    Raises:
        UnknownDimension: an input's size is open; with the flags that set them.
        InvalidGraph: a tensor is read that nothing writes, a name stands for two, or there are no outputs.
        UnreadableModel, InvalidSetting, OSError: as `read_onnx`.
    """
    stated = ReadOptions(batch=options.batch, dimensions=options.dimensions)
    proto, model = load_onnx(path, stated)
    return _Reading(str(path), proto, model).read()


class _Reading:
    """One walk over the nodes."""

    def __init__(self, source: str, proto: onnx.ModelProto, model: Model) -> None:
        self._source = source
        self._graph = proto.graph
        self._model = model
        self._scope = Scope(proto.graph)
        self._opset = next((each.version for each in proto.opset_import if each.domain in STANDARD), 1)
        self._graph_name = Path(source).name
        self._builder = GraphBuilder(self._graph_name)
        self._initializers = {tensor.name for tensor in proto.graph.initializer}
        self._initializers.update(sparse.values.name for sparse in proto.graph.sparse_initializer)
        self._constant = set(self._initializers)
        """What is the same in every step."""
        self._running = {each for node in proto.graph.node if _is_norm(node) for each in node.input[3:5]}
        """Running statistics: a step moves them on, and no gradient trains them."""
        self._cast: dict[tuple[str, str], str] = {}
        self._skipped: list[Skipped] = []

    def read(self) -> tuple[Graph, Model]:
        inputs = list(runtime_inputs(self._graph))
        open_ones = open_dimensions(self._graph, frozenset(value.name for value in inputs))
        if open_ones:
            flags = tuple(dict.fromkeys(each.flag for each in open_ones))
            raise UnknownDimension(self._source, tuple(each.name for each in open_ones), flags)
        names = _node_names(self._graph.node)
        self._builder.reserve(names)
        self._builder.reserve(value.name for value in inputs)
        self._builder.reserve(self._initializers)
        self._builder.reserve(output for node in self._graph.node for output in node.output)
        for value in inputs:
            self._enter(value.name, "input")
        for node, name in zip(self._graph.node, names, strict=True):
            self._add(node, name)
        outputs = [value.name for value in self._graph.output]
        for name in outputs:
            self._bring(name)  # a constant may be an output
        model = Model(
            source=self._model.source,
            nodes=self._model.nodes,
            skipped=(*self._model.skipped, *self._skipped),
            dimensions=self._model.dimensions,
            ignored=self._model.ignored,
        )
        if not outputs:
            raise InvalidGraph(self._graph_name, "its end", "it has no outputs, so that nothing of it is wanted")
        return self._builder.finish(outputs), model

    def _enter(self, name: str, role: str) -> None:
        known = self._scope.tensor(name)
        shape = known.shape if known.shape is not None and None not in known.shape else ()
        element_type = _TYPE_NAMES.get(known.element_type, _UNKNOWN)
        if role != "input":
            role = "parameter" if element_type in _FLOATS and name not in self._running else "state"
        tensor = Tensor(name=name, shape=cast("Shape", shape), element_type=element_type, role=role)  # type: ignore[arg-type]
        self._builder.enter(tensor)

    def _bring(self, name: str) -> None:
        """See that a tensor is there, if it is the same in every step. Parameters come when they are first read."""
        if name not in self._builder and name in self._constant:
            self._enter(name, "parameter")

    def _add(self, node: onnx.NodeProto, name: str) -> None:
        if _is_constant(node, self._constant):
            self._constant.update(filter(None, node.output))
            return
        reads = list(filter(None, node.input))
        captured = [each for each in dict.fromkeys(_nested_reads(node)) if each not in reads]
        for each in (*reads, *captured):
            self._bring(each)
        self._builder.require(name, reads)  # ONNX has nodes in an order in which each comes behind what it reads
        # A body reads what is around it; what it makes for itself is its own affair.
        reads += [each for each in captured if each in self._builder]
        op = self._op_of(node)
        match op:
            case ConvOp():
                self._add_conv(node, name, op)
            case BatchNormOp():
                self._add_norm(node, name, op)
            case None:
                self._tell_of_bodies(node, name)
                self._add_other(node, name, reads)

    def _tell_of_bodies(self, node: onnx.NodeProto, name: str) -> None:
        """Report what of a body `read_onnx` reads as an op: how often a body runs, if at all, no plan can know."""
        for attribute, body in subgraphs(node):
            for index, inner in enumerate(nested(body.node)):
                if inner.domain in STANDARD and inner.op_type in READ_KINDS:
                    inside = f"{name}/{attribute}/{inner.name or f'{inner.op_type}[{index}]'}"
                    reason = f"inside {node.op_type}: takes part without an algorithm"
                    self._skipped.append(Skipped(name=inside, kind=inner.op_type, reason=reason))

    def _op_of(self, node: onnx.NodeProto) -> Op | None:
        if node.domain not in STANDARD or node.op_type not in READ_KINDS:
            return None
        try:
            return read_node(Site(node, self._scope, self._opset), AS_STATED)[0]
        except (Unresolved, Unusable, Contradiction):
            return None  # reported by `read_onnx`, which meets it as well

    def _add_conv(self, node: onnx.NodeProto, name: str, op: ConvOp) -> None:
        attributes = Conv(
            stride=op.stride,
            dilation=op.dilation,
            padding_low=op.padding_low,
            padding_high=op.padding_high,
            groups=op.groups,
            direction=op.direction,
            result_shape=() if op.direction == "forward" else op.result_shape,
        )
        biased = len(node.input) > 2 and bool(node.input[2])
        made = self._builder.free_name(f"{name}.unbiased") if biased else node.output[0]
        self._builder.add(name, attributes, list(node.input[:2]), [made])
        if biased:
            bias = Other(function="bias_add", shapes=(op.result_shape,))
            self._builder.add(self._builder.free_name(f"{name}.bias"), bias, [made, node.input[2]], [node.output[0]])

    def _add_norm(self, node: onnx.NodeProto, name: str, op: BatchNormOp) -> None:
        """A batch norm; in training, with a node behind it that moves the running statistics on, if anybody asks.

        ONNX has outputs for both (and, up to opset 13, for the statistics of the batch, which the op itself saves).
        """
        made = [*node.output, *[""] * 5][:5]
        training = op.phase == "training_forward"
        # Parameters in halves beside data in halves: no library has that, and `read_onnx` names the op with float32.
        reads = [node.input[0], *(self._as_type(each, op.parameter_type) for each in node.input[1:5])]
        words = ["", "mean", "inverse_deviation"] if training else [""]
        written = [
            each or self._builder.free_name(f"{name}.{word}" if word else name)
            for each, word in zip([made[0], *made[3:]], words, strict=False)
        ]
        attributes = Norm(phase=op.phase, per_activation=op.statistics == "per_activation")
        self._builder.add(name, attributes, reads, written)
        moved = [(after, before) for after, before in zip(made[1:3], node.input[3:5], strict=True) if after]
        if training and moved:
            known = [self._builder[before] for _, before in moved]
            update = Other(
                function="update_statistics",
                shapes=tuple(each.shape for each in known),
                element_types=tuple(each.element_type for each in known),
            )
            statistics = [*dict.fromkeys(before for _, before in moved), *written[1:3]]
            wanted = self._builder.free_name(f"{name}.update_statistics")
            self._builder.add(wanted, update, statistics, [after for after, _ in moved])

    def _as_type(self, tensor: str, element_type: str) -> str:
        """A tensor, or a cast of it."""
        known = self._builder[tensor]
        if known.element_type == element_type:
            return tensor
        if (tensor, element_type) not in self._cast:
            cast_to = Other(function="cast", shapes=(known.shape,), element_types=(element_type,))
            (self._cast[tensor, element_type],) = self._builder.invent(f"{tensor}.{element_type}", cast_to, [tensor])
        return self._cast[tensor, element_type]

    def _add_other(self, node: onnx.NodeProto, name: str, reads: list[str]) -> None:
        written = [each for each in node.output if each]
        shapes: list[Shape] = []
        types: list[str | None] = []
        unknown = [each for each in written if self._shape_written(node, each) is None]
        if unknown:
            reason = "takes part without memory: the shape of what it writes is not known"
            self._skipped.append(Skipped(name=name, kind=_kind(node), reason=reason, about=unknown[0]))
        for each in written:
            known = self._scope.tensor(each)
            shapes.append(self._shape_written(node, each) or ())
            element_type = _TYPE_NAMES.get(known.element_type, _UNKNOWN)
            # What has the type of what it reads follows it through the passes; what has another keeps it.
            follows = bool(reads) and element_type in _FLOATS and self._builder[reads[0]].element_type == element_type
            types.append(None if follows else element_type)
        attributes = Other(function=_word(node), shapes=tuple(shapes), element_types=tuple(types))
        self._builder.add(name, attributes, reads, written)

    def _shape_written(self, node: onnx.NodeProto, tensor: str) -> Shape | None:
        """The shape of what a node writes, or None."""
        shape = self._scope.tensor(tensor).shape
        if (shape is None or None in shape) and _is_dropout(node):  # up to opset 9, inference leaves out the mask
            shape = self._scope.tensor(node.input[0]).shape
        return None if shape is None or None in shape else cast("Shape", shape)


def _node_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """What each node is called; a second one of a name is primed, for ONNX lets names be left out and repeated."""
    taken: set[str] = set()
    names = []
    for index, node in enumerate(nodes):
        name = node.name or f"{node.op_type}[{index}]"
        while name in taken:
            name += "'"
        taken.add(name)
        names.append(name)
    return names


def _is_dropout(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD and node.op_type == "Dropout"


def _is_norm(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD and node.op_type == "BatchNormalization"


def _is_constant(node: onnx.NodeProto, constant: set[str]) -> bool:
    """Whether a node gives the same in every step: it computes from constants alone, and nothing at random."""
    plain = node.domain in STANDARD and node.op_type not in READ_KINDS and not any(True for _ in subgraphs(node))
    return plain and node.op_type not in _AT_RANDOM and constant.issuperset(filter(None, node.input))


def _nested_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every name that the graphs nested in a node read."""
    for _, body in subgraphs(node):
        for inner in nested(body.node):
            yield from filter(None, inner.input)


def _kind(node: onnx.NodeProto) -> str:
    """What a report calls a node's kind."""
    return str(node.op_type) if node.domain in STANDARD else f"{node.domain}.{node.op_type}"


def _word(node: onnx.NodeProto) -> str:
    """What a node's function is called here: the names that the passes know, and for the rest ONNX's own."""
    known = {
        "Relu": "relu",
        "Add": "add",
        "MaxPool": "max_pool",
        "GlobalAveragePool": "mean_pool",
        "Softmax": "softmax",
        "Dropout": "dropout",
    }
    return known.get(_kind(node), _kind(node))
