"""A directory store on a disk that takes nothing more: what is there is read, what cannot be kept costs no answer."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from algosearch.stores import DirectoryStore
from algosearch.stores.shelf import Shelf
from tests.stores.child import NOBODY
from tests.stores.directories import DirectoryHome, filled, readable, warnings
from tests.stores.homes import EXPIRY_S, read
from tests.stores.nouns import some_key, some_record

ROOT = Path(__file__).parents[2]


def in_child(directory: Path, count: int, limit_bytes: int | None = None) -> dict[str, Any]:
    """What another process met, see `tests.stores.child`."""
    arguments = [str(directory), str(count), *([] if limit_bytes is None else [str(limit_bytes)])]
    child = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.stores.child", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    met: dict[str, Any] = json.loads(child.stdout)
    return met


@pytest.fixture
def nobodys() -> Iterator[DirectoryHome]:
    """A home where the child, which is nobody if this is root, can reach it."""
    above = Path(tempfile.mkdtemp())
    above.chmod(0o755)
    yield DirectoryHome(above / "store")
    for path in (above / "store", *(above / "store").iterdir()):
        path.chmod(0o700)
    shutil.rmtree(above)


def give(home: DirectoryHome, *, directory_mode: int, file_mode: int) -> None:
    """Make the home nobody's, with these modes."""
    for path in (*home.path.iterdir(), home.path):
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        path.chmod(directory_mode if path == home.path else file_mode)


READ_ONLY = {
    "read": 5,
    "won": [True, True],
    "kept": [False, False],
    "lost": True,
    "claimed": True,
    "deleted": 0,
    "scanned": 5,
    "writable": False,
    "trouble": ["read_only"],
    "warnings": 1,
}


@pytest.mark.parametrize(
    ("directory_mode", "file_mode"), [(0o500, 0o400), (0o500, 0o600), (0o700, 0o400)], ids=["both", "directory", "file"]
)
async def test_what_cannot_be_written_is_read(nobodys: DirectoryHome, directory_mode: int, file_mode: int) -> None:
    await filled(nobodys, 5, trials=12)
    give(nobodys, directory_mode=directory_mode, file_mode=file_mode)
    assert in_child(nobodys.path, 5) == READ_ONLY


async def test_what_a_killed_writer_left_is_read_where_nothing_can_be_written(nobodys: DirectoryHome) -> None:
    async with nobodys.opened() as store:
        for n in range(5):
            await store.commit(some_record(n, trials=12), after=0)
        left = {path: path.read_bytes() for path in nobodys.path.iterdir()}
    assert {path.name for path in left} == {"cache.db", "cache.db-wal", "cache.db-shm", "lock"}
    for path, content in left.items():
        path.write_bytes(content)
    give(nobodys, directory_mode=0o500, file_mode=0o400)
    assert in_child(nobodys.path, 5)["read"] == 5


async def test_an_empty_directory_that_cannot_be_written_is_of_no_use(nobodys: DirectoryHome) -> None:
    nobodys.path.mkdir(mode=0o700)
    give(nobodys, directory_mode=0o500, file_mode=0o400)
    assert in_child(nobodys.path, 5)["unusable"].endswith(
        "its directory cannot be written to; make it writable, or choose another directory"
    )


async def test_damage_that_cannot_be_set_aside_costs_what_lay_there(nobodys: DirectoryHome) -> None:
    await filled(nobodys, 60, trials=12)
    file = nobodys.path / "cache.db"
    with file.open("r+b") as handle:
        handle.seek(8192 * 12)
        handle.write(b"\xa5" * 8192)
    give(nobodys, directory_mode=0o500, file_mode=0o400)
    met = in_child(nobodys.path, 60)
    assert 40 < met["read"] < 60
    assert met["trouble"][0] == "read_only"
    assert file.exists()


@pytest.mark.parametrize("limit_bytes", [4096, 40_000, 70_000])
async def test_with_no_room_for_a_log_it_is_read(nobodys: DirectoryHome, limit_bytes: int) -> None:
    await filled(nobodys, 60, trials=12)
    met = in_child(nobodys.path, 60, limit_bytes)
    assert met["read"] == 60
    assert met["won"] == [True, True]
    assert met["lost"]
    assert met["claimed"]
    assert met["kept"] == [False, False]
    assert met["trouble"]
    assert met["warnings"] == len(met["trouble"])
    assert await readable(nobodys, 60) == list(range(60))


