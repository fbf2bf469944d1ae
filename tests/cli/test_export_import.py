"""`export` and `import`: records go from one store to another, whole and by one rule."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from algosearch.cli import export, import_
from algosearch.ops import BatchNormOp
from algosearch.records import Key, Record
from algosearch.stores import Committed, DirectoryStore
from algosearch.stores.archive import header_line, record_line
from tests.cli import helpers
from tests.cli.helpers import ROOT, digests_in, environ, fill, invoke, record_of, run, spoil, the_object, tiny_op

NORM = BatchNormOp(shape=(2, 3, 4, 4))
RECORDS = (record_of(tiny_op(0)), record_of(tiny_op(1)), record_of(NORM))


def with_searches(record: Record, count: int, *, generation: int = 0) -> Record:
    return replace(record, searches=record.searches * count, generation=generation)


def records_in(path: Path) -> dict[str, Record]:
    async def read() -> dict[str, Record]:
        store = DirectoryStore(path, read_only=True)
        await store.open()
        try:
            return {digest: record async for digest, record in store.scan() if isinstance(record, Record)}
        finally:
            await store.aclose()

    return anyio.run(read)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path / "store", *RECORDS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


def exported(*args: str | Path, code: int = 0) -> dict[str, Any]:
    result = invoke("export", *args, "--json")
    assert result.exit_code == code, result.stderr
    return the_object(result.stdout)


def imported(*args: str | Path, code: int = 0) -> dict[str, Any]:
    result = invoke("import", *args, "--json")
    assert result.exit_code == code, result.stderr
    return the_object(result.stdout)


def counts(report: dict[str, Any]) -> dict[str, int]:
    names = ("added", "replaced", "stayed", "not_kept", "damaged", "missing")
    return {name: report[name] for name in names if report[name]}


def test_there_and_back(store: Path, file: Path, tmp_path: Path) -> None:
    report = exported(file, "--store", store)
    assert report == {
        "file": str(file),
        "store": str(store),
        "records": 3,
        "bytes": file.stat().st_size,
        "unreadable": 0,
    }
    assert file.read_bytes().splitlines(keepends=True)[1:] == [
        record_line(record) for record in sorted(RECORDS, key=lambda record: record.key.digest)
    ]
    assert counts(imported(file, "--store", tmp_path / "other")) == {"added": 3}
    assert records_in(tmp_path / "other") == records_in(store)
    assert counts(imported(file, "--store", tmp_path / "other")) == {"stayed": 3}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_for_people(store: Path, file: Path, tmp_path: Path) -> None:
    result = invoke("export", file, "forward 1x2", "--store", store)
    assert result.stdout.startswith(f"wrote 2 records to {file}, ")
    result = invoke("import", file, "--store", tmp_path / "other")
    assert result.stdout == f"2 records read: 2 added, 0 replaced, 0 stayed as they are in {tmp_path / 'other'}\n"
    assert result.stderr == ""


def test_a_filter(store: Path, file: Path, tmp_path: Path) -> None:
    assert exported(file, "problem.op=batch_norm", "--store", store)["records"] == 1
    imported(file, "--store", tmp_path / "other")
    assert digests_in(tmp_path / "other") == {RECORDS[2].key.digest}


@pytest.mark.parametrize("what", ["nothing like it", None])
def test_where_there_is_nothing_no_file_is_written(tmp_path: Path, store: Path, file: Path, what: str | None) -> None:
    args = [what] if what else []
    where = store if what else tmp_path / "none"
    result = invoke("export", file, *args, "--store", where)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("none of the 3 records" if what else "there is no store at ")
    assert not file.exists()


def test_a_file_that_is_there_is_replaced_when_the_new_one_is_whole(store: Path, file: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    file.symlink_to(tmp_path / "target")
    exported(file, "--store", store)
    assert file.is_symlink()
    assert (tmp_path / "target").read_bytes().startswith(b'{"algosearch_export":1,')


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        (".", 2, "FILE = '.': is there and no file"),
        ("/dev/null", 2, "is there and no file"),
        ("none/records.jsonl", 74, "none/records.jsonl cannot be written: No such file or directory"),
    ],
)
def test_where_no_file_can_be(
    store: Path, tmp_path: Path, name: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("export", name, "--store", store)
    assert result.exit_code == code
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.parametrize("name", ["records", "x" * 250])
def test_what_a_killed_export_left_is_in_nobodys_way(store: Path, tmp_path: Path, name: str) -> None:
    """In a container each process may have the same number; and a name with something added may be too long."""
    file = tmp_path / name
    if len(name) < 200:
        (tmp_path / f".{name}.{os.getpid()}.part").touch()
    before = set(tmp_path.iterdir())
    exported(file, "--store", store)
    assert set(tmp_path.iterdir()) - before == {file}


def test_a_full_disk_leaves_the_file_as_it_was(store: Path, file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"old")

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    ended = subprocess.run(
        [sys.executable, "-m", "algosearch", "export", str(file), "--store", str(store)],
        capture_output=True,
        text=True,
        env=environ(),
        cwd=ROOT,
        preexec_fn=small,
        timeout=50,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (74, "")
    assert helpers.without_progress(ended.stderr)[1] == [f"error: {file} cannot be written: File too large"]
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_cannot_be_read_is_left_out_and_said(store: Path, file: Path) -> None:
    spoil(store, RECORDS[0].key.digest, b"\xff")
    result = invoke("export", file, "--store", store, "--json")
    assert result.exit_code == 0
    report = the_object(result.stdout)
    assert (report["records"], report["unreadable"]) == (2, 1)
    assert "warning: 1 records cannot be read and are left out; show lists them" in result.stderr


class CtrlC:
    """Sends it when it is called for the first time, and does nothing else."""

    def __init__(self) -> None:
        self.sent = False

    def __call__(self) -> None:
        if not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_export_leaves_the_file_as_it_was(
    store: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_bytes(b"old")
    press = CtrlC()

    def pressed(record: Record) -> bytes:
        press()
        return b"x"

    monkeypatch.setattr("algosearch.stores.archive.record_line", pressed)
    result = invoke("export", file, "--store", store)
    assert result.exit_code == 130
    assert result.stderr == f"interrupted: {file} is as it was\n"
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


# -- conflicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "incoming", "outcome"),
    [
        (with_searches(RECORDS[0], 1), with_searches(RECORDS[0], 1), "stayed"),
        (with_searches(RECORDS[0], 1), with_searches(RECORDS[0], 2), "replaced"),
        (with_searches(RECORDS[0], 2), with_searches(RECORDS[0], 1), "stayed"),
        (with_searches(RECORDS[0], 3), with_searches(RECORDS[0], 1, generation=1), "replaced"),
        (with_searches(RECORDS[0], 1, generation=1), with_searches(RECORDS[0], 3), "stayed"),
        (with_searches(RECORDS[0], 1, generation=1), with_searches(RECORDS[0], 2, generation=1), "replaced"),
    ],
)
def test_the_rule_for_conflicts(tmp_path: Path, file: Path, stored: Record, incoming: Record, outcome: str) -> None:
    theirs = fill(tmp_path / "theirs", incoming)
    exported(file, "--store", theirs)
    ours = fill(tmp_path / "ours", stored)
    assert counts(imported(file, "--store", ours)) == {outcome: 1}
    (record,) = records_in(ours).values()
    assert record == (incoming if outcome == "replaced" else stored)


def test_one_key_twice_in_a_file_is_settled_by_the_same_rule(tmp_path: Path, file: Path) -> None:
    both = [with_searches(RECORDS[0], 2), with_searches(RECORDS[0], 1), with_searches(RECORDS[0], 1, generation=1)]
    header = header_line(version="0.1.0", exported_at_s=0, records=3)
    file.write_bytes(header + b"".join(map(record_line, both)))
    assert counts(imported(file, "--store", tmp_path / "ours")) == {"added": 1, "stayed": 1, "replaced": 1}
    assert list(records_in(tmp_path / "ours").values()) == both[2:]


def test_somebody_commits_the_same_key_meanwhile(
    tmp_path: Path, store: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(file, "--store", store)
    really = DirectoryStore.get_many
    mine = with_searches(RECORDS[0], 2)

    async def late(self: DirectoryStore, keys: Sequence[Key]) -> list[Any]:
        answers = await really(self, keys)
        await self.commit(mine, after=0)
        return answers

    monkeypatch.setattr(DirectoryStore, "get_many", late)
    assert counts(imported(file, "--store", tmp_path / "ours")) == {"added": 2, "stayed": 1}
    monkeypatch.undo()
    assert records_in(tmp_path / "ours")[mine.key.digest] == mine


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_damaged_file_gives_what_is_good(store: Path, file: Path, tmp_path: Path) -> None:
    exported(file, "--store", store)
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"record":"', b'"record":"AAAA')
    file.write_bytes(b"".join(lines))
    result = invoke("import", file, "--store", tmp_path / "other", "--json")
    assert result.exit_code == 1
    report = the_object(result.stdout)
    assert counts(report) == {"added": 2, "damaged": 1}
    assert [each["line"] for each in report["damage"]] == [3]
    assert result.stderr.startswith(f"warning: {file}, line 3: damaged: its bytes are not those that were written")
    assert len(digests_in(tmp_path / "other")) == 2


def test_a_truncated_file_gives_what_is_whole(store: Path, file: Path, tmp_path: Path) -> None:
    exported(file, "--store", store)
    content = file.read_bytes()
    file.write_bytes(content[: content.rindex(b'"sha256"')])
    result = invoke("import", file, "--store", tmp_path / "other")
    assert result.exit_code == 1
    assert "line 4: not the line of a record, and cut short" in result.stderr
    assert result.stdout.startswith("2 records read: 2 added, ")
    file.write_bytes(b"".join(content.splitlines(keepends=True)[:2]))
    result = invoke("import", file, "--store", tmp_path / "third", "--json")
    assert result.exit_code == 1
    assert counts(the_object(result.stdout)) == {"added": 1, "missing": 2}
    assert f"warning: {file} is cut short: 2 records are missing at its end" in result.stderr


def test_much_damage_is_cut_short(store: Path, file: Path, tmp_path: Path) -> None:
    exported(file, "--store", store)
    file.write_bytes(file.read_bytes() + b"x\n" * 1500)
    result = invoke("import", file, "--store", tmp_path / "other", "--json")
    assert result.exit_code == 1
    report = the_object(result.stdout)
    assert (report["damaged"], len(report["damage"]), report["added"]) == (1500, 1000, 3)
    warnings = result.stderr.splitlines()
    assert len([line for line in warnings if line.startswith("warning: ")]) == 11
    assert any("1490 more lines are damaged" in line for line in warnings)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"", "no record in it can be read"),
        (b"\x89PNG\r\n\x1a\n" + bytes(1000), "no record in it can be read"),
        (b'{"algosearch_export":7,"version":"9","exported_at_s":1,"records":0}\n', "an export in format 7"),
    ],
)
def test_what_is_no_export_is_refused_and_makes_no_store(
    file: Path, tmp_path: Path, content: bytes | None, said: str
) -> None:
    if content is not None:
        file.write_bytes(content)
    result = invoke("import", file, "--store", tmp_path / "other")
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {file}: {said}")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", [".", "/dev/zero", "a\0b"])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    result = invoke("import", name, "--store", tmp_path / "other")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


# -- the store ---------------------------------------------------------------------------------------------------------


def test_a_store_that_cannot_be_written_is_refused(store: Path, file: Path, tmp_path: Path) -> None:
    exported(file, "--store", store)
    (tmp_path / "occupied").write_bytes(b"")
    result = invoke("import", file, "--store", tmp_path / "occupied")
    assert result.exit_code == 2
    assert "is not a directory" in result.stderr


def test_a_store_that_fills_up_says_so(
    store: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(file, "--store", store)
    really = DirectoryStore.commit

    async def full(self: DirectoryStore, record: Record, *, after: int) -> Committed:
        if record == RECORDS[2]:
            return Committed(record, won=True, kept=False)
        return await really(self, record, after=after)

    monkeypatch.setattr(DirectoryStore, "commit", full)
    result = invoke("import", file, "--store", tmp_path / "other", "--json")
    assert result.exit_code == 74
    assert counts(the_object(result.stdout)) == {"added": 2, "not_kept": 1}
    assert "error: 1 records could not be written to the store" in result.stderr


def test_an_interrupted_import_keeps_what_it_has(
    store: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(file, "--store", store)
    monkeypatch.setattr(import_, "_BATCH", 1)
    really = DirectoryStore.commit
    press = CtrlC()

    async def pressed(self: DirectoryStore, record: Record, *, after: int) -> Committed:
        press()
        return await really(self, record, after=after)

    monkeypatch.setattr(DirectoryStore, "commit", pressed)
    report = imported(file, "--store", tmp_path / "other", code=130)
    assert (counts(report), report["interrupted"]) == ({"added": 1}, True)
    monkeypatch.undo()
    assert len(digests_in(tmp_path / "other")) == 1
    assert counts(imported(file, "--store", tmp_path / "other")) == {"added": 2, "stayed": 1}


def test_as_processes(store: Path, file: Path, tmp_path: Path) -> None:
    assert run("export", file, "--store", store).returncode == 0
    ended = run("import", file, env=environ(ALGOSEARCH_STORE=str(tmp_path / "other")))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert records_in(tmp_path / "other") == records_in(store)


def test_the_verbs_have_their_names() -> None:
    assert export.export.__name__ == "export"
    assert invoke("import", "--help").stdout.startswith("Usage: ")
