"""`Seen`: what a caller's array is: where it lies, its shape, strides and type. Nothing is copied or kept.

On a device: PyTorch's tensors, whatever has `__cuda_array_interface__` (CuPy, JAX, Numba), and DLPack. On the host:
numpy's arrays, and DLPack. No library is imported for it, and no stream is waited for: what is in an array must be
there by the order of the stream that reads it, as for any kernel.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from math import prod
from typing import Any, Final

import msgspec

from algosearch.errors import InvalidCall
from algosearch.ops import Shape

HOST: Final = -1
"""As a device: the host's memory."""
_TYPESTRS: Final = {
    "<f2": "float16",
    "<V2": "bfloat16",
    "<f4": "float32",
    "<f8": "float64",
    "|i1": "int8",
    "|u1": "uint8",
    "<i4": "int32",
}
"""`<V2` is how PyTorch and ml_dtypes name what numpy has no type for."""
_DLPACK_TYPES: Final = {
    (2, 16): "float16",
    (4, 16): "bfloat16",
    (2, 32): "float32",
    (2, 64): "float64",
    (0, 8): "int8",
    (1, 8): "uint8",
    (0, 32): "int32",
}
"""(code, bits), as in `dlpack.h`."""
_ON_CUDA: Final = (2, 13)  # kDLCUDA, kDLCUDAManaged
_ON_CPU: Final = (1, 3)  # kDLCPU, kDLCUDAHost
_CAPSULE: Final = b"dltensor"
_RULE: Final = "must be a CuPy array, a PyTorch tensor, or have __cuda_array_interface__ or __dlpack__"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's array."""

    address: int
    shape: Shape
    strides: Shape
    """In elements."""
    element_type: str
    """As in `ConvOp`; the library's own word if no op has such elements."""
    size_bytes: int
    """Of its elements."""
    device: int | None = None
    """Its ordinal, `HOST`, or None where the array does not tell."""
    writeable: bool = True
    of_torch: bool = False


def seen(name: str, array: Any) -> Seen:
    """An array on a device or on the host, by whichever protocol it has.

    Args:
        name: what the caller calls it, for the error.

    Raises:
        InvalidCall: it is no array that can be told.
    """
    try:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(array, torch.Tensor):
            return _of_torch(array)
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is not None:
            return _of_interface(interface)
        interface = getattr(array, "__array_interface__", None)
        if interface is not None:
            return _of_interface(interface, HOST)
        if hasattr(array, "__dlpack__"):
            return _of_dlpack(array)
    except Exception as error:  # a stranger's array may raise anything
        raise InvalidCall(name, array, f"cannot be read: {type(error).__name__}: {error}") from error
    raise InvalidCall(name, array, _RULE)


def dense_strides(shape: Shape, *, channels_last: bool) -> Shape:
    """In elements, of a dense [N, C, spatial…], or of one whose channels lie closest together."""
    order = (0, *range(2, len(shape)), 1) if channels_last else range(len(shape))
    strides, step = [0] * len(shape), 1
    for axis in reversed(tuple(order)):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _of_torch(tensor: Any) -> Seen:
    shape = tuple(tensor.shape)
    return Seen(
        address=tensor.data_ptr(),
        shape=shape,
        strides=tuple(tensor.stride()),
        element_type=str(tensor.dtype).removeprefix("torch."),
        size_bytes=prod(shape) * tensor.element_size(),
        device=(tensor.device.index or 0) if tensor.is_cuda else HOST,
        of_torch=True,
    )


def _of_interface(interface: dict[str, Any], device: int | None = None) -> Seen:
    """`__cuda_array_interface__`, or numpy's, which has the same fields."""
    if interface.get("mask") is not None:
        raise TypeError("some of its elements are masked")
    shape = tuple(map(int, interface["shape"]))
    typestr = str(interface["typestr"])
    size = int(typestr[2:])
    address, read_only = interface["data"]
    strides = interface.get("strides")
    return Seen(
        address=int(address),
        shape=shape,
        strides=_dense(shape) if strides is None else tuple(_elements(int(each), size) for each in strides),
        element_type=_TYPESTRS.get(typestr, typestr),
        size_bytes=prod(shape) * size,
        device=device,
        writeable=not read_only,
    )


def _of_dlpack(array: Any) -> Seen:
    kind, ordinal = (int(each) for each in array.__dlpack_device__())
    if kind in _ON_CUDA:
        capsule, device = array.__dlpack__(stream=-1), ordinal  # -1: no stream is to wait for another
    elif kind in _ON_CPU:
        capsule, device = array.__dlpack__(), HOST
    else:
        raise TypeError(f"DLPack's device type {kind} is neither CUDA nor the host")
    # The capsule stays the producer's, and with it whatever it keeps: only its fields are read.
    tensor = ctypes.cast(_pointer_in(capsule, _CAPSULE), POINTER(_DLTensor)).contents
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else _dense(shape)
    if tensor.lanes != 1:
        raise TypeError("its elements are vectors")
    return Seen(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        strides=strides,
        element_type=_DLPACK_TYPES.get((tensor.code, tensor.bits), f"type {tensor.code} of {tensor.bits} bits"),
        size_bytes=prod(shape) * tensor.bits // 8,
        device=device,
    )


class _DLTensor(Structure):
    """`DLTensor` of `dlpack.h`, the first field of what an unversioned capsule holds."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype, _pointer_in.argtypes = c_void_p, (py_object, c_char_p)


def _dense(shape: Shape) -> Shape:
    return dense_strides(shape, channels_last=False)


def _elements(stride_bytes: int, size: int) -> int:
    if stride_bytes % size:
        raise TypeError(f"a stride of {stride_bytes} bytes is no whole number of elements")
    return stride_bytes // size