async def in_thread(store: DirectoryStore, statement: str) -> None:
    """Run a statement on the store's own connection."""

    def run(shelf: Shelf) -> None:
        shelf._access.reader().execute(statement).fetchall()

    await store._do(run, None)


async def test_a_disk_that_fills_up_in_the_middle_costs_no_answer(
    home: DirectoryHome, caplog: pytest.LogCaptureFixture
) -> None:
    async with home.opened() as opened:
        assert isinstance(opened, DirectoryStore)
        await opened.commit(some_record(), after=0)
        await in_thread(opened, "PRAGMA max_page_count = 9")
        kept = [(await opened.commit(some_record(n, trials=40), after=0)).kept for n in range(1, 8)]
        assert not all(kept)
        assert await read(opened, some_key()) == some_record()
        claim = await opened.claim(some_key(1).digest, "a", expiry_s=EXPIRY_S)
        assert claim.owner == "a"
        assert (await opened.statistics()).trouble[0].startswith("full: ")
        assert len(warnings(caplog)) == 1
        await in_thread(opened, "PRAGMA max_page_count = 1000000")
        assert (await opened.commit(some_record(9), after=0)).kept, "no transaction was left open"


async def test_a_disk_that_turns_read_only_in_the_middle_costs_no_answer(
    home: DirectoryHome, caplog: pytest.LogCaptureFixture
) -> None:
    async with home.opened() as opened:
        assert isinstance(opened, DirectoryStore)
        await opened.commit(some_record(), after=0)
        await in_thread(opened, "PRAGMA query_only = ON")
        for n in range(1, 3):
            committed = await opened.commit(some_record(n), after=0)
            assert (committed.won, committed.kept) == (True, False)
        assert (await opened.commit(some_record(seed=1), after=0)).record == some_record()
        assert await read(opened, some_key()) == some_record()
        assert [line.split(":")[0] for line in (await opened.statistics()).trouble] == ["read_only"]
        assert len(warnings(caplog)) == 1
        await in_thread(opened, "PRAGMA query_only = OFF")
        assert (await opened.commit(some_record(1), after=0)).kept


async def test_a_claim_in_force_is_honoured_where_none_can_be_written(home: DirectoryHome) -> None:
    digest = some_key().digest
    async with home.opened() as ours, home.opened() as theirs:
        assert isinstance(ours, DirectoryStore)
        held = await theirs.claim(digest, "b", expiry_s=EXPIRY_S)
        await in_thread(ours, "PRAGMA query_only = ON")
        assert await ours.claim(digest, "a", expiry_s=EXPIRY_S) == held
        assert (await ours.claim(some_key(1).digest, "a", expiry_s=EXPIRY_S)).owner == "a"
        assert not await ours.release(held), "it may be there still"
        home.clock.now_s += EXPIRY_S + 1.0
        assert (await ours.claim(digest, "a", expiry_s=EXPIRY_S)).owner == "a"


@pytest.fixture
def megabyte(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("only root can mount a small disk")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(filler: Path) -> None:
    """Make a file as long as the disk lets it be."""
    with filler.open("wb", buffering=0) as handle, contextlib.suppress(OSError):
        while handle.write(bytes(4096)):
            pass


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=True)


async def test_a_full_disk(megabyte: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = DirectoryHome(megabyte / "store")
    await filled(home, 20, trials=12)
    filler = megabyte / "filler"
    fill(filler)
    async with home.opened() as store:
        for n in range(20):
            assert await read(store, some_key(n)) == some_record(n, trials=12)
        committed = await store.commit(some_record(50, trials=40), after=0)
        assert (committed.won, committed.kept) == (True, False)
        assert (await store.statistics()).trouble
        filler.unlink()
        assert (await store.commit(some_record(50, trials=40), after=0)).kept, "room was made"
    assert warnings(caplog)
    assert await readable(home, 51) == [*range(20), 50]


async def test_a_disk_mounted_read_only(megabyte: Path) -> None:
    home = DirectoryHome(megabyte / "store")
    await filled(home, 5)
    remount(megabyte, "ro")
    async with home.opened() as store:
        assert await read(store, some_key(4)) == some_record(4)
        assert not (await store.commit(some_record(5), after=0)).kept
        assert not (await store.statistics()).writable
        remount(megabyte, "rw")
        assert (await store.commit(some_record(5), after=0)).kept
