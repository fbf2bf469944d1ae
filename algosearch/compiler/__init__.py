"""Models in: from an ONNX graph, from ops as JSON lines, or from a built-in workload to the ops there are to search.

Importing this imports no onnx; only reading an ONNX file does.
"""

from __future__ import annotations

from algosearch.compiler.jsonlines import write_lines
from algosearch.compiler.model import Model, Node, ReadOptions, Skipped
from algosearch.compiler.read import read_model
from algosearch.compiler.workloads import WORKLOADS, Workload

__all__ = (
    "read_model",
    "ReadOptions",
    "Model",
    "Node",
    "Skipped",
    "WORKLOADS",
    "Workload",
    "write_lines",
)
