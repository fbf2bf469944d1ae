"""`warm` where something is wrong: input, settings, device, store, or options that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from algosearch.backends.simulated import DeviceScript, Script, SimulatedBackend
from algosearch.compiler import WORKLOADS
from algosearch.records import Record
from algosearch.stores import DirectoryStore
from algosearch.stores.base import Committed
from tests.cli.helpers import invoke, the_object, write_ops
from tests.cli.warming import OPS, counts, simulated_store, use, warm, with_open_dimensions
from tests.compiler.onnx_graphs import model, node, value, weight, write


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return simulated_store(tmp_path, monkeypatch)


@pytest.fixture
def ops_file(tmp_path: Path) -> Path:
    return write_ops(tmp_path / "ops.jsonl", OPS)


BAD: Sequence[tuple[list[str], str]] = [
    (["no-such-model"], ", ".join(WORKLOADS)),
    (["{tmp}"], "is a directory"),
    (["{tmp}/cut.onnx"], "cut.onnx"),
    (["{tmp}/bad.jsonl"], "line 2"),
    (["resnet50", "--dim", "height"], "--dim = 'height': must be NAME=N"),
    (["resnet50", "--dim", "=3"], "must be NAME=N"),
    (["resnet50", "--dim", "a=0"], "must be NAME=N"),
    (["resnet50", "--dim", "a=-1"], "must be NAME=N"),
    (["resnet50", "--dim", "a=²"], "must be NAME=N"),
    (["resnet50", "--dim", "a=" + "9" * 5000], "must be NAME=N"),
    (["resnet50", "--dim", "a=1", "--dim", "a=2"], "a is 1 already"),
    (["resnet50", "--batch", "0"], "--batch = 0: must be at least 1"),
    (["resnet50", "--dtype", "float8"], "must be one of float16, "),
    (["resnet50", "--layout", "nhwc"], "must be one of channels_first, channels_last"),
    (["resnet50", "--mode", "fast"], "must be one of cached, heuristic, race, exhaustive"),
    (["resnet50", "--budget", "0"], "must be more than 0"),
    (["resnet50", "--budget", "nan"], "must be more than 0"),
    (["resnet50", "--device", "gpu"], "unknown device 'gpu'; there is: simulated:0"),
    (["resnet50", "--store", "etcd://user:secret@host"], "the store etcd://host cannot be used"),
    (["resnet50", "--store", ""], "it is empty"),
]


@pytest.mark.parametrize(("args", "part"), BAD, ids=lambda value: " ".join(value)[:40])
def test_bad_input_is_one_line_and_2(args: list[str], part: str, tmp_path: Path) -> None:
    whole = with_open_dimensions(tmp_path).read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "bad.jsonl").write_text('{"op":"batch_norm","shape":[1,2,3,3]}\n{"op":"conv","groups":0}\n')
    result = invoke("warm", *(arg.replace("{tmp}", str(tmp_path)) for arg in args))
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert part in line
    assert "secret" not in line


def test_a_setting_that_cannot_be_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_MODE", "fast")
    result = invoke("warm", "resnet50")
    assert result.exit_code == 2
    assert result.stderr == ("error: ALGOSEARCH_MODE = 'fast': must be one of cached, heuristic, race, exhaustive\n")


def test_a_device_that_cannot_be_opened_is_refused(ops_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SimulatedBackend(Script(devices=(DeviceScript(unavailable="it is gone"),))))
    result = invoke("warm", ops_file)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "error: simulated:0 cannot be used: it is gone; " in result.stderr


def test_a_store_that_cannot_be_used_costs_a_warning(ops_file: Path, tmp_path: Path) -> None:
    """F06."""
    (tmp_path / "file").write_text("not a directory")
    result = invoke("warm", ops_file, "--json", "--store", tmp_path / "file")
    assert result.exit_code == 0
    report = the_object(result.stdout)
    assert counts(report)["searched"] == 4
    assert report["store"] is None
    (reason,) = report["not_kept"]
    assert str(tmp_path / "file") in reason
    assert f"not kept: {reason}" in result.stderr.splitlines()
    (warning,) = (line for line in result.stderr.splitlines() if line.startswith("warning: "))
    assert str(tmp_path / "file") in warning


def test_a_store_that_keeps_nothing_is_named_in_the_report(
    ops_file: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be opened and read: full, or read-only. Else a job would rely on answers that are not there."""

    async def full(self: DirectoryStore, record: Record, *, after: int) -> Committed:
        return Committed(record, won=True, kept=False)

    monkeypatch.setattr(DirectoryStore, "commit", full)
    result = invoke("warm", ops_file, "--json")
    (reason,) = the_object(result.stdout)["not_kept"]
    assert reason == f"4 records could not be written to {store}; a warning says why"
    assert f"not kept: {reason}" in result.stderr.splitlines()


