"""A job whose server is away, slow or emptied: it goes on alone, says so, and agrees with the others afterwards."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from algosearch.backends.simulated import CandidateScript, ProblemScript, Script, SimulatedBackend
from algosearch.errors import FoundAlone, InvalidSetting
from algosearch.records import DEFAULT_POLICY, Record, wire
from algosearch.search import Searcher
from algosearch.search.terms import Terms
from algosearch.stores import DirectoryStore, ServerStore, SharedStore
from algosearch.stores.layout import FORMAT
from tests.search.helpers import some_op, some_ops, until
from tests.search.rivals import rival
from tests.servers import Server

A, B = "simulated/t:a", "simulated/t:b"


@pytest.fixture
def server() -> Iterator[Server]:
    """Not started."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory))
        try:
            yield server
        finally:
            server.kill()


def store(server: Server, directory: Path | None, *, timeout_s: float = 20.0) -> SharedStore:
    """What answers late is waited for, but where a test is about that: on a busy machine it may."""
    near = None if directory is None else DirectoryStore(directory)
    return SharedStore(ServerStore(f"{server.unix}?timeout_s={timeout_s}", retry_s=0.05, pulse_s=0.1), near)


def backend(fast: str, slow: str, **facts: str) -> SimulatedBackend:
    """A library on whose device one of two candidates is faster: on another's, the other."""
    problems = tuple(
        ProblemScript(
            op=op,
            candidates=(CandidateScript(algorithm=fast, time_us=100), CandidateScript(algorithm=slow, time_us=200)),
        )
        for op in some_ops(4)
    )
    return SimulatedBackend(Script(problems=problems, facts={"script": "server", **facts}))


def alone(searcher: Searcher) -> int:
    return searcher.choices_digest().alone


def agreed(searcher: Searcher) -> bool:
    """Whether nothing is alone any more, and all of it is counted, which comes last."""
    engine = searcher.statistics().engine
    return alone(searcher) == 0 and engine.found_alone == engine.agreed + engine.replaced


