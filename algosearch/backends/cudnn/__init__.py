"""cuDNN on NVIDIA GPUs: `CudnnBackend`."""

from __future__ import annotations

from algosearch.backends.cudnn.backend import CudnnBackend

__all__ = ("CudnnBackend",)
