"""`read_onnx`: an ONNX file to the ops of its forward graph.

Reading is: parse, check that it is a model, inline its functions, make it ready for inference, infer once, walk the
nodes. Guarantees:

- No external data is ever opened: the shapes of weights are in the model itself.
- Nothing but the errors named below leaves this module, whatever the file holds. A file cut short is refused, unless
  the cut falls behind the graph and the opsets, where nothing of it is needed.
- Nodes stand in the graph's own order, those of a body (If, Loop, Scan) where the node that has the body stands.
- One inference and a walk whose length is that of the graph.
- No op is made from a shape that the model contradicts: where an op's own result is not what the model or inference
  says, reading an op behind it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Final, NamedTuple, cast

import onnx
import onnx.checker
import onnx.shape_inference
from google.protobuf.message import Error as ProtobufError
from msgspec.structs import replace

from algosearch.compiler.model import Model, Node, ReadOptions, Skipped
from algosearch.compiler.onnx_functions import Callee, callee, calls, inline
from algosearch.compiler.onnx_nodes import OTHER_KINDS, READ_KINDS, Contradiction, Site, Unresolved, Unusable, read_node
from algosearch.compiler.onnx_prepare import batch_names, complete, lighten, override, spell_out
from algosearch.compiler.onnx_shapes import STANDARD, Scope, axis_names, open_dimensions, subgraphs, words
from algosearch.errors import UnknownDimension, UnreadableModel
from algosearch.ops import ConvOp, Op, Shape

__all__ = ("load_onnx", "read_onnx")

_LARGEST_BYTES: Final = 2**31 - 1
"""What one protobuf message may have; a larger file is not one."""
_STARTS: Final = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    (b"\x89PNG", "a PNG image, not an ONNX model"),
    (b"PK\x03\x04", "a ZIP archive, not an ONNX model"),
    (b"<", "looks like a web page, not an ONNX model"),
)
_WITHOUT_PARAMETERS: Final = frozenset(
    (
        *("Constant", "ConstantOfShape", "Identity", "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"),
        *("Shape", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Concat", "Expand"),
        *("Pad", "Resize", "Upsample", "SpaceToDepth", "DepthToSpace", "MaxPool", "AveragePool", "Relu", "Clip"),
        *("Sub", "Div"),  # how images are normalised; no layer learns by either
    )
)
"""Kinds of node that leave what was not trained untrained. Of any other kind we assume that it has weights."""


def read_onnx(path: Path, options: ReadOptions) -> Model:
    """The ops of an ONNX file's forward graph, of the standard's `Conv`, `ConvTranspose` and `BatchNormalization`.

    `options.training` is not looked at: the caller adds the ops of a training step.

    Raises:
        UnreadableModel: not a model, cut short, or a node that contradicts itself; with the reason.
        UnknownDimension: some op's size depends on dimensions of inputs that are open; with the flags that set them.
        InvalidSetting: `options` has a size below 1, or two for one dimension.
        OSError: the file cannot be read.
    """
    return load_onnx(path, options)[1]


def load_onnx(path: Path, options: ReadOptions) -> tuple[onnx.ModelProto, Model]:
    """The model with every shape that inference can give it, its functions inlined; and what `read_onnx` makes of it.

    Raises:
        as `read_onnx`.
    """
    source = str(path)
    with _told_as_unreadable(source):
        model, dimensions, ignored = _load(source, path, options)
        return model, replace(_Walk(source, model, options).read(), dimensions=dimensions, ignored=ignored)


@contextmanager
def _told_as_unreadable(source: str) -> Iterator[None]:
    try:
        yield
    except (ProtobufError, UnicodeError, RecursionError) as error:
        raise UnreadableModel(source, f"not an ONNX model, or cut short: {type(error).__name__}") from error


def _load(source: str, path: Path, options: ReadOptions) -> tuple[onnx.ModelProto, tuple[str, ...], tuple[str, ...]]:
    """The model ready to be walked, what its dimensions are called, and the options that change nothing in it."""
    model = _parse(source, path)
    lighten(model)
    complete(model)
    model = inline(source, model)
    names, ignored = axis_names(model.graph), _ignored(model.graph, options)
    override(model.graph, options.batch, dict(options.dimensions))
    spell_out(model.graph)
    return _infer(source, model), tuple(dict.fromkeys(name for _, name in names)), ignored


def _parse(source: str, path: Path) -> onnx.ModelProto:
    with path.open("rb") as file:
        data = file.read(_LARGEST_BYTES + 1)
    if not data:
        raise UnreadableModel(source, "empty, not an ONNX model")
    if len(data) > _LARGEST_BYTES:
        raise UnreadableModel(source, "larger than 2 GiB, the most that a model without external data may have")
    for start, reason in _STARTS:
        if data.startswith(start):
            raise UnreadableModel(source, reason)
    model = onnx.ModelProto()
    model.ParseFromString(data)
    if model.ir_version < 1 or not model.HasField("graph"):
        raise UnreadableModel(source, "not an ONNX model: it has no graph")
    if model.ir_version >= 3 and not model.opset_import:
        raise UnreadableModel(source, "cut short, or not an ONNX model: it names no opset")
    if not all(isinstance(word, str) for word in words(model)):
        raise UnreadableModel(source, "damaged: it has names that are no text")
    return model


def _ignored(graph: onnx.GraphProto, options: ReadOptions) -> tuple[str, ...]:
    """The options that name a size of which the inputs have none."""
    known = {name for names in axis_names(graph) for name in names}
    return ReadOptions(
        batch=None if any(batch_names(graph)) else options.batch,
        dimensions=tuple((name, size) for name, size in options.dimensions if name not in known),
    ).flags


def _infer(source: str, model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=True)
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
        ValueError,
        TypeError,
    ) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise UnreadableModel(source, f"the shapes of its values cannot be inferred: {first_line[:200]}") from error


class _Open(NamedTuple):
    """A node that lacks a size, and where to look for the reason."""

    skipped: Skipped
    tensor: str


class _Walk:
    """One pass over the nodes of a model, which collects."""

    def __init__(self, source: str, model: onnx.ModelProto, options: ReadOptions) -> None:
        self._source = source
        self._graph = model.graph
        self._options = options
        self._opset = next((each.version for each in model.opset_import if each.domain in STANDARD), 1)
        self._called = calls(model)
        self._with_kinds: dict[Callee, bool] = {}
        self._nodes: list[Node] = []
        self._skipped: list[Skipped] = []
        self._open: list[_Open] = []
        self._made_from: dict[str, tuple[str, ...]] = {}
        self._misfits: dict[str, str] = {}
        self._trained: set[str] = set()

    def read(self) -> Model:
        self._visit_graph(self._graph, Scope(self._graph), prefix="")
        if self._open:
            self._settle_open()
        return Model(source=self._source, nodes=tuple(self._nodes), skipped=tuple(self._skipped))

    def _visit_graph(self, graph: onnx.GraphProto, scope: Scope, *, prefix: str) -> set[str]:
        """Read the nodes of a graph; returns every name that they take."""
        taken: set[str] = set()
        for index, node in enumerate(graph.node):
            name = prefix + (node.name or f"{node.op_type}[{index}]")
            self._visit_node(node, scope, name)
            inputs = {each for each in node.input if each}
            for attribute, body in subgraphs(node):
                # A body's own inputs come from the node's, in an order that depends on its kind.
                self._made_from.update((value.name, tuple(node.input)) for value in body.input)
                self._trained.update(value.name for value in body.input)
                inputs |= self._visit_graph(body, Scope(body, scope), prefix=f"{name}/{attribute}/")
            made_from = tuple(inputs)
            self._made_from.update((output, made_from) for output in node.output if output)
            if node.op_type not in _WITHOUT_PARAMETERS or not self._trained.isdisjoint(inputs):
                self._trained.update(node.output)
            taken |= inputs
        return taken

    def _visit_node(self, node: onnx.NodeProto, scope: Scope, name: str) -> None:
        kind = node.op_type
        self._follow_misfits(node, scope, name)
        if node.domain not in STANDARD or kind not in READ_KINDS:
            reason = self._why_not(node)
            if reason:
                self._skipped.append(Skipped(name=name, kind=kind, reason=reason))
            return
        for each in node.input:
            if each in self._misfits:
                raise UnreadableModel(self._source, self._misfits[each])
        try:
            op, remark = read_node(Site(node, scope, self._opset), self._options)
        except Unresolved as error:
            reason = "unresolved: the shape of what it reads is not known"
            skipped = Skipped(name=name, kind=kind, reason=reason, about=error.tensor)
            self._open.append(_Open(skipped, error.tensor))
        except Unusable as error:
            self._skipped.append(Skipped(name=name, kind=kind, reason=str(error)))
        except Contradiction as error:
            raise UnreadableModel(self._source, f"{kind} {name!r} {error}") from None
        else:
            self._nodes.append(Node(name=name, op=op, needs_input_gradient=node.input[0] in self._trained))
            self._check_result(node, scope, name, op)
            if remark is not None:
                self._skipped.append(Skipped(name=name, kind=kind, reason=remark))

    def _follow_misfits(self, node: onnx.NodeProto, scope: Scope, name: str) -> None:
        """Note what comes from a Reshape to a constant shape that does not hold its data.

        A batch other than the model's own can cause that. It does no harm before a classifier's last layers; an op
        behind it would be read with a batch that is not the caller's.
        """
        misfit = next((self._misfits[each] for each in node.input if each in self._misfits), None)
        if misfit is None and node.op_type == "Reshape" and node.domain in STANDARD and node.input and node.output:
            before, after = scope.tensor(node.input[0]).shape, scope.tensor(node.output[0]).shape
            if before is None or after is None or None in before or None in after:
                return
            if prod(cast("Shape", before)) == prod(cast("Shape", after)):
                return
            hint = "; the model fixes its batch there: leave out --batch" if self._options.batch is not None else ""
            misfit = f"Reshape {name!r} cannot make {after} of {before}{hint}"
        if misfit is not None:
            self._misfits.update((output, misfit) for output in node.output if output)

    def _check_result(self, node: onnx.NodeProto, scope: Scope, name: str, op: Op) -> None:
        """Note a result of another shape than inference left it with: from a wrong `value_info`, for one."""
        made = op.result_shape if isinstance(op, ConvOp) else op.output_shape
        for output in node.output[:1]:
            stated = scope.tensor(output).shape
            if stated is not None and None not in stated and stated != made:
                self._misfits[output] = f"{node.op_type} {name!r} makes {made}, but the model says {stated}"

    def _why_not(self, node: onnx.NodeProto) -> str | None:
        """Why a node of another kind is not read, if somebody might expect that it is."""
        if self._has_kinds(callee(node)):
            return "a function with a convolution or batch norm inside, of another opset than the model's"
        if node.op_type in OTHER_KINDS:
            return f"no op describes {OTHER_KINDS[node.op_type]}"
        if node.op_type in READ_KINDS:
            return f"not the standard's, but of domain {node.domain!r}: what it computes is not known"
        return None

    def _has_kinds(self, called: Callee) -> bool:
        """Whether a function has a node of ours in it, however deep. Functions are known not to call themselves."""
        if called not in self._called:
            return False
        if called not in self._with_kinds:
            self._with_kinds[called] = any(
                (inner.domain in STANDARD and inner.name in READ_KINDS) or self._has_kinds(inner)
                for inner in self._called[called]
            )
        return self._with_kinds[called]

    def _settle_open(self) -> None:
        """Ask for the dimensions that the open nodes come from; those that come from none are left out.

        Raises:
            UnknownDimension: there are such dimensions.
        """
        reached: set[str] = set()
        waiting = [each.tensor for each in self._open]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting.extend(self._made_from.get(name, ()))
        dimensions = open_dimensions(self._graph, frozenset(reached))
        if dimensions:
            flags = tuple(dict.fromkeys(each.flag for each in dimensions))
            raise UnknownDimension(self._source, tuple(each.name for each in dimensions), flags)
        self._skipped.extend(each.skipped for each in self._open)
