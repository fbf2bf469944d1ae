"""From what a user writes to a store, and where records go if nothing is said."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from algosearch.devices.runtime import runtime_directory
from algosearch.errors import StoreUnusable
from algosearch.stores import DirectoryStore, MemoryStore, SharedStore, inspection, open_store
from algosearch.stores.filesystem import FileSystem, file_system_of
from algosearch.stores.home import FOLDER, user_directories
from algosearch.stores.inspection import FORMAT
from tests.stores.homes import read
from tests.stores.nouns import some_key, some_record


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user with nothing but a place for temporary files."""
    for variable in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path


def test_memory() -> None:
    assert isinstance(open_store("memory:"), MemoryStore)


@pytest.mark.parametrize("kind", [str, Path])
async def test_a_directory(tmp_path: Path, kind: type[str] | type[Path]) -> None:
    store = open_store(kind(tmp_path / "here"))
    assert isinstance(store, DirectoryStore)
    assert store.location == str(tmp_path / "here")
    assert not (tmp_path / "here").exists(), "nothing is touched before it is opened"
    await store.open()
    assert (tmp_path / "here" / "cache.db").exists()
    await store.aclose()


def test_a_tilde_is_the_users_home(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(bare))
    assert open_store("~/store").location == str(bare / "store")


@pytest.mark.parametrize(
    ("location", "says"),
    [
        (
            "etcd://localhost",
            "the store etcd://localhost cannot be used: this version has no store of the kind etcd",
        ),
        ("etcds://user:secret@host:1/0?x=y", "etcds://host:1/0\\?x=y"),
        ("file:///tmp/x", "name a directory, memory:"),
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("~nobody-of-this-name/store", "home directory"),
    ],
)
def test_what_names_no_store_is_refused_with_what_does(location: str, says: str) -> None:
    with pytest.raises(StoreUnusable, match=says) as caught:
        open_store(location)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="XDG is Linux's")
def test_the_order_of_places(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F05, F07."""
    temporary = bare / "tmp" / f"algosearch-{os.geteuid()}" / FOLDER
    assert user_directories()[-1] == temporary
    monkeypatch.setenv("HOME", str(bare / "home"))
    assert user_directories() == [bare / "home" / ".cache" / "algosearch" / FOLDER, temporary]
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "xdg"))
    assert user_directories() == [bare / "xdg" / "algosearch" / FOLDER, temporary]


@pytest.mark.parametrize("home", ["relative", "~"])
def test_a_place_that_depends_on_the_current_directory_is_none(
    bare: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert all(path.is_absolute() for path in user_directories())


async def test_the_users_cache_directory(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "xdg"))
    monkeypatch.setenv("HOME", str(bare / "home"))
    for _ in range(2):
        store = open_store()
        await store.open()
        assert store.location == str(user_directories()[0])
        await store.commit(some_record(), after=0)
        assert await read(store, some_key()) == some_record()
        await store.aclose()


async def test_without_a_home_it_is_among_the_temporary_files(
    bare: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F05."""
    (bare / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    monkeypatch.setenv("HOME", str(bare / "file"))
    store = open_store(None)
    await store.open()
    assert store.location == str(user_directories()[-1])
    await store.aclose()
    assert len(caplog.records) == 1
    assert f"{store.location} is used instead" in caplog.text


async def test_a_store_among_the_temporary_files_leaves_room_for_the_locks_of_lanes(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in the same directory, and whoever comes first makes it."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    store = open_store(None)
    await store.open()
    await store.aclose()
    assert runtime_directory() == Path(store.location).parent


async def test_where_there_is_no_place_at_all_that_is_said(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    monkeypatch.setenv("HOME", str(bare / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(bare / "file"))
    store = open_store(None)
    with pytest.raises(StoreUnusable, match="it cannot be made"):
        await store.open()


async def test_where_nothing_temporary_can_be_written_the_usual_place_is_used(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container whose root is read-only, with a volume for the cache."""

    def none_is_usable() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none_is_usable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "volume"))
    store = open_store(None)
    await store.open()
    assert store.location == str(bare / "volume" / "algosearch" / FOLDER)
    await store.aclose()


@pytest.fixture
def network(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home on a file server."""
    monkeypatch.setenv("HOME", str(bare / "home"))

    def file_system(path: Path) -> FileSystem | None:
        text = f"1 1 0:1 / / rw - ext4 /dev/root rw\n2 1 0:2 / {bare / 'home'} rw - nfs4 server:/home rw"
        return file_system_of(path, mounts=text)

    monkeypatch.setattr(inspection, "file_system_of", file_system)
    return bare / "home"


@pytest.mark.parametrize("named", [True, False])
async def test_in_place_of_a_network_file_system_a_local_directory_is_taken(
    network: Path, caplog: pytest.LogCaptureFixture, named: bool
) -> None:
    """C10: SQLite's log and locks fail there, so nothing is even made there; said once."""
    store = open_store(network / "store" if named else None)
    await store.open()
    assert store.location == str(user_directories()[-1])
    assert (await store.commit(some_record(), after=0)).kept
    await store.aclose()
    assert "home" not in os.listdir(network.parent)
    first, last = caplog.records[0].getMessage(), caplog.records[-1].getMessage()
    assert "network file system (nfs4)" in first
    assert f"{store.location} is used instead" in last


async def test_a_store_on_a_network_file_system_can_be_read(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(inspection, "file_system_of", lambda path: None)
        store = open_store(network / "store")
        await store.open()
        await store.commit(some_record(), after=0)
        await store.aclose()
    base = open_store(network / "store", read_only=True)
    await base.open()
    assert await read(base, some_key()) == some_record()
    await base.aclose()


def test_the_default_directory_carries_the_format() -> None:
    assert f"store-v{FORMAT}" == FOLDER


def test_what_only_an_open_directory_needs_is_not_imported_before() -> None:
    script = (
        "import sys, algosearch.stores as stores\n"
        "stores.open_store('here'), stores.open_store(None), stores.open_store('memory:')\n"
        "sys.exit(', '.join({'sqlite3', 'diskcache', 'platformdirs', 'tempfile'} & set(sys.modules)))"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert child.stderr.strip() == ""


@pytest.mark.parametrize(
    "other", ["unix:///run/s?database=2", "unix:///run/s?database=1&prefix=team", "unix:///run/t?database=1"]
)
async def test_what_is_kept_before_one_server_is_not_offered_to_another(
    bare: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "xdg"))
    places = []
    for url in ("unix:///run/s?database=1", "unix://user:secret@/run/s?database=1&timeout_s=1", other):
        store = open_store(url)
        assert isinstance(store, SharedStore)
        assert store.directory is not None
        await store.directory.open()
        places.append(store.directory.location)
        await store.directory.aclose()
    assert places[0] == places[1] != places[2]
