"""`show --explain`: the answer of the store for an op on this machine's CPU, or why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from algosearch.backends.cpu import CpuBackend
from algosearch.cli.contents import Entry
from algosearch.cli.explain import explain_op
from algosearch.ops import BatchNormOp, ConvOp, Op
from algosearch.records import Environment, Key, Trials
from tests.cli.helpers import ENVIRONMENT, fill, invoke, record_of, the_object, tiny_op, write_ops

TWICE = ConvOp(input_shape=(1, 2, 6, 6), filter_shape=(2, 2, 3, 3), stride=(2, 2))


@pytest.fixture(scope="module")
def environment() -> Environment:
    """Of this machine's CPU."""
    backend = CpuBackend()
    session = backend.open(backend.devices()[0])
    try:
        return session.environment
    finally:
        session.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    norm = BatchNormOp(shape=(2, 3, 4, 4))
    return fill(
        tmp_path_factory.mktemp("explain") / "store",
        record_of(tiny_op(), environment=environment),
        record_of(norm, environment=environment),
    )


def explained(*args: str | Path) -> list[dict[str, Any]]:
    result = invoke("show", "--json", *args)
    assert result.exit_code == 0, result.stderr
    found = the_object(result.stdout)["explained"]
    assert isinstance(found, list)
    return found


def as_json(op: Op) -> str:
    return msgspec.json.encode(op).decode()


def test_a_hit(store: Path, environment: Environment) -> None:
    (found,) = explained("--store", store, "--explain", as_json(tiny_op()))
    assert found == {
        "problem": tiny_op().describe(),
        "digest": Key.of(tiny_op(), environment).digest,
        "device": environment.device,
        "hit": True,
        "reason": "answered from the store: cpu/numpy:im2col",
        "nearest": None,
    }
    page = invoke("show", "--store", store, "--explain", as_json(tiny_op())).stdout.splitlines()
    assert page[0] == f"hit: {tiny_op().describe()} on {environment.device}"
    assert page[1].endswith(": answered from the store: cpu/numpy:im2col")


def test_a_miss_and_the_nearest_key(store: Path, environment: Environment) -> None:
    (found,) = explained("--store", store, "--explain", as_json(TWICE))
    assert (found["hit"], found["reason"]) == (False, "no record has this key")
    nearest = found["nearest"]
    assert nearest["digest"] == Key.of(tiny_op(), environment).digest
    assert nearest["differences"] == [{"ingredient": "problem.stride", "asked": "[2,2]", "stored": "[1,1]"}]
    page = invoke("show", "--store", store, "--explain", as_json(TWICE)).stdout.splitlines()
    assert page[0] == f"miss: {TWICE.describe()} on {environment.device}"
    assert page[-1].split() == ["problem.stride", "[2,2]", "[1,1]"]


def test_ops_from_a_file(store: Path, tmp_path: Path) -> None:
    file = write_ops(tmp_path / "ops.jsonl", [tiny_op(), TWICE])
    assert [found["hit"] for found in explained("--store", store, "--explain", f"@{file}")] == [True, False]


def test_a_device_by_name(store: Path) -> None:
    (found,) = explained("--store", store, "--explain", as_json(tiny_op()), "--device", "cpu:0")
    assert found["hit"] is True
    refused = invoke("show", "--store", store, "--explain", as_json(tiny_op()), "--device", "gpu")
    assert refused.exit_code == 2
    assert refused.stderr == "error: unknown device 'gpu'; there is: cpu:0\n"


def test_without_a_store(tmp_path: Path) -> None:
    result = invoke("show", "--store", tmp_path / "none", "--explain", as_json(tiny_op()))
    assert result.exit_code == 0
    assert result.stdout.startswith("miss: ")
    assert result.stderr == f"there is no store at {tmp_path / 'none'}\n"


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ('{"op":"conv"}', "missing required field"),
        ("{", "not one JSON object"),
        ("", "holds no op"),
        ('{"op":"conv","input_shape":[1,2,3],"filter_shape":[1,2,9]}', "op.filter_shape = (1, 2, 9)"),
        ("@/no/such/file", "/no/such/file: cannot be read: "),
        ("@", "cannot be read: "),
        ("@a\0b", "cannot be read: "),
    ],
)
def test_what_is_no_op(store: Path, asked: str, part: str) -> None:
    result = invoke("show", "--store", store, "--explain", asked)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert part in line


def test_a_record_that_does_not_cover_the_policy_is_a_miss_of_its_own() -> None:
    record = record_of(tiny_op())
    search = record.searches[0]
    listed = tuple(replace(t, stage="listed", time_us=None, error_us=None, samples=b"") for t in search.trials)
    record = replace(record, searches=(replace(search, trials=Trials.of(listed), complete=False),))
    found = explain_op(tiny_op(), ENVIRONMENT, [Entry.of(record)], {})
    assert found.hit is False
    assert found.reason.startswith("the stored searches do not cover this policy: ")
    assert found.nearest is None


def test_a_record_that_cannot_be_read_is_a_miss_with_its_reason() -> None:
    digest = Key.of(tiny_op(), ENVIRONMENT).digest
    found = explain_op(tiny_op(), ENVIRONMENT, [], {digest: "cut short"})
    assert (found.hit, found.reason, found.nearest) == (False, "cut short", None)


def test_an_incomplete_environment_is_said() -> None:
    incomplete = replace(ENVIRONMENT, incomplete="a library part is missing")
    found = explain_op(tiny_op(), incomplete, [], {})
    assert found.reason == "no record has this key; and nothing that is found here is stored: a library part is missing"
