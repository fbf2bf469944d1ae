"""What this machine is: its processor, its memory, and what numpy multiplies matrices with."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from algosearch.records import Environment

_THREAD_VARIABLES: Final = (
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""What changes how BLAS runs, read by it when it is loaded."""
_CGROUP: Final = Path("/sys/fs/cgroup")
_GIB: Final = 1 << 30


def processor() -> str:
    """The maker's name of the model."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def cores() -> int:
    """Processor cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def environment(backend: str) -> Environment:
    """What the time of a run depends on beside the problem."""
    facts = {
        "blas": _blas(),
        "cores": str(cores()),
        "memory": _memory_class(),
        "numpy": np.__version__,
        **{name: value for name in _THREAD_VARIABLES if (value := os.environ.get(name))},
    }
    return Environment(backend=backend, device=processor(), facts=tuple(sorted(facts.items())))


def memory_bytes() -> int | None:
    """Of the machine, or of the container that this process runs in; None where that cannot be told."""
    sizes = [limit for _, limit in _cgroup_memory()]
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(sizes, default=None)


def free_bytes() -> int | None:
    """Memory that could be had now, without taking it from another process; None where that cannot be told.

    It must be asked: the system hands out more than there is, and kills whoever comes to use it.
    """
    free = [max(0, limit - used) for used, limit in _cgroup_memory()]
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                free.append(int(value.split()[0]) * 1024)
    return min(free, default=None)


def _cgroup_memory() -> Iterator[tuple[int, int]]:
    """(used, limit) of the container, if there is one with a limit."""
    with contextlib.suppress(OSError, ValueError):  # no cgroup of version 2, or no limit: "max"
        yield int((_CGROUP / "memory.current").read_text()), int((_CGROUP / "memory.max").read_text())


def _memory_class() -> str:
    """The power of two that is nearest to the memory in GiB: machines of one kind differ by what firmware takes."""
    total = memory_bytes()
    if total is None:
        return "unknown"
    return f"{1 << max(0, round(np.log2(max(total, _GIB) / _GIB)))} GiB"


def _blas() -> str:
    config: Any = np.show_config(mode="dicts")  # numpy types it as printing
    blas = config.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
