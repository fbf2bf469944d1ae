"""A key of which everything failed: trouble that may pass is searched once more, by anybody; facts are not."""

from __future__ import annotations

import pytest

from algosearch.backends.simulated import (
    CandidateScript,
    Fault,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    searches,
)
from algosearch.errors import NoAlgorithm
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, SLOW, SMALL, some_op
from tests.search.rivals import Home, reach, reached, rival


@pytest.fixture
def home() -> Home:
    return Home()


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
