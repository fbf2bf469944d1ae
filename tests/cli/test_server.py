"""The verbs on a server: what each says of one that is away, full, or about to forget."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from algosearch.errors import StoreUnusable
from algosearch.stores import ServerStore
from algosearch.stores.home import user_directories
from tests.cli.helpers import fill, invoke, record_of, the_object, tiny_op, write_ops
from tests.servers import HeldPort, Server, running


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as server:
        yield server


@pytest.fixture
def away() -> Iterator[str]:
    """The URL of a server that is not there."""
    held = HeldPort()
    yield f"redis://127.0.0.1:{held.port}"
    held.close()


@pytest.fixture(autouse=True)
def own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is kept before a server is this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert user_directories()[0].is_relative_to(tmp_path)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Three records in a file."""
    store = fill(tmp_path / "store", *(record_of(tiny_op(n)) for n in range(3)))
    assert invoke("export", tmp_path / "records", "--store", store).exit_code == 0
    return tmp_path / "records"


def be_full(server: Server, *, full: bool = True) -> None:
    for words in (("maxmemory-policy", "noeviction"), ("maxmemory", "1" if full else "0")):
        assert server.command("CONFIG", "SET", *words) == "+OK"


def test_from_import_to_prune(server: Server, exported: Path, tmp_path: Path) -> None:
    at = ("--store", server.tcp)
    assert the_object(invoke("import", exported, *at, "--json").stdout)["added"] == 3
    assert the_object(invoke("import", exported, *at, "--json").stdout)["stayed"] == 3
    stats = the_object(invoke("stats", *at, "--json").stdout)
    assert (stats["records"], stats["missing"], stats["store"]) == (3, False, server.tcp)
    assert "on the disk" not in invoke("stats", *at).stdout, "of a server nobody here can say that"
    assert len(the_object(invoke("show", *at, "--json").stdout)["records"]) == 3
    assert the_object(invoke("export", tmp_path / "again", *at, "--json").stdout)["records"] == 3
    assert (tmp_path / "again").read_bytes().splitlines()[1:] == exported.read_bytes().splitlines()[1:]
    assert the_object(invoke("verify", *at, "--json").stdout)["findings"] == {"foreign": 3}
    explained = invoke("show", "--explain", '{"op":"conv","input_shape":[1,2,6,6],"filter_shape":[2,2,3,3]}', *at)
    assert "key" in explained.stdout
    assert explained.exit_code == 0
    assert the_object(invoke("prune", *at, "--older-than", "1d", "--json").stdout)["deleted"]["records"] == 3
    assert the_object(invoke("stats", *at, "--json").stdout)["records"] == 0


@pytest.mark.parametrize(
    "verb",
    [
        ["stats"],
        ["show"],
        ["show", "--explain", '{"op":"conv","input_shape":[1,2,6,6],"filter_shape":[2,2,3,3]}'],
        ["export", "out"],
        ["import", "FILE"],
        ["verify"],
        ["verify", "--repair"],
        ["prune", "--older-than", "1d"],
    ],
    ids=" ".join,
)
def test_a_server_that_is_away_is_not_taken_for_an_empty_one(
    verb: list[str], away: str, exported: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*(str(exported) if word == "FILE" else word for word in verb), "--store", away)
    assert result.exit_code == 2
    assert f"error: the store {away} cannot be used: Error 111" in result.stderr
    assert "empty" not in result.stderr
    assert not result.stdout
    assert not (tmp_path / "out").exists()


async def test_who_reads_everything_hears_of_a_server_that_goes_in_the_middle(server: Server) -> None:
    """Else the records read so far would be exported as all there are."""
    store = ServerStore(server.tcp)
    await store.open()
    try:
        for n in range(70):
            await store.commit(record_of(tiny_op(n)), after=0)
        store.require_read()
        scan = store.scan()
        await anext(scan)
        server.kill()
        assert len([item async for item in scan]) < 69
        with pytest.raises(StoreUnusable, match="start it, or correct its address"):
            store.require_read()
    finally:
        await store.aclose()


def test_warm_says_what_the_server_does_not_have(away: str, tmp_path: Path) -> None:
    ops = write_ops(tmp_path / "ops.jsonl", [tiny_op(n) for n in range(3)])
    for searched in (3, 0):  # the second time from this host's directory
        result = invoke("warm", ops, "--store", away, "--device", "cpu", "--json")
        assert result.exit_code == 0
        report = the_object(result.stdout)
        assert (report["searched"], report["alone"]) == (searched, 3)
        assert report["not_kept"] == [f"3 answers were found alone, and {away} does not have them; a warning says why"]


