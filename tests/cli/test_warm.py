"""`warm` in this process: what it reads, counts, refuses and says."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from algosearch.backends.simulated import CandidateScript, Fault, Generated, ProblemScript, Script, SimulatedBackend
from algosearch.cli.progress import Lines, Moment
from algosearch.ops import ConvOp
from tests.cli.helpers import invoke, the_object, tiny_op, without_progress, write_ops
from tests.cli.warming import OPS, counts, simulated_store, use, warm, with_open_dimensions
from tests.compiler.independent import LIGHT, count, count_training


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return simulated_store(tmp_path, monkeypatch)


@pytest.fixture
def ops_file(tmp_path: Path) -> Path:
    return write_ops(tmp_path / "ops.jsonl", OPS)


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
    assert without_progress(result.stderr)[0][0].startswith("0/4  ")


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


def test_the_budget_ends_it_and_keeps_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No time goes by until three have landed, and then all of it, while the last op does not come back."""
    ops = [tiny_op(n) for n in range(6)]
    hanging = CandidateScript(algorithm="simulated/t:stuck", time_us=5.0, faults=(Fault(at="launch", does="hangs"),))
    quick = Script(generated=Generated(candidates=3), facts={"script": "one"})
    backend = SimulatedBackend(replace(quick, problems=(ProblemScript(op=ops[-1], candidates=(hanging,)),)))
    use(monkeypatch, backend)
    landed = 0

    def show(lines: Lines, moment: Moment) -> None:
        nonlocal landed
        landed = moment.answered

    monkeypatch.setattr(Lines, "show", show)
    monkeypatch.setattr("algosearch.cli.warm.perf_counter", lambda: 0.0 if landed < 3 else 1e6)
    file = write_ops(tmp_path / "six.jsonl", ops)
    try:
        result = invoke("warm", file, "--budget", "3", "--json")
    finally:
        backend.release.set()
    assert result.exit_code == 3
    report = the_object(result.stdout)
    found = report["searched"]
    assert 3 <= found <= 5
    assert (report["unanswered"], report["interrupted"]) == (6 - found, False)
    assert f"the budget ran out: {6 - found} of 6 are open; what was found is kept" in result.stderr
    use(monkeypatch, SimulatedBackend(quick))
    again = warm(file)
    assert found <= again["hits"] <= 5  # what it was just committing may be kept as well
    assert again["searched"] == 6 - again["hits"]


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


def test_open_dimensions_are_named_with_their_flags_and_set_by_them(tmp_path: Path) -> None:
    path = with_open_dimensions(tmp_path)
    result = invoke("warm", path)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "--dim height=" in line
    flags = ("--dim", "height=8", "--dim", "N=2")
    assert counts(warm(path, *flags)) == {"operations": 1, "distinct": 1, "searched": 1}
    assert counts(warm(path, "--batch", "2", "--dim", "height=8"))["hits"] == 1


@pytest.mark.parametrize("device", ["simulated", "simulated:1"])
def test_a_device_by_name(ops_file: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SimulatedBackend(devices=2))
    assert counts(warm(ops_file, "--device", device))["searched"] == 4
