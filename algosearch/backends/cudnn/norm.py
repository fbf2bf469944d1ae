"""The tensors of a batch norm as cuDNN takes them, by uid: the same for its legacy API and for its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from algosearch.backends.cudnn.graph import GraphTensor, strides_of
from algosearch.ops import BatchNormOp, Shape
from algosearch.ops.types import element_bytes

EPSILON: Final = 1e-5
MOMENTUM: Final = 0.1
"""The share of the new statistics in the running ones. Both are those of a trial; no time depends on them."""

UIDS: Final[dict[str, int]] = {
    name: uid
    for uid, name in enumerate(
        (
            *("input", "output", "addend", "output_gradient", "input_gradient", "addend_gradient"),
            *("scale", "bias", "scale_gradient", "bias_gradient"),
            *("previous_mean", "previous_variance", "running_mean", "running_variance"),
            *("saved_mean", "saved_inverse_deviation"),
            *("reserve", "epsilon", "momentum"),
        ),
        start=1,
    )
}
"""By name. `reserve` is no tensor of `norm_tensors`: its size is a plan's `reserve_bytes`."""
_WHOLE: Final = frozenset({"input", "output", "addend", "output_gradient", "input_gradient", "addend_gradient"})


def norm_tensors(op: BatchNormOp) -> tuple[GraphTensor, ...]:
    """What a canonical op reads and writes, read ones first."""
    written = op.output_shapes
    return tuple(norm_tensor(op, name, written=name in written) for name in (*names_read(op), *written))


def norm_tensor(op: BatchNormOp, name: str, *, written: bool = False) -> GraphTensor:
    """One tensor of an op by its name. A parameter has a size of 1 along each axis that is averaged over."""
    whole = name in _WHOLE
    shape = op.shape if whole else parameter_shape(op)
    element_type = op.data_type if whole else op.parameter_type
    return GraphTensor(
        uid=UIDS[name],
        name=name,
        shape=shape,
        strides=strides_of(shape, op.layout),
        element_type=element_type,
        bytes=element_bytes(shape, element_type),
        written=written,
    )


def parameter_shape(op: BatchNormOp) -> Shape:
    """[1, C, 1…], or [1, C, spatial…] with per-activation statistics."""
    if op.statistics == "per_activation":
        return (1, *op.shape[1:])
    return (1, op.shape[1], *(1 for _ in op.shape[2:]))


def names_read(op: BatchNormOp) -> Iterator[str]:
    """The tensors that a canonical op reads and has not written itself."""
    yield "input"
    yield "scale"
    match op.phase:
        case "inference":
            yield from ("bias", "running_mean", "running_variance")
        case "training_forward" | "training":
            yield from ("bias", "previous_mean", "previous_variance")
            if op.fusion == "add_activation":
                yield "addend"
            if op.phase == "training":
                yield "output_gradient"
        case "backward":
            yield from ("output_gradient", "saved_mean", "saved_inverse_deviation")
            if op.fusion != "none":
                yield from ("output", "bias")
