"""`LegacyNorm`: batch norm by the calls that were there before the graph API. Deprecated, and still the best for many.

Its three modes are its candidates. A mode's workspace and reserve are asked of the library, which refuses here what it
does not do: the fused ops, for example, only in half precision, channels last and persistent.

Two things differ from how an op is described. A training pass updates the running statistics in place: whoever wants
its result copies the previous ones there first (`IN_PLACE`). And the backward pass of a fused op reads the reserve that
the forward pass *of the same mode* wrote.

Where a scale, a bias and the statistics lie is the library's to say: `cudnnDeriveBNTensorDescriptor` makes their
descriptor from the input's, and it is read back. A mode that would read them elsewhere than they are is refused. With
statistics of each activation it orders them channels first, whatever the input's layout; but then no axis differs from
another, and the op is told channels first in the first place (`_as_it_lies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import POINTER, addressof, byref, c_double, c_float, c_int, c_size_t, c_void_p
from math import prod
from typing import Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from algosearch.backends.cudnn.descriptor import Descriptors
from algosearch.backends.cudnn.enums import LegacyMode, LegacyOps
from algosearch.backends.cudnn.graph import DATA_TYPES
from algosearch.backends.cudnn.handle import Handle
from algosearch.backends.cudnn.norm import EPSILON, MOMENTUM, UIDS, norm_tensor
from algosearch.backends.cudnn.plan import Runnable, VariantPack
from algosearch.backends.cudnn.status import CudnnError
from algosearch.errors import AlgosearchError
from algosearch.ops import BatchNormOp, canonical
from algosearch.records import Failure
from algosearch.records.trial import RANGE_LIMITED

Mode = Literal["spatial", "spatial_persistent", "per_activation"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
IN_PLACE: Final = ((UIDS["previous_mean"], UIDS["running_mean"]), (UIDS["previous_variance"], UIDS["running_variance"]))
"""(from, to): what must be copied before a training pass whose result counts."""
_NUMBERS: Final[dict[Mode, LegacyMode]] = {
    "spatial": LegacyMode.SPATIAL,
    "spatial_persistent": LegacyMode.SPATIAL_PERSISTENT,
    "per_activation": LegacyMode.PER_ACTIVATION,
}
_OPS: Final[dict[str, LegacyOps]] = {
    "none": LegacyOps.BN,
    "activation": LegacyOps.BN_ACTIVATION,
    "add_activation": LegacyOps.BN_ADD_ACTIVATION,
}
_RELU, _PROPAGATE_NAN = 1, 1
_MOST_AXES: Final = 8  # CUDNN_DIM_MAX
_TOO_MANY: Final = 1 << 31
"""Elements of a tensor: sizes and strides are C's int here."""

_P, _I, _D, _S, _OUT = c_void_p, c_int, c_double, c_size_t, POINTER(c_size_t)
_FUNCTIONS: Final[dict[str, tuple[object, ...]]] = {
    "cudnnCreateTensorDescriptor": (POINTER(_P),),
    "cudnnSetTensorNdDescriptor": (_P, _I, _I, POINTER(_I), POINTER(_I)),
    "cudnnGetTensorNdDescriptor": (_P, _I, *(POINTER(_I),) * 4),
    "cudnnDestroyTensorDescriptor": (_P,),
    "cudnnDeriveBNTensorDescriptor": (_P, _P, _I),
    "cudnnCreateActivationDescriptor": (POINTER(_P),),
    "cudnnSetActivationDescriptor": (_P, _I, _I, _D),
    "cudnnDestroyActivationDescriptor": (_P,),
    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize": (_P, _I, _I, *(_P,) * 5, _OUT),
    "cudnnGetBatchNormalizationBackwardExWorkspaceSize": (_P, _I, _I, *(_P,) * 7, _OUT),
    "cudnnGetBatchNormalizationTrainingExReserveSpaceSize": (_P, _I, _I, _P, _P, _OUT),
    "cudnnBatchNormalizationForwardTrainingEx": (
        *(_P, _I, _I, *(_P,) * 2, *(_P,) * 6),
        *(*(_P,) * 3, _D, _P, _P, _D, _P, _P),
        *(_P, _P, _S, _P, _S),
    ),
    "cudnnBatchNormalizationBackwardEx": (
        *(_P, _I, _I, *(_P,) * 4, *(_P,) * 10),
        *(*(_P,) * 5, _D, _P, _P),
        *(_P, _P, _S, _P, _S),
    ),
    "cudnnBatchNormalizationForwardInference": (_P, _I, *(_P,) * 2, *(_P,) * 4, *(_P,) * 5, _D),
}
"""Arguments as declared in `cudnn_ops.h` of 9.28; all return a status."""


class ParametersElsewhere(AlgosearchError):
    """A mode would read an op's parameters as something else than they are. Never reaches a caller."""

    def __init__(self, mode: str, read: str, are: str) -> None:
        self.mode, self.read, self.are = mode, read, are
        super().__init__(mode, read, are)

    def __str__(self) -> str:
        return f"{self.mode} would read the parameters as {self.read}, and they are {self.are}"


class LegacyCandidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A mode that the library offers for an op."""

    mode: Mode
    workspace_bytes: int
    reserve_bytes: int
    notes: tuple[str, ...]


class LegacyNorm:
    """One batch norm, and the ways that the legacy API has for it. Owned by the thread of its handle.

    Raises:
        CudnnError: the library refuses the tensors; with fault "candidate", it can do nothing of this kind.
    """

    def __init__(self, handle: Handle, op: BatchNormOp) -> None:
        self.handle = handle
        self.op = _as_it_lies(canonical(op))
        self._is_there = all(handle.library.has(name, arguments) for name, arguments in _FUNCTIONS.items())

    def candidates(self) -> list[LegacyCandidate]:
        """The modes that it supports, the likely best one first; none if this version has no such calls any more.

        Raises:
            CudnnError: for another reason than that it does not.
        """
        if not self._is_there:
            return []
        found = []
        for mode in _order(self.op):
            try:
                plan = _LegacyPlan(self.handle, self.op, mode)
            except ParametersElsewhere:
                continue
            except CudnnError as error:
                if error.fault != "candidate":
                    raise
                continue
            plan.destroy()
            found.append(
                LegacyCandidate(
                    mode=mode,
                    workspace_bytes=plan.workspace_bytes,
                    reserve_bytes=plan.reserve_bytes,
                    notes=(RANGE_LIMITED,) if mode == "spatial_persistent" else (),
                )
            )

        return found

    def build(self, mode: Mode) -> Runnable | Failure:
        """A mode made runnable. Microseconds: there is nothing to build.

        Raises:
            CudnnError: the library was called wrongly.
        """
        if not self._is_there or mode not in _order(self.op):
            return Failure("not_supported", f"no mode {mode} for {self.op.describe()}")
        try:
            return _LegacyPlan(self.handle, self.op, mode)
        except ParametersElsewhere as error:
            return Failure("not_supported", str(error))
        except CudnnError as error:
            return error.failure("building")


class _Described(Descriptors):
    """The descriptors of one mode of an op, in the legacy API's own kinds."""

    def __init__(self, handle: Handle, op: BatchNormOp, mode: Mode) -> None:
        super().__init__(handle.library)
        self._calls = handle.library.short
        self._legacy: list[tuple[str, c_void_p]] = []
        self.ops = _OPS[op.fusion]
        self.activation: c_void_p | None = None
        try:
            self.data = self._make("Tensor")
            tensor = norm_tensor(op, "input")
            sizes = c_int * len(tensor.shape)
            self._do(
                "cudnnSetTensorNdDescriptor",
                self.data,
                DATA_TYPES[op.data_type],
                len(tensor.shape),
                sizes(*tensor.shape),
                sizes(*tensor.strides),
            )
            self.parameters = self._make("Tensor")
            self._do("cudnnDeriveBNTensorDescriptor", self.parameters, self.data, _NUMBERS[mode])
            self._check_parameters(op, mode)
            if self.ops is not LegacyOps.BN:
                self.activation = self._make("Activation")
                self._do("cudnnSetActivationDescriptor", self.activation, _RELU, _PROPAGATE_NAN, 0.0)
            self.addend = self.data if self.ops is LegacyOps.BN_ADD_ACTIVATION else None
            self.output = self.data if self.ops is not LegacyOps.BN else None
        except BaseException:
            self.destroy()
            raise

    def size(self, function: str, *arguments: object) -> int:
        """What one of the library's size queries says.

        Raises:
            CudnnError: it does not support what is asked about.
        """
        size = c_size_t()
        self._do(function, *arguments, byref(size))
        return size.value

    def _check_parameters(self, op: BatchNormOp, mode: Mode) -> None:
        """Whether what the library derived is what `norm_tensor` says of every parameter."""
        data_type, rank, sizes, strides = c_int(), c_int(), (c_int * _MOST_AXES)(), (c_int * _MOST_AXES)()
        self._do(
            "cudnnGetTensorNdDescriptor", self.parameters, _MOST_AXES, byref(data_type), byref(rank), sizes, strides
        )
        axes = min(rank.value, _MOST_AXES)
        read = data_type.value, _that_count(sizes[:axes], strides[:axes])
        tensor = norm_tensor(op, "scale")
        are = int(DATA_TYPES[tensor.element_type]), _that_count(tensor.shape, tensor.strides)
        if read != are:
            raise ParametersElsewhere(mode, *(f"type {kind}, (size, stride) {each}" for kind, each in (read, are)))

    def destroy(self) -> None:
        while self._legacy:
            kind, pointer = self._legacy.pop()
            getattr(self._calls, f"cudnnDestroy{kind}Descriptor")(pointer)
        super().destroy()

    def _make(self, kind: str) -> c_void_p:
        pointer = c_void_p()
        self._do(f"cudnnCreate{kind}Descriptor", byref(pointer))
        self._legacy.append((kind, pointer))
        return pointer

    def _do(self, function: str, *arguments: object) -> None:
        self.library.check(getattr(self._calls, function)(*arguments), function)


