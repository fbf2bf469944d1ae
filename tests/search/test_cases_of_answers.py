"""Failures of systems that do this job, re-enacted: who waits for whom, and which results are believed.

Ids are those of the table in `docs/testing.md`, which says where the others are.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from algosearch import open_searcher
from algosearch.backends.simulated import (
    DeviceScript,
    Fault,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    searched,
    searches,
)
from algosearch.errors import InvalidOp, NoAlgorithm
from algosearch.ops import BatchNormOp, ConvOp
from algosearch.records import Policy
from algosearch.stores import DirectoryStore, MemoryStore
from tests.search.gated import GatedBackend
from tests.search.helpers import FAST, named, script_of, scripted, some_op, some_ops, states, until

MIB = 1 << 20


class TestTurns:
    """Who waits, and who works."""

    async def test_waiters_hold_no_device(self) -> None:
        """C03: eight ask for one key, four devices; four other keys begin at once."""
        inner = SimulatedBackend(devices=4)
        backend = GatedBackend(inner)
        backend.gates["launch"].close()
        at_work: set[str] = set()
        backend.before = lambda call, subject: at_work.add(subject.describe()) if call == "build" else None
        async with open_searcher(store="memory:", backends=[backend]) as searcher:
            same = [asyncio.create_task(searcher.select(some_op(0))) for _ in range(8)]
            others = [asyncio.create_task(searcher.select(op)) for op in some_ops(5)[1:]]
            await until(lambda: len(at_work) == 5)
            backend.gates["launch"].open()
            assert len({choice.digest for choice in await asyncio.gather(*same)}) == 1
            await asyncio.gather(*others)
            assert searcher.statistics().engine.searched == 5

    async def test_who_gives_up_returns_at_once_and_the_trial_goes_on(self) -> None:
        """C16, C26: the device stays taken until the call ends; who comes later joins it."""
        backend = GatedBackend(scripted(*some_ops(2)))
        backend.gates["launch"].close()
        async with open_searcher(store="memory:", backends=[backend]) as searcher:
            first = asyncio.create_task(searcher.select(some_op(0)))
            await until(backend.gates["launch"].reached.is_set)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await searcher.select(some_op(0))
            other = asyncio.create_task(searcher.select(some_op(1)))
            second = asyncio.create_task(searcher.select(some_op(0)))
            await until(
                lambda: states(searcher) == {"racing": 2} and sum(flight.awaited for flight in searcher.flights()) == 3
            )
            assert sum(flight.trying.startswith("first run") for flight in searcher.flights()) == 1
            backend.gates["launch"].open()
            for choice in await asyncio.gather(first, second, other):
                assert choice.algorithm == FAST
            assert searcher.statistics().engine.searched == 2

    async def test_choices_do_not_depend_on_the_calling_thread(self) -> None:
        """C21: 64 calls from sixteen threads for two batch sizes: two searches, and the device's own threads at it."""
        trace: list[TraceEvent] = []
        two = [some_op(2), some_op(7)]
        async with open_searcher(store="memory:", backends=[SimulatedBackend(trace=trace)]) as searcher:
            with ThreadPoolExecutor(16) as pool:
                loop = asyncio.get_running_loop()
                found = await asyncio.gather(
                    *(loop.run_in_executor(pool, searcher.select_blocking, two[n % 2]) for n in range(64))
                )
        assert len({choice.digest for choice in found}) == 2
        assert searches(trace) == 2
        assert len({event.thread for event in trace if event.call in ("launch", "time", "check")}) == 1
        listing, building = ({event.thread for event in trace if event.call == call} for call in ("enumerate", "build"))
        assert len(listing) == 1
        assert {thread.partition("-simulated")[0] for thread in listing | building} == {
            "algosearch-prepare",
            "algosearch-compile",
        }

    async def test_an_answer_belongs_to_who_asked(self) -> None:
        """C22: two tasks take turns with two shapes ten thousand times, with a yield between choice and use."""
        two = [some_op(0), some_op(1)]
        scripts = tuple(
            ProblemScript(op=op, candidates=(named(f"only-{n}", 10.0, workspace_bytes=n),)) for n, op in enumerate(two)
        )
        async with open_searcher(store="memory:", backends=[SimulatedBackend(Script(problems=scripts))]) as searcher:

            async def user(n: int) -> None:
                for turn in range(10_000):
                    mine = (n + turn) % 2
                    choice = await searcher.select(two[mine])
                    await asyncio.sleep(0)
                    assert (choice.algorithm, choice.workspace_bytes) == (f"simulated/c:only-{mine}", mine)

            await asyncio.gather(user(0), user(1))

    async def test_equal_problems_cost_one_listing_and_one_search(self) -> None:
        """F09: a thousand equal convolutions, each an op object of its own."""
        trace: list[TraceEvent] = []
        ops = [some_op(0) for _ in range(1000)]
        async with open_searcher(store="memory:", backends=[SimulatedBackend(trace=trace)]) as searcher:
            choices = await searcher.select_many(ops)
            assert searcher.statistics().engine.listings == 1
        assert len({id(choice) for choice in choices}) == 1
        assert Counter(event.call for event in trace)["enumerate"] == 1
        assert searches(trace) == 1

    async def test_batches_come_back(self) -> None:
        """F01: sixteen batch sizes three times: sixteen searches. A guess is given at once and never kept."""
        trace: list[TraceEvent] = []
        store = MemoryStore()
        async with open_searcher(store=store, backends=[SimulatedBackend(trace=trace)]) as searcher:
            guess = await searcher.select(some_op(0), mode="heuristic")
            assert guess.provisional
            assert not [event for event in trace if event.call == "launch"]
            assert not [item async for item in store.scan()]
            for _ in range(3):
                for op in some_ops(16):
                    assert not (await searcher.select(op)).provisional
        assert set(searched(trace).values()) == {1}
        assert searches(trace) == 16


