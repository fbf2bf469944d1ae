"""A directory store whose file was damaged: good records are still read, and the store goes on."""

from __future__ import annotations

import asyncio

import pytest

from algosearch.records import Record, wire
from algosearch.stores import Miss
from tests.stores.directories import DirectoryHome, filled, readable, set_aside, spoil, warnings
from tests.stores.homes import read
from tests.stores.nouns import some_key, some_record


@pytest.mark.parametrize("length", [0, 1, 15, 16, 99, 100, 512, 4096, 8191, 8192, 8193, 16384, 20000, 40000, 81920])
async def test_a_file_cut_short_is_no_end(home: DirectoryHome, length: int) -> None:
    await filled(home, 40, trials=12)
    file = home.path / "cache.db"
    assert file.stat().st_size > length
    with file.open("r+b") as handle:
        handle.truncate(length)
    before = await readable(home, 40)
    assert len(set_aside(home)) == (length > 0)
    assert bool(before) == (length > 80_000), "what was not cut off is read"
    async with home.opened() as store:
        for n in range(40):
            committed = await store.commit(some_record(n, trials=12), after=0)
            assert committed.kept
            assert committed.won == (n not in before)
    assert await readable(home, 40) == list(range(40))


async def test_a_last_page_of_which_the_beginning_is_left_costs_no_other(home: DirectoryHome) -> None:
    """What is left of it has zeros for the numbers of its rows, of which the last one is asked first."""
    await filled(home, 60, trials=2)
    file = home.path / "cache.db"
    whole = file.read_bytes()
    page = whole.index(wire.encode(some_record(59, trials=2))) // 8192 * 8192
    rows = int.from_bytes(whole[page + 5 : page + 7])
    """Where in the page they begin."""
    file.write_bytes(whole[: page + rows].ljust(page + 8192, b"\0") + whole[page + 8192 :])
    await readable(home, 60)
    assert len(set_aside(home)) == 1
    assert 40 < len(await readable(home, 60)) < 60


@pytest.mark.parametrize("offset", [0, 16, 60, 100, 4096])
async def test_garbage_at_the_beginning_is_set_aside(
    home: DirectoryHome, caplog: pytest.LogCaptureFixture, offset: int
) -> None:
    await filled(home)
    spoil(home.path / "cache.db", offset, 400)
    await filled(home)
    assert await readable(home, 3) == [0, 1, 2]
    assert len(set_aside(home)) == (0 if offset == 4096 else 1)
    assert len(warnings(caplog)) == len(set_aside(home))


async def test_garbage_pages_cost_what_lay_on_them(home: DirectoryHome, caplog: pytest.LogCaptureFixture) -> None:
    """C10."""
    count = 120
    await filled(home, count, trials=12)
    file = home.path / "cache.db"
    size = file.stat().st_size
    for page in range(10, size // 8192, 12):
        spoil(file, page * 8192, 8192)
    saved = await readable(home, count)
    assert count * 3 / 4 < len(saved) < count
    assert len(set_aside(home)) == 1
    assert len([line for line in warnings(caplog) if "set aside" in line]) == 1
    await filled_again(home, count, saved)


async def filled_again(home: DirectoryHome, count: int, saved: list[int]) -> None:
    async with home.opened() as store:
        for n in range(count):
            assert (await store.commit(some_record(n, trials=12), after=0)).won == (n not in saved)
    assert await readable(home, count) == list(range(count))


async def test_damage_that_comes_while_it_is_open(home: DirectoryHome) -> None:
    await filled(home, 60, trials=12)
    async with home.opened() as store:
        assert isinstance(await read(store, some_key()), Record)
        spoil(home.path / "cache.db", 8192)
        await store.get_many([some_key(n) for n in range(60)])
        assert (await store.commit(some_record(99), after=0)).kept
        assert await read(store, some_key(99)) == some_record(99)
        assert "corrupt" in "".join((await store.statistics()).trouble)
    assert 99 in await readable(home, 100)


async def test_two_handles_that_meet_the_same_damage_set_it_aside_once(home: DirectoryHome) -> None:
    await filled(home, 60, trials=12)
    async with home.opened() as first, home.opened() as second:
        spoil(home.path / "cache.db", 8192)
        keys = [some_key(n) for n in range(60)]
        await asyncio.gather(first.get_many(keys), second.get_many(keys))
        for store in (first, second):
            await store.get_many(keys)
        assert len(set_aside(home)) == 1
        await first.commit(some_record(0, seed=1), after=0)
        assert await read(second, some_key(0)) == await read(first, some_key(0))


async def test_a_log_without_its_file_is_not_played_into_the_next(home: DirectoryHome) -> None:
    async with home.opened() as store:
        await store.commit(some_record(), after=0)
        log = (home.path / "cache.db-wal").read_bytes()
    (home.path / "cache.db").unlink()
    (home.path / "cache.db-wal").write_bytes(log)
    async with home.opened() as store:
        assert isinstance(await read(store, some_key()), Miss)
        assert (await store.commit(some_record(1), after=0)).kept
    assert await readable(home, 2) == [1]


async def test_a_schema_with_words_that_are_no_text_is_set_aside(
    home: DirectoryHome, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite quotes them in its error, which Python cannot decode, and raises none of SQLite's errors then."""
    await filled(home)
    file = home.path / "cache.db"
    whole = file.read_bytes()
    named = whole.index(b"Cache_key_rawCache")  # an index of that name, and whose it is
    file.write_bytes(whole[:named] + b"Cache_key_\xe7aw" + whole[named + 13 :])
    assert await readable(home, 3) == []
    assert len(set_aside(home)) == len(warnings(caplog)) == 1
    await filled(home)
    assert await readable(home, 3) == [0, 1, 2]
    assert len(set_aside(home)) == 1
