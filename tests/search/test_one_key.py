"""A bug that shows at one key: whoever asked for that one hears of it, and everybody else is answered."""

from __future__ import annotations

import asyncio

import pytest

from algosearch import Policy, open_searcher
from algosearch.errors import SearchFailed
from algosearch.records import Record
from algosearch.search import Searcher
from algosearch.search.flight import Flight
from algosearch.search.inquiry import Source
from algosearch.stores import MemoryStore
from tests.search.helpers import FAST, SMALL, scripted, some_op, some_ops, states, until
from tests.search.rivals import rival
from tests.search.test_lookout import FULL, OPS, Home


class Bug:
    """Nothing can be learned of one key."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.digest = ""
        learned = Flight.learned

        def broken(flight: Flight, record: Record, source: Source) -> None:
            if flight.key.digest == self.digest:
                raise ZeroDivisionError("a bug")
            learned(flight, record, source)

        monkeypatch.setattr(Flight, "learned", broken)


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> Bug:
    return Bug(monkeypatch)


def state_of(searcher: Searcher, digest: str) -> str:
    """Of the flight of a key; nothing if there is none."""
    return next((flight.state for flight in searcher.flights() if flight.digest == digest), "")


def assert_told(failure: object, caplog: pytest.LogCaptureFixture, n: int = 0) -> None:
    """Its own error to whoever asked, and where it came from to whoever reads the log, once."""
    assert isinstance(failure, SearchFailed)
    assert "ZeroDivisionError: a bug" in str(failure)
    (logged,) = (record for record in caplog.records if record.exc_info)
    assert some_op(n).describe() in logged.getMessage()
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], ZeroDivisionError)


async def test_where_the_store_is_read(bug: Bug, caplog: pytest.LogCaptureFixture) -> None:
    store, ops = MemoryStore(), some_ops(4)
    async with open_searcher(store=store, backends=[scripted(*ops)]) as first:
        digest = (await first.select_many(ops))[0].digest
    async with open_searcher(store=store, backends=[scripted(*ops)]) as searcher:
        bug.digest = digest
        failure, *choices = await asyncio.gather(*map(searcher.select, ops), return_exceptions=True)
        assert_told(failure, caplog)
        assert [getattr(choice, "algorithm", choice) for choice in choices] == [FAST] * 3
        bug.digest = ""
        assert (await searcher.select(ops[0])).algorithm == FAST
        assert searcher.statistics().engine.failed == 1
        assert searcher.statistics().engine.searched == 0


async def test_where_the_record_is_in_memory(bug: Bug, caplog: pytest.LogCaptureFixture) -> None:
    ops, policy = some_ops(4), Policy(deterministic=True)
    async with open_searcher(store="memory:", backends=[scripted(*ops)]) as searcher:
        bug.digest, *_ = [choice.digest for choice in await searcher.select_many(ops)]
        asking = [searcher.select(op, policy) for op in ops]
        failure, *choices = await asyncio.gather(*asking, return_exceptions=True)
        assert_told(failure, caplog)
        assert [getattr(choice, "algorithm", choice) for choice in choices] == [SMALL] * 3
        bug.digest = ""
        assert (await searcher.select(ops[0], policy)).algorithm == SMALL


@pytest.mark.parametrize("waited_for", [False, True])
async def test_where_another_process_has_found_it(bug: Bug, caplog: pytest.LogCaptureFixture, waited_for: bool) -> None:
    """While it queues here, and while it is waited for."""
    home = Home()
    home.backend.gates["load"].close()
    await home.hold(range(OPS))
    if not waited_for:
        home.clock.lapse()
    async with rival(home.store, home.backend) as searcher:
        asking = asyncio.gather(*map(searcher.select, some_ops(OPS)), return_exceptions=True)
        expected = "elsewhere" if waited_for else "queued"
        await until(lambda: states(searcher) == ({"elsewhere": OPS} if waited_for else FULL))
        (n, *_) = [n for n, key in enumerate(home.keys) if state_of(searcher, key.digest) == expected]
        bug.digest = home.keys[n].digest
        for each in range(OPS):
            if state_of(searcher, home.keys[each].digest) == expected:
                await home.ghosts.commit(home.record(each), after=0)
        await until(lambda: state_of(searcher, bug.digest) == "")
        home.backend.gates["load"].open()
        outcomes = await asking
        assert_told(outcomes.pop(n), caplog, n)
        assert not [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
