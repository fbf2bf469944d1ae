"""`stats`: the numbers of a store add up, and looking at it leaves it as it was."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from algosearch.cli.census import Census, census_of
from algosearch.cli.contents import Contents, Entry
from algosearch.ops import BatchNormOp, ConvOp
from algosearch.records import Environment, Record, wire
from algosearch.stores import DirectoryStore
from tests.cli.helpers import ENVIRONMENT, fill, invoke, record_of, spoil, the_object, tiny_op

DAY_S = 86_400
NORM = BatchNormOp(shape=(2, 3, 4, 4))
NEWER = Environment(backend="cpu", device="Some CPU", facts=(("numpy", "2.1"), ("threads", "2")))
OTHER = Environment(backend="other", device="Other CPU")


def hours_ago(hours: float) -> int:
    return int(time.time() - hours * 3600)


def twice(record: Record) -> Record:
    """With a further search, made alone."""
    search = record.searches[0]
    alone = replace(search.provenance, alone=True, seconds=1.5)
    return replace(record, searches=(search, replace(search, mode="exhaustive", provenance=alone)))


RECORDS = (
    record_of(tiny_op(0), found_at_s=hours_ago(1)),
    record_of(tiny_op(1), environment=NEWER, found_at_s=hours_ago(24 * 8), version="0.0.9"),
    record_of(NORM, environment=OTHER, found_at_s=hours_ago(24 * 400), generation=2),
    twice(record_of(replace(tiny_op(0), direction="backward_data"), found_at_s=hours_ago(-5))),
)


def sizes(*records: Record) -> dict[str, int]:
    return {"records": len(records), "bytes": sum(len(wire.encode(record)) for record in records)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = fill(tmp_path / "store", *RECORDS, record_of(tiny_op(5)), record_of(tiny_op(6)))
    spoil(store, record_of(tiny_op(5)).key.digest, b"\xff\xff")
    spoil(store, record_of(tiny_op(6)).key.digest, b"")
    return store


def test_the_numbers(store: Path) -> None:
    found = the_object(invoke("stats", store, "--json").stdout)
    one, two, three, four = RECORDS
    assert (found["store"], found["missing"]) == (str(store), False)
    assert {"records": found["records"], "bytes": found["bytes"]} == sizes(*RECORDS)
    assert found["file_bytes"] >= (store / "cache.db").stat().st_size
    assert found["operations"] == {
        "conv forward": sizes(one, two),
        "conv backward_data": sizes(four),
        "batch_norm training_forward": sizes(three),
    }
    assert found["backends"] == {"cpu": sizes(one, two, four), "other": sizes(three)}
    assert found["devices"] == {"Some CPU": sizes(one, two, four), "Other CPU": sizes(three)}
    assert found["facts"] == {
        "threads=2": sizes(one, two, four),
        "numpy=2.0": sizes(one, four),
        "numpy=2.1": sizes(two),
    }
    assert found["versions"] == {"0.1.0": sizes(one, three, four), "0.0.9": sizes(two)}
    # What lies ahead, by another clock, is new.
    assert found["ages"] == {"1 d": sizes(one, four), "30 d": sizes(two), "older": sizes(three)}
    assert (found["oldest_at_s"], found["newest_at_s"]) == (
        three.searches[0].provenance.found_at_s,
        four.searches[0].provenance.found_at_s,
    )
    assert found["searches"] == {"race": 4, "exhaustive": 1}
    assert (found["alone"], found["repaired"], found["without_algorithm"]) == (1, 1, 0)
    assert found["trials"] == 5 * 4
    assert found["stages"] == {"final": 10, "coarse": 5}
    assert found["failures"] == {"out_of_memory": 5}
    assert found["search_seconds"] == pytest.approx(4 * 0.25 + 1.5)
    assert (found["claims"], found["claims_in_force"], found["set_aside"]) == (0, 0, [])
    assert {each["digest"] for each in found["unreadable"]} == {record_of(tiny_op(n)).key.digest for n in (5, 6)}
    assert all(each["reason"] for each in found["unreadable"])


def test_for_people(store: Path) -> None:
    result = invoke("stats", "--store", store)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == f"store {store}"
    for part in (
        "unreadable 2",
        "searches 5: 4 race, 1 exhaustive; 1 of them alone",
        "trials 20: 10 final, 5 coarse, 5 out_of_memory",
        "repaired 1 records",
        "claims 0 in force, 0 lapsed",
        "time saved 2.5 s of searching, by each process that asks all of it",
    ):
        assert part in lines
    assert any(line.startswith("numpy=2.1 1 ") for line in lines)
    assert any(line.startswith("1 not a record: ") for line in lines)


def test_claims_and_what_was_set_aside(tmp_path: Path) -> None:
    path = fill(tmp_path / "store", RECORDS[0])
    now_s = 1_000_000.0

    async def claim() -> None:
        store = DirectoryStore(path)
        await store.open()
        await store.claim("a" * 64, "one", expiry_s=1000.0)
        await store.aclose()
        store = DirectoryStore(path, clock=lambda: now_s)
        await store.open()
        await store.claim("b" * 64, "two", expiry_s=10.0)
        await store.aclose()

    anyio.run(claim)
    (path / "set-aside-20260101T000000Z").mkdir()
    (path / "set-aside-20260101T000000Z" / "cache.db").write_bytes(b"x" * 3000)
    found = the_object(invoke("stats", path, "--json").stdout)
    assert (found["claims"], found["claims_in_force"]) == (2, 1)
    assert found["set_aside"] == [{"path": str(path / "set-aside-20260101T000000Z"), "bytes": 3000}]
    assert "1 in force, 1 lapsed" in invoke("stats", path).stdout


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    result = invoke("stats", tmp_path / "none")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"there is no store at {tmp_path / 'none'}\n"
    found = the_object(invoke("stats", tmp_path / "none", "--json").stdout)
    assert (found["missing"], found["records"], found["oldest_at_s"]) == (True, 0, None)
    assert list(tmp_path.iterdir()) == []


def test_looking_changes_nothing(store: Path) -> None:
    before = (store / "cache.db").read_bytes()
    invoke("stats", store)
    invoke("show", "--store", store)
    assert (store / "cache.db").read_bytes() == before


def test_two_stores_are_one_too_many(tmp_path: Path) -> None:
    result = invoke("stats", tmp_path / "a", "--store", tmp_path / "b")
    assert result.exit_code == 2
    assert "goes without another store" in result.stderr
    assert invoke("stats", tmp_path / "a", "--store", tmp_path / "a").exit_code == 0


def test_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    path = fill(tmp_path / "store", RECORDS[0])
    (path / "cache.db").write_bytes(b"this is no database, but somebody's notes" * 100)
    result = invoke("stats", path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: the store {path} cannot be used: ")


def test_every_record_is_in_one_share_of_each_kind() -> None:
    entries = tuple(map(Entry.of, RECORDS))
    census: Census = census_of(Contents(location="/nowhere", entries=entries), now_s=time.time())
    for shares in (census.operations, census.backends, census.devices, census.versions, census.ages):
        assert sum(share.records for share in shares.values()) == census.records == 4
        assert sum(share.bytes for share in shares.values()) == census.bytes
    assert sum(census.stages.values()) + sum(census.failures.values()) == census.trials


def test_an_op_of_one_dimension_is_counted_as_any_other() -> None:
    entry = Entry.of(record_of(ConvOp(input_shape=(1, 2, 9), filter_shape=(2, 2, 3)), environment=ENVIRONMENT))
    assert census_of(Contents(location="/nowhere", entries=(entry,))).operations.keys() == {"conv forward"}
