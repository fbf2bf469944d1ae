"""How the kernels that copy rows are called, held against the PTX that is in the package. What they do is seen on a
device (`gpu_contract.py`)."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from types import SimpleNamespace
from typing import Any, cast

import pytest

from algosearch.backends.cudnn.driver import Driver
from algosearch.backends.cudnn.gpu import RowCopy
from algosearch.backends.cudnn.row_kernels import PTX, THREADS, RowKernels

WIDENS = RowCopy(
    source=0x1000, target=0x2000, element_bytes=2, source_rows=999, source_width=3, target_rows=1000, target_width=8
)
NARROWS = RowCopy(
    source=0x1000, target=0x2000, element_bytes=4, source_rows=100, source_width=8, target_rows=90, target_width=5
)


class Recorder:
    """A driver, and a module of it, that note how they are asked."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.launches: list[dict[str, Any]] = []

    def get_function(self, name: str) -> SimpleNamespace:
        self.functions.append(name)
        return SimpleNamespace(ptr=77)

    def launcher(self, function: int, stream: c_void_p, **how: Any) -> Callable[[], None]:
        assert function == 77
        self.launches.append({"stream": stream, **how})
        return lambda: None


def asked(copies: Sequence[RowCopy], stream: c_void_p | None = None) -> tuple[str, dict[str, Any]]:
    recorder = Recorder()
    RowKernels(cast("Driver", recorder), recorder, 4).copier(copies, stream or c_void_p(5))
    (name,), (launch,) = recorder.functions, recorder.launches
    return name, launch


@pytest.mark.parametrize(("copy", "name"), [(WIDENS, "widen_2"), (NARROWS, "narrow_4")])
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_launched_is_in_the_ptx(copy: RowCopy, name: str, count: int) -> None:
    found, launch = asked([copy] * count)
    assert found == name
    described = re.search(rf"\.entry {name}\((.*?)\)", PTX.read_text(), re.DOTALL)
    assert described is not None
    sizes = [int(size) for size in re.findall(r"\.param \.align 8 \.b8 \w+\[(\d+)\]", described[1])]
    assert sizes == [ctypes.sizeof(each) for each in launch["arguments"]] == [32, 32]
    assert launch["blocks"][1] == count


def test_the_arguments_are_the_copies() -> None:
    _, launch = asked([WIDENS])
    rows = launch["arguments"][0]
    fields = [getattr(rows, name) for name, *_ in rows._fields_]
    assert fields == [0x1000, 0x2000, 999, 3, 1000, 8]


def test_no_more_blocks_than_there_is_work_or_room_for() -> None:
    assert asked([WIDENS])[1]["blocks"] == (-(-1000 // THREADS), 1)
    assert asked([NARROWS])[1]["blocks"] == (1, 1)
    large = RowCopy(
        source=0, target=0, element_bytes=2, source_rows=10**6, source_width=3, target_rows=10**6, target_width=16
    )
    assert asked([WIDENS, large])[1]["blocks"] == (4 * 8, 2)


def test_the_stream_is_read_at_each_launch() -> None:
    stream = c_void_p(3)
    assert asked([WIDENS], stream)[1]["stream"] is stream


def test_copies_of_different_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="unpack"):
        asked([WIDENS, NARROWS])
