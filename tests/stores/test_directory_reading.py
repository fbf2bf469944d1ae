"""A directory that is opened for reading only: nothing in it is made, changed, repaired or set aside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from algosearch.errors import StoreUnusable
from algosearch.records import Record
from algosearch.stores import DirectoryStore, Miss, open_store
from tests.stores.directories import DirectoryHome, filled, readable, spoil, warnings
from tests.stores.homes import read, scanned
from tests.stores.nouns import some_key, some_record

NOBODY = 65534
LOGS = ("cache.db-wal", "cache.db-shm")
"""What SQLite needs beside the file to read what another process may be writing. They hold nothing here."""


def to_read(path: Path) -> DirectoryStore:
    return DirectoryStore(path, retry_s=0.0, read_only=True)


def content(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a directory and what is in it, and when it was written."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.iterdir() if file.name not in LOGS}


async def test_it_is_read_and_left_as_it_was(home: DirectoryHome, caplog: pytest.LogCaptureFixture) -> None:
    """F08."""
    await filled(home)
    before = content(home.path)
    store = to_read(home.path)
    await store.open()
    assert [isinstance(await read(store, some_key(n)), Record) for n in range(4)] == [True, True, True, False]
    assert len(await scanned(store)) == 3
    committed = await store.commit(some_record(9), after=0)
    assert (committed.won, committed.kept) == (True, False)
    assert not (await store.commit(some_record(0, seed=1), after=0)).won
    assert await store.delete([some_key(0).digest]) == 0
    claim = await store.claim(some_key(5).digest, "me", expiry_s=10.0)
    assert (claim.owner, await store.renew(claim, expiry_s=10.0)) == ("me", True)
    await store.release(claim)
    assert not await store.changes()
    statistics = await store.statistics()
    assert (statistics.records, statistics.writable, statistics.trouble) == (3, False, ())
    await store.aclose()
    assert content(home.path) == before
    assert warnings(caplog) == []


async def test_what_others_write_meanwhile_is_seen(home: DirectoryHome) -> None:
    await filled(home)
    store = to_read(home.path)
    await store.open()
    assert isinstance(await read(store, some_key(3)), Miss)
    async with home.opened() as writer:
        await writer.commit(some_record(3), after=0)
        assert isinstance(await read(store, some_key(3)), Record)
        assert await store.changes()
    assert isinstance(await read(store, some_key(3)), Record)
    await store.aclose()


@pytest.mark.parametrize(
    ("place", "reason"), [("none", "there is no such directory"), ("empty", "there is no store in it")]
)
async def test_what_is_not_there_is_not_made(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    store = to_read(tmp_path / place)
    with pytest.raises(StoreUnusable, match=reason):
        await store.open()
    assert os.listdir(tmp_path) == ["empty"]
    assert os.listdir(tmp_path / "empty") == []


async def test_a_damaged_file_is_read_as_far_as_it_goes(home: DirectoryHome) -> None:
    await filled(home, 60, trials=12)
    spoil(home.path / "cache.db", 8192 * 12, 8192)
    before = content(home.path)
    store = to_read(home.path)
    await store.open()
    answers = await store.get_many([some_key(n) for n in range(60)])
    assert 40 < sum(isinstance(answer, Record) for answer in answers) < 60
    assert (await store.statistics()).trouble != ()
    await store.aclose()
    assert content(home.path) == before


@pytest.mark.parametrize("lost", [1, 3000, 8192, 10_000, 60_000])
async def test_a_file_cut_short_is_read_as_far_as_it_goes(home: DirectoryHome, lost: int) -> None:
    """Whether it is asked for some records or for all of them; what is cut off may be an index."""
    await filled(home, 40, trials=12)
    file = home.path / "cache.db"
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size - lost)
    before = content(home.path)
    store = to_read(home.path)
    await store.open()
    answers = await store.get_many([some_key(n) for n in range(40)])
    found = {answer.key.digest: answer for answer in answers if isinstance(answer, Record)}
    listed = {digest: answer for digest, answer in await scanned(store) if isinstance(answer, Record)}
    statistics = await store.statistics()
    await store.aclose()
    assert 0 < len(found) < 40
    assert listed == found
    assert statistics.records >= len(found)
    assert statistics.trouble != ()
    assert content(home.path) == before
    assert len(await readable(home, 40)) == len(found), "as much as is saved by who may write"


async def test_what_a_damaged_file_never_had_is_absent(home: DirectoryHome) -> None:
    """Whatever page it is: of a key that was never there nothing can be damaged. What is there and cannot be read is
    undecodable."""
    await filled(home, 40, trials=12)
    whole = (home.path / "cache.db").read_bytes()
    opened = met = 0
    for start in range(4096, len(whole), 4096):
        (home.path / "cache.db").write_bytes(whole)
        spoil(home.path / "cache.db", start, 4096)
        store = to_read(home.path)
        try:
            await store.open()
        except StoreUnusable:
            continue  # it was one of the few pages without which nothing can be found
        opened += 1
        answers = await store.get_many([some_key(n) for n in range(80)])
        met += (await store.statistics()).trouble != ()
        assert {answer.kind for answer in answers[40:] if isinstance(answer, Miss)} == {"absent"}
        await store.aclose()
    assert opened > 5
    assert met > 5


async def test_a_damaged_file_of_which_nothing_can_be_read_is_said_to_be_damaged(home: DirectoryHome) -> None:
    """And not that it is opened for reading only."""
    await filled(home, 40, trials=12)
    size = (home.path / "cache.db").stat().st_size
    spoil(home.path / "cache.db", 3 * 4096, size - 3 * 4096)
    with pytest.raises(StoreUnusable, match="malformed"):
        await to_read(home.path).open()


async def test_an_empty_file_is_said_to_be_empty(home: DirectoryHome) -> None:
    home.path.mkdir(mode=0o700)
    (home.path / "cache.db").touch()
    with pytest.raises(StoreUnusable, match="its file is empty"):
        await to_read(home.path).open()


async def test_a_file_of_another_program_is_refused_and_left_alone(home: DirectoryHome) -> None:
    await filled(home)
    (home.path / "cache.db").write_bytes(b"not a database, and longer than a header of SQLite" * 9)
    before = content(home.path)
    with pytest.raises(StoreUnusable, match="not a database"):
        await to_read(home.path).open()
    assert content(home.path) == before


async def test_what_anybody_can_fill_is_refused(home: DirectoryHome) -> None:
    await filled(home)
    home.path.chmod(0o777)
    with pytest.raises(StoreUnusable, match=r"anybody can write to it; run `chmod o-w .*`"):
        await to_read(home.path).open()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_another_users_directory_is_read_and_not_written_to(home: DirectoryHome) -> None:
    await filled(home)
    for path in (home.path, *home.path.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    with pytest.raises(StoreUnusable, match=f"it belongs to user {NOBODY}"):
        await DirectoryStore(home.path).open()
    store = open_store(home.path, read_only=True)
    await store.open()
    assert len(await scanned(store)) == 3
    await store.aclose()
    # A file in it that is a third one's is nobody's idea of a store.
    os.chown(home.path / "cache.db", NOBODY - 1, NOBODY)
    with pytest.raises(StoreUnusable, match=r"not a plain file"):
        await to_read(home.path).open()


async def test_a_writer_is_not_disturbed(home: DirectoryHome) -> None:
    async with home.opened() as writer:
        await writer.commit(some_record(0), after=0)
        for n in range(1, 4):
            store = to_read(home.path)
            await store.open()
            assert len(await scanned(store)) == n
            assert (await writer.commit(some_record(n), after=0)).kept
            await store.aclose()
    assert await readable(home, 4) == [0, 1, 2, 3]
