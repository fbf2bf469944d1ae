"""`show`: the table, the filters, one record in full; read-only, whatever is in the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from algosearch.cli.pages import front
from algosearch.ops import BatchNormOp, ConvOp
from algosearch.records import Failure, Record, Trial, Trials
from tests.cli.helpers import (
    ENVIRONMENT,
    environ,
    fill,
    invoke,
    record_of,
    spoil,
    the_object,
    tiny_op,
    without_progress,
)

GROUPED = ConvOp(input_shape=(1, 64, 9, 9), filter_shape=(64, 1, 3, 3), groups=64)
NORM = BatchNormOp(shape=(2, 3, 4, 4))
OTHER_DEVICE = replace(ENVIRONMENT, device="Other CPU")


def all_failed(record: Record) -> Record:
    """The same record with no candidate that works."""
    search = record.searches[0]
    trials = tuple(
        Trial(algorithm=t.algorithm, rank=t.rank, workspace_bytes=0, failure=Failure("not_supported", "no"))
        for t in search.trials
    )
    return replace(record, searches=(replace(search, trials=Trials.of(trials)),))


RECORDS = (
    record_of(tiny_op()),
    record_of(GROUPED),
    record_of(NORM, environment=OTHER_DEVICE),
    all_failed(record_of(tiny_op(1))),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("show") / "store", *RECORDS)


def digests(stdout: str) -> set[str]:
    return {record["digest"] for record in the_object(stdout)["records"]}


def test_every_record_is_a_line(store: Path) -> None:
    result = invoke("show", "--store", store)
    assert result.exit_code == 0
    header, *lines = result.stdout.splitlines()
    assert header.split() == ["key", "problem", "device", "searches", "best", "algorithm", "time", "workspace", "age"]
    assert {line.split()[0] for line in lines} == {record.key.digest[:12] for record in RECORDS}
    (line,) = (line for line in lines if line.startswith(RECORDS[0].key.digest[:12]))
    for part in (tiny_op().describe(), "Some CPU", "cpu/numpy:im2col", "100.0 µs", "1 MiB"):
        assert part in line
    (failed,) = (line for line in lines if line.startswith(RECORDS[3].key.digest[:12]))
    assert "   no algorithm   " in failed


def test_the_same_as_json(store: Path) -> None:
    listed = the_object(invoke("show", "--store", store, "--json").stdout)
    assert listed["store"] == str(store)
    assert listed["unreadable"] == []
    by_digest = {record["digest"]: record for record in listed["records"]}
    assert by_digest.keys() == {record.key.digest for record in RECORDS}
    assert by_digest[RECORDS[0].key.digest] == {
        "digest": RECORDS[0].key.digest,
        "problem": tiny_op().describe(),
        "backend": "cpu",
        "device": "Some CPU",
        "searches": 1,
        "found_at_s": 1_700_000_000,
        "algorithm": "cpu/numpy:im2col",
        "time_us": 100.0,
        "workspace_bytes": 1 << 20,
        "why_none": None,
    }
    assert by_digest[RECORDS[3].key.digest]["algorithm"] is None


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("GROUPS 64", {1}),
        ("batch_norm", {2}),
        ("some cpu", {0, 1, 3}),
        ("im2col", {0, 1, 2}),
        ("problem.groups=64", {1}),
        ("problem.groups=1", {0, 3}),
        ("problem.stride=[1, 1]", {0, 1, 3}),
        ("problem.op=batch_norm", {2}),
        ("device=other cpu", {2}),
        ("facts.numpy=2.0", {0, 1, 2, 3}),
    ],
)
def test_a_filter(store: Path, what: str, found: set[int]) -> None:
    result = invoke("show", what, "--store", store, "--json")
    assert result.exit_code == 0
    assert digests(result.stdout) == {RECORDS[index].key.digest for index in found}


@pytest.mark.parametrize("what", ["nothing like it", "problem.groups=65", "problem.colour=red", "0123456789abcdef"])
def test_a_filter_without_a_match(store: Path, what: str) -> None:
    result = invoke("show", what, "--store", store)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"none of the 4 records in {store} matches\n"
    assert digests(invoke("show", what, "--store", store, "--json").stdout) == set()


@pytest.mark.parametrize("digits", [6, 12, 64])
def test_one_record_in_full(store: Path, digits: int) -> None:
    key = RECORDS[0].key
    result = invoke("show", key.digest[:digits].upper(), "--store", store)
    assert result.exit_code == 0
    page = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert page[0] == tiny_op().describe()
    assert f"record {key.digest}, generation 0" in page
    for name, value in key.ingredients.items():
        assert f"{name} {value}" in page
    origin = "2023-11-14 22:13:20 UTC, by algosearch 0.1.0, in 0.25 s"
    assert f"search 1: race over every candidate that the library has; {origin}" in page
    trials = page.index("algorithm rank workspace stage time error samples build notes failure")
    assert page[trials + 1 : trials + 5] == [
        "cpu/numpy:im2col 1 1 MiB final 100.0 µs ± 0.5000 µs 3 nondeterministic",
        "cpu/numpy:direct 0 0 final 300.0 µs ± 1.000 µs 2",
        "cpu/numpy:slow 2 2 MiB coarse 500.0 µs ± 2.000 µs 0",
        "cpu/numpy:fft 3 64 B listed 0 out_of_memory: none [red]left[/red]",
    ]
    best = page.index("workspace best time with")
    assert page[best + 1 : best + 3] == ["0 300.0 µs cpu/numpy:direct", "1 MiB 100.0 µs cpu/numpy:im2col"]
    assert page[-1].startswith("the default policy picks: cpu/numpy:im2col, final, within ")


def test_one_record_as_json(store: Path) -> None:
    key = RECORDS[0].key
    record = the_object(invoke("show", key.digest, "--store", store, "--json").stdout)
    assert record["ingredients"] == key.ingredients
    (search,) = record["searches"]
    assert search["front"] == ["cpu/numpy:direct", "cpu/numpy:im2col"]
    assert search["provenance"] == {"version": "0.1.0", "found_at_s": 1_700_000_000, "seconds": 0.25, "alone": False}
    assert [trial["time_us"] for trial in search["trials"]] == [300.0, 100.0, 500.0, None]
    assert search["trials"][3]["failure"] == {
        "kind": "out_of_memory",
        "message": "none [red]left[/red]",
        "circumstances": [],
    }


def test_a_record_without_an_algorithm_in_full(store: Path) -> None:
    result = invoke("show", RECORDS[3].key.digest, "--store", store)
    assert result.exit_code == 0
    assert "nothing ran to the end" in result.stdout
    assert "the default policy picks: no algorithm: " in result.stdout


def test_a_provenance_that_makes_no_sense(tmp_path: Path) -> None:
    record = record_of(tiny_op())
    search = record.searches[0]
    nonsense = replace(search.provenance, found_at_s=1 << 62, version="\x1b[2J")
    store = fill(tmp_path / "store", replace(record, searches=(replace(search, provenance=nonsense),)))
    for args in ([], ["--json"], [record.key.digest], [record.key.digest, "--json"]):
        assert invoke("show", "--store", store, *args).exit_code == 0
    page = invoke("show", "--store", store, record.key.digest).stdout
    assert "at an impossible time, by algosearch �[2J, in 0.25 s" in page


def test_the_front_is_what_some_limit_would_get() -> None:
    def trial(name: str, workspace_bytes: int, time_us: float | None, failure: Failure | None = None) -> Trial:
        return Trial(
            algorithm=f"cpu/t:{name}", rank=0, workspace_bytes=workspace_bytes, time_us=time_us, failure=failure
        )

    trials = (
        trial("big", 100, 1.0),
        trial("none", 0, 9.0),
        trial("as-slow", 50, 9.0),
        trial("tie", 100, 2.0),
        trial("wrong", 0, 0.5, Failure("wrong_result", "")),
        trial("never", 0, None),
    )
    assert [one.algorithm for one in front(trials)] == ["cpu/t:none", "cpu/t:big"]
    assert front(()) == ()


def test_an_empty_store(tmp_path: Path) -> None:
    result = invoke("show", "--store", fill(tmp_path / "store"))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == f"the store {tmp_path / 'store'} is empty\n"


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    result = invoke("show", "--store", tmp_path / "none" / "store")
    assert result.exit_code == 0
    assert result.stderr == f"there is no store at {tmp_path / 'none' / 'store'}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_users_own_store_is_not_made_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALGOSEARCH_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = invoke("show")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"there is no store at {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_the_variable_names_the_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_STORE", str(store))
    assert len(digests(invoke("show", "--json").stdout)) == 4


def test_what_cannot_be_read_is_listed(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", *RECORDS)
    digest = RECORDS[1].key.digest
    spoil(store, digest, b"\xff\xff")
    result = invoke("show", "--store", store)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert len(lines) == 1 + 3 + 1 + 1
    assert lines[-1].startswith(f"{digest[:12]} not a record: ")
    listed = the_object(invoke("show", "--store", store, "--json").stdout)
    assert [each["digest"] for each in listed["unreadable"]] == [digest]
    assert len(listed["records"]) == 3
    named = invoke("show", digest[:10], "--store", store)
    assert named.exit_code == 0
    assert "not a record: " in named.stdout


def test_a_filter_and_an_explanation_do_not_go_together(store: Path) -> None:
    result = invoke("show", "conv", "--explain", "{}", "--store", store)
    assert result.exit_code == 2
    assert result.stderr == "error: --explain = '{}': goes without a filter, and there is 'conv'\n"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_whoever_reads_may_leave(store: Path, flags: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        shown = subprocess.run(
            [sys.executable, "-m", "algosearch", "show", "--store", str(store), *flags],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=environ(),
            text=True,
            timeout=50,
            check=False,
        )
    finally:
        os.close(writing)
    assert without_progress(shown.stderr)[1] == []
    assert shown.returncode == 141


def test_looking_makes_no_store(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert invoke("show", "--store", tmp_path).exit_code == 0
    assert list(tmp_path.iterdir()) == []