def test_a_device_on_which_nothing_is_stored_is_named_in_the_report(
    ops_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, SimulatedBackend(Script(devices=(DeviceScript(incomplete="a part is missing"),))))
    report = warm(ops_file)
    assert counts(report)["searched"] == 4
    (reason,) = report["not_kept"]
    assert reason.startswith("nothing that simulated on ")
    assert reason.endswith(" finds is stored: a part is missing")


def without_any_op(directory: Path) -> Path:
    return write(directory, model([node("Relu", ["x"])], [value("x", [1, 2])]), "empty.onnx")


def with_nothing_readable(directory: Path) -> Path:
    """A model of two convolutions that no op describes."""
    graph = model([node("ConvInteger", ["x", "w"], ["y"])] * 2, [value("x", [1, 2, 3, 3])], [weight("w", [2, 2, 3, 3])])
    return write(directory, graph, "integer.onnx")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (without_any_op, "{path} has no convolution or batch norm"),
        (with_nothing_readable, "no convolution or batch norm in {path} could be read, and 2 were skipped"),
    ],
)
def test_a_model_of_which_nothing_is_warmed(make: Callable[[Path], Path], said: str, tmp_path: Path) -> None:
    path = make(tmp_path)
    said = said.format(path=path)
    result = invoke("warm", path)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"warning: nothing was warmed: {said}"
    report = warm(path, code=1)
    assert counts(report) == {}
    assert report["models"][0]["skipped"] == sum(report["skipped"].values())
    # Among others it is told from them, and they are warmed.
    result = invoke("warm", "resnet50", path, "--mode", "heuristic")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"warning: {said}"


def test_an_option_that_changes_nothing_is_named(tmp_path: Path, ops_file: Path) -> None:
    path = with_open_dimensions(tmp_path)
    args = ("--dim", "height=8", "--batch", "2", "--dim", "heigth=9")
    result = invoke("warm", path, ops_file, *args, "--json")
    assert result.exit_code == 0
    assert the_object(result.stdout)["unused"] == ["--dim heigth=9"]
    (warning,) = (line for line in result.stderr.splitlines() if line.startswith("warning: "))
    assert warning == (
        f"warning: --dim heigth=9 changed nothing: {path} has N, x.1, height, x.3; {ops_file} has no dimension to set"
    )


def test_options_that_change_nothing_in_a_file_of_ops(ops_file: Path) -> None:
    args = ("--batch", "2", "--dtype", "float16", "--layout", "channels_last", "--dim", "N=2")
    report = warm(ops_file, *args)
    assert report["unused"] == ["--batch 2", "--dtype float16", "--layout channels_last", "--dim N=2"]
    assert (
        "warning: --batch 2 changed nothing: there is nothing in the model for it"
        in invoke("warm", ops_file, *args).stderr.splitlines()
    )
    # A workload heeds all of them but the last.
    assert warm("resnet50", ops_file, *args, "--mode", "heuristic")["unused"] == ["--dim N=2"]


def test_many_dimensions_are_cut_short(tmp_path: Path) -> None:
    inputs = [value(f"x{n}", [1, 2, 8, 8]) for n in range(5)]
    path = write(tmp_path, model([node("Conv", ["x0", "w"])], inputs, [weight("w", [2, 2, 3, 3])]))
    warning = next(line for line in invoke("warm", path, "--dim", "N=1").stderr.splitlines() if "changed" in line)
    assert warning.endswith("x2.2, x2.3 and 8 more")
    assert len(warm(path)["models"][0]["dimensions"]) == 20
