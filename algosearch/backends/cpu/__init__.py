"""The CPU backend: convolutions and batch norms in numpy, really run and really timed.

It needs no accelerator, so that everything above it can be tried and tested on any machine. Importing it imports numpy,
which `import algosearch` does not.
"""

from __future__ import annotations

from algosearch.backends.cpu.backend import CpuBackend
from algosearch.backends.cpu.session import CpuSession

__all__ = ("CpuBackend", "CpuSession")
