"""Several engines on one store, as several processes have them: each key is searched once between them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from algosearch import Policy
from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Fault,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    problem_digest,
    searched,
    searches,
)
from algosearch.devices.worker import Worker
from algosearch.errors import NoAlgorithm, NotCached, SearchFailed
from algosearch.ops import ConvOp
from algosearch.records import Key, Record, Trials, wire
from algosearch.search import FlightStatus, Searcher
from algosearch.stores import Claim, Committed, MemoryStore
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, SLOW, SMALL, some_op, some_ops, three_candidates
from tests.search.rivals import EXPIRY_S, Clock, Watched, rival
from tests.stores.nouns import some_record


class Home:
    """One memory that all share, and the keys in it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.memory = MemoryStore(clock=self.clock)
        self.trace: list[TraceEvent] = []

    def handle(self) -> Watched:
        return Watched(beside=self.memory, clock=self.clock)

    def backend(self, *ops: ConvOp, machine: str = "here") -> GatedBackend:
        script = Script(problems=tuple(map(three_candidates, ops or (some_op(),))), machine=machine)
        return GatedBackend(SimulatedBackend(script, trace=self.trace))

    def key(self, op: ConvOp | None = None, backend: GatedBackend | None = None) -> Key:
        backend = self.backend() if backend is None else backend
        session = backend.open(backend.devices()[0])
        try:
            return Key.of(some_op() if op is None else op, session.environment)
        finally:
            session.close()

    async def record(self, key: Key) -> Record:
        (answer,) = await self.memory.get_many([key])
        assert isinstance(answer, Record)
        return answer

    async def holder(self, key: Key) -> Claim | None:
        (holder,) = await self.memory.holders([key.digest])
        return holder

    async def deaths(self, key: Key, *, of: Sequence[str]) -> None:
        """So many owners die one after the other, each with this about to be launched."""
        for n, trying in enumerate(of):
            assert (await self.memory.claim(key.digest, f"dead:{n}:x", expiry_s=EXPIRY_S, trying=trying)).lapses == n
            self.clock.lapse()


@pytest.fixture
def home() -> Home:
    return Home()


async def reach(searcher: Searcher, state: str) -> FlightStatus:
    """Until a flight is in this state."""
    for _ in range(4000):
        for flight in searcher.flights():
            if flight.state == state:
                return flight
        await asyncio.sleep(0.001)
    raise AssertionError(f"nobody is {state}: {searcher.flights()}")


async def reached(gate: Any) -> None:
    await asyncio.to_thread(gate.reached.wait, 10.0)


async def test_one_searches_and_the_other_waits(home: Home) -> None:
    """C25: and says whom it waits for."""
    backend = home.backend()
    async with rival(home.handle(), backend) as one, rival(home.handle(), home.backend(machine="there")) as two:
        backend.gates["launch"].close()
        first = asyncio.create_task(one.select(some_op()))
        await reached(backend.gates["launch"])
        request = two.request(some_op())
        waiting = await reach(two, "elsewhere")
        assert waiting.trying == f"waiting for {socket.gethostname()}:{os.getpid()}"
        backend.gates["launch"].open()
        assert await request.choice() == await first
        assert request.source == "store"
        counts = [searcher.statistics().engine for searcher in (one, two)]
    assert searches(home.trace) == 1
    assert [(c.searched, c.claims_won, c.claims_waited, c.claims_lost) for c in counts] == [(1, 1, 0, 0), (0, 0, 1, 0)]


async def test_each_key_is_searched_once_between_all(home: Home) -> None:
    """C01, C08, D01: however many ask, one search a key, and one answer for all."""
    ops = some_ops(40)
    backends = [home.backend(*ops, machine=f"m{n}") for n in range(4)]
    async with (
        rival(home.handle(), backends[0]) as a,
        rival(home.handle(), backends[1]) as b,
        rival(home.handle(), backends[2]) as c,
        rival(home.handle(), backends[3]) as d,
    ):
        answers = await asyncio.gather(*(searcher.select_many(ops) for searcher in (a, b, c, d)))
        digests = {searcher.choices_digest() for searcher in (a, b, c, d)}
        won = sum(searcher.statistics().engine.searched for searcher in (a, b, c, d))
    assert all(answer == answers[0] for answer in answers)
    assert len(digests) == 1
    assert searched(home.trace) == {problem_digest(op): 1 for op in ops}
    assert won == 40


