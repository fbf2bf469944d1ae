"""Nothing in a directory store's file is trusted."""

from __future__ import annotations

import ast
import pickle
import sqlite3
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from diskcache import Disk

from algosearch.errors import StoreUnusable
from algosearch.records import wire
from algosearch.stores import Claim, Miss, access, inspection, sqlite
from algosearch.stores.disk import METADATA, SETTINGS, InlineDisk, PromptCache
from algosearch.stores.inspection import FORMAT, SCHEMA
from tests.stores.directories import DirectoryHome, database, filled, readable, set_aside, warnings
from tests.stores.homes import EXPIRY_S, read, scanned
from tests.stores.nouns import some_key, some_record


async def test_the_schema_and_settings_are_those_that_diskcache_makes(home: DirectoryHome) -> None:
    await filled(home)
    with database(home.path) as connection:
        parts = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        stored = dict(connection.execute("SELECT key, value FROM Settings").fetchall())
        version = connection.execute("PRAGMA user_version").fetchone()
        journal = connection.execute("PRAGMA journal_mode").fetchone()
        files = connection.execute("SELECT count(*) FROM Cache WHERE filename IS NOT NULL OR mode <> 1").fetchone()
    assert {(kind, name): text for kind, name, text in parts} == SCHEMA
    assert {name: value for name, value in stored.items() if name not in METADATA} == SETTINGS
    assert stored.keys() == SETTINGS.keys() | set(METADATA)
    assert (version, journal, files) == ((FORMAT,), ("wal",), (0,))
    assert set_aside(home) == []


async def test_every_setting_of_diskcache_is_passed() -> None:
    from diskcache.core import DEFAULT_SETTINGS

    assert SETTINGS.keys() == DEFAULT_SETTINGS.keys()


class _Touch:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


async def test_a_planted_pickle_is_never_loaded(home: DirectoryHome, tmp_path: Path) -> None:
    """C13, CVE-2025-69872."""
    await filled(home)
    mark = tmp_path / "executed"
    payload = pickle.dumps(_Touch(mark))
    (home.path / "value.val").write_bytes(payload)
    with database(home.path) as connection:
        for n, (mode, filename, value) in enumerate(
            [(4, None, payload), (4, "value.val", None), (1, None, "text"), (1, None, 3), (1, "value.val", b"")]
        ):
            connection.execute(
                "INSERT OR REPLACE INTO Cache(key, raw, mode, filename, value) VALUES (?, 1, ?, ?, ?)",
                (f"record:{some_key(10 + n).digest}", mode, filename, value),
            )
        connection.execute("INSERT INTO Cache(key, raw, mode, value) VALUES (?, 0, 1, ?)", (payload, b""))
        connection.execute(
            "INSERT INTO Cache(key, raw, mode, value) VALUES (CAST(x'7265636f72643aff' AS TEXT), 1, 1, 'x')"
        )
        connection.execute(
            "INSERT INTO Cache(key, raw, mode, value) VALUES (?, 1, 4, ?)", (f"claim:{some_key(10).digest}", payload)
        )
    async with home.opened() as store:
        for n in range(5):
            answer = await read(store, some_key(10 + n))
            assert answer == Miss("undecodable", "its row is damaged, or of a shape that no store writes")
        assert len(await scanned(store)) == 3 + 5 + 1
        claim = await store.claim(some_key(10).digest, "a", expiry_s=EXPIRY_S)
        assert claim.owner == "a"
        await store.release(claim)
        for n in range(3):
            assert (await store.commit(some_record(10 + n), after=0)).kept
        assert await store.delete([some_key(10 + n).digest for n in range(5)]) == 5
    assert pickle.loads(payload) is None
    assert mark.exists(), "the payload does what it is for"
    mark.unlink()
    assert (home.path / "value.val").exists(), "a row's file is not deleted either"
    assert await readable(home, 3) == [0, 1, 2]
    assert not mark.exists()


