"""A small graph compiler: models in, from ONNX, from JSON lines, from a built-in workload or from Python; plans out.

Importing this imports neither onnx nor numpy: onnx comes when a file of it is read, and what compiles when one of its
names is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from algosearch.compiler.jsonlines import write_lines
from algosearch.compiler.model import Model, Node, ReadOptions, Skipped
from algosearch.compiler.read import read_graph, read_model
from algosearch.compiler.workloads import WORKLOADS, Workload
from algosearch.late import late_exports as _late_exports

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

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late_exports(
        __name__,
        {
            "compile": ("Compiled", "Pipeline", "compile_graph"),
            "graph": ("Graph", "GraphBuilder", "GraphNode", "Tensor"),
            "inference": ("Conv", "Norm", "Other"),
            "layers": ("Layers",),
            "passes": ("Placement",),
            "plan": ("Buffer", "Plan", "PlannedTask"),
            "queries": ("Queries", "QueryStatistics", "Wait"),
            "strategies": ("strategy_of",),
            "timeline": ("Timeline",),
        },
    )