class TestResults:
    """Right results, and what is remembered of wrong ones."""

    async def test_in_a_guess_the_clock_plays_no_part(self) -> None:
        """D07: the library's first deterministic candidate, whatever the times; nothing is run for it."""
        op = some_op()
        for seed in range(20):
            trace: list[TraceEvent] = []
            script = script_of(
                op,
                named("atomic", 1.0 + seed % 3, notes=("nondeterministic",)),
                named("first", 100.0 - seed),
                named("second", 1.0 + seed),
                seed=seed,
            )
            async with open_searcher(store="memory:", backends=[SimulatedBackend(script, trace=trace)]) as searcher:
                choice = await searcher.select(op, Policy(deterministic=True), mode="heuristic")
            assert choice.algorithm == "simulated/c:first"
            assert not [event for event in trace if event.call in ("launch", "time")]

    async def test_once_found_a_deterministic_answer_stays(self, tmp_path: Path) -> None:
        """D05, D06, D07: however the times turn out in another process, the stored choice is repeated, unmeasured."""
        op, found = some_op(), set()
        trace: list[TraceEvent] = []
        for seed in range(5):
            script = script_of(op, named("a", 10.0, noise=0.05), named("b", 10.0, noise=0.05), facts={"script": "one"})
            backend = SimulatedBackend(replace(script, seed=seed), trace=trace)
            async with open_searcher(store=tmp_path / "store", backends=[backend]) as searcher:
                mode: Any = "cached" if seed else None
                found.add((await searcher.select(op, Policy(deterministic=True), mode=mode)).algorithm)
        assert len(found) == 1
        assert searches(trace) == 1

    async def test_the_fastest_is_wrong_by_a_factor_of_ten(self) -> None:
        """E02, D05: never chosen, and the verdict is in the answer."""
        op = some_op()
        wrong = Fault(at="check", does="wrong_result", message="7.13 where 73.5 is right")
        script = script_of(op, named("good", 50.0), named("wrong", 10.0, faults=(wrong,)), named("slow", 99.0))
        async with open_searcher(store="memory:", backends=[SimulatedBackend(script)]) as searcher:
            choice = await searcher.select(op)
        assert choice.algorithm == "simulated/c:good"
        (why,) = [each for each in choice.rejections if each.algorithm == "simulated/c:wrong"]
        assert why.failure is not None
        assert (why.rule, why.failure.kind) == ("failed", "wrong_result")
        assert "73.5" in why.describe()

    @pytest.mark.parametrize(
        ("right", "beyond"),
        [
            (ConvOp(input_shape=(65536, 4, 32, 32), filter_shape=(8, 4, 3, 3)), (65537, 4, 32, 32)),
            (BatchNormOp(shape=(512, 2, 1, 1), phase="backward"), (1024, 2, 1, 1)),
        ],
    )
    async def test_a_result_that_was_right_is_no_promise_for_a_larger_one(self, right: Any, beyond: Any) -> None:
        """E01, E07, E09, E17: each key's pick is checked for that key."""
        field = "shape" if isinstance(right, BatchNormOp) else "input_shape"
        larger = replace(right, **{field: beyond})
        wrong = Fault(at="check", does="wrong_result")
        problems = (
            ProblemScript(op=right, candidates=(named("small", 10.0), named("sure", 20.0))),
            ProblemScript(op=larger, candidates=(named("small", 10.0, faults=(wrong,)), named("sure", 20.0))),
        )
        async with open_searcher(store="memory:", backends=[SimulatedBackend(Script(problems=problems))]) as searcher:
            found = [(await searcher.select(op)).algorithm for op in (right, larger)]
        assert found == ["simulated/c:small", "simulated/c:sure"]

    async def test_a_refused_winner_leaves_nothing_of_itself_in_the_answer(self) -> None:
        """B09: algorithm and workspace of an answer are one candidate's, who comes next after the failure."""
        op = some_op()
        refused = Fault(at="launch", does="not_supported")
        script = script_of(op, named("winner", 10.0, workspace_bytes=MIB, faults=(refused,)), named("next", 20.0))
        async with open_searcher(store="memory:", backends=[SimulatedBackend(script)]) as searcher:
            choice = await searcher.select(op)
        assert (choice.algorithm, choice.workspace_bytes) == ("simulated/c:next", 0)

    async def test_nothing_is_supported_beyond_a_size(self, tmp_path: Path) -> None:
        """B08: the output of N = 42 has more than 2^31 elements. Said by name, for each candidate; a fact that is not
        searched again, and no word of N = 41."""
        ops = [
            ConvOp(
                input_shape=(n, 3, 64, 224, 224), filter_shape=(64, 3, 1, 7, 7),
                stride=(1, 2, 2), padding_low=(0, 3, 3), padding_high=(0, 3, 3),
            )
            for n in (41, 42)
        ]  # fmt: skip
        refused = Fault(at="build", does="not_supported", message="the output has 2157969408 elements")
        problems = (
            ProblemScript(op=ops[0], candidates=(named("a", 10.0),)),
            ProblemScript(op=ops[1], candidates=(named("a", 10.0, faults=(refused,)),)),
        )
        assert [n * 64 * 64 * 112 * 112 > 1 << 31 for n in (41, 42)] == [False, True]
        trace: list[TraceEvent] = []
        for _ in range(2):
            backend = SimulatedBackend(Script(problems=problems), trace=trace)
            async with open_searcher(store=tmp_path / "store", backends=[backend]) as searcher:
                assert (await searcher.select(ops[0])).algorithm == "simulated/c:a"
                with pytest.raises(NoAlgorithm, match="2157969408 elements"):
                    await searcher.select(ops[1])
        assert searches(trace) == 2

    async def test_an_index_of_32_bits_poisons_what_is_larger(self) -> None:
        """B07: a candidate that leaves the device unusable beyond 2^31 elements costs itself. Others answer, and the
        next key is none the worse."""
        ops = [
            ConvOp(input_shape=(1, c, 2048, 2048), filter_shape=(1, c, 3, 3), padding_low=(1, 1)) for c in (512, 514)
        ]
        poison = Fault(at="launch", does="poisons", message="an illegal memory access")
        problems = tuple(
            ProblemScript(op=op, candidates=(named("c32", 10.0, faults=faults), named("c64", 20.0)))
            for op, faults in zip(ops, ((), (poison,)), strict=True)
        )
        devices = (DeviceScript(memory_bytes=1 << 40),)
        backend = SimulatedBackend(Script(problems=problems, devices=devices))
        async with open_searcher(store="memory:", backends=[backend]) as searcher:
            found = [choice.algorithm for choice in await searcher.select_many([*ops, ops[0]])]
            assert (await searcher.select(some_op())).algorithm
        assert found == ["simulated/c:c32", "simulated/c:c64", "simulated/c:c32"]

    @pytest.mark.parametrize(("field", "shape"), [("input_shape", (0, 8, 12, 12)), ("input_shape", (1, 8, 0, 12)),
        ("input_shape", (1, 0, 12, 12)), ("filter_shape", (0, 8, 3, 3))])  # fmt: skip
    def test_an_empty_problem_is_refused_before_anything_is_done(self, field: str, shape: tuple[int, ...]) -> None:
        """E13: there is nothing to choose; the error names the field."""
        with pytest.raises(InvalidOp, match=field):
            replace(some_op(), **{field: shape})

    async def test_a_key_that_fails_in_the_library_costs_itself(self) -> None:
        """E10: the listing raises for one key; it says so to who asked, and the next key is searched."""
        problems = (
            ProblemScript(
                op=some_op(0),
                faults=(Fault(at="enumerate", does="raises", message="INTERNAL_ERROR", times=1),),
                candidates=(named("a", 10.0),),
            ),
            ProblemScript(op=some_op(1), candidates=(
                named("bad", 10.0, faults=(Fault(at="build", does="build_failed", message="INTERNAL_ERROR"),)),
                named("good", 20.0))),
        )  # fmt: skip
        async with open_searcher(store="memory:", backends=[SimulatedBackend(Script(problems=problems))]) as searcher:
            broken, fine = await asyncio.gather(*map(searcher.select, some_ops(2)), return_exceptions=True)
            assert "INTERNAL_ERROR" in str(broken)
            assert not isinstance(fine, BaseException)
            assert fine.algorithm == "simulated/c:good"
            assert (await searcher.select(some_op(0))).algorithm == "simulated/c:a", "an error is not remembered"
        gc.collect()


async def test_after_a_warm_run_nothing_is_missing(tmp_path: Path) -> None:
    """D06: whoever may not search finds all that another has searched."""
    backend = scripted(*some_ops(3))
    async with open_searcher(store=tmp_path / "store", backends=[backend]) as searcher:
        await searcher.select_many(some_ops(3))
        assert searcher.statistics().engine.not_kept == 0
    store = DirectoryStore(tmp_path / "store")
    await store.open()
    assert (await store.statistics()).records == 3
    await store.aclose()
    async with open_searcher(store=tmp_path / "store", backends=[scripted(*some_ops(3))], mode="cached") as searcher:
        assert {choice.algorithm for choice in await searcher.select_many(some_ops(3))} == {FAST}
