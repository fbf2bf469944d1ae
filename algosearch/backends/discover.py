"""Which backends a searcher gets when it is told none."""

from __future__ import annotations

from algosearch.backends.base import Backend


def default_backends() -> tuple[Backend, ...]:
    """cuDNN, which has no devices where its library, CuPy or a GPU is missing; the CPU backend, which is always there,
    last. A device is opened, and CuPy imported, when it is first needed."""
    # Both import numpy: 70 ms that `import algosearch` must not cost.
    from algosearch.backends.cpu import CpuBackend
    from algosearch.backends.cudnn import CudnnBackend

    return (CudnnBackend(), CpuBackend())
