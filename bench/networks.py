"""The distinct convolution problems of a network's training step, for the benches on a GPU."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import product
from typing import Any

from report import some

from algosearch.compiler import ReadOptions
from algosearch.compiler.training import expand
from algosearch.compiler.workloads import WORKLOADS, build_workload
from algosearch.ops import ConvOp, canonical
from algosearch.records import Environment

CASES: dict[str, dict[str, Any]] = {
    "fp16_nhwc": {"data_type": "float16", "layout": "channels_last"},
    "fp32_nchw": {"data_type": "float32", "layout": "channels_first"},
}
NETWORKS = tuple(WORKLOADS)


def add_networks(parser: ArgumentParser, *batches: int) -> None:
    """What is measured: `--networks` in `--cases` with `--batches`, these batches unless others are named."""
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["resnet50"])
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--batches", nargs="+", type=some, default=list(batches))


def asked(options: Namespace) -> Iterator[tuple[str, str, str, int]]:
    """Each that is to be measured, by `add_networks`: what it is called in a report, its network, case and batch."""
    for network, batch, case in product(options.networks, options.batches, options.cases):
        yield f"{network}_{batch}_{case}", network, case, batch


def described(environment: Environment | None) -> dict[str, str]:
    """The device and its libraries, for a bench's file."""
    assert environment is not None, "no device was opened"
    return {"device": environment.device, **dict(environment.facts)}


def training_convs(network: str, case: str, batch: int) -> list[ConvOp]:
    """In the order in which the network has them, each once."""
    options = ReadOptions(batch=batch, **CASES[case])
    nodes = expand(build_workload(network, options).nodes)
    return list(dict.fromkeys(canonical(node.op) for node in nodes if isinstance(node.op, ConvOp)))