def test_warm_offers_what_was_found_alone(server: Server, tmp_path: Path) -> None:
    ops = write_ops(tmp_path / "ops.jsonl", [tiny_op(n) for n in range(3)])
    server.kill()
    assert the_object(invoke("warm", ops, "--store", server.tcp, "--device", "cpu", "--json").stdout)["alone"] == 3
    server.start()
    report = the_object(invoke("warm", ops, "--store", server.tcp, "--device", "cpu", "--json").stdout)
    assert (report["hits"], report["alone"], report["not_kept"]) == (3, 0, [])
    assert the_object(invoke("stats", "--store", server.tcp, "--json").stdout)["records"] == 3


def test_import_says_what_a_full_server_did_not_take(server: Server, exported: Path) -> None:
    """This host's directory took it, and that is not what was meant."""
    be_full(server)
    result = invoke("import", exported, "--store", server.tcp, "--json")
    assert result.exit_code == 74
    assert (report := the_object(result.stdout))["not_kept"] == 3
    assert report["added"] == 0


def test_prune_makes_room_on_a_full_server(server: Server, exported: Path) -> None:
    assert invoke("import", exported, "--store", server.tcp).exit_code == 0
    be_full(server)
    result = invoke("prune", "--older-than", "1d", "--store", server.tcp, "--json")
    assert result.exit_code == 0
    assert the_object(result.stdout)["deleted"]["records"] == 3


def doctor(url: str, what: str = "--store") -> tuple[int, dict[str, object], str]:
    result = invoke("doctor", what, url, "--json")
    found = the_object(result.stdout)[what.strip("-")]
    assert isinstance(found, dict)
    return result.exit_code, found, result.stderr


def test_doctor_on_a_server_that_is_well(server: Server) -> None:
    code, found, _ = doctor(server.tcp)
    assert (code, found["exists"], found["readable"], found["writable"], found["trouble"]) == (0, True, True, True, [])
    assert the_object(invoke("stats", "--store", server.tcp, "--json").stdout)["claims"] == 0, "it left its claim"


def test_doctor_on_a_server_that_is_away(away: str) -> None:
    code, found, stderr = doctor(away)
    assert (code, found["exists"], found["readable"], found["writable"]) == (1, False, False, False)
    assert f"error: the store {away}: unreachable: Error 111" in stderr
    assert "out of reach, of no use" in invoke("doctor", "--store", away).stdout


def test_doctor_tries_to_write_to_a_server(server: Server) -> None:
    be_full(server)
    code, found, stderr = doctor(server.tcp)
    assert (code, found["exists"], found["readable"], found["writable"]) == (1, True, True, False)
    assert "full: " in stderr


def test_doctor_on_a_server_that_follows_another(server: Server) -> None:
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as replica:
        assert replica.command("REPLICAOF", "127.0.0.1", str(server.port)) == "+OK"
        code, found, stderr = doctor(replica.tcp)
        assert (code, found["readable"], found["writable"]) == (1, True, False)
        assert "read_only: " in stderr
        assert "the server that this one follows" in stderr
        code, found, _ = doctor(replica.tcp, "--base")
        assert (code, found["readable"], found["writable"]) == (0, True, False)


@pytest.mark.parametrize(("policy", "limit", "doubt"), [
    ("allkeys-lru", "100mb", True), ("allkeys-lru", "0", False), ("volatile-lru", "100mb", False),
    ("noeviction", "100mb", False),
])  # fmt: skip
def test_doctor_warns_of_a_server_that_throws_records_away(
    server: Server, policy: str, limit: str, doubt: bool
) -> None:
    for words in (("maxmemory-policy", policy), ("maxmemory", limit)):
        assert server.command("CONFIG", "SET", *words) == "+OK"
    code, _, stderr = doctor(server.tcp)
    assert code == 0
    assert ("set it to noeviction" in stderr) == doubt


def test_a_closed_server_has_nothing_unread(away: str) -> None:
    async def look() -> None:
        store = ServerStore(away)
        store.require_read()
        assert await store.evicts() is None

    anyio.run(look)
