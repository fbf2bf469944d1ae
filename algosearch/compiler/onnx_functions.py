"""Model-local functions: each call is replaced by the function's body, so that its nodes have shapes like any other.

Inference goes into a function only for what comes out of it. The onnx package's inliner writes the nodes out; before it
may, the calls are followed, for a small file may stand for an unlimited number of nodes, or for an endless one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

import onnx
import onnx.checker
import onnx.inliner

from algosearch.compiler.onnx_shapes import nested
from algosearch.errors import UnreadableModel

_MOST_NODES: Final = 1_000_000


class Callee(NamedTuple):
    """What a node calls, or a function is called by."""

    domain: str
    name: str
    overload: str


def callee(node: onnx.NodeProto) -> Callee:
    """What a node calls: a function if the model has one of that name, else an operator."""
    return Callee(node.domain, node.op_type, node.overload)


def calls(model: onnx.ModelProto) -> dict[Callee, list[Callee]]:
    """Of every function of a model, what its nodes call, those in bodies as well."""
    found: defaultdict[Callee, list[Callee]] = defaultdict(list)
    for function in model.functions:
        # Two functions of one name are taken together: whichever is meant, its calls are among these.
        found[Callee(function.domain, function.name, function.overload)] += map(callee, nested(function.node))
    return dict(found)


def inline(source: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` without calls of its own functions; a call stays where the function is of another opset.

    Raises:
        UnreadableModel: a function calls itself, stands for more than a million nodes, or is called wrongly.
    """
    if not model.functions:
        return model
    _check(source, calls(model), map(callee, nested(model.graph.node)))
    try:
        return onnx.inliner.inline_local_functions(model)
    except (onnx.checker.ValidationError, RuntimeError, ValueError, TypeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise UnreadableModel(source, f"its functions cannot be inlined: {first_line[:200]}") from error


def _check(source: str, called: dict[Callee, list[Callee]], outermost: Iterable[Callee]) -> None:
    """Raises UnreadableModel if writing the functions out would never end, or not be worth it."""
    sizes: dict[Callee, int] = {}
    for first in called:
        waiting = [first]
        begun: set[Callee] = set()
        while waiting:
            current = waiting[-1]
            inner = [each for each in called[current] if each in called and each not in sizes]
            if current in sizes or not inner:
                sizes[current] = sum(sizes.get(each, 1) for each in called[current])
                waiting.pop()
            elif current in begun:
                raise UnreadableModel(source, f"function {current.name!r} calls itself")
            else:
                begun.add(current)
                waiting.extend(inner)
    if sum(sizes.get(each, 0) for each in outermost) > _MOST_NODES:
        raise UnreadableModel(source, f"its functions stand for more than {_MOST_NODES:,} nodes")
