"""`prune`: what is named is deleted, and nothing else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from algosearch.cli import prune
from algosearch.cli.contents import Entry
from algosearch.ops import BatchNormOp
from algosearch.records import Environment, Key, Record, wire
from algosearch.stores import DirectoryStore, Miss
from tests.cli.helpers import (
    digests_in,
    environ,
    fill,
    invoke,
    record_of,
    run,
    spoil,
    the_object,
    tiny_op,
    without_progress,
)

NORM = BatchNormOp(shape=(2, 3, 4, 4))
NEWER = Environment(backend="cpu", device="Some CPU", facts=(("numpy", "2.1"), ("threads", "2")))
OTHER = Environment(backend="cudnn", device="Other Device", facts=(("cudnn", "9.1"),))


def days_ago(days: float) -> int:
    return int(time.time() - days * 86_400)


RECORDS = (
    record_of(tiny_op(0), found_at_s=days_ago(0.1)),
    record_of(tiny_op(1), environment=NEWER, found_at_s=days_ago(10), version="0.0.9"),
    record_of(NORM, environment=OTHER, found_at_s=days_ago(40)),
    record_of(tiny_op(0), environment=OTHER, found_at_s=days_ago(50), version="0.0.9"),
)
BROKEN = record_of(tiny_op(9))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = fill(tmp_path / "store", *RECORDS, BROKEN)
    spoil(store, BROKEN.key.digest, b"\xff\xff\xff")
    return store


def left(store: Path) -> set[int]:
    """Which of the records are still there."""
    found = digests_in(store)
    return {n for n, record in enumerate(RECORDS) if record.key.digest in found}


def is_broken_there(store: Path) -> bool:
    return bool(the_object(invoke("show", "--store", store, "--json").stdout)["unreadable"])


def pruned(store: Path, *args: str | Path, code: int = 0) -> dict[str, Any]:
    result = invoke("prune", store, *args, "--json")
    assert result.exit_code == code, result.stderr
    return the_object(result.stdout)


@pytest.mark.parametrize(
    ("args", "gone"),
    [
        (["--older-than", "30d"], {2, 3}),
        (["--older-than", "1 w"], {1, 2, 3}),
        (["--older-than", "1000h"], {3}),
        (["--older-than", "0s"], {0, 1, 2, 3}),
        (["--older-than", "60d"], set()),
        (["--version", "0.0.9"], {1, 3}),
        (["--version", "algosearch=0.1.0"], {0, 2}),
        (["--version", "numpy=2.1"], {1}),
        (["--version", "9.1"], {2, 3}),
        (["--version", "2"], {0, 1}),  # two threads: any fact
        (["--version", "9"], set()),
        (["--device", "other"], {2, 3}),
        (["--device", "cudnn"], {2, 3}),
        (["--device", "cud"], set()),
        (["--filter", "batch"], {2}),
        (["--filter", "problem.op=conv"], {0, 1, 3}),
        (["--filter", RECORDS[1].key.digest[:8]], {1}),
        (["--device", "other", "--version", "0.0.9"], {3}),
        (["--filter", "problem.op=conv", "--older-than", "20d", "--device", "other"], {3}),
    ],
    ids=str,
)
def test_what_is_deleted(store: Path, args: Sequence[str], gone: set[int]) -> None:
    size_bytes = sum(len(wire.encode(RECORDS[n])) for n in gone)
    wanted = {"records": len(gone), "bytes": size_bytes}
    dry = pruned(store, *args, "--dry-run")
    assert (dry["matched"], dry["deleted"]) == (wanted, {"records": 0, "bytes": 0})
    assert left(store) == {0, 1, 2, 3}
    done = pruned(store, *args)
    assert (done["matched"], done["deleted"]) == (wanted, wanted)
    assert {each["digest"] for each in done["records"]} == {RECORDS[n].key.digest for n in gone}
    assert left(store) == {0, 1, 2, 3} - gone
    assert is_broken_there(store)
    assert pruned(store, *args)["matched"]["records"] == 0


def test_what_cannot_be_read_is_deleted_when_told(store: Path) -> None:
    dry = pruned(store, "--undecodable", "--dry-run")
    assert (dry["matched"], [each["digest"] for each in dry["unreadable"]]) == (
        {"records": 1, "bytes": 3},
        [BROKEN.key.digest],
    )
    assert is_broken_there(store)
    assert pruned(store, "--undecodable")["deleted"] == {"records": 1, "bytes": 3}
    assert left(store) == {0, 1, 2, 3}
    assert not is_broken_there(store)


def test_beside_what_else_is_named(store: Path) -> None:
    assert pruned(store, "--undecodable", "--device", "other")["deleted"]["records"] == 3
    assert left(store) == {0, 1}
    assert not is_broken_there(store)


def test_for_people(store: Path) -> None:
    result = invoke("prune", store, "--device", "other", "--undecodable", "--dry-run")
    assert result.exit_code == 0
    header, *lines, last = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert header == "key problem device age bytes"
    assert {line.split()[0] for line in lines} == {each.key.digest[:12] for each in (*RECORDS[2:], BROKEN)}
    assert last.startswith("would delete 3 records, ")
    result = invoke("prune", "--store", store, "--device", "other")
    assert result.stdout.startswith("deleted 2 of 2 records, ")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "what to delete = 'nothing': must be said by --older-than, "),
        (["--dry-run"], "must be said"),
        (["--older-than", "30"], "--older-than = '30': must be a number and one of s, min, h, d, w"),
        (["--older-than", "-1d"], "must be a number"),
        (["--older-than", "1m"], "must be a number"),
        (["--older-than", "²d"], "must be a number"),
        (["--filter", ""], "--filter = '': must not be empty"),
        (["--device", ""], "--device = '': must not be empty"),
        (["--version", " "], "--version = ' ': must not be empty"),
        (["--older-than", "1s", "--device", " "], "--device = ' ': must not be empty"),
    ],
)
def test_what_is_not_understood_deletes_nothing(store: Path, args: list[str], said: str) -> None:
    result = invoke("prune", store, *args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert left(store) == {0, 1, 2, 3}


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    result = invoke("prune", tmp_path / "none", "--older-than", "1d")
    assert result.exit_code == 0
    assert result.stderr == f"there is no store at {tmp_path / 'none'}\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_store_is_refused(store: Path) -> None:
    for path in (store, *store.iterdir()):
        os.chown(path, 65534, 65534)
    result = invoke("prune", store, "--older-than", "1d")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(
        f"error: the store {store} cannot be used: it belongs to user 65534"
    )
    assert left(store) == {0, 1, 2, 3}


def test_what_was_searched_again_meanwhile_is_left_alone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = DirectoryStore.get_many

    async def repaired_by_somebody(self: DirectoryStore, keys: Sequence[Key]) -> list[Any]:
        await self.commit(record_of(tiny_op(1), environment=NEWER, generation=1), after=0)
        return await kept(self, keys)

    monkeypatch.setattr(DirectoryStore, "get_many", repaired_by_somebody)
    done = pruned(store, "--version", "0.0.9")
    assert (done["matched"]["records"], done["deleted"]["records"], done["renewed"]) == (2, 1, 1)
    monkeypatch.undo()
    assert left(store) == {0, 1, 2}


def test_interrupted_between_two_batches(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is deleted is deleted, and the rest is there."""
    monkeypatch.setattr(prune, "_BATCH", 1)
    really = DirectoryStore.delete

    async def then_ctrl_c(self: DirectoryStore, digests: Sequence[str]) -> int:
        deleted = await really(self, digests)
        os.kill(os.getpid(), signal.SIGINT)
        return deleted

    monkeypatch.setattr(DirectoryStore, "delete", then_ctrl_c)
    done = pruned(store, "--older-than", "0s", code=130)
    assert (done["deleted"]["records"], done["matched"]["records"], done["interrupted"]) == (1, 4, True)
    assert len(left(store)) == 3


