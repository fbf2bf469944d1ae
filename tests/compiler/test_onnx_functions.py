"""Model-local functions: written out where they are called, unless that would never end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from algosearch.errors import UnreadableModel
from tests.compiler.onnx_graphs import model, node, read, value, weight


def _calling(body: list[Any], *, opset: int = 17) -> Any:
    """Two nodes: a call of `Block`, which is `body` from a and b to c, and a convolution of what it gives."""
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Block", ["a", "b"], ["c"], body, opsets)
    call = helper.make_node("Block", ["x", "w"], ["z"], name="f1", domain="own")
    nodes = [call, node("Conv", ["z", "w"], name="c1")]
    inputs, weights = [value("x", [1, 3, 9, 9])], [weight("w", [3, 3, 3, 3])]
    return model(nodes, inputs, weights, functions=[function], domains=["own"])


def _block(inputs: list[str], output: str) -> Any:
    return helper.make_node("Block", inputs, [output], domain="own")


def test_a_convolution_within_a_function_is_read_at_each_call(tmp_path: Path) -> None:
    proto = _calling([node("Conv", ["a", "b"], ["c"])])
    proto.graph.node.insert(1, _block(["z", "w"], "z2"))
    proto.graph.node[2].input[0] = "z2"
    found = read(tmp_path, proto)
    assert found.skipped == ()
    assert [each.op.output_shape for each in found.nodes] == [(1, 3, 7, 7), (1, 3, 5, 5), (1, 3, 3, 3)]


def test_a_function_of_another_opset_is_skipped_and_what_follows_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, _calling([node("Conv", ["a", "b"], ["c"])], opset=11))
    assert [(each.name, each.kind) for each in found.skipped] == [("f1", "Block")]
    assert [each.op.output_shape for each in found.nodes] == [(1, 3, 5, 5)]
    assert read(tmp_path, _calling([node("Relu", ["a"], ["c"])], opset=11)).skipped == ()


def test_a_function_that_calls_itself_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableModel, match="calls itself"):
        read(tmp_path, _calling([_block(["a", "b"], "c")]))

    branch = helper.make_graph([_block(["a", "b"], "o")], "branch", [], [helper.make_empty_tensor_value_info("o")])
    always = node("Constant", [], ["always"], value=helper.make_tensor("", TensorProto.BOOL, [], [1]))
    with pytest.raises(UnreadableModel, match="calls itself"):
        read(tmp_path, _calling([always, node("If", ["always"], ["c"], then_branch=branch, else_branch=branch)]))


def test_a_small_file_may_not_stand_for_too_many_nodes(tmp_path: Path) -> None:
    proto = _calling([node("Relu", ["a"], ["c"])])
    for depth in range(24):
        inner = "Block" if depth == 0 else f"Twice{depth - 1}"
        twice = [helper.make_node(inner, [a, "b"], [c], domain="own") for a, c in (("a", "m"), ("m", "c"))]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        proto.functions.append(helper.make_function("own", f"Twice{depth}", ["a", "b"], ["c"], twice, opsets))
    assert read(tmp_path, proto).operations == 1  # nobody calls them
    proto.graph.node[0].op_type = "Twice4"
    assert read(tmp_path, proto).operations == 1
    proto.graph.node[0].op_type = "Twice23"
    with pytest.raises(UnreadableModel, match="1,000,000 nodes"):
        read(tmp_path, proto)


def test_a_call_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    proto = _calling([node("Relu", ["a"], ["c"])])
    proto.graph.node[0].input.extend(["x", "x"])
    with pytest.raises(UnreadableModel, match="cannot be inlined"):
        read(tmp_path, proto)