class _LegacyPlan(Runnable):
    """A mode with its descriptors and sizes. Raises CudnnError if the library does not support it."""

    def __init__(self, handle: Handle, op: BatchNormOp, mode: Mode) -> None:
        self._described = described = _Described(handle, op, mode)
        super().__init__(handle, described)
        self._op, self._mode = op, _NUMBERS[mode]
        number = c_double if op.data_type == "float64" else c_float
        self._one, self._zero = number(1.0), number(0.0)
        self.workspace_bytes = 0
        x, parameters, what = described.data, described.parameters, (handle.pointer, self._mode, described.ops)
        try:
            if op.phase == "training_forward":
                self.workspace_bytes = described.size(
                    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize",
                    *(*what, x, described.addend, x, parameters, described.activation),
                )
            elif op.phase == "backward":
                self.workspace_bytes = described.size(
                    "cudnnGetBatchNormalizationBackwardExWorkspaceSize",
                    *(*what, x, described.output, x, described.addend, x, parameters, described.activation),
                )
            if op.phase != "inference":
                self.reserve_bytes = described.size(
                    "cudnnGetBatchNormalizationTrainingExReserveSpaceSize", *what, described.activation, x
                )
        except BaseException:
            self.destroy()
            raise

    def __repr__(self) -> str:
        return f"<{self._mode.name} of {self._op.describe()}, {self.workspace_bytes} + {self.reserve_bytes} bytes>"

    def _bind(self, handle: Handle, pointers: Mapping[int, int], workspace: int) -> VariantPack:
        function, arguments = self._call(_Addresses(self._op, pointers), workspace)
        return VariantPack.of(
            handle.library, function, (handle.pointer, self._mode, *arguments), Descriptors(handle.library)
        )

    def _call(self, at: _Addresses, workspace: int) -> tuple[str, tuple[object, ...]]:
        """The function of the op's phase, and its arguments behind handle and mode."""
        described, one, zero = self._described, addressof(self._one), addressof(self._zero)
        x, parameters, addend, output = described.data, described.parameters, described.addend, described.output
        epsilon, momentum = at.number("epsilon", EPSILON), at.number("momentum", MOMENTUM)
        space = (described.activation, workspace, self.workspace_bytes, at["reserve"], self.reserve_bytes)
        match self._op.phase:
            case "inference":
                return "cudnnBatchNormalizationForwardInference", (
                    *(one, zero, x, at["input"], x, at["output"]),
                    *(parameters, at["scale"], at["bias"], at["running_mean"], at["running_variance"], epsilon),
                )
            case "training_forward":
                return "cudnnBatchNormalizationForwardTrainingEx", (
                    *(described.ops, one, zero, x, at["input"], addend, at["addend"], x, at["output"]),
                    *(parameters, at["scale"], at["bias"], momentum, at["running_mean"], at["running_variance"]),
                    *(epsilon, at["saved_mean"], at["saved_inverse_deviation"], *space),
                )
            case "backward":
                return "cudnnBatchNormalizationBackwardEx", (
                    *(described.ops, one, zero, one, zero, x, at["input"], output, at["output"]),
                    *(x, at["output_gradient"], addend, at["addend_gradient"], x, at["input_gradient"]),
                    *(parameters, at["scale"], at["bias"], at["scale_gradient"], at["bias_gradient"]),
                    *(epsilon, at["saved_mean"], at["saved_inverse_deviation"], *space),
                )
            case "training":
                raise AssertionError("a pair is two calls, of a plan each")


class _Addresses:
    """Addresses by the tensor's name; none for what an op does not have."""

    def __init__(self, op: BatchNormOp, pointers: Mapping[int, int]) -> None:
        self._number = c_double if op.parameter_type == "float64" else c_float
        self._pointers = pointers

    def __getitem__(self, name: str) -> int | None:
        return self._pointers.get(UIDS[name])

    def number(self, name: str, otherwise: float) -> float:
        """What is in host memory at an address; `otherwise` without one."""
        address = self[name]
        return otherwise if address is None else float(self._number.from_address(address).value)


def _order(op: BatchNormOp) -> Iterable[Mode]:
    """What can be asked for an op. Persistent first where frameworks take it: for channels last. At inference there is
    nothing to reduce, hence nothing that would be persistent."""
    if prod(op.shape) >= _TOO_MANY:
        return ()
    if op.statistics == "per_activation":
        return ("per_activation",)
    if op.phase == "inference":
        return ("spatial",)
    return ("spatial_persistent", "spatial") if op.layout == "channels_last" else ("spatial", "spatial_persistent")


def _as_it_lies(op: BatchNormOp) -> BatchNormOp:
    """A canonical op, told so that channels come first if it can be: with statistics of each activation nothing is
    averaged over an axis that has a layout, so that the axes may be named in the order in which they lie."""
    if op.statistics == "per_channel" or op.layout == "channels_first":
        return op
    batch, channels, *spatial = op.shape
    return replace(op, shape=(batch, *spatial, channels), layout="channels_first")


def _that_count(sizes: Iterable[int], strides: Iterable[int]) -> list[tuple[int, int]]:
    """(size, stride) of the axes whose stride means something."""
    return [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
