"""Processes that die of a key, one after the other: what who takes over makes of it, and who is accused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from algosearch.backends.simulated import searches
from algosearch.devices.worker import Worker
from algosearch.records import Record
from tests.search.helpers import FAST, SLOW, SMALL, some_op
from tests.search.rivals import EXPIRY_S, Home, reach, rival


@pytest.fixture
def home() -> Home:
    return Home()


class TestDeaths:
    async def test_the_first_is_taken_for_bad_luck(self, home: Home) -> None:
        await home.deaths(home.key(), of=[FAST])
        async with rival(home.handle(), home.backend()) as searcher:
            assert (await searcher.select(some_op())).algorithm == FAST
            assert searcher.statistics().engine.claims_taken_over == 1
        assert await home.holder(home.key()) is None

    async def test_the_second_convicts_what_was_about_to_be_launched(self, home: Home) -> None:
        """E05: the guilty candidate is never run again, the others are."""
        await home.deaths(home.key(), of=[FAST, FAST])
        async with rival(home.handle(), home.backend()) as searcher:
            choice = await searcher.select(some_op())
        assert choice.algorithm == SMALL
        assert FAST not in {event.algorithm for event in home.trace if event.call in ("build", "launch")}
        (trial,) = [t for t in (await home.record(home.key())).searches[0].trials if t.algorithm == FAST]
        assert trial.failure is not None
        assert trial.failure.kind == "crashed"
        assert dict(trial.failure.circumstances)["processes"] == "2"

    async def test_what_was_convicted_is_not_tried_by_a_further_search(self, home: Home) -> None:
        await home.deaths(home.key(), of=[FAST, FAST])
        async with rival(home.handle(), home.backend()) as searcher:
            await searcher.select(some_op())
            await searcher.select(some_op(), mode="exhaustive")
        assert FAST not in {event.algorithm for event in home.trace}

    async def test_the_third_is_the_end_of_searching(self, home: Home, caplog: pytest.LogCaptureFixture) -> None:
        """One poisonous key costs three processes, not the fleet; nobody waits for it, and nothing of it is stored."""
        await home.deaths(home.key(), of=["", "", SLOW])
        async with (
            rival(home.handle(), home.backend(), expiry_s=1000.0) as one,
            rival(home.handle(), home.backend(), expiry_s=1000.0) as two,
        ):
            for searcher in (one, two, one):
                choice = await searcher.select(some_op())
                assert choice.precision == "heuristic"
                assert choice.provisional
                assert choice.algorithm == FAST, "the first one, SLOW, is what was about to be launched"
                assert searcher.peek(some_op()) is None
        assert searches(home.trace) == 0
        (answer,) = await home.memory.get_many([home.key()])
        assert not isinstance(answer, Record)
        holder = await home.holder(home.key())
        assert holder is not None
        assert holder.lapses >= 3
        assert caplog.text.count("one process after the other died") == 2, "once for each engine"

    async def test_who_waits_when_it_becomes_hopeless_does_not_go_on_waiting(self, home: Home) -> None:
        await home.deaths(home.key(), of=["", ""])
        claim = await home.memory.claim(home.key().digest, "dead:2:x", expiry_s=EXPIRY_S)
        assert claim.lapses == 2
        async with rival(home.handle(), home.backend(), expiry_s=1000.0) as searcher:
            request = searcher.request(some_op())
            await reach(searcher, "elsewhere")
            home.clock.lapse()
            assert (await home.memory.claim(home.key().digest, "other:1:x", expiry_s=1e9)).lapses == 3
            assert (await request.choice()).precision == "heuristic"


async def test_a_candidate_is_in_the_claim_before_it_is_launched(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "survives_crashes", False)
    backend = home.backend()
    key = home.key()
    seen: list[str] = []

    def look(call: str, subject: Any) -> None:
        if call == "launch":
            holder = asyncio.run(home.holder(key))
            assert holder is not None
            seen.append(holder.trying)

    backend.before = look
    async with rival(home.handle(), backend) as searcher:
        await searcher.select(some_op())
    launches = [event.algorithm for event in home.trace if event.call == "launch"]
    assert seen == launches == [SLOW, FAST, SMALL]


async def test_where_a_crash_is_survived_nobody_is_accused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process runs the candidates, and this one lives to tell what killed it. If this one ends all the same,
    or cannot give its claim back, it was none of them."""
    monkeypatch.setattr(Worker, "survives_crashes", True)
    backend = home.backend()
    key = home.key()
    accused: list[str] = []

    def look(call: str, subject: Any) -> None:
        if call == "check":
            holder = asyncio.run(home.holder(key))
            assert holder is not None
            accused.append(holder.trying)

    backend.before = look
    async with rival(home.handle(), backend) as searcher:
        await searcher.select(some_op())
    assert accused
    assert not any(accused)
