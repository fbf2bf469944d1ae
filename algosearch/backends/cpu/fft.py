"""FFT convolution: products of spectra, one small matrix product for each frequency.

    forward           output̂ = input̂ × conj(filter̂)ᵀ
    backward_data     input̂  = output̂ × filter̂
    backward_filter   filter̂ = conj(output̂)ᵀ × input̂

All spectra have the channels innermost, and are made over the axes before them: so that each frequency is a matrix in
place. Transforms are as long as the padded input (then nothing that is kept wraps around), rounded up to a length that
has small factors only. A dilated filter is one with zeros between its taps. A stride is not done: all but a part of
what is computed would be thrown away.

Every transform is `ortho`: numpy computes one without a factor in double precision, and for that converts whole arrays
behind our back. What is left of the factors, √points, is multiplied at the end.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Final

import numpy as np

from algosearch.backends.cpu.arena import Arena, Array, Region, Run
from algosearch.backends.cpu.kernel import Cost, Tensors, compute_type, contract, store
from algosearch.backends.cpu.window import Slices, Window, grouped
from algosearch.ops import ELEMENT_BYTES, ConvOp, Layout, Shape

_COMPLEX: Final = {"float32": "complex64", "float64": "complex128"}
_SECONDS_A_POINT: Final = 2.5e-9


class Fft:
    """The kernel."""

    notes: Final = ("fft",)

    def __init__(self, op: ConvOp) -> None:
        self._op = op
        self._window = window = Window.of(op)
        self._computed = computed = compute_type(op)
        lengths = tuple(good_length(size) for size in window.padded)
        arena = Arena()
        sides = {
            "input": _Side(window.batch, window.groups * window.channels, window.sizes, shift=window.low),
            "filter": _Side(
                window.groups * window.filters, window.channels, window.taps, step=window.dilation
            ),
            "output": _Side(window.batch, window.groups * window.filters, window.outputs),
        }
