"""From what a user writes to a store, and where records go if nothing is said."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from algosearch.errors import StoreUnusable
from algosearch.stores import DirectoryStore, MemoryStore, open_store
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
    (bare / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    monkeypatch.setenv("HOME", str(bare / "file"))
    store = open_store(None)
    await store.open()
    assert store.location == str(user_directories()[-1])
    await store.aclose()
    assert len(caplog.records) == 1
    assert f"{store.location} is used instead" in caplog.text


async def test_where_there_is_no_place_at_all_that_is_said(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    monkeypatch.setenv("HOME", str(bare / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(bare / "file"))
    store = open_store(None)
    with pytest.raises(StoreUnusable, match="it cannot be made"):
        await store.open()


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