async def test_a_server_that_is_away_costs_one_warning_and_what_is_found_is_agreed_on_later(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rival(store(server, tmp_path / "a"), backend(A, B)) as searcher:
        choices = await searcher.select_many(some_ops(3))
        assert [(choice.algorithm, choice.alone) for choice in choices] == [(A, True)] * 3
        said = searcher.choices_digest()
        assert (said.choices, said.alone, said.provisional) == (0, 3, 0)
        assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1
        server.start()
        await until(lambda: agreed(searcher))
        assert searcher.choices_digest().choices == 3
        engine = searcher.statistics().engine
        assert (engine.found_alone, engine.agreed, engine.replaced, engine.changed_choices) == (3, 3, 0, 0)
    async with rival(store(server, None), backend(B, A)) as other:
        assert [(choice.algorithm, choice.alone) for choice in await other.select_many(some_ops(3))] == [(A, False)] * 3


async def test_what_others_have_found_meanwhile_replaces_it_and_is_counted(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rival(store(server, tmp_path / "a"), backend(A, B)) as searcher:
        first = await searcher.select(some_op(2))
        assert (first.algorithm, first.alone) == (A, True)
        async with rival(store(server, tmp_path / "b"), backend(B, A)) as other:
            assert (await other.select(some_op(2))).algorithm == B
            server.start()
            await until(lambda: agreed(searcher) and agreed(other) and "1 choices changed" in caplog.text)
            assert searcher.choices_digest() == other.choices_digest()
            mine, theirs = await searcher.select(some_op(2)), await other.select(some_op(2))
            assert (mine.algorithm, mine.alone) == (theirs.algorithm, theirs.alone)
        counts = [each.statistics().engine for each in (searcher, other)]
        assert sorted(each.replaced for each in counts) == [0, 1]
        assert sorted(each.changed_choices for each in counts) == [0, 1]


async def test_strict_gives_no_answer_that_was_found_alone(server: Server, tmp_path: Path) -> None:
    async with rival(store(server, tmp_path / "a"), backend(A, B)) as loose:
        strict = Searcher(loose._engine, mode="race", strict=True)
        with pytest.raises(FoundAlone, match="found alone"):
            await strict.select(some_op())
        assert (await loose.select(some_op())).alone
        with pytest.raises(FoundAlone):
            await strict.select(some_op())
        server.start()
        await until(lambda: alone(loose) == 0)
        assert (await strict.select(some_op())).algorithm == A
        strict.close()


async def test_an_emptied_server_is_told_what_was_agreed(server: Server, tmp_path: Path) -> None:
    server.start()
    async with rival(store(server, tmp_path / "a"), backend(A, B)) as searcher:
        await searcher.select_many(some_ops(3))
        assert server.command("FLUSHALL") == "+OK"
        await until(lambda: server.command("ZCARD", f"algosearch:v{FORMAT}.{wire.WIRE_VERSION}:index") == ":3")
        async with rival(store(server, None), backend(B, A)) as other:
            assert [choice.algorithm for choice in await other.select_many(some_ops(3))] == [A] * 3
            assert searcher.choices_digest() == other.choices_digest()
            assert other.statistics().engine.searched == 0


async def test_other_libraries_share_a_server_without_meeting(server: Server, tmp_path: Path) -> None:
    """And a directory before it: each knows only what was found with its own version, and all of that."""
    server.start()
    for found in (0, 4):
        for fast, slow, version in ((A, B, "9.10"), (B, A, "9.11")):
            async with rival(store(server, tmp_path / "a"), backend(fast, slow, cudnn=version)) as searcher:
                choices = await searcher.select_many(some_ops(4))
                assert [choice.algorithm for choice in choices] == [fast] * 4
                assert searcher.statistics().engine.store_hits == found
    index = f"algosearch:v{FORMAT}.{wire.WIRE_VERSION}:index"
    assert server.command("ZCARD", index) == ":8"


async def test_a_newer_format_shares_a_server_without_meeting(server: Server, tmp_path: Path) -> None:
    server.start()
    async with rival(store(server, None), backend(A, B)) as searcher:
        choices = await searcher.select_many(some_ops(4))
    ours, newer = f"v{FORMAT}.{wire.WIRE_VERSION}", f"v{FORMAT}.{wire.WIRE_VERSION + 1}"
    names = ["index", "claims", "news", *(f"record:{choice.digest}" for choice in choices)]
    for name in names:  # everything is another version's now, and what it will put there nobody can know
        server.command("RENAME", f"algosearch:{ours}:{name}", f"algosearch:{newer}:{name}")
    async with rival(store(server, None), backend(B, A)) as searcher:
        assert [choice.algorithm for choice in await searcher.select_many(some_ops(4))] == [B] * 4
        assert searcher.statistics().engine.store_misses == {"absent": 4}
    assert server.command("ZCARD", f"algosearch:{newer}:index") == ":4"


async def test_a_repair_that_the_server_did_not_hear_of_is_none(server: Server, tmp_path: Path) -> None:
    server.start()
    async with rival(store(server, tmp_path / "a"), backend(A, B)) as searcher:
        await searcher.select(some_op())
    looking = ServerStore(server.unix)
    await looking.open()
    (record,) = [item async for _, item in looking.scan() if isinstance(item, Record)]
    await looking.aclose()
    shared = store(server, tmp_path / "a")
    async with rival(shared, backend(B, A)) as other:
        server.kill()
        verdict = await other.verify(record, repair=True)
        assert (verdict.finding, verdict.repaired) == ("beaten", False)
        assert "not repaired: the shared store did not take it" in verdict.reason
        server.start()
        await until(lambda: shared.server.reachable)
        assert (await other.verify(record, repair=True)).repaired


async def test_a_slow_server_costs_its_timeout_once(server: Server, tmp_path: Path) -> None:
    server.start()
    async with rival(store(server, tmp_path / "a", timeout_s=0.5), backend(A, B)) as searcher:
        server.freeze()
        choices = await searcher.select_many(some_ops(4))
        assert all(choice.alone for choice in choices)
        server.thaw()
        await until(lambda: alone(searcher) == 0)


async def test_what_a_job_found_alone_is_offered_by_the_next_one(server: Server, tmp_path: Path) -> None:
    async with rival(store(server, tmp_path / "a"), backend(A, B)) as searcher:
        assert (await searcher.select(some_op())).alone
    server.start()
    async with rival(store(server, tmp_path / "a"), backend(B, A)) as searcher:
        choice = await searcher.select(some_op())
        assert (choice.algorithm, choice.alone) == (A, False)
        assert searcher.statistics().engine.searched == 0


def test_the_setting_is_a_yes_or_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALGOSEARCH_STRICT", "1")
    assert Terms(policy=DEFAULT_POLICY).strict
    monkeypatch.setenv("ALGOSEARCH_STRICT", "perhaps")
    with pytest.raises(InvalidSetting, match="ALGOSEARCH_STRICT"):
        Terms(policy=DEFAULT_POLICY)
    monkeypatch.delenv("ALGOSEARCH_STRICT")
    with pytest.raises(InvalidSetting, match="strict"):
        Terms(strict="no", policy=DEFAULT_POLICY)
