"""The ops: frozen descriptions of one convolution or batch norm. Pure nouns; nothing here does I/O."""

from __future__ import annotations

from algosearch.ops.batch_norm import BatchNormOp, Fusion, NormStatistics, NormType, ParameterType, Phase
from algosearch.ops.canonical import canonical
from algosearch.ops.conv import ConvOp, Direction
from algosearch.ops.pairing import searched_as
from algosearch.ops.types import ELEMENT_BYTES, AccumulateType, ElementType, Layout, Shape

Op = ConvOp | BatchNormOp

__all__ = (
    "Op",
    "ConvOp",
    "BatchNormOp",
    "canonical",
    "searched_as",
    "Direction",
    "Phase",
    "Fusion",
    "NormStatistics",
    "NormType",
    "ParameterType",
    "ElementType",
    "AccumulateType",
    "Layout",
    "Shape",
    "ELEMENT_BYTES",
)
