"""Which backends a searcher gets when it is told none."""

from __future__ import annotations

from algosearch.backends.base import Backend


def default_backends() -> tuple[Backend, ...]:
    """The best library that this machine has a device for, first; the CPU backend, which is always there, last."""
    from algosearch.backends.cpu import CpuBackend  # imports numpy: 70 ms that `import algosearch` must not cost

    return (CpuBackend(),)
