"""`doctor`: what works is told, what does not is named with what to do about it, and nothing is changed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from algosearch.backends import Backend, Device, Session, discover
from algosearch.backends.cpu import CpuBackend
from algosearch.backends.simulated import DeviceScript, Script, SimulatedBackend
from algosearch.cli import checkup, storefound
from algosearch.cli.places import Place
from algosearch.stores.filesystem import FileSystem
from tests.backends.absent import Absent
from tests.cli.helpers import environ, fill, invoke, record_of, run, spoil, the_object, tiny_op

MISSING = Absent("cudnn", "CuPy is not installed", "pip install it")


class Broken(Absent):
    """One that cannot even be asked."""

    def devices(self) -> tuple[Device, ...]:
        raise ZeroDivisionError("a bug in a driver")


def use(monkeypatch: pytest.MonkeyPatch, *backends: Backend) -> None:
    monkeypatch.setattr(discover, "default_backends", lambda: backends)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ALGOSEARCH_"):
            monkeypatch.delenv(name)
    use(monkeypatch, SimulatedBackend(Script(facts={"driver": "9"})))


def examined(*args: str | Path, code: int = 0) -> dict[str, Any]:
    result = invoke("doctor", *args, "--json")
    assert result.exit_code == code, result.stderr
    report = the_object(result.stdout)
    assert bool(report["broken"]) == bool(code)
    said = result.stderr.splitlines()
    assert said == [
        *(f"warning: {each}" for each in report["doubts"]),
        *(f"error: {each}" for each in report["broken"]),
    ]
    return report


def test_all_is_well(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", record_of(tiny_op()))
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    report = examined("--store", store)
    assert (report["broken"], report["doubts"], report["base"]) == ([], [], None)
    assert report["libraries"]["numpy"] == np.__version__
    assert report["libraries"]["sqlite"]
    (backend,) = report["backends"]
    assert (backend["name"], backend["missing"]) == ("simulated", None)
    (device,) = backend["devices"]
    assert (device["name"], device["trouble"], device["facts"]["driver"]) == ("simulated:0", None, "9")
    found = report["store"]
    assert (found["location"], found["source"], found["exists"]) == (str(store), "option", True)
    assert (found["readable"], found["writable"], found["records"], found["trouble"]) == (True, True, 1, [])
    assert (found["mode"], found["owner"], found["network"]) == ("0700", os.geteuid(), False)
    assert found["free_bytes"] > 0
    assert {path.name: path.read_bytes() for path in store.iterdir() if path.name in before} == before


def test_for_people(tmp_path: Path) -> None:
    result = invoke("doctor", "--store", tmp_path / "store")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith("algosearch ")
    assert lines[-1] == "all is well"
    assert any(line.startswith("simulated:0 Simulated Device opened in ") for line in lines)
    assert "ALGOSEARCH_MODE race default" in lines
    assert f"store {tmp_path / 'store'} (from option)" in lines
    assert "state not there yet, readable and writable" in lines
    assert list(tmp_path.iterdir()) == []  # to look makes no store


def test_the_cpu_is_opened_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, CpuBackend())
    (backend,) = examined("--store", tmp_path)["backends"]
    assert backend["devices"][0]["facts"]["numpy"] == np.__version__


# -- devices -----------------------------------------------------------------------------------------------------------


def test_why_a_backend_has_no_device_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch,
        MISSING,
        Broken("broken", "it is broken", "mend it"),
        SimulatedBackend(Script(devices=())),
        SimulatedBackend(),
    )
    report = examined("--store", tmp_path)
    missing = {backend["name"]: backend["missing"] for backend in report["backends"][:3]}
    assert missing == {
        "cudnn": "CuPy is not installed; pip install it",
        "broken": "looking for its devices broke: ZeroDivisionError: a bug in a driver",
        "simulated": "it finds no device",
    }
    assert "missing: CuPy is not installed; pip install it" in invoke("doctor", "--store", tmp_path).stdout


def test_without_any_device_something_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, MISSING)
    assert examined("--store", tmp_path, code=1)["broken"] == ["there is no device that can be used"]
    result = invoke("doctor", "--store", tmp_path)
    assert result.stdout.splitlines()[-1].rstrip() == "something is broken"


def test_a_cudnn_that_was_named_and_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_CUDNN", str(tmp_path / "nothing"))
    (broken,) = examined("--store", tmp_path / "store", code=1)["broken"]
    assert f"there is no libcudnn.so.9 in {tmp_path / 'nothing'} (ALGOSEARCH_CUDNN); name its directory" in broken


def test_a_device_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = (DeviceScript(), DeviceScript(kind="Other", unavailable="it is gone"))
    use(monkeypatch, SimulatedBackend(Script(devices=devices)))
    (broken,) = examined("--store", tmp_path, code=1)["broken"]
    assert broken.startswith("simulated:1 cannot be used: it is gone; ")


def test_a_backend_that_breaks_its_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(device: Device) -> Session:
        raise ZeroDivisionError("a bug")

    backend = SimulatedBackend()
    monkeypatch.setattr(backend, "open", breaks)
    use(monkeypatch, backend, CpuBackend())
    assert examined("--store", tmp_path, code=1)["broken"] == ["simulated:0 cannot be used: ZeroDivisionError: a bug"]


def test_an_incomplete_environment_is_a_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SimulatedBackend(Script(devices=(DeviceScript(incomplete="a part is not there"),))))
    (doubt,) = examined("--store", tmp_path)["doubts"]
    assert doubt == "nothing that is found on simulated:0 is stored: a part is not there"


def test_a_library_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "_LIBRARIES", ("numpy", "no-such-library"))
    report = examined("--store", tmp_path, code=1)
    assert report["broken"] == ["no-such-library is not installed; reinstall algosearch"]
    assert report["libraries"]["no-such-library"] is None


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_and_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_MODE", "cached")
    monkeypatch.setenv("ALGOSEARCH_STORE", str(tmp_path / "named"))
    report = examined()
    in_force = {each["name"]: (each["value"], each["source"]) for each in report["settings"]}
    assert in_force["ALGOSEARCH_MODE"] == ("cached", "environment")
    assert in_force["ALGOSEARCH_BASE"] == ("none", "default")
    assert in_force["ALGOSEARCH_DEBUG"] == ("none", "default")
    assert (report["store"]["location"], report["store"]["source"]) == (str(tmp_path / "named"), "environment")


def test_a_setting_that_cannot_be_understood_and_one_that_is_misspelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALGOSEARCH_MODE", "fast")
    monkeypatch.setenv("ALGOSEARCH_STOR", "x")
    monkeypatch.setenv("ALGOSEARCH_XYZ", "x")
    report = examined("--store", tmp_path, code=1)
    (broken,) = report["broken"]
    assert broken.startswith("ALGOSEARCH_MODE = 'fast': must be one of ")
    assert report["doubts"] == [
        "ALGOSEARCH_STOR is set, and no setting; ALGOSEARCH_STORE is one",
        "ALGOSEARCH_XYZ is set, and no setting",
    ]
    assert report["store"]["location"] == str(tmp_path)


# -- stores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("etcd://user:secret@host", "the store etcd://host cannot be used: "),
        ("", "it is empty"),
        ("/proc/none/store", "it cannot be written to: "),
        ("{tmp}/file", "is not a directory; name another one"),
        ("{tmp}/file/store", "is not a directory; name another one"),
    ],
)
def test_a_store_that_cannot_be(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (broken,) = examined("--store", name.replace("{tmp}", str(tmp_path)), code=1)["broken"]
    assert said in broken
    assert "secret" not in broken


def test_a_damaged_store(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", record_of(tiny_op()))
    (store / "cache.db").write_bytes(b"somebody's notes, and no database" * 500)
    report = examined("--store", store, code=1)
    (broken,) = report["broken"]
    assert broken.startswith(f"the store {store}: it cannot be read: ")
    assert report["store"]["readable"] is False
    assert (store / "cache.db").read_bytes().startswith(b"somebody's notes")


def test_a_record_that_cannot_be_read_is_no_matter_for_a_doctor(tmp_path: Path) -> None:
    """It is one key's miss: `stats` counts it, and `prune` deletes it."""
    store = fill(tmp_path / "store", record_of(tiny_op()))
    spoil(store, record_of(tiny_op()).key.digest, b"\xff")
    examined("--store", store)