async def test_an_expired_row_is_a_record_like_any_other(home: DirectoryHome) -> None:
    await filled(home, 1)
    with database(home.path) as connection:
        connection.execute("UPDATE Cache SET expire_time = 1.0")
    async with home.opened() as store:
        assert await read(store, some_key()) == some_record()
        assert not (await store.commit(some_record(seed=1), after=0)).won
        assert await store.delete([some_key().digest]) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO Settings VALUES ('reset', 'x')",
        "INSERT INTO Settings VALUES ('reset', NULL)",
        "INSERT INTO Settings VALUES (x'00', 0)",
        "INSERT INTO Settings VALUES ('sqlite_writable_schema', 1)",
        "UPDATE Settings SET value = 100 WHERE key = 'cull_limit'",
        "UPDATE Settings SET value = '0; DROP TABLE Cache' WHERE key = 'sqlite_mmap_size'",
        "UPDATE Settings SET value = 0.0 WHERE key = 'sqlite_mmap_size'",
        "UPDATE Settings SET value = 'many' WHERE key = 'count'",
        "UPDATE Settings SET key = CAST(x'ff' AS TEXT) WHERE key = 'count'",
        "CREATE TRIGGER extra AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END",
        "CREATE VIEW extra AS SELECT 1",
        "CREATE TABLE extra (x)",
        "DROP INDEX Cache_key_raw; CREATE INDEX Cache_key_raw ON Cache(key, raw)",
        "DROP TRIGGER Settings_size_insert; CREATE TRIGGER Settings_size_insert DELETE ON Cache BEGIN SELECT 1; END",
        "ALTER TABLE Cache ADD COLUMN extra",
        "DROP TABLE Settings; CREATE VIEW Settings AS SELECT 'reset' AS key, 'x' AS value",
        "PRAGMA application_id = 7",
    ],
)  # fmt: skip
async def test_a_file_that_differs_is_set_aside_with_one_warning(
    home: DirectoryHome, caplog: pytest.LogCaptureFixture, statement: str
) -> None:
    await filled(home)
    with database(home.path) as connection:
        connection.executescript(statement)
    async with home.opened() as store:
        assert [(await read(store, some_key(n))) for n in range(3)] == [Miss("absent", "not in the store")] * 3
        assert (await store.commit(some_record(), after=0)).kept
    (folder,) = set_aside(home)
    assert (folder / "cache.db").exists()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(warnings(caplog)) == 1
    assert str(folder) in warnings(caplog)[0]
    assert await readable(home, 3) == [0]
    assert set_aside(home) == [folder]


async def test_all_files_are_set_aside_together(home: DirectoryHome) -> None:
    """What a killed writer has left beside the file goes with it: in the next file it would be played back."""
    writer = home.handle()
    await writer.open()
    await writer.commit(some_record(), after=0)
    kept = {name: (home.path / name).read_bytes() for name in ("cache.db", "cache.db-wal", "cache.db-shm")}
    await writer.aclose()
    for name, raw in kept.items():
        (home.path / name).write_bytes(raw)
    with database(home.path) as connection:
        connection.execute("CREATE TRIGGER extra AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END")
        (home.path / "copy-wal").write_bytes((home.path / "cache.db-wal").read_bytes())
    (home.path / "copy-wal").rename(home.path / "cache.db-wal")
    (home.path / "cache.db-shm").write_bytes(kept["cache.db-shm"])
    await filled(home, 1)
    (folder,) = set_aside(home)
    assert {path.name for path in folder.iterdir()} == kept.keys()


async def test_an_older_format_is_set_aside(home: DirectoryHome) -> None:
    await filled(home)
    with database(home.path) as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT - 1}")
    assert await readable(home, 3) == []
    assert len(set_aside(home)) == 1
    await filled(home)
    assert await readable(home, 3) == [0, 1, 2]


async def test_diskcache_opens_nothing_that_was_not_compared(
    home: DirectoryHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a connection that cannot write; twice, if it differs."""
    await filled(home)
    with database(home.path) as connection:
        connection.execute("INSERT INTO Settings VALUES ('reset', 'x')")
    steps: list[str] = []
    connect = sqlite.connect_to_read

    def compare(file: Path, **how: Any) -> sqlite3.Connection:
        steps.append("compare")
        reader = connect(file, **how)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("DELETE FROM Settings")
        return reader

    class Opened(PromptCache):
        def __init__(self, directory: Path, deadline: float) -> None:
            steps.append("open")
            super().__init__(directory, deadline)

    monkeypatch.setattr(inspection, "connect_to_read", compare)
    monkeypatch.setattr(access, "PromptCache", Opened)
    await filled(home)
    assert steps[:3] == ["compare", "compare", "open"]
    assert len(set_aside(home)) == 1


def test_no_call_of_diskcache_may_wait_for_ever() -> None:
    """`retry=True`, and item access, which means it."""
    calls = [
        (file.name, node.lineno, {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords})
        for file in sorted(Path(access.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "cache"
        and node.func.attr not in ("close", "connection")
    ]
    assert len(calls) >= 5
    assert [call for call in calls if call[2].get("retry") != "False"] == []
    for file in Path(access.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            assert not (isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("cache", "self._cache"))


def test_nothing_in_the_package_can_unpickle() -> None:
    """CVE-2025-69872: nor evaluate. diskcache's own use of pickle is in its `Disk`, all of whose ways in are ours."""
    package = Path(access.__file__).parents[1]
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str | None] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = [node.func.id]
            assert not {"pickle", "shelve", "marshal", "eval", "exec"} & set(names), file
    ways_in = {name for name, value in vars(Disk).items() if callable(value) and not name.startswith("__")}
    assert ways_in - vars(InlineDisk).keys() <= {"hash", "_write"}, "of which no row decides anything"


async def test_rows_that_contradict_each_other_are_set_aside_and_one_is_saved(home: DirectoryHome) -> None:
    await filled(home)
    with database(home.path) as connection:
        connection.execute("DROP INDEX Cache_key_raw")
        connection.execute("INSERT INTO Cache(key, raw, mode, value) SELECT key, raw, mode, value FROM Cache")
    assert await readable(home, 3) == [0, 1, 2]
    assert len(set_aside(home)) == 1


