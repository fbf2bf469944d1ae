"""The directory store: the contract; whose directory it takes; deleted or locked under it."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from algosearch.errors import StoreUnusable
from algosearch.stores import DirectoryStore, access, directory, disk
from algosearch.stores.access import OPEN_S
from tests.nowhere import nowhere
from tests.stores.contract import BytesStoreContract
from tests.stores.directories import DirectoryHome, database, filled, readable, set_aside, warnings
from tests.stores.homes import Home, read
from tests.stores.nouns import some_key, some_record


class TestDirectoryStore(BytesStoreContract):
    @pytest.fixture
    def new_home(self, tmp_path: Path) -> Callable[[], Home]:
        numbers = itertools.count()
        return lambda: DirectoryHome(tmp_path / f"home {next(numbers)} %41?#")


# -- the directory -------------------------------------------------------------------------------------------------


async def test_it_is_made_for_its_user_alone(home: DirectoryHome) -> None:
    previous = os.umask(0)
    try:
        async with home.opened() as store:
            await store.commit(some_record(), after=0)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.path.iterdir()}
    finally:
        os.umask(previous)
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert modes == {"cache.db": 0o600, "cache.db-wal": 0o600, "cache.db-shm": 0o600, "lock": 0o600}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
async def test_a_directory_that_others_can_write_to_is_refused(home: DirectoryHome, mode: int) -> None:
    """C13."""
    home.path.mkdir()
    home.path.chmod(mode)
    with pytest.raises(StoreUnusable, match="others can write to it; run `chmod 700 "):
        await home.handle().open()
    assert list(home.path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
async def test_a_directory_that_others_can_read_is_taken(home: DirectoryHome, mode: int) -> None:
    home.path.mkdir()
    home.path.chmod(mode)
    await filled(home)
    assert await readable(home, 3) == [0, 1, 2]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
async def test_another_users_directory_is_refused(home: DirectoryHome) -> None:
    """C13, F07."""
    home.path.mkdir(mode=0o700)
    os.chown(home.path, 65534, 65534)
    with pytest.raises(StoreUnusable, match="it belongs to user 65534, and this is user 0; choose another directory"):
        await home.handle().open()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
async def test_another_users_link_is_refused(home: DirectoryHome, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    home.path.symlink_to(tmp_path / "mine")
    os.chown(home.path, 65534, 65534, follow_symlinks=False)
    with pytest.raises(StoreUnusable, match="a link that belongs to another user"):
        await home.handle().open()


async def test_a_link_of_ones_own_is_followed(home: DirectoryHome, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    home.path.symlink_to(tmp_path / "elsewhere")
    await filled(home)
    assert (tmp_path / "elsewhere" / "cache.db").exists()


async def test_a_file_in_its_place_is_refused(home: DirectoryHome) -> None:
    home.path.write_text("not a directory")
    with pytest.raises(StoreUnusable, match="is not a directory"):
        await home.handle().open()


async def test_a_name_that_diskcache_would_expand_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWHERE", "other")
    with pytest.raises(StoreUnusable, match="for a variable"):
        await DirectoryStore(tmp_path / "$ELSEWHERE").open()


async def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(StoreUnusable, match=r"null byte|null character"):
        await DirectoryStore("a\0b").open()


async def test_the_first_of_several_that_can_be_used_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    store = DirectoryStore(lambda: [tmp_path / "file", tmp_path / "good", tmp_path / "better"])
    await store.open()
    assert store.location == str(tmp_path / "good")
    assert (await store.statistics()).location == store.location
    await store.aclose()
    assert len(warnings(caplog)) == 1
    assert "is not a directory" in warnings(caplog)[0]
    assert not (tmp_path / "better").exists()


async def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = DirectoryStore("here", retry_s=0.0)
    await store.open()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    (tmp_path / "here" / "cache.db").unlink()
    assert (await store.commit(some_record(), after=0)).kept
    await store.aclose()
    assert (tmp_path / "here" / "cache.db").exists()


async def test_a_relative_path_where_there_is_no_current_directory(tmp_path: Path) -> None:
    with nowhere(tmp_path), pytest.raises(StoreUnusable, match="no current directory"):
        await DirectoryStore("here").open()


# -- deleted while open --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["file", "directory"])
async def test_deleted_while_open_it_is_begun_again_by_the_next_write(
    home: DirectoryHome, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    async with home.opened() as store:
        await store.commit(some_record(), after=0)
        for path in home.path.iterdir():
            path.unlink()
        if what == "directory":
            home.path.rmdir()
        assert await read(store, some_key()) == some_record(), "a reader may go on with what it has"
        assert not (home.path / "cache.db").exists(), "reading brings nothing back"
        assert (await store.commit(some_record(1), after=0)).kept
        assert await store.changes()
        assert not await store.changes()
        assert len(warnings(caplog)) == 1
    assert await readable(home, 2) == [1]


async def test_replaced_while_open_it_is_noticed_by_the_next_reader(home: DirectoryHome) -> None:
    other = DirectoryHome(home.path.with_name("other"))
    await filled(other)
    async with home.opened() as store:
        assert not await store.changes()
        (other.path / "cache.db").rename(home.path / "cache.db")
        for log in ("-wal", "-shm"):
            (home.path / f"cache.db{log}").unlink()
        assert await store.changes()
        assert await read(store, some_key()) == some_record()


# -- locked --------------------------------------------------------------------------------------------------------


async def test_a_file_held_exclusively_is_given_up_after_two_seconds(
    home: DirectoryHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "OPEN_S", OPEN_S)
    await filled(home)
    with database(home.path) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        holder.execute("DELETE FROM Settings WHERE key = 'nothing'")
        begun = time.monotonic()
        with pytest.raises(StoreUnusable, match=r"locked.*end the program that holds it"):
            await home.handle().open()
        assert 1.5 < time.monotonic() - begun < directory.UNANSWERED_S
    assert await readable(home, 3) == [0, 1, 2]
    assert set_aside(home) == []


async def test_a_file_that_somebody_writes_to_without_end_is_read(
    home: DirectoryHome, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "OPEN_S", 0.1)
    monkeypatch.setattr(access, "REOPEN_S", 0.01)
    await filled(home)
    with database(home.path) as holder:
        holder.execute("BEGIN IMMEDIATE")
        store = home.handle()
        await store.open()
        assert await read(store, some_key()) == some_record()
        committed = await store.commit(some_record(5), after=0)
        assert (committed.won, committed.kept) == (True, False)
        lost = await store.commit(some_record(seed=1), after=0)
        assert lost.record == some_record()
        assert not lost.won
        assert not (await store.statistics()).writable
        assert len(warnings(caplog)) == 1
    assert (await store.commit(some_record(5), after=0)).kept, "it is tried again"
    assert (await store.statistics()).writable
    await store.aclose()
    assert await readable(home, 6) == [0, 1, 2, 5]


async def test_after_waiting_for_a_lock_in_vain_the_next_writers_do_not_wait(
    home: DirectoryHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "BUSY_S", 0.5)
    patient = DirectoryStore(home.path, retry_s=60.0)
    await patient.open()
    with database(home.path) as holder:
        holder.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        for n in range(10):
            assert not (await patient.commit(some_record(n), after=0)).kept
        assert 0.4 < time.monotonic() - begun < 5.0, "else each of them has waited"
    assert (await patient.statistics()).trouble == ("locked: database is locked (SQLITE_BUSY)",)
    await patient.aclose()


async def test_the_opening_of_another_is_waited_for(home: DirectoryHome) -> None:
    home.path.mkdir(mode=0o700)
    with (home.path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store = home.handle()
        opening = asyncio.create_task(store.open())
        await asyncio.sleep(0)
        fcntl.flock(held, fcntl.LOCK_UN)
        await opening
        assert (await store.statistics()).writable
        await store.aclose()


async def test_many_open_one_new_directory_at_once(home: DirectoryHome) -> None:
    stores = [home.handle() for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    settled = await asyncio.gather(*(store.commit(some_record(seed=n), after=0) for n, store in enumerate(stores)))
    assert [one.won for one in settled].count(True) == 1
    await asyncio.gather(*(store.aclose() for store in stores))
    assert set_aside(home) == []
