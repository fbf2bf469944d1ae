"""A small graph compiler: models in, from ONNX, from JSON lines, from a built-in workload or from Python; plans out.

Importing this imports neither onnx nor numpy: onnx comes when a file of it is read, and what compiles when one of its
names is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from algosearch.compiler.jsonlines import write_lines
from algosearch.compiler.model import Model, Node, ReadOptions, Skipped
from algosearch.compiler.read import read_graph, read_model
from algosearch.compiler.workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    from algosearch.compiler.compile import Compiled, Pipeline, compile_graph
    from algosearch.compiler.graph import Graph, GraphBuilder, GraphNode, Tensor
    from algosearch.compiler.inference import Conv, Norm, Other
    from algosearch.compiler.layers import Layers
    from algosearch.compiler.passes import Placement
    from algosearch.compiler.plan import Buffer, Plan, PlannedTask
    from algosearch.compiler.queries import Queries, QueryStatistics, Wait
    from algosearch.compiler.strategies import strategy_of
    from algosearch.compiler.timeline import Timeline

__all__ = (
    # models, and the ops of them
    "read_model",
    "ReadOptions",
    "Model",
    "Node",
    "Skipped",
    "WORKLOADS",
    "Workload",
    "write_lines",
    # graphs
    "read_graph",
    "Graph",
    "GraphBuilder",
    "GraphNode",
    "Tensor",
    "Conv",
    "Norm",
    "Other",
    "Layers",
    # compiling
    "compile_graph",
    "Pipeline",
    "Placement",
    "strategy_of",
    "Compiled",
    "Plan",
    "PlannedTask",
    "Buffer",
    "Queries",
    "QueryStatistics",
    "Wait",
    "Timeline",
)

_LAZY = {
    **dict.fromkeys(("Compiled", "Pipeline", "compile_graph"), "compile"),
    **dict.fromkeys(("Graph", "GraphBuilder", "GraphNode", "Tensor"), "graph"),
    **dict.fromkeys(("Conv", "Norm", "Other"), "inference"),
    "Layers": "layers",
    "Placement": "passes",
    **dict.fromkeys(("Buffer", "Plan", "PlannedTask"), "plan"),
    **dict.fromkeys(("Queries", "QueryStatistics", "Wait"), "queries"),
    "strategy_of": "strategies",
    "Timeline": "timeline",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        value = globals()[name] = getattr(import_module(f"algosearch.compiler.{_LAZY[name]}"), name)
        return value
    raise AttributeError(f"module 'algosearch.compiler' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
