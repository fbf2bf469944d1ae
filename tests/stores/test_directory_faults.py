"""A directory store under what SQLite says on a bad day, and under processes that are killed while they write."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from algosearch import open_searcher
from algosearch.records import Record
from algosearch.stores import DirectoryStore, Miss, access
from algosearch.stores.disk import SETTINGS
from tests.search.helpers import FAST, scripted, some_ops
from tests.stores.directories import DirectoryHome, filled, readable, set_aside, warnings
from tests.stores.faulty import Ailment, Fault, FaultySqlite, FaultyStore
from tests.stores.homes import EXPIRY_S, read
from tests.stores.nouns import some_key, some_record
from tests.stores.writer import OPEN_S

Plan = Callable[[str, int], Ailment | None]
AILMENTS: tuple[Ailment, ...] = ("busy", "protocol", "full", "read_only", "io")


def beginning(*words: str, says: Ailment) -> Plan:
    """Every statement that begins so."""
    return lambda statement, number: says if statement.lstrip().upper().startswith(words) else None


def every_fifth(says: Ailment) -> Plan:
    return lambda statement, number: says if number % 5 == 4 else None


PLACES: dict[str, Callable[[Ailment], Plan]] = {
    "opening": lambda says: beginning("PRAGMA", "CREATE", says=says),
    "journal": lambda says: lambda statement, number: says if "journal_mode" in statement else None,
    "first read": lambda says: beginning("SELECT", says=says),
    "begin": lambda says: beginning("BEGIN", says=says),
    "value": lambda says: beginning("INSERT", "UPDATE", "REPLACE", says=says),
    "commit": lambda says: beginning("COMMIT", "END", says=says),
    "every fifth": every_fifth,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("says", AILMENTS)
async def test_whatever_sqlite_says_every_question_is_answered(
    tmp_path: Path, place: str, says: Ailment, caplog: pytest.LogCaptureFixture
) -> None:
    """C12, C15: one warning for each kind of trouble, and when it is over records are kept again."""
    sqlite = FaultySqlite(PLACES[place](says))
    store = DirectoryStore(tmp_path / "store", retry_s=0.0)
    with sqlite.in_force():
        async with open_searcher(store=store, backends=[scripted(*some_ops(5))]) as searcher:
            choices = await searcher.select_many(some_ops(3))
            assert [choice.algorithm for choice in choices] == [FAST] * 3
            assert sqlite.raised[says] > 0
            said = [line for line in warnings(caplog) if "store " in line]
            assert 1 <= len(said) <= 4, said
            assert str(tmp_path / "store") in said[0]
            sqlite.plan = lambda statement, number: None
            await searcher.select_many(some_ops(5))
    async with open_searcher(store=tmp_path / "store", backends=[scripted(*some_ops(5))]) as searcher:
        choices = await searcher.select_many(some_ops(5))
        assert [choice.algorithm for choice in choices] == [FAST] * 5
    async with open_searcher(store=tmp_path / "store", backends=[scripted(*some_ops(5))], mode="cached") as searcher:
        assert len(await searcher.select_many(some_ops(5))) == 5
    assert not [path.name for path in (tmp_path / "store").iterdir() if path.suffix == ".val"]


@pytest.mark.parametrize("says", AILMENTS)
async def test_good_records_are_read_whatever_writing_says(home: DirectoryHome, says: Ailment) -> None:
    """C12."""
    await filled(home, 5)
    with FaultySqlite(beginning("BEGIN", "INSERT", "UPDATE", says=says)).in_force():
        async with home.opened() as store:
            for n in range(5):
                assert await read(store, some_key(n)) == some_record(n)
            committed = await store.commit(some_record(9), after=0)
            assert (committed.won, committed.kept) == (True, False)
            claim = await store.claim(some_key(9).digest, "me", expiry_s=EXPIRY_S)
            assert claim.owner == "me", "a claim that cannot be written holds nobody up"
    assert await readable(home, 10) == [0, 1, 2, 3, 4]
    assert set_aside(home) == []


@pytest.mark.parametrize("fault", ["raises", "not_kept", "hidden", "torn", "late"])
async def test_a_store_that_shows_late_damaged_or_never_what_was_written(tmp_path: Path, fault: Fault) -> None:
    """C09 to C15: whatever a store makes of it, each question is answered, and rightly."""
    store = FaultyStore(DirectoryStore(tmp_path / "store"), lambda call: fault)
    for _ in range(2):
        async with open_searcher(store=store, backends=[scripted(*some_ops(10))]) as searcher:
            choices = await searcher.select_many(some_ops(10))
            assert [choice.algorithm for choice in choices] == [FAST] * 10
    assert store.met


# -- processes ----------------------------------------------------------------------------------------------------


def writer(directory: Path, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stores.writer", str(directory), str(first), str(count)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nobody lets go by itself of what is locked."""
    monkeypatch.setattr(access, "OPEN_S", 0.1)
    monkeypatch.setattr(access, "REOPEN_S", 0.01)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_many_processes_open_one_new_directory_at_once(tmp_path: Path, started: list[subprocess.Popen[str]]) -> None:
    """C09: all come up, within what opening may take, and say nothing on the way."""
    started += [writer(tmp_path / "store", 10 * n, 3) for n in range(8)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
    for n, process in enumerate(started):
        out, err = process.communicate(timeout=50)
        opened, *kept = out.splitlines()
        assert err == ""
        assert float(opened.split()[1]) < OPEN_S
        assert kept == [str(10 * n + each) for each in range(3)]


async def test_killed_at_any_moment_a_writer_leaves_what_it_has_acknowledged(
    home: DirectoryHome, started: list[subprocess.Popen[str]]
) -> None:
    """C11, F12: and the next to open it need not even set anything aside."""
    dice = random.Random(11)
    first, acknowledged = 0, set[int]()
    for _ in range(6):
        process = writer(home.path, first, 400)
        started.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        for _ in range(2 + dice.randrange(40)):
            line = await asyncio.to_thread(process.stdout.readline)
            if line.strip().isdigit():
                acknowledged.add(int(line))
        process.kill()
        acknowledged |= {int(line) for line in process.communicate()[0].splitlines() if line.strip().isdigit()}
        found = await readable(home, first + 400)
        assert acknowledged <= set(found)
        first += 400
    assert len(acknowledged) > 20
    assert set_aside(home) == []


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
async def test_a_log_cut_short_costs_what_it_held(
    home: DirectoryHome, started: list[subprocess.Popen[str]], keep: float
) -> None:
    """C11: what had reached the file itself is read, and the store goes on."""
    await filled(home, 3)
    process = writer(home.path, 10, 30)
    started.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    while (await asyncio.to_thread(process.stdout.readline)).strip() != "30":
        pass
    process.kill()
    process.communicate()
    log = home.path / "cache.db-wal"
    with log.open("r+b") as handle:
        handle.truncate(int(log.stat().st_size * keep))
    found = await readable(home, 40)
    assert {0, 1, 2} <= set(found)
    async with home.opened() as store:
        assert (await store.commit(some_record(99), after=0)).kept
    assert {*found, 99} <= set(await readable(home, 100))


async def test_nothing_is_thrown_out_to_make_room(home: DirectoryHome) -> None:
    """C14: far beyond diskcache's own limits for culling, every record and every claim is there; and one that is too
    long to be kept is said not to be."""
    assert (SETTINGS["eviction_policy"], SETTINGS["cull_limit"]) == ("none", 0)
    count = 400
    async with home.opened() as store:
        claims = [await store.claim(some_key(n).digest, "me", expiry_s=EXPIRY_S) for n in range(0, count, 10)]
        for n in range(count):
            assert (await store.commit(some_record(n), after=0)).kept
        answers = await store.get_many([some_key(n) for n in range(count)])
        assert sum(isinstance(answer, Record) for answer in answers) == count
        held = await store.holders([claim.digest for claim in claims])
        assert [claim.owner for claim in held if claim is not None] == ["me"] * len(claims)
        assert (await store.statistics()).records == count
        assert isinstance(await read(store, some_key(count)), Miss)