def test_a_store_that_cannot_delete(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: DirectoryStore, digests: Sequence[str]) -> int:
        return 0

    monkeypatch.setattr(DirectoryStore, "delete", nothing)
    assert pruned(store, "--older-than", "0s", code=1)["deleted"] == {"records": 0, "bytes": 0}


def test_as_a_process(store: Path) -> None:
    ended = run("prune", "--older-than", "30d", env=environ(ALGOSEARCH_STORE=str(store)))
    (warning,) = without_progress(ended.stderr)[1]
    assert warning.startswith(f"warning: store {store}: {BROKEN.key.digest}: not a record: ")
    assert ended.returncode == 0
    assert ended.stdout.startswith("deleted 2 of 2 records, ")


def test_the_filter_is_that_of_show(store: Path) -> None:
    for what in ("conv", "problem.op=conv", "im2col", "no such thing", RECORDS[0].key.digest[:6]):
        shown = the_object(invoke("show", what, "--store", store, "--json").stdout)
        listed = [shown] if "ingredients" in shown else shown["records"]
        dry = pruned(store, "--filter", what, "--dry-run")
        assert {each["digest"] for each in dry["records"]} == {each["digest"] for each in listed}


def test_entries_know_their_version() -> None:
    record: Record = RECORDS[1]
    assert Entry.of(record).version == "0.0.9"


def test_interrupted_while_reading_nothing_is_deleted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = DirectoryStore.scan

    async def then_ctrl_c(self: DirectoryStore) -> AsyncIterator[tuple[str, Record | Miss]]:
        async for each in really(self):
            yield each
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(DirectoryStore, "scan", then_ctrl_c)
    result = invoke("prune", store, "--older-than", "0s")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == "interrupted"
    monkeypatch.undo()
    assert left(store) == {0, 1, 2, 3}