async def test_a_newer_format_is_left_alone(home: DirectoryHome) -> None:
    await filled(home)
    with database(home.path) as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    before = (home.path / "cache.db").read_bytes()
    with pytest.raises(StoreUnusable, match=f"format {FORMAT + 1}, made by a newer algosearch; .*; update algosearch"):
        await home.handle().open()
    assert (home.path / "cache.db").read_bytes() == before
    assert set_aside(home) == []


async def test_a_file_that_is_a_link_is_not_followed(home: DirectoryHome, tmp_path: Path) -> None:
    home.path.mkdir(mode=0o700)
    precious = tmp_path / "precious"
    precious.write_bytes(b"")
    (home.path / "cache.db").symlink_to(precious)
    await filled(home)
    assert precious.read_bytes() == b""
    assert (set_aside(home)[0] / "cache.db").is_symlink()


async def test_a_maker_that_was_killed_leaves_something_to_go_on_with(home: DirectoryHome) -> None:
    await filled(home)
    with database(home.path) as connection:
        connection.executescript("DROP TABLE Cache; DELETE FROM Settings WHERE key IN ('statistics', 'count')")
    (home.path / "cache.db.new").write_bytes(b"half a")
    (home.path / "cache.db.new-journal").write_bytes(b"half a")
    await filled(home)
    assert await readable(home, 3) == [0, 1, 2]
    (home.path / "cache.db").unlink()
    await filled(home)
    assert await readable(home, 3) == [0, 1, 2]
    assert set_aside(home) == []


def test_the_disk_knows_text_keys_and_inline_bytes_only(tmp_path: Path) -> None:
    disk = InlineDisk(str(tmp_path), min_file_size=0, pickle_protocol=0)
    for key in (b"bytes", 1, 1.0, None, ("a", 1)):
        with pytest.raises(TypeError, match="a key is text"):
            disk.put(key)
        with pytest.raises(TypeError, match="not text"):
            disk.get(key, 1)
    with pytest.raises(TypeError, match="not text"):
        disk.get("pickled", 0)
    for value in ("text", 1, None, [b""], bytearray(b"x"), bytes(wire.LONGEST_BYTES + 1)):
        with pytest.raises(TypeError, match="a value is at most"):
            disk.store(value, False)
    with pytest.raises(TypeError, match="a value is at most"):
        disk.store(b"", True)
    with pytest.raises(TypeError, match="no file"):
        disk.filename()
    assert disk.store(b"x", False) == (0, 1, None, b"x")
    assert (disk.put("key"), disk.get("key", 1)) == (("key", True), "key")
    (tmp_path / "precious").touch()
    disk.remove("precious")
    assert (tmp_path / "precious").exists()
    assert disk.fetch(2, "precious", None, False) is None


@pytest.mark.parametrize("lapses", [-1, 0, 2**64 - 1])
@pytest.mark.parametrize("expiry_s", [1e9, float("inf"), float("nan"), -1.0, 0.0])
async def test_a_planted_claim_holds_nobody_up_for_ever(home: DirectoryHome, lapses: int, expiry_s: float) -> None:
    digest = some_key().digest
    raw = msgspec.msgpack.encode(["somebody", lapses, "simulated/t:a", home.clock.now_s, expiry_s, False])
    await filled(home)
    with database(home.path) as connection:
        statement = "INSERT INTO Cache(key, raw, mode, value) VALUES (?, 1, 1, ?)"
        connection.execute(statement, (f"claim:{digest}", raw))
    async with home.opened() as store:
        assert await store.holders([digest]) == [None]
        assert await store.claim(digest, "me", expiry_s=EXPIRY_S) == Claim(digest=digest, owner="me")


async def test_a_planted_number_of_lapses_is_no_overflow(home: DirectoryHome) -> None:
    digest = some_key().digest
    raw = msgspec.msgpack.encode(["somebody", 2**64 - 1, "", home.clock.now_s - 2 * EXPIRY_S, EXPIRY_S, False])
    await filled(home)
    with database(home.path) as connection:
        statement = "INSERT INTO Cache(key, raw, mode, value) VALUES (?, 1, 1, ?)"
        connection.execute(statement, (f"claim:{digest}", raw))
    async with home.opened() as store:
        assert (await store.claim(digest, "me", expiry_s=EXPIRY_S)).owner == "me"


async def test_a_key_of_megabytes_is_no_line_of_megabytes(
    home: DirectoryHome, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(home)
    with database(home.path) as connection:
        connection.execute(
            "INSERT INTO Cache(key, raw, mode, value) VALUES (?, 1, 1, x'00')", ("record:" + "0" * 10**6,)
        )
    async with home.opened() as store:
        assert len(await scanned(store)) == 4
        (line,) = (await store.statistics()).trouble
    (warning,) = warnings(caplog)
    assert max(len(line), len(warning)) < 2000
