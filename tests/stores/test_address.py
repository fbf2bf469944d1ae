"""From the URL of a server to its parts; and what no message about it may have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from algosearch.cli.places import one_store
from algosearch.errors import InvalidSetting, StoreUnusable
from algosearch.records import DEFAULT_POLICY
from algosearch.search.terms import Terms
from algosearch.stores import DirectoryStore, open_store
from algosearch.stores.address import ServerAddress


@pytest.mark.parametrize(
    ("url", "shown", "parts"),
    [
        ("redis://host", "redis://host", {"host": "host", "port": 6379, "database": 0, "tls": False}),
        ("Redis://host:1/3", "redis://host:1/3", {"host": "host", "port": 1, "database": 3}),
        ("rediss://[::1]:7", "rediss://[::1]:7", {"host": "::1", "port": 7, "tls": True}),
        ("redis://u:p%40%2F%3F%23@h", "redis://h", {"user": "u", "password": "p@/?#", "host": "h"}),
        ("redis://:a@b@h", "redis://h", {"user": None, "password": "a@b", "host": "h"}),
        ("unix:///run/s", "unix:///run/s", {"path": "/run/s", "host": ""}),
        ("unix://u:p@/run/s?database=2", "unix:///run/s", {"path": "/run/s", "password": "p", "database": 2}),
        ("unix:///run/a@b", "unix:///run/a@b", {"path": "/run/a@b"}),
        ("redis://h?directory=/tmp/a@b&prefix=t&timeout_s=0.5", "redis://h", {"directory": "/tmp/a@b", "prefix": "t"}),
    ],
)
def test_the_parts_of_a_url(url: str, shown: str, parts: dict[str, object]) -> None:
    address = ServerAddress.parse(url)
    assert address.shown == shown
    assert {name: getattr(address, name) for name in parts} == parts


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://", "names no host"),
        ("redis:/host", "is no URL"),
        ("redis:host:6379", "is no URL"),
        ("redis:///3", "names no host"),
        ("redis://host:99999", "its port cannot be read"),
        ("redis://[::1", "its host or its port cannot be read"),
        ("redis://host/a", "its database 'a' is no number"),
        ("redis://host?timeout=3", "no option timeout; there is: ca, certificate"),
        ("redis://host?prefix", "its options 'prefix' cannot be read"),
        ("redis://host?prefix=a&prefix=b", "the option prefix twice"),
        ("redis://host?prefix=a+b", "its prefix 'a b' is none"),
        ("redis://host?timeout_s=0", "its timeout_s '0' is none"),
        ("redis://host?timeout_s=nan", "its timeout_s 'nan' is none"),
        ("redis://host?ca=/x", "its option ca is for TLS"),
        ("redis://host#x", "has a # in it"),
        ("unix://", "no absolute path"),
        ("unix://run/s", "no absolute path"),
    ],
)
def test_what_is_no_address_is_refused_with_what_is_wrong(url: str, says: str) -> None:
    with pytest.raises(StoreUnusable) as caught:
        ServerAddress.parse(url)
    assert says in str(caught.value)


PASSWORDS = [
    "hunter", "12hunter", "hunter@", "#hunter", "hunter#", "/hunter", "12/hunter", "hunter?", "12?hunter",
    "12?hunter=x", "[hunter",
]  # fmt: skip
FORMS = [
    "redis://:{}@host/0", "redis://user:{}@host?nosuch=1", "redis://:{}@:7", "redis://{}:p@host/x",
    "rediss://u:{}@host:99999", "unix://:{}@/run/s?x", "unix://u:{}@run/s", "redis:u:{}@host", "etcd://u:{}@host",
    " redis://u:{}@host", "'redis://u:{}@host'", "redis+tls://u:{}@host", "s3://u:{}@host",
]  # fmt: skip


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("form", FORMS)
def test_no_part_of_a_password_is_ever_shown(password: str, form: str, tmp_path: Path) -> None:
    """However it is written: what is not escaped may be taken for another part of the URL."""
    url = form.format(password)
    said = [repr(Terms(store=url, base=url, policy=DEFAULT_POLICY))]
    with pytest.raises(InvalidSetting) as twice:
        one_store(url, "redis://other")
    said.append(str(twice.value))
    try:
        store = open_store(url)
        said += [store.location, repr(store)]
    except StoreUnusable as error:
        said.append(str(error))
    with pytest.raises(InvalidSetting) as spoilt:
        Terms(store=f"{url}\0", policy=DEFAULT_POLICY)
    said.append(str(spoilt.value))
    assert not [text for text in said if "hunter" in text or ":12" in text], said


@pytest.mark.parametrize("location", ["redis:/host", "redis:host", "unix:/run/s", "REDIS:host"])
def test_what_is_nearly_a_url_is_no_directory(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Terms(store=location, policy=DEFAULT_POLICY).store
    assert isinstance(store, str)
    with pytest.raises(StoreUnusable, match="is no URL; write redis://"):
        open_store(store)
    assert not os.listdir(tmp_path)
    assert isinstance(open_store(f"./{location}"), DirectoryStore)
