"""ONNX files as op graphs: every node takes part, and what is wrong is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from algosearch.compiler.graph import Graph
from algosearch.compiler.model import Model
from algosearch.compiler.onnx_graph import read_onnx_graph
from algosearch.errors import InvalidGraph
from tests.compiler.onnx_graphs import model, node, value, weight, write


def read(directory: Path, proto: Any) -> tuple[Graph, Model]:
    return read_onnx_graph(write(directory, proto))


def test_an_input_that_nothing_makes_is_refused_by_name(tmp_path: Path) -> None:
    proto = model([node("Mul", ["x", "nothing"], name="product")], [value("x", [1, 3])])
    with pytest.raises(InvalidGraph, match="product.*reads 'nothing', which nothing has written before it"):
        read(tmp_path, proto)


def test_nodes_out_of_order_are_refused_by_name(tmp_path: Path) -> None:
    nodes = [node("Relu", ["c"], name="rectifier"), node("Conv", ["x", "w"], ["c"], name="conv")]
    proto = model(nodes, [value("x", [1, 3, 8, 8])], [weight("w", [4, 3, 1, 1])])
    with pytest.raises(InvalidGraph, match="rectifier.*reads 'c', which nothing has written before it"):
        read(tmp_path, proto)


def test_a_body_reads_what_is_around_it_and_makes_the_rest_itself(tmp_path: Path) -> None:
    then = model([node("Relu", ["x"], ["inner"]), node("Mul", ["inner", "k"], ["t"])], [], outputs=[value("t", [2])])
    other = model([node("Neg", ["x"], ["e"])], [], outputs=[value("e", [2])])
    branch = node("If", ["cond"], name="if", then_branch=then.graph, else_branch=other.graph)
    graph, _ = read(tmp_path, model([branch], [value("x", [2]), value("cond", [], 9)], [weight("k", [2])]))
    (found,) = graph.nodes
    assert found.inputs == ("cond", "x", "k")
