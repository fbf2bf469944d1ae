"""A base store: read where the store has no record, and never written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from algosearch import open_searcher
from algosearch.backends.simulated import SimulatedBackend, TraceEvent, searches
from algosearch.errors import NotCached
from algosearch.records import Record
from algosearch.search.tiers import Tiers
from algosearch.stores import DirectoryStore, MemoryStore, Miss
from algosearch.stores.base import Store
from tests.search.helpers import scripted, some_op, some_ops
from tests.stores.nouns import some_key, some_record

OPS = some_ops(4)


async def shipped(path: Path, trace: list[TraceEvent] | None = None) -> None:
    """A base in which the first two ops are known."""
    async with open_searcher(store=path, backends=[scripted(*OPS, trace=trace)]) as searcher:
        await searcher.select_many(OPS[:2])


def content(path: Path) -> bytes:
    return (path / "cache.db").read_bytes()


async def records(path: Path) -> dict[str, Record]:
    store = DirectoryStore(path, read_only=True)
    await store.open()
    found = {digest: record async for digest, record in store.scan() if isinstance(record, Record)}
    await store.aclose()
    return found


async def test_reads_fall_through_and_writes_go_to_the_store(tmp_path: Path) -> None:
    base, own = tmp_path / "base", tmp_path / "own"
    await shipped(base)
    before = content(base)
    trace: list[TraceEvent] = []
    async with open_searcher(store=own, base=base, backends=[scripted(*OPS, trace=trace)]) as searcher:
        requests = [searcher.request(op) for op in OPS]
        for request in requests:
            await request.choice()
        assert [request.source for request in requests] == ["store", "store", "search", "search"]
        engine = searcher.statistics().engine
        assert (engine.store, engine.base) == (str(own), str(base))
        assert (engine.store_hits, engine.store_misses, engine.searched) == (2, {"absent": 2}, 2)
    assert searches(trace) == 2
    assert content(base) == before
    assert len(await records(own)) == 2
    assert len(await records(base)) == 2


async def test_a_further_search_for_a_key_of_the_base_is_the_stores(tmp_path: Path) -> None:
    base, own = tmp_path / "base", tmp_path / "own"
    await shipped(base)
    before = content(base)
    async with open_searcher(store=own, base=base, backends=[scripted(*OPS)]) as searcher:
        choice = await searcher.select(OPS[0])
        exhaustive = await searcher.select(OPS[0], mode="exhaustive")
    assert content(base) == before
    (record,) = (await records(own)).values()
    assert [search.mode for search in record.searches] == ["race", "exhaustive"]
    assert record.searches[0] == (await records(base))[record.key.digest].searches[0]
    # Now the store knows it, and the base is not asked.
    async with open_searcher(store=own, base=base, backends=[scripted(*OPS)], mode="cached") as searcher:
        assert await searcher.select(OPS[0]) == choice
        assert await searcher.select(OPS[0], mode="exhaustive") == exhaustive


async def test_the_setting_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await shipped(tmp_path / "base")
    monkeypatch.setenv("ALGOSEARCH_BASE", str(tmp_path / "base"))
    async with open_searcher(store="memory:", backends=[scripted(*OPS)], mode="cached") as searcher:
        await searcher.select_many(OPS[:2])
        with pytest.raises(NotCached, match="not in the store"):
            await searcher.select(OPS[2])
    monkeypatch.delenv("ALGOSEARCH_BASE")
    async with open_searcher(store="memory:", backends=[scripted(*OPS)], mode="cached") as searcher:
        with pytest.raises(NotCached):
            await searcher.select(OPS[0])


async def test_a_base_that_is_not_there_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_searcher(store="memory:", base=tmp_path / "none", backends=[SimulatedBackend()]) as searcher:
        await searcher.select(some_op())
        assert searcher.statistics().engine.base is None
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith(
        f"going on without a base store: the store {tmp_path / 'none'} cannot be used: there is no "
    )
    assert not (tmp_path / "none").exists()


async def test_searchers_with_other_bases_share_no_engine(tmp_path: Path) -> None:
    await shipped(tmp_path / "base")
    trace: list[TraceEvent] = []
    backend = scripted(*OPS, trace=trace)
    args = {"store": str(tmp_path / "own"), "backends": [backend]}
    async with open_searcher(**args) as without, open_searcher(**args, base=tmp_path / "base") as behind:  # type: ignore[arg-type]
        await behind.select(OPS[0])
        assert searches(trace) == 0
        await without.select(OPS[0])
        assert searches(trace) == 1


class Odd(MemoryStore):
    """Has an answer of its own for one key, or breaks."""

    def __init__(self, answer: Miss | None) -> None:
        super().__init__()
        self.answer = answer

    async def get_many(self, keys: object) -> list[Record | Miss]:
        if self.answer is None:
            raise ZeroDivisionError("a bug in a store")
        return [self.answer] * len(keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Miss("undecodable", "cut short"), "cut short"),
        (Miss("absent", "not in the store"), "not in the store"),
        (None, "ZeroDivisionError: a bug in a store"),
    ],
)
async def test_whatever_the_store_says_the_base_is_asked(answer: Miss | None, reason: str) -> None:
    base = MemoryStore()
    tiers = Tiers(Odd(answer), base=base)
    await tiers.open()
    await base.commit(some_record(0), after=0)
    found, missed = await tiers.read([some_key(0), some_key(1)])
    assert found == some_record(0)
    assert tiers.recall(some_key(0).digest) == found
    assert isinstance(missed, Miss)
    assert missed.reason == reason
    await tiers.aclose()


async def test_the_first_that_has_a_record_answers() -> None:
    stores: list[Store] = [MemoryStore(), MemoryStore()]
    tiers = Tiers(stores[0], base=stores[1])
    await tiers.open()
    await stores[0].commit(some_record(0, seed=1), after=0)
    await stores[1].commit(some_record(0, generation=3), after=0)
    assert await tiers.read([some_key(0)]) == [some_record(0, seed=1)]
    await tiers.aclose()
