"""What a caller's array is, by each protocol that it may have."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from algosearch.backends.arrays import HOST, Seen, seen
from algosearch.errors import InvalidCall
from tests.absurd import absurd

ARRAYS = [
    np.zeros((2, 3, 4), np.float32),
    np.zeros((2, 3, 4), np.float64).transpose(2, 0, 1),
    np.zeros((6, 8), np.float16)[::2, ::4],
    np.zeros((5,), np.int8)[1:],
    np.zeros((), np.int32),
]


class Dlpack:
    """An array that has DLPack and nothing else."""

    def __init__(self, array: Any, device: tuple[int, int] | None = None) -> None:
        self._array, self._device = array, device
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device or self._array.__dlpack_device__()

    def __dlpack__(self, **arguments: Any) -> Any:
        self.asked.append(arguments)
        return self._array.__dlpack__()


class OnCuda:
    """The same array, as if it lay on a device."""

    def __init__(self, array: Any, **changes: Any) -> None:
        interface = dict(array.__array_interface__) | changes
        self.__cuda_array_interface__ = {name: interface[name] for name in ("shape", "typestr", "data", "strides")}


def as_seen(array: Any) -> Seen:
    return Seen(
        address=array.ctypes.data,
        shape=array.shape,
        strides=tuple(each // array.itemsize for each in array.strides),
        element_type=array.dtype.name,
        size_bytes=array.nbytes,
        device=HOST,
    )


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.shape} {array.dtype}")
def test_every_protocol_says_the_same(array: Any) -> None:
    expected = as_seen(array)
    assert seen("x", array) == expected
    assert seen("x", Dlpack(array)) == expected
    assert seen("x", OnCuda(array)) == replace(expected, device=None)


def test_a_device_is_told_by_dlpack_and_no_stream_is_waited_for() -> None:
    array = Dlpack(ARRAYS[0], (2, 5))
    assert seen("x", array) == replace(as_seen(ARRAYS[0]), device=5)
    assert array.asked == [{"stream": -1}]
    assert seen("x", Dlpack(ARRAYS[0], (13, 1))).device == 1


def test_read_only_is_seen() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    assert not seen("x", array).writeable
    assert not seen("x", OnCuda(array)).writeable


def test_what_is_masked_is_refused() -> None:
    array = OnCuda(np.zeros(3, np.float32))
    array.__cuda_array_interface__["mask"] = None
    assert seen("x", array).shape == (3,)
    array.__cuda_array_interface__["mask"] = OnCuda(np.ones(3, np.bool_))
    with pytest.raises(InvalidCall, match="masked"):
        seen("x", array)


def test_types_that_numpy_has_not() -> None:
    array = np.zeros((2, 4), np.uint16)
    assert seen("x", OnCuda(array, typestr="<V2")).element_type == "bfloat16"
    assert seen("x", OnCuda(array)).element_type == "<u2"


def test_a_tensor_of_pytorch_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        """Requires a gradient: it has no interface to offer."""

        shape, dtype, device, is_cuda = (2, 3), "torch.bfloat16", SimpleNamespace(index=4), True

        def data_ptr(self) -> int:
            return 4096

        def stride(self) -> tuple[int, ...]:
            return (3, 1)

        def element_size(self) -> int:
            return 2

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    assert seen("x", Tensor()) == Seen(
        address=4096,
        shape=(2, 3),
        strides=(3, 1),
        element_type="bfloat16",
        size_bytes=12,
        device=4,
        of_torch=True,
    )
    monkeypatch.setattr(Tensor, "is_cuda", False)
    assert seen("x", Tensor()).device == HOST
    assert seen("x", ARRAYS[0]) == as_seen(ARRAYS[0])


@pytest.mark.parametrize(
    "array",
    [
        Dlpack(ARRAYS[0], (4, 0)),  # OpenCL
        Dlpack(object()),
        OnCuda(ARRAYS[0], strides=(48, 16, 3)),
        OnCuda(ARRAYS[0], typestr=None),
        OnCuda(ARRAYS[0], data=None),
        None,
        7,
        "x",
        [1.0],
    ],
    ids=repr,
)
def test_what_is_no_array_is_refused(array: Any) -> None:
    with pytest.raises(InvalidCall) as refused:
        seen("input", array)
    assert refused.value.field == "input"
    assert str(refused.value).startswith("plan.input = ")


@given(array=absurd().filter(lambda each: type(each) is not np.ndarray))
def test_a_strangers_object_raises_nothing_else(array: Any) -> None:
    with pytest.raises(InvalidCall):
        seen("input", array)