def test_others_who_can_write(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", record_of(tiny_op()))
    store.chmod(0o770)
    report = examined("--store", store, code=1)
    assert report["broken"] == [f"the store {store}: others can write to it; run `chmod 700 {store}`"]
    assert (report["store"]["readable"], report["store"]["writable"]) == (True, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_store(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", record_of(tiny_op()))
    for path in (store, *store.iterdir()):
        os.chown(path, 65534, 65534)
    (broken,) = examined("--store", store, code=1)["broken"]
    assert "it belongs to user 65534, and this is user 0" in broken
    # As a base it will do.
    report = examined("--store", tmp_path / "own", "--base", store)
    assert (report["base"]["readable"], report["base"]["writable"], report["base"]["records"]) == (True, False, 1)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fill(tmp_path / "store", record_of(tiny_op()))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(storefound, "_free_bytes", lambda directory: 4096)
    report = examined("--store", store, code=1)
    assert "it cannot be written to: No space left on device; make it writable" in report["broken"][0]
    assert report["doubts"] == ["the store has hardly any room left: 4096 bytes"]
    assert sorted(path.name for path in store.iterdir() if path.name.startswith(".")) == []


def test_a_network_file_system_is_a_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nfs = FileSystem(kind="nfs4", mounted_at="/")
    monkeypatch.setattr(storefound, "file_system_of", lambda path: nfs)
    report = examined("--store", tmp_path / "store")
    assert (report["store"]["file_system"], report["store"]["network"]) == ("nfs4", True)
    (doubt,) = report["doubts"]
    assert doubt.startswith("the store lies on a network file system (nfs4), where only one host")


def test_what_was_set_aside(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", record_of(tiny_op()))
    (store / "set-aside-20260101T000000Z").mkdir()
    (doubt,) = examined("--store", store)["doubts"]
    assert "was set aside" in doubt


def test_memory_keeps_nothing() -> None:
    report = examined("--store", "memory:")
    assert report["doubts"] == ["the store is this process's memory: nothing is kept"]


def test_a_base_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_BASE", str(tmp_path / "none"))
    report = examined("--store", tmp_path / "own", code=1)
    assert report["broken"] == [f"the base store {tmp_path / 'none'}: there is no store; name a directory that has one"]
    assert report["base"]["source"] == "environment"


def test_a_place_that_cannot_be_looked_into_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    place = Place(location=tmp_path, source="option")
    assert not place.exists
    monkeypatch.setattr(os, "stat", refused)
    assert place.exists


def test_as_a_process(tmp_path: Path) -> None:
    ended = run("doctor", env=environ(ALGOSEARCH_STORE=str(tmp_path / "store")))
    assert ended.returncode == 0, ended.stderr
    # How far it has come, if it takes more than a second; nothing is wrong, so nothing else is said.
    steps = r"\d+/\d+  .+  (looking for devices of \w+|opening \w+:\d+|looking at the store)"
    assert [line for line in ended.stderr.splitlines() if not re.fullmatch(steps, line)] == []
    assert "cpu:0" in ended.stdout
    assert ended.stdout.rstrip().endswith("all is well")


def test_a_server_that_is_away_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_STORE", "redis://user:secret@127.0.0.1:1")
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "the store redis://127.0.0.1:1: unreachable: " in result.stderr
    assert "secret" not in result.stdout + result.stderr
