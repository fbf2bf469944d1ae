"""`BatchNormOp`: one batch normalisation, in one of its phases."""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from typing import Final, Literal, get_args

import msgspec
from msgspec.structs import force_setattr, replace

from algosearch.errors import InvalidOp
from algosearch.ops.types import LAYOUTS, MEMO_LIMIT, Layout, Shape, element_bytes, one_of, whole_tuple

Phase = Literal["training_forward", "inference", "backward", "training"]
"""`training` is a fused batch norm's forward and backward pass as one op."""
Fusion = Literal["none", "activation", "add_activation"]
NormStatistics = Literal["per_channel", "per_activation"]
NormType = Literal["float16", "bfloat16", "float32", "float64"]
ParameterType = Literal["float32", "float64"]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
FUSIONS: Final = ("none", "activation", "add_activation")
STATISTICS: Final = ("per_channel", "per_activation")
# Scale, bias and statistics of a half-precision tensor are float32 in every library (cudnnDeriveBNTensorDescriptor).
PARAMETERS: Final[dict[str, str]] = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
}
_WORDS: Final[tuple[tuple[str, Collection[str]], ...]] = (
    ("phase", PHASES),
    ("fusion", FUSIONS),
    ("statistics", STATISTICS),
    ("layout", LAYOUTS),
    ("data_type", PARAMETERS),
)

_VALID: dict[BatchNormOp, bytes] = {}
"""Valid ops by value, with the bytes of their fields, as in `conv`."""
_encode = msgspec.msgpack.Encoder().encode


class BatchNormOp(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    cache_hash=True,
    gc=False,
    forbid_unknown_fields=True,
    tag_field="op",
    tag="batch_norm",
):
    """One batch normalisation over [N, C, spatial…].

    `activation` is a ReLU after it, `add_activation` a residual add, then a ReLU. Backward of a fused op reads
    the reserve that its forward wrote, so both are one choice: whichever is asked about, what is searched is an op of
    phase `training`, which is the one and then the other (`ops.searched_as`).

    Raises:
        InvalidOp: naming the field, its value and the rule, when the values describe no computation.
    """

    shape: Shape
    """[N, C, spatial…] with 0 to 3 spatial dimensions, each at least 1."""
    phase: Phase = "training_forward"
    fusion: Fusion = "none"
    statistics: NormStatistics = "per_channel"
    """Mean and variance for each channel, or (after a fully connected layer) for each activation [C, spatial…]."""
    layout: Layout = "channels_first"
    data_type: NormType = "float32"
    parameter_type: ParameterType = "float32"

    def __post_init__(self) -> None:
        try:
            if _encode(self) == _VALID.get(self):  # in this order, as in `conv`
                return
        except Exception:  # as in `conv`
            pass
        _validate(self)
        if len(_VALID) >= MEMO_LIMIT:
            _VALID.clear()
        _VALID[self] = _encode(self)

    @property
    def parameter_shape(self) -> Shape:
        """[C], or [C, spatial…] with per-activation statistics."""
        return self.shape[1:] if self.statistics == "per_activation" else self.shape[1:2]

    @property
    def passes(self) -> tuple[BatchNormOp, ...]:
        """Each pass as an op of its own, in the order in which they run: of phase `training` two, else the op."""
        if self.phase != "training":
            return (self,)
        return replace(self, phase="training_forward"), replace(self, phase="backward")

    def pass_that_writes(self, name: str) -> BatchNormOp:
        """The one of `passes` that has this tensor among its `output_shapes`."""
        return next(each for each in self.passes if name in each.output_shapes)

    @property
    def output_shapes(self) -> dict[str, Shape]:
        """The shape of every tensor that this phase writes, by name. Pure: needs no device.

        A fused op also writes a reserve, whose size depends on the algorithm and is therefore part of a choice.
        """
        parameters = self.parameter_shape
        match self.phase:
            case "inference":
                return {"output": self.shape}
            case "training_forward":
                return {
                    "output": self.shape,
                    "running_mean": parameters,
                    "running_variance": parameters,
                    "saved_mean": parameters,
                    "saved_inverse_deviation": parameters,
                }
            case "backward":
                gradients = {
                    "input_gradient": self.shape,
                    "scale_gradient": parameters,
                    "bias_gradient": parameters,
                }
                if self.fusion == "add_activation":
                    gradients["addend_gradient"] = self.shape
                return gradients
            case "training":
                return {name: shape for each in self.passes for name, shape in each.output_shapes.items()}

    @property
    def output_shape(self) -> Shape:
        """The shape of the phase's main result: the output, the input's gradient, or both. Each is `shape`."""
        return self.shape

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one tensor of `shape`."""
        return element_bytes(self.shape, self.data_type)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one tensor of `parameter_shape`."""
        return element_bytes(self.parameter_shape, self.parameter_type)

    @property
    def bytes_moved(self) -> int:
        """The least traffic: every tensor read or written once, a training pass reading its input twice."""
        match self.phase:
            case "inference":
                tensors, parameters = 2, 4
            case "training_forward":
                tensors, parameters = 3, 8
            case "backward":
                tensors, parameters = 5, 5
            case "training":
                return sum(each.bytes_moved for each in self.passes)
        if self.fusion == "add_activation":
            tensors += 1
        return tensors * self.tensor_bytes + parameters * self.parameter_bytes

    @property
    def flops(self) -> int:
        """A conventional count: 2 an element for inference, 5 for training forward, 8 for backward, 13 for both."""
        return prod(self.shape) * {"inference": 2, "training_forward": 5, "backward": 8, "training": 13}[self.phase]

    def describe(self) -> str:
        """One short line for messages and tables, such as `batch_norm training_forward 64x64x56x56 float32`."""
        parts = ["batch_norm", self.phase, "x".join(map(str, self.shape)), self.data_type]
        if self.fusion != "none":
            parts.append(f"+{self.fusion}")
        if self.statistics != "per_channel":
            parts.append(self.statistics)
        if self.layout != "channels_first":
            parts.append(self.layout)
        return " ".join(parts)


def _validate(op: BatchNormOp) -> None:
    for field, allowed in _WORDS:
        force_setattr(op, field, one_of(field, getattr(op, field), allowed))
    force_setattr(op, "shape", whole_tuple("shape", op.shape, least=1))
    if not 2 <= len(op.shape) <= 5:
        raise InvalidOp("shape", op.shape, "must be [N, C, spatial…] with 0 to 3 spatial dimensions")
    parameter_type = one_of("parameter_type", op.parameter_type, ("float32", "float64"))
    force_setattr(op, "parameter_type", parameter_type)
    if parameter_type != PARAMETERS[op.data_type]:
        raise InvalidOp(
            "parameter_type",
            parameter_type,
            f"must be {PARAMETERS[op.data_type]} beside {op.data_type} data",
        )
    if op.phase == "inference" and op.fusion != "none":
        raise InvalidOp("fusion", op.fusion, "inference has none: it folds into the convolution before it")
    if op.phase == "training" and op.fusion == "none":
        raise InvalidOp("phase", op.phase, "is of a fused batch norm: the passes of a plain one are two ops")
    if op.statistics == "per_activation" and op.fusion != "none":
        raise InvalidOp("fusion", op.fusion, "per-activation statistics cannot be fused")
