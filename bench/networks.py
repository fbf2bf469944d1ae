"""The distinct convolution problems of a network's training step, for the benches on a GPU."""

from __future__ import annotations

from typing import Any

from algosearch.compiler import ReadOptions
from algosearch.compiler.training import expand
from algosearch.compiler.workloads import build_workload
from algosearch.ops import ConvOp, canonical
from algosearch.records import Environment

CASES: dict[str, dict[str, Any]] = {
    "fp16_nhwc": {"data_type": "float16", "layout": "channels_last"},
    "fp32_nchw": {"data_type": "float32", "layout": "channels_first"},
}


def described(environment: Environment | None) -> dict[str, str]:
    """The device and its libraries, for a bench's file."""
    assert environment is not None, "no device was opened"
    return {"device": environment.device, **dict(environment.facts)}


def training_convs(network: str, case: str, batch: int) -> list[ConvOp]:
    """In the order in which the network has them, each once."""
    options = ReadOptions(batch=batch, **CASES[case])
    nodes = expand(build_workload(network, options).nodes)
    return list(dict.fromkeys(canonical(node.op) for node in nodes if isinstance(node.op, ConvOp)))
