"""What a bench needs of the machine: looked at before anything is measured, in a process of its own.

Apart, for a process that has begun with the driver would keep it awake for the samples, of which some begin where
nothing is running.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path

import apart

REFUSED = 2
"""The exit status of a bench that cannot be run here or as it was asked for: argparse's own."""
_PEERS = {"torch": "torch", "xla": "jax"}
"""What a peer of such a name (`torch_benchmark`, `xla_4`) imports."""


def needs(parser: ArgumentParser, *, gpus: int, peers: Iterable[str] = ()) -> None:
    """End the bench with one line, if the machine lacks GPUs, or what is imported for its peers."""
    lacking = _lacking(gpus)
    modules = dict.fromkeys(_PEERS[peer.partition("_")[0]] for peer in peers)
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent:
        lacking.append(f"{' and '.join(absent)} cannot be imported, for its peers")
    if lacking:
        parser.exit(REFUSED, f"{parser.prog}: {'; '.join(lacking)}\n")


def _lacking(gpus: int) -> list[str]:
    found = apart.told([str(Path(__file__))])
    if found["absence"] is not None:
        return [found["absence"]]
    return [f"needs {gpus} GPUs, and there is {found['gpus']}"] if found["gpus"] < gpus else []


def main() -> None:
    from algosearch.backends.cudnn import CudnnBackend

    backend = CudnnBackend()
    absence = backend.absence()
    found = {"gpus": len(backend.devices()), "absence": None if absence is None else str(absence)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
