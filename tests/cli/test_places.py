"""Stores and files in odd places: named by what is no text, or from a directory that has been deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from algosearch.cli.places import one_store
from algosearch.errors import InvalidSetting
from tests.cli.helpers import fill, invoke, record_of, the_object, tiny_op
from tests.nowhere import nowhere


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A store whose name is no UTF-8."""
    path = tmp_path / os.fsdecode(b"st\xff")
    fill(path, record_of(tiny_op()))
    return path


@pytest.mark.parametrize(
    "verb", [["stats"], ["show"], ["doctor"], ["prune", "--undecodable"], ["export", "FILE"], ["verify"]]
)
def test_json_of_a_store_whose_name_is_no_text(odd: Path, tmp_path: Path, verb: list[str]) -> None:
    words = [word.replace("FILE", str(tmp_path / os.fsdecode(b"x\xfe"))) for word in verb]
    result = invoke(*words, "--store", odd, "--json")
    assert result.exit_code in (0, 1), result.stderr
    assert "st\ufffd" in str(the_object(result.stdout)["store"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["stats", "--store", "here"], 2),
        (["show", "--store", "here"], 2),
        (["prune", "--undecodable", "--store", "here"], 2),
        (["verify", "--store", "here"], 2),
        (["doctor", "--store", "here"], 1),
        (["doctor", "--base", "here"], 1),
        (["import", "FILE", "--store", "here"], 2),
        (["export", "here"], 2),
    ],
)
def test_from_a_directory_that_has_been_deleted(odd: Path, tmp_path: Path, words: list[str], code: int) -> None:
    file = tmp_path / "records"
    assert invoke("export", file, "--store", odd).exit_code == 0
    with nowhere(tmp_path):
        result = invoke(*(word.replace("FILE", str(file)) for word in words))
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "here" in line
    assert str(file) not in line, "it is not the file's fault"
    assert result.exit_code == code


def test_a_store_that_is_named_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert one_store("here", str(tmp_path / "here")) == "here"
    with nowhere(tmp_path):
        assert one_store("here", "here") == "here"
        with pytest.raises(InvalidSetting):
            one_store("here", str(tmp_path / "here"))
