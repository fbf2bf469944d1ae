"""What is no model, what is cut short, and files that must stay shut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from algosearch.compiler.model import ReadOptions
from algosearch.compiler.onnx_reader import read_onnx
from algosearch.compiler.read import read_model
from algosearch.errors import ModelError, UnreadableModel
from tests.compiler import independent
from tests.compiler.onnx_graphs import conv_model, model, node, only_conv, read, value, weight, write

_watching: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watching is not None and event == "open":
        _watching.append(str(arguments[0]))


sys.addaudithook(_audit)  # for good: a hook cannot be removed, so it looks only while asked to


@contextmanager
def _opened() -> Iterator[list[str]]:
    """Every path that Python code opens meanwhile."""
    global _watching
    names: list[str] = []
    _watching = names
    try:
        yield names
    finally:
        _watching = None


def _external(**entries: str) -> Any:
    proto = conv_model([1, 3, 9, 9], [4, 3, 3, 3])
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return proto


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "../../../etc/passwd"},
        {"location": "/etc/passwd"},
        {"location": "missing.bin"},
        {"location": "link.bin"},
        {"location": "/dev/zero"},
        {"location": "present.bin", "offset": "-1"},
        {"location": "present.bin", "length": str(2**62)},
        {"location": "present.bin", "surprise": "yes"},
        {},
    ],
)
def test_g07_external_data_is_never_opened(tmp_path: Path, entries: dict[str, str]) -> None:
    (tmp_path / "present.bin").write_bytes(bytes(16))
    (tmp_path / "link.bin").symlink_to("/etc/passwd")
    path = write(tmp_path, _external(**entries))
    with _opened() as names:
        found = read_onnx(path, ReadOptions())
    assert names == [str(path)]
    assert only_conv(found).filter_shape == (4, 3, 3, 3)


def test_g06_inference_is_by_no_path_and_opens_nothing_below_python(tmp_path: Path) -> None:
    """The audit hook sees only what Python opens; a FIFO would hold up whoever opens it, in any language."""
    os.mkfifo(tmp_path / "pipe.bin")
    path = write(tmp_path, _external(location="pipe.bin"))
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from algosearch.compiler import ReadOptions\n"
        "from algosearch.compiler.onnx_reader import read_onnx\n"
        "os.chdir(Path(sys.argv[1]).parent)\n"
        "assert read_onnx(Path(sys.argv[1]), ReadOptions()).operations == 1\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=50)


def test_g06_weights_of_many_gigabytes_cost_nothing(tmp_path: Path) -> None:
    proto = _external(location="weights.bin")
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(3 * 2**30)
    proto.graph.initializer[0].dims[:] = [2**16, 2**15, 1, 1]
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2**15
    assert only_conv(read(tmp_path, proto)).filter_bytes == 2**33


def test_f10_inference_is_asked_once_without_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    infer: Callable[..., Any] = onnx.shape_inference.infer_shapes

    def counted(proto: Any, **options: Any) -> Any:
        sizes.append(proto.ByteSize())
        return infer(proto, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counted)
    for nodes in (8, 80):
        names = ["x", *(f"v{index}" for index in range(1, nodes)), "y"]
        chain = [node("Conv", [names[index], "w"], [names[index + 1]], pads=[1, 1]) for index in range(nodes)]
        found = read(tmp_path, model(chain, [value("x", [1, 64, 9])], [weight("w", [64, 64, 3])]))
        assert found.operations == nodes
    assert len(sizes) == 2
    assert sizes[1] < 10 * sizes[0] < 10_000


def _messages() -> dict[str, bytes]:
    proto = conv_model([1, 3, 9, 9], [4, 3, 3, 3])
    return {
        "nothing": b"",
        "one byte": b"\x08",
        "a zero": b"\x00",
        "png": b"\x89PNG\r\n\x1a\n" + bytes(64),
        "html": b"<!DOCTYPE html><html></html>",
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        "zip": b"PK\x03\x04" + bytes(64),
        "graph": proto.graph.SerializeToString(),
        "node": proto.graph.node[0].SerializeToString(),
        "tensor": proto.graph.initializer[0].SerializeToString(),
        "value": proto.graph.input[0].SerializeToString(),
        "opset": proto.opset_import[0].SerializeToString(),
        "no graph": onnx.ModelProto(ir_version=8).SerializeToString(),
        "text": b"hello, world\n",
        "not utf-8": proto.SerializeToString().replace(b"Conv", b"\xff\xfe\xfd\xfc"),
        "nested": b"\x3a\x7f" * 5000,
    }


@pytest.mark.parametrize("kind", _messages())
def test_g08_what_is_no_model_gets_a_typed_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_messages()[kind])
    with pytest.raises(UnreadableModel) as caught:
        read_onnx(path, ReadOptions())
    assert caught.value.source == str(path)
    assert caught.value.reason


def test_g08_a_model_without_nodes_has_no_operations(tmp_path: Path) -> None:
    assert read(tmp_path, model([], [], outputs=[])).operations == 0


def test_g08_cut_short_at_every_percent(tmp_path: Path) -> None:
    source = min(independent.LIGHT, key=lambda each: each.stat().st_size)
    whole = source.read_bytes()
    path = tmp_path / "model.onnx"
    for percent in range(100):
        path.write_bytes(whole[: len(whole) * percent // 100])
        with pytest.raises(UnreadableModel):
            read_onnx(path, ReadOptions())
    path.write_bytes(whole)
    assert read_onnx(path, ReadOptions()).operations == 5


def test_g08_more_than_two_gibibytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("algosearch.compiler.onnx_reader._LARGEST_BYTES", 100)
    with pytest.raises(UnreadableModel, match="2 GiB"):
        read(tmp_path, conv_model([1, 3, 9, 9], [4, 3, 3, 3]))


def test_g08_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (tmp_path, tmp_path / "pipe.onnx", tmp_path / "missing.onnx"):
        with pytest.raises(UnreadableModel):
            read_model(path)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_g08_damaged_bytes_never_escape_as_another_error(tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(conv_model([1, 3, 9, 9], [4, 3, 1, 1], pads=[1, 1, 1, 1]).SerializeToString())
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(damaged))
    with suppress(ModelError):
        read_onnx(path, ReadOptions())
