"""`read_model`: what a source is taken for, and what is said of one that is nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import pytest

from algosearch.compiler import WORKLOADS, Node, ReadOptions, read_model, write_lines
from algosearch.compiler.training import expand
from algosearch.compiler.workloads import build_workload
from algosearch.errors import InvalidOp, UnreadableModel
from algosearch.ops import BatchNormOp, ConvOp

CONV = ConvOp(input_shape=(1, 3, 8, 8), filter_shape=(4, 3, 3, 3))
LINES = write_lines([Node(name="", op=CONV), Node(name="", op=BatchNormOp(shape=(1, 4, 6, 6), phase="inference"))])


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def reason_of(source: str | Path) -> str:
    with pytest.raises(UnreadableModel) as caught:
        read_model(source)
    assert caught.value.source == os.fspath(source)
    return caught.value.reason


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_workload_is_read_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ReadOptions(batch=2, layout="channels_last", dimensions=(("height", 3),))
    assert read_model(name, options) == build_workload(name, options)
    assert read_model(name, options).ignored == ("--dim height=3",)
    assert read_model(name) == build_workload(name)


@pytest.mark.parametrize("name", ["ops.jsonl", "ops.json", "OPS.JSONL", "ops.txt", "ops"])
def test_json_lines_are_known_by_extension_or_by_their_first_byte(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, b"\n" + LINES)
    model = read_model(path)
    assert model.source == str(path)
    assert [node.op for node in model.nodes] == [CONV, BatchNormOp(shape=(1, 4, 6, 6), phase="inference")]
    assert read_model(str(path)) == model


def test_json_lines_are_as_they_are_but_for_training(tmp_path: Path) -> None:
    path = written(tmp_path / "ops.jsonl", LINES)
    stated = read_model(path)
    found = read_model(path, ReadOptions(batch=9, data_type="float16", layout="channels_last"))
    assert found.nodes == stated.nodes
    assert found.ignored == ("--batch 9", "--dtype float16", "--layout channels_last")
    assert read_model(path, ReadOptions(training=True)).nodes == expand(stated.nodes)


def test_training_expands_a_workload_once() -> None:
    assert read_model("r3d18", ReadOptions(training=True)).nodes == expand(build_workload("r3d18").nodes)


def test_a_path_that_exists_comes_before_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "resnet50", LINES)
    monkeypatch.chdir(tmp_path)
    assert read_model("resnet50").operations == 2


def test_a_directory_is_no_model_and_what_it_hides_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resnet50").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    assert reason_of("resnet50") == "is a directory, not a file, which hides the built-in workload of that name"
    assert reason_of("other") == "is a directory, not a file"


@pytest.mark.parametrize("name", ["pipe.onnx", "pipe.jsonl", "pipe"])
def test_a_pipe_is_refused_without_waiting_for_its_writer(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    assert reason_of(tmp_path / name) == "is a pipe, not a file"


def test_a_socket_and_a_device_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket may be 107 bytes long
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("model.onnx")
        assert reason_of("model.onnx") == "is a socket, not a file"
    assert reason_of("/dev/zero") == "is a device, not a file"


@pytest.mark.parametrize("name", ["resnet51", "resnet50.onnx", "", "/dev/null/x"])
def test_what_is_nowhere_is_answered_with_the_workloads_there_are(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reason = reason_of(name)
    assert reason.startswith("no such file")
    assert all(known in reason for known in WORKLOADS)


@pytest.mark.parametrize(("name", "reason"), [("a\0b", "not a path"), ("x" * 5000, "File name too long")])
def test_what_cannot_be_a_path_is_unreadable(name: str, reason: str) -> None:
    assert reason_of(name).startswith(reason)


def test_a_link_to_itself_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "loop.onnx").symlink_to("loop.onnx")
    assert "symbolic links" in reason_of(tmp_path / "loop.onnx")


@contextmanager
def _as_anybody() -> Iterator[None]:
    """Without the rights of root, if we have them: to root every file can be read."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("name", ["ops.jsonl", "ops", "model.onnx"])
def test_g08_a_file_that_may_not_be_read_is_unreadable(name: str) -> None:
    with TemporaryDirectory() as place:  # not tmp_path, which nobody but its owner may enter
        os.chmod(place, 0o755)
        path = written(Path(place, name), LINES)
        import_module("algosearch.compiler.onnx_reader")  # while root: the installed files may be root's as well
        path.chmod(0)
        with _as_anybody():
            assert reason_of(path) == "Permission denied"


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file whose read fails, for root as well")
def test_a_file_whose_read_fails_is_unreadable() -> None:
    assert reason_of("/proc/self/mem") == "Input/output error"


@pytest.mark.parametrize("name", ["model.onnx", "MODEL.ONNX", "model", "model.pb"])
def test_all_else_is_taken_for_onnx(name: str, tmp_path: Path) -> None:
    reason = reason_of(written(tmp_path / name, b"\xff not a model"))
    assert "line" not in reason


def test_training_expands_an_onnx_model_once(tmp_path: Path) -> None:
    tensor = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["image", "filter"], ["out"], name="only")],
        "g",
        [tensor("image", onnx.TensorProto.FLOAT, [1, 3, 8, 8]), tensor("filter", onnx.TensorProto.FLOAT, [4, 3, 3, 3])],
        [tensor("out", onnx.TensorProto.FLOAT, None)],
    )
    path = written(tmp_path / "model.onnx", onnx.helper.make_model(graph).SerializeToString())
    stated = read_model(path)
    assert [node.op for node in stated.nodes] == [CONV]
    assert read_model(path, ReadOptions(training=True)).nodes == expand(stated.nodes)


def test_an_extension_outweighs_the_first_byte(tmp_path: Path) -> None:
    assert reason_of(written(tmp_path / "model.jsonl", b"\x08\x07")).startswith("line 1 ")
    assert "line" not in reason_of(written(tmp_path / "ops.onnx", LINES))


def test_an_impossible_batch_is_an_invalid_op() -> None:
    with pytest.raises(InvalidOp):
        read_model("resnet50", ReadOptions(batch=-1))


def test_only_an_onnx_file_pulls_in_onnx(tmp_path: Path) -> None:
    path = written(tmp_path / "ops.jsonl", LINES)
    program = (
        "import sys\n"
        "from algosearch.compiler import read_model\n"
        "read_model('wavenet'), read_model(sys.argv[1])\n"
        "sys.exit('onnx' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], cwd=tmp_path, check=True, timeout=50)
