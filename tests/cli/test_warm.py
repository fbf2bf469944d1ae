"""`warm` in this process: what it reads, counts, refuses and says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from algosearch.backends import Backend, discover
from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Fault,
    ProblemScript,
    Script,
    SimulatedBackend,
)
from algosearch.compiler import WORKLOADS
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import Record
from algosearch.stores import DirectoryStore
from algosearch.stores.base import Committed
from tests.cli.helpers import invoke, the_object, tiny_op, write_ops
from tests.compiler.independent import LIGHT, count, count_training
from tests.compiler.onnx_graphs import model, node, value, weight, write

OPS: list[Op] = [
    tiny_op(0),
    BatchNormOp(shape=(1, 2, 4, 4)),
    tiny_op(1),
    tiny_op(0),
    ConvOp(input_shape=(1, 2, 9), filter_shape=(2, 2, 3)),
]
"""Five, of which four are different."""


def use(monkeypatch: pytest.MonkeyPatch, backend: SimulatedBackend) -> None:
    """Let the command line find this backend and no other."""

    def only_this() -> tuple[Backend, ...]:
        return (backend,)

    monkeypatch.setattr(discover, "default_backends", only_this)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A simulated device, and a store of this test's own, found through the environment."""
    use(monkeypatch, SimulatedBackend())
    for name in ("ALGOSEARCH_MODE", "ALGOSEARCH_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALGOSEARCH_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def ops_file(tmp_path: Path) -> Path:
    return write_ops(tmp_path / "ops.jsonl", OPS)


def warm(*args: str | Path, code: int = 0) -> dict[str, Any]:
    result = invoke("warm", *args, "--json")
    assert result.exit_code == code, result.stderr
    return the_object(result.stdout)


def counts(report: dict[str, Any]) -> dict[str, int]:
    """The counts that are not 0; they add up."""
    answers = ("hits", "searched", "heuristic", "failed", "unanswered")
    assert report["distinct"] == sum(report[name] for name in answers)
    assert report["failed"] == len(report["failures"])
    return {name: report[name] for name in ("operations", "distinct", *answers) if report[name]}


def test_the_first_run_searches_and_the_second_finds(ops_file: Path, store: Path) -> None:
    first = warm(ops_file)
    assert counts(first) == {"operations": 5, "distinct": 4, "searched": 4}
    assert first["models"] == [{"source": str(ops_file), "operations": 5, "skipped": 0, "dimensions": []}]
    assert first["skipped"] == {}
    assert first["store"] == str(store)
    assert first["interrupted"] is False
    assert first["seconds"] > 0
    assert first["gain"] == pytest.approx(first["first_us"] / first["picks_us"], abs=1e-4)
    second = warm(ops_file)
    assert counts(second) == {"operations": 5, "distinct": 4, "hits": 4}
    assert second["gain"] == first["gain"]
    assert len(the_object(invoke("show", "--json").stdout)["records"]) == 4


def test_equal_problems_of_several_models_are_one(tmp_path: Path) -> None:
    one, other = write_ops(tmp_path / "one.jsonl", OPS[:3]), write_ops(tmp_path / "other.jsonl", OPS[2:])
    report = warm(one, other)
    assert counts(report) == {"operations": 6, "distinct": 4, "searched": 4}
    assert [model["operations"] for model in report["models"]] == [3, 3]


def test_the_gain_is_of_the_first_candidates_over_the_picks(ops_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def candidates(op: ConvOp, *times_us: float) -> ProblemScript:
        scripts = (CandidateScript(algorithm=f"simulated/t:{n}", time_us=t) for n, t in enumerate(times_us))
        return ProblemScript(op=op, candidates=tuple(scripts))

    problems = (candidates(tiny_op(0), 90.0, 30.0), candidates(tiny_op(1), 10.0, 20.0))
    use(monkeypatch, SimulatedBackend(Script(problems=problems)))
    report = warm(write_ops(ops_file, [tiny_op(0), tiny_op(1)]))
    assert report["gain"] == pytest.approx((90 + 10) / (30 + 10))
    assert report["gain"] == warm(ops_file)["gain"]  # hits count as well


def test_the_summary_is_the_result_for_people(ops_file: Path, store: Path) -> None:
    result = invoke("warm", ops_file)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[:5] == ["operations 5 in 1 model", "distinct 4", "hits 0", "searched 4", "failed 0"]
    assert lines[5].startswith("time ")
    assert " ×: the library's first candidates take " in lines[6]
    assert lines[7:] == [f"store {store}"]
    assert result.stderr.startswith("0/4  0 s")


def test_json_leaves_the_summary_to_stderr(ops_file: Path) -> None:
    result = invoke("warm", ops_file, "--json")
    the_object(result.stdout)
    assert "operations   5 in 1 model" in result.stderr


def test_an_op_without_an_algorithm_fails_and_the_rest_is_kept(ops_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = ProblemScript(op=tiny_op(1))
    broken = ProblemScript(op=tiny_op(0), faults=(Fault(at="enumerate", does="raises"),))
    use(monkeypatch, SimulatedBackend(Script(problems=(none, broken))))
    result = invoke("warm", ops_file, "--json")
    assert result.exit_code == 1
    report = the_object(result.stdout)
    assert counts(report) == {"operations": 5, "distinct": 4, "searched": 2, "failed": 2}
    reasons = {failure["problem"]: failure["reason"] for failure in report["failures"]}
    assert reasons[tiny_op(1).describe()].startswith("no algorithm for ")
    assert reasons[tiny_op(0).describe()].startswith("the search for ")
    assert "Traceback" not in result.stderr
    assert sum(line.startswith("failed: ") for line in result.stderr.splitlines()) == 2
    assert counts(warm(ops_file, code=1))["hits"] == 2


def test_many_failures_are_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [tiny_op(n) for n in range(13)]
    use(monkeypatch, SimulatedBackend(Script(problems=tuple(ProblemScript(op=op) for op in ops))))
    result = invoke("warm", write_ops(tmp_path / "ops.jsonl", ops))
    assert result.exit_code == 1
    failed = [line for line in result.stdout.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 11
    assert failed[-1] == "failed: 3 more, which --json lists"


def test_mode_heuristic_runs_nothing_and_stores_nothing(ops_file: Path) -> None:
    report = warm(ops_file, "--mode", "heuristic")
    assert counts(report) == {"operations": 5, "distinct": 4, "heuristic": 4}
    assert report["gain"] is None
    assert the_object(invoke("show", "--json").stdout)["records"] == []
    assert "4, which are not stored" in invoke("warm", ops_file, "--mode", "heuristic").stdout


def test_mode_cached_fails_what_is_not_there(ops_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(write_ops(tmp_path / "one.jsonl", OPS[:1]))
    monkeypatch.setenv("ALGOSEARCH_MODE", "cached")
    report = warm(ops_file, code=1)
    assert counts(report) == {"operations": 5, "distinct": 4, "hits": 1, "failed": 3}
    reasons = [failure["reason"] for failure in report["failures"]]
    assert all(reason.startswith("mode cached cannot answer ") for reason in reasons)
    assert [reason.count("not in the store") for reason in reasons] == [1, 1, 1]
    assert counts(warm(ops_file, "--mode", "race")) == {"operations": 5, "distinct": 4, "hits": 1, "searched": 3}


def test_mode_exhaustive_is_another_search(ops_file: Path) -> None:
    warm(ops_file)
    assert counts(warm(ops_file, "--mode", "exhaustive"))["searched"] == 4
    assert counts(warm(ops_file, "--mode", "exhaustive"))["hits"] == 4


def test_training_asks_for_the_gradients(tmp_path: Path) -> None:
    file = write_ops(tmp_path / "ops.jsonl", [tiny_op()])
    report = warm(file, "--training")
    assert counts(report) == {"operations": 1, "distinct": 3, "searched": 3}
    assert report["operations_with_gradients"] == 3
    assert report["models"][0]["operations"] == 1
    assert "1 in 1 model, and 2 gradients" in invoke("warm", file, "--training").stdout
    assert warm(file)["operations_with_gradients"] == 1


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_the_light_models_are_counted_right_for_training(path: Path) -> None:
    report = warm(path, "--training", "--mode", "heuristic")
    with_gradients, distinct = count_training(path)
    assert counts(report) == {"operations": count(path)[0], "distinct": distinct, "heuristic": distinct}
    assert report["operations_with_gradients"] == with_gradients


def test_options_of_reading_are_passed_on() -> None:
    args = (
        "mobilenet_v2",
        "--mode",
        "heuristic",
        "--batch",
        "3",
        "--dtype",
        "float16",
        "--layout",
        "channels_last",
        "-v",
    )
    result = invoke("warm", *args)
    assert result.exit_code == 0
    assert "forward 3x32x112x112 * 32x1x3x3 pad 1 groups 32 float16 channels_last" in result.stderr


def test_what_is_left_out_is_said_by_reason() -> None:
    report = warm("mobilenet_v2", "--mode", "heuristic", "--dtype", "int8")
    assert report["skipped"] == {
        "BatchNormalization: int8 has no batch norm: it folds into the convolution before it": 52
    }
    result = invoke("warm", "mobilenet_v2", "--mode", "heuristic", "--dtype", "int8")
    assert "skipped 52: BatchNormalization: int8 has no batch norm" in result.stdout


def test_verbose_says_what_becomes_of_every_search(ops_file: Path) -> None:
    events = invoke("warm", ops_file, "-v").stderr
    assert events.count(" landed: ") == 4
    assert "flights: " in events
    assert "flights: " not in invoke("warm", ops_file).stderr


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_the_light_models_are_counted_right(path: Path) -> None:
    report = warm(path, "--mode", "heuristic")
    operations, distinct = count(path)
    assert counts(report) == {"operations": operations, "distinct": distinct, "heuristic": distinct}


def test_there_are_nine_light_models() -> None:
    assert len(LIGHT) == 9


def with_open_dimensions(directory: Path) -> Path:
    """A model of one convolution whose batch and height have only names."""
    graph = model([node("Conv", ["x", "w"])], [value("x", ["N", 2, "height", 8])], [weight("w", [2, 2, 3, 3])])
    return write(directory, graph, "open.onnx")


def test_open_dimensions_are_named_with_their_flags_and_set_by_them(tmp_path: Path) -> None:
    path = with_open_dimensions(tmp_path)
    result = invoke("warm", path)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "--dim height=" in line
    flags = ("--dim", "height=8", "--dim", "N=2")
    assert counts(warm(path, *flags)) == {"operations": 1, "distinct": 1, "searched": 1}
    assert counts(warm(path, "--batch", "2", "--dim", "height=8"))["hits"] == 1


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


@pytest.mark.parametrize("device", ["simulated", "simulated:1"])
def test_a_device_by_name(ops_file: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SimulatedBackend(devices=2))
    assert counts(warm(ops_file, "--device", device))["searched"] == 4


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
