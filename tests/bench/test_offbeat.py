"""What `bench/offbeat.py` joins to what, and what it says of that, on the CPU."""

import argparse
import json
from pathlib import Path
from typing import Any

import apart
import offbeat
import pytest
from report import environment

from tests.bench.test_options import ended

NAMES = [name for name, _ in offbeat.cases("all/cube")]
CASE = {"mine_us": 12.0, "best_us": 10.0, "first_us": 15.0, "graph_us": 14.0, "seconds": 0.5}
SAMPLE: offbeat.Sample = (
    {"device": {}, "cases": {NAMES[0]: CASE}, "refused": ["one"]},
    {"cases": {NAMES[0]: {"graph_us": 7.0}}},
)


def run(commit: str | None = environment()["commit"], against: str = "all", samples: Any = (SAMPLE,)) -> dict[str, Any]:
    return {"environment": {"commit": commit}, "raw": {"against": against, "samples": samples}}


@pytest.mark.parametrize(
    ("earlier", "why"),
    [
        ({}, "no finished run of this bench: KeyError('raw')"),
        ([1], "no finished run of this bench: TypeError("),
        (
            {"unfinished": True, "raw": SAMPLE[0], "environment": {}},
            "no finished run of this bench: KeyError('samples')",
        ),
        (run(samples=[[1, 2]]), "no finished run of this bench: TypeError("),
        (run(samples=[[{}, {}]]), "no finished run of this bench: KeyError('cases')"),
        (run(samples=[[{"cases": []}, {"cases": []}]]), "no finished run of this bench: "),
        (run(commit="0000000"), f"is of 0000000, and this is {environment()['commit']}"),
        (run(against="tried"), "is against tried, and this is against all"),
        (run(samples=[SAMPLE, SAMPLE]), "has 2 samples, and this will have 1"),
    ],
)
def test_what_cannot_be_joined_is_refused_before_anything_is_measured(
    earlier: object, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "earlier.json"
    file.write_text(json.dumps(earlier))
    done = ended("offbeat.py", "--join", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: argument --join: {file} " in done.stderr.splitlines()[-1]
    assert why in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_neither_are_no_file_no_json_another_list_nor_what_would_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("x{")
    (tmp_path / "run.json").write_text(json.dumps(run()))
    for name, options, why in (
        ("none.json", (), "no finished run of this bench: FileNotFoundError("),
        ("odd.json", (), "no finished run of this bench: JSONDecodeError("),
        ("run.json", ("--list", "padding"), "is not of padding"),
        ("run.json", ("--json", str(tmp_path / "run.json")), "would be overwritten before this is joined to it"),
    ):
        done = ended("offbeat.py", "--join", str(tmp_path / name), *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "run.json").read_text()) == json.loads(json.dumps(run()))


def test_what_can_be_joined_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run()))
    options = argparse.Namespace(join=file, json=None, against="all", times=1, list="all/cube")
    assert offbeat._earlier(argparse.ArgumentParser(), options) == [SAMPLE]


def test_more_is_skipped_than_there_is() -> None:
    done = ended("offbeat.py", "--list", "all/cube", "--skip", "6")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("error: argument --skip: all/cube has no case behind the first 6\n")


def test_two_runs_are_one() -> None:
    later: offbeat.Sample = ({"device": {}, "cases": {NAMES[1]: CASE}, "refused": ["two"]}, {"cases": {}})
    mine, theirs = offbeat._joined(SAMPLE, later)
    assert list(mine["cases"]) == NAMES[:2]
    assert mine["refused"] == ["one", "two"]
    assert theirs == SAMPLE[1]
    figures = offbeat._figures([(mine, theirs)])
    assert figures["cases_measured"] == 2
    assert figures["regret_geometric_mean"] == pytest.approx(0.2)
    assert figures["first_answer_geometric_mean"] == pytest.approx(0.5)
    assert figures["against_torch_benchmark_geometric_mean"] == pytest.approx(1.0)
    assert figures["against_torch_benchmark_cases"] == 1


def test_where_every_pick_is_refused_that_is_said() -> None:
    figures = offbeat._figures([({"cases": {}, "refused": ["a", "b"]}, {"cases": {}})])
    assert (figures["cases_measured"], figures["picks_refused"]) == (0, 2)
    assert {figures[f"{what}_geometric_mean"] for what in ("regret", "first_answer", "against_torch_benchmark")} == {
        None
    }
    assert (figures["regret_worst"], figures["seconds_a_key_mean"], figures["seconds_a_key_worst"]) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(("gpus", "stride", "skip"), [(1, 1, 1), (2, 1, 3), (4, 1, 2), (2, 2, 1)])
def test_each_gpu_has_its_share_and_nothing_is_left_out(
    gpus: int, stride: int, skip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def sample(bench: str, who: str, listed: str, every: int, first: int, *rest: object, gpu: str | None) -> Any:
        assert (bench, who, gpu is None) == (offbeat.__file__, "ours", gpus == 1)
        mine = [name for name, _ in offbeat.cases(listed, every, first)]
        asked.extend(mine)
        return {"cases": dict.fromkeys(mine, CASE), "refused": [gpu]}

    monkeypatch.setattr(apart, "sample", sample)
    options = argparse.Namespace(list="all/cube", stride=stride, skip=skip, gpus=gpus, against="all")
    found = offbeat._side_by_side("ours", options, 60.0)
    assert list(found["cases"]) == NAMES[skip::stride]
    assert sorted(asked) == sorted(NAMES[skip::stride])
    assert len(found["refused"]) == gpus