async def test_who_is_refused_gives_its_turn_up(home: Home) -> None:
    """What others search holds no place at a device: more keys are held elsewhere than a device has places."""
    ops = some_ops(8)
    backend = home.backend(*ops)
    for op in ops[:7]:
        await home.memory.claim(home.key(op, backend).digest, "ghost", expiry_s=1e9)
    async with rival(home.handle(), backend) as searcher:
        requests = [searcher.request(op) for op in ops]
        assert (await requests[7].choice()).algorithm == FAST
        assert [flight.state for flight in searcher.flights()] == ["elsewhere"] * 7
        for request in requests:
            request.withdraw()
        while searcher.flights():
            await asyncio.sleep(0.001)
        assert searcher.statistics().engine.dropped == 7
    assert await home.holder(home.key(ops[0], backend)) is not None, "the ghost's claim is the ghost's"


async def test_what_is_withdrawn_while_it_is_listed_is_given_back(home: Home) -> None:
    backend = home.backend()
    async with rival(home.handle(), backend) as one, rival(home.handle(), home.backend()) as two:
        backend.gates["enumerate"].close()
        request = one.request(some_op())
        await reached(backend.gates["enumerate"])
        assert await home.holder(home.key()) is not None
        request.withdraw()
        assert (await two.select(some_op())).algorithm == FAST
        backend.gates["enumerate"].open()
        assert two.statistics().engine.claims_taken_over == 0


async def test_who_closes_gives_back_what_it_was_searching(home: Home) -> None:
    backend = home.backend()
    async with rival(home.handle(), home.backend(machine="there"), expiry_s=1000.0) as two:
        async with rival(home.handle(), backend, expiry_s=1000.0) as one:
            backend.gates["launch"].close()
            one.request(some_op())
            await reached(backend.gates["launch"])
            request = two.request(some_op())
            await reach(two, "elsewhere")
        assert (await request.choice()).algorithm == FAST
        assert two.statistics().engine.claims_taken_over == 0
        backend.gates["launch"].open()


async def test_a_search_that_breaks_is_given_back(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    def breaks(call: str, subject: object) -> None:
        if call == "launch":
            raise ZeroDivisionError("a bug in the backend")

    backend = home.backend()
    backend.before = breaks
    async with rival(home.handle(), backend, expiry_s=1000.0) as one, rival(home.handle(), home.backend()) as two:
        with pytest.raises(SearchFailed):
            await one.select(some_op())
        assert (await two.select(some_op())).algorithm == FAST


async def test_what_an_incomplete_environment_finds_concerns_nobody_else(home: Home) -> None:
    store = home.handle()
    backend = SimulatedBackend(Script(devices=(DeviceScript(incomplete="a part is missing"),)))
    async with rival(store, backend) as searcher:
        await searcher.select(some_op())
    assert store.count("claim") == store.count("release") == 0


@pytest.mark.parametrize("mode", ["cached", "heuristic"])
async def test_who_needs_no_search_does_not_wait_for_one(home: Home, mode: Any) -> None:
    await home.memory.claim(home.key().digest, "ghost", expiry_s=1e9)
    async with rival(home.handle(), home.backend()) as searcher:
        searcher.request(some_op())
        await reach(searcher, "elsewhere")
        if mode == "cached":
            with pytest.raises(NotCached):
                await searcher.select(some_op(), mode=mode)
        else:
            assert (await searcher.select(some_op(), mode=mode)).precision == "heuristic"
        assert (await searcher.select(some_op(), deadline_s=0.0)).provisional


async def test_another_policy_of_a_key_that_is_searched_elsewhere(home: Home) -> None:
    """Who waits takes what is found; what that does not cover is searched further, under a claim of its own."""
    backend = home.backend()
    strict = Policy(exclude=("*fast", "*small"))
    async with rival(home.handle(), backend) as one, rival(home.handle(), home.backend(machine="there")) as two:
        backend.gates["launch"].close()
        first = one.request(some_op())
        await reached(backend.gates["launch"])
        second = two.request(some_op(), strict)
        await reach(two, "elsewhere")
        backend.gates["launch"].open()
        assert (await first.choice()).algorithm == FAST
        assert (await second.choice()).algorithm == SLOW
    record = await home.record(home.key())
    assert record.revision == two.statistics().engine.searched + 1


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


class TestLost:
    async def test_who_was_held_up_overwrites_nothing(self, home: Home, caplog: pytest.LogCaptureFixture) -> None:
        """C04: the lease ended before the search did. Both get one answer, and the late one adopts the other's."""
        slow = home.backend()
        async with rival(home.handle(), slow) as one, rival(home.handle(), home.backend(machine="there")) as two:
            slow.gates["launch"].close()
            late = one.request(some_op())
            await reached(slow.gates["launch"])
            request = two.request(some_op())
            await reach(two, "elsewhere")
            while request.source is None:  # until it is taken over: our own heart beats, and has it again if it can
                home.clock.lapse()
                await asyncio.sleep(0.003)
            kept = await home.record(home.key())
            slow.gates["launch"].open()
            assert await late.choice() == await request.choice()
            assert await home.record(home.key()) == kept
            assert one.statistics().engine.searched == 1
        assert searches(home.trace) == 2

    async def test_what_the_winner_did_not_look_at_is_appended(self, home: Home) -> None:
        """Both find something, for different policies: nothing of it is lost, and nobody is told that it failed."""
        slow = home.backend()
        strict = Policy(exclude=("*fast", "*small"))
        async with rival(home.handle(), slow) as one:
            slow.gates["time"].close()
            late = one.request(some_op(), strict)
            await reached(slow.gates["time"])
            async with rival(MemoryStore(), home.backend(machine="there")) as apart:
                await apart.select(some_op())
                winner = _stripped(apart._engine._tiers.recall(home.key().digest))
            assert (await home.memory.commit(winner, after=0)).won
            slow.gates["time"].open()
            assert (await late.choice()).algorithm == SLOW
        record = await home.record(home.key())
        assert record.revision == 2
        assert record.searches[0] == winner.searches[0]


def _stripped(record: Record | None) -> Record:
    """Of a search that knew of one candidate only."""
    assert record is not None
    (search,) = record.searches
    trials = Trials.of(trial for trial in search.trials if trial.algorithm == FAST)
    return replace(record, searches=(replace(search, trials=trials, complete=False),))


def troubled(trace: list[TraceEvent], *faults: Fault) -> SimulatedBackend:
    """One candidate that the library refuses, one with faults."""
    candidates = (
        CandidateScript(algorithm=SLOW, time_us=9.0, faults=(Fault(at="build", does="not_supported"),)),
        CandidateScript(algorithm=FAST, time_us=10.0, faults=faults),
    )
    problem = ProblemScript(op=some_op(), candidates=candidates)
    # One set of facts for all, for what goes wrong is no part of what a library is.
    return SimulatedBackend(Script(problems=(problem,), facts={"script": "troubled"}), trace=trace)


class TestTroubleIsData:
    full = Fault(at="launch", does="out_of_memory")

    async def test_a_hopeless_key_is_searched_once_more_elsewhere_and_answered(self, home: Home) -> None:
        """E14: nothing fitted when it was first searched; it is no verdict on the key."""
        async with rival(home.handle(), troubled(home.trace, self.full)) as one:
            for _ in range(3):
                with pytest.raises(NoAlgorithm, match="out_of_memory"):
                    await one.select(some_op())
            assert one.statistics().engine.searched == 1
        async with rival(home.handle(), troubled(home.trace)) as two:
            assert (await two.select(some_op())).algorithm == FAST
        async with rival(home.handle(), troubled(home.trace)) as three:
            assert (await three.select(some_op())).algorithm == FAST
            assert three.statistics().engine.searched == 0
        assert searches(home.trace) == 2
        assert sum(event.algorithm == SLOW for event in home.trace) == 1, "what the library refuses it refuses"

    async def test_twice_is_a_fact(self, home: Home) -> None:
        for searched_in_all in (1, 2, 2, 2):
            async with rival(home.handle(), troubled(home.trace, self.full)) as searcher:
                with pytest.raises(NoAlgorithm, match="out_of_memory"):
                    await searcher.select(some_op())
            key = home.key(backend=GatedBackend(troubled([])))
            assert (await home.record(key)).revision == searched_in_all

    async def test_two_who_meet_it_at_once_search_once_more_between_them(self, home: Home) -> None:
        async with rival(home.handle(), troubled(home.trace, self.full)) as one:
            with pytest.raises(NoAlgorithm):
                await one.select(some_op())
        backend = GatedBackend(troubled(home.trace))
        async with rival(home.handle(), backend) as two, rival(home.handle(), troubled(home.trace)) as three:
            backend.gates["build"].close()
            second = two.request(some_op())
            await reached(backend.gates["build"])
            third = three.request(some_op())
            await reach(three, "elsewhere")
            backend.gates["build"].open()
            assert [(await request.choice()).algorithm for request in (second, third)] == [FAST, FAST]
        assert searches(home.trace) == 2

    async def test_facts_alone_are_searched_once(self, home: Home) -> None:
        wrong = Fault(at="check", does="wrong_result")
        for _ in range(3):
            async with rival(home.handle(), troubled(home.trace, wrong)) as searcher:
                with pytest.raises(NoAlgorithm, match="wrong_result"):
                    await searcher.select(some_op())
        assert searches(home.trace) == 1

    async def test_in_mode_cached_a_hopeless_record_is_an_answer(self, home: Home) -> None:
        async with rival(home.handle(), troubled(home.trace, self.full)) as one:
            with pytest.raises(NoAlgorithm):
                await one.select(some_op())
        async with rival(home.handle(), troubled(home.trace)) as two:
            with pytest.raises(NoAlgorithm):
                await two.select(some_op(), mode="cached")
            assert two.statistics().engine.searched == 0
            assert (await two.select(some_op())).algorithm == FAST

    async def test_a_further_search_tries_trouble_again_but_not_facts(self, home: Home) -> None:
        """`timed_out` once, for one policy; the search for another one tries it again, elsewhere or not."""
        hung = Fault(at="launch", does="timed_out", times=1)
        wrong = Fault(at="check", does="wrong_result")
        candidates = (
            CandidateScript(algorithm=FAST, time_us=10.0, faults=(hung,)),
            CandidateScript(algorithm=SMALL, time_us=20.0, faults=(wrong,)),
            CandidateScript(algorithm=SLOW, time_us=30.0),
        )
        backend = SimulatedBackend(
            Script(problems=(ProblemScript(op=some_op(), candidates=candidates),)), trace=home.trace
        )
        async with rival(home.handle(), backend) as searcher:
            assert (await searcher.select(some_op())).algorithm == SLOW
            assert (await searcher.select(some_op(), mode="exhaustive")).algorithm == FAST
        assert sum(event.call == "build" and event.algorithm == SMALL for event in home.trace) == 1


class TestLies:
    """What a store does wrong with claims costs a search twice, and nothing else."""

    @pytest.mark.parametrize("call", ["claim", "renew", "release", "holders", "changes"])
    async def test_it_breaks(self, home: Home, call: str, caplog: pytest.LogCaptureFixture) -> None:
        def breaks(name: str) -> None:
            if name == call:
                raise ZeroDivisionError("a bug in the store")

        ops = some_ops(6)
        stores = [home.handle() for _ in range(2)]
        for store in stores:
            store.before = breaks
        with caplog.at_level(logging.CRITICAL):
            async with (
                rival(stores[0], home.backend(*ops), expiry_s=0.2) as one,
                rival(stores[1], home.backend(*ops, machine="there"), expiry_s=0.2) as two,
            ):
                answers = await asyncio.gather(one.select_many(ops), two.select_many(ops))
        assert answers[0] == answers[1]
        assert searches(home.trace) <= 12

    async def test_everything_is_always_somebody_elses(self, home: Home, caplog: pytest.LogCaptureFixture) -> None:
        class Liar(Watched):
            async def claim(self, digest: str, owner: str, **how: Any) -> Claim:
                return Claim(digest=digest, owner="nobody:0:0")

            async def holders(self, digests: Sequence[str]) -> list[Claim | None]:
                return [Claim(digest=digest, owner="nobody:0:0") for digest in digests]

        store = Liar(beside=home.memory, clock=home.clock)
        async with rival(store, home.backend(), expiry_s=0.1, patience_s=0.05) as searcher:
            assert (await searcher.select(some_op())).algorithm == FAST
        assert "no progress" in caplog.text

    async def test_everything_is_always_free_and_always_taken(self, home: Home) -> None:
        class Liar(Watched):
            refusals = 5

            async def claim(self, digest: str, owner: str, **how: Any) -> Claim:
                self.refusals -= 1
                return Claim(digest=digest, owner="nobody:0:0" if self.refusals >= 0 else owner)

        store = Liar(beside=home.memory, clock=home.clock)
        async with rival(store, home.backend()) as searcher:
            assert (await searcher.select(some_op())).algorithm == FAST
            assert searcher.statistics().engine.claims_waited == 1

    async def test_what_was_committed_comes_back_as_a_copy(self, home: Home) -> None:
        class Copying(Watched):
            async def commit(self, record: Record, **how: Any) -> Committed:
                committed: Committed = await super().commit(record, **how)
                return replace(committed, record=wire.decode(wire.encode(committed.record), key=record.key))

        store = Copying(beside=home.memory, clock=home.clock)
        async with rival(store, home.backend()) as searcher:
            request = searcher.request(some_op())
            assert (await request.choice()).algorithm == FAST
            assert request.source == "search"
        assert store.count("commit") == 1

    @pytest.mark.parametrize("what", ["another key's record", "another record each time"])
    async def test_a_commit_that_keeps_something_else(
        self, home: Home, what: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Liar(Watched):
            async def commit(self, record: Record, **how: Any) -> Committed:
                self._note("commit", record)
                if what == "another key's record":
                    return Committed(some_record(), won=False)
                search = replace(record.searches[0], trials=Trials.of(()), complete=False)
                return Committed(replace(record, searches=(search,) * self.count("commit")), won=False)

        store = Liar(beside=home.memory, clock=home.clock)
        with caplog.at_level(logging.CRITICAL):
            async with rival(store, home.backend()) as searcher:
                assert (await searcher.select(some_op())).algorithm == FAST

    async def test_too_few_answers(self, home: Home, caplog: pytest.LogCaptureFixture) -> None:
        class Liar(Watched):
            async def get_many(self, keys: Sequence[Key]) -> list[Any]:
                return []

        store = Liar(beside=home.memory, clock=home.clock)
        with caplog.at_level(logging.CRITICAL):
            async with rival(store, home.backend()) as searcher:
                assert (await searcher.select(some_op())).algorithm == FAST


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


async def test_a_live_owner_is_waited_for_as_long_as_it_takes(home: Home) -> None:
    """The heart beats in the engine's thread, whatever the lane is at."""
    backend, store = home.backend(), home.handle()
    async with rival(store, backend) as one, rival(home.handle(), home.backend(machine="there")) as two:
        backend.gates["launch"].close()
        first = one.request(some_op())
        await reached(backend.gates["launch"])
        second = two.request(some_op())
        await reach(two, "elsewhere")
        for _ in range(3):
            home.clock.now_s += 0.9 * EXPIRY_S
            beats = store.count("renew")
            while store.count("renew") < beats + 2:
                await asyncio.sleep(0.001)
        assert [flight.state for flight in two.flights()] == ["elsewhere"]
        backend.gates["launch"].open()
        assert await first.choice() == await second.choice()
        assert [searcher.statistics().engine.claims_taken_over for searcher in (one, two)] == [0, 0]
    assert searches(home.trace) == 1
