"""Failures of systems that do this job, re-enacted: what tells questions apart, workspace and memory.

Ids are those of the table in `docs/testing.md`, which says where the others are.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from algosearch import open_searcher
from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    ProblemScript,
    Script,
    SimulatedBackend,
    TraceEvent,
    problem_digest,
    searches,
)
from algosearch.errors import InvalidPolicy, NoAlgorithm
from algosearch.ops import ConvOp
from algosearch.records import Policy
from algosearch.search import answers, tiers
from tests.search.helpers import FAST, SMALL, named, script_of, scripted, some_op, some_ops, until

MIB, GIB = 1 << 20, 1 << 30


class TestKeys:
    """What tells one question from another, and what does not."""

    async def test_the_ordinals_of_devices_are_no_part_of_an_answer(self, tmp_path: Path) -> None:
        """A01: with the order of devices swapped, a warm store answers each of them as before, and none of them as the
        other."""
        kinds = [DeviceScript(kind="A"), DeviceScript(kind="B", facts={"arch": "b"}), DeviceScript(kind="A")]
        trace: list[TraceEvent] = []
        digests: dict[str, set[str]] = {"A": set(), "B": set()}
        for order in (kinds, kinds[::-1], [kinds[1], kinds[0]]):
            backend = SimulatedBackend(Script(devices=tuple(order)), trace=trace)
            async with open_searcher(store=tmp_path / "store", backends=[backend]) as searcher:
                for n, kind in enumerate(order):
                    digests[kind.kind].add((await searcher.select(some_op(), device=f"simulated:{n}")).digest)
        assert [len(digests[kind]) for kind in "AB"] == [1, 1]
        assert digests["A"] != digests["B"]
        assert searches(trace) == 2

    async def test_layouts_of_input_and_filter_are_four_problems(self) -> None:
        """A02: and where they cannot be told apart, they are one."""
        base = ConvOp(
            input_shape=(8, 64, 56, 56), filter_shape=(64, 64, 3, 3),
            input_type="float16", filter_type="float16", output_type="float16",
        )  # fmt: skip
        layouts: tuple[Any, ...] = ("channels_first", "channels_last")
        four = [replace(base, input_layout=x, filter_layout=w) for x in layouts for w in layouts]
        dots = [replace(op, input_shape=(8, 64, 1, 1), filter_shape=(64, 64, 1, 1)) for op in four]
        trace: list[TraceEvent] = []
        async with open_searcher(store="memory:", backends=[SimulatedBackend(trace=trace)]) as searcher:
            assert len({choice.digest for choice in await searcher.select_many(four)}) == 4
            assert searches(trace) == 4
            assert len({choice.digest for choice in await searcher.select_many(dots)}) == 1

    async def test_determinism_asked_by_turns(self, tmp_path: Path) -> None:
        """A03: the fast one and the deterministic one, each to who asked for it, also after a restart; one search."""
        trace: list[TraceEvent] = []
        for _ in range(2):
            async with open_searcher(store=tmp_path / "s", backends=[scripted(some_op(), trace=trace)]) as searcher:
                for deterministic, expected in ((False, FAST), (True, SMALL), (False, FAST)):
                    choice = await searcher.select(some_op(), Policy(deterministic=deterministic))
                    assert choice.algorithm == expected
        assert searches(trace) == 1

    @pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
    async def test_what_was_timed_is_what_is_answered_math_and_workspace_with_it(self, direction: Any) -> None:
        """A04: one engine under two math modes needs 8 MiB or 3 GiB; the limit is 1 GiB."""
        op = replace(some_op(), direction=direction)
        script = script_of(
            op,
            CandidateScript(algorithm="simulated/c:1?math=1", time_us=50.0, workspace_bytes=3 * GIB),
            CandidateScript(algorithm="simulated/c:1?math=0", time_us=90.0, workspace_bytes=8 * MIB),
        )
        async with open_searcher(store="memory:", backends=[SimulatedBackend(script)]) as searcher:
            choice = await searcher.select(op, Policy(workspace_limit_bytes=GIB))
        assert (choice.algorithm, choice.workspace_bytes) == ("simulated/c:1?math=0", 8 * MIB)

    async def test_the_type_that_sums_up_is_part_of_the_problem(self) -> None:
        """A05: a filter longer than its input; only the table of float16 sums has the fast candidate."""
        half = ConvOp(
            input_shape=(2, 3, 5, 5), filter_shape=(2, 3, 40, 4), padding_low=(39, 3), padding_high=(39, 3),
            input_type="float16", filter_type="float16", output_type="float16", accumulate_type="float16",
        )  # fmt: skip
        full = replace(half, accumulate_type="float32")
        problems = (
            ProblemScript(op=half, candidates=(named("half", 10.0), named("both", 20.0))),
            ProblemScript(op=full, candidates=(named("both", 20.0),)),
        )
        async with open_searcher(store="memory:", backends=[SimulatedBackend(Script(problems=problems))]) as searcher:
            first, second = await searcher.select(half), await searcher.select(full)
        assert (first.algorithm, second.algorithm) == ("simulated/c:half", "simulated/c:both")
        assert first.digest != second.digest

    async def test_the_filters_shape_and_the_groups_are_part_of_the_problem(self) -> None:
        """A06, A07: the same input with other filters, and dense beside grouped."""
        shape = (1, 64, 56, 56)
        three, one = (
            ConvOp(input_shape=shape, filter_shape=(64, 64, 3, 3)),
            ConvOp(input_shape=shape, filter_shape=(128, 64, 1, 1)),
        )
        grouped = ConvOp(input_shape=shape, filter_shape=(64, 1, 3, 3), groups=64)
        trace: list[TraceEvent] = []
        async with open_searcher(store="memory:", backends=[SimulatedBackend(trace=trace)]) as searcher:
            digests = [(await searcher.select(op)).digest for op in (three, one, three, grouped)]
        assert digests[0] == digests[2]
        assert len(set(digests)) == 3
        assert searches(trace) == 3

    async def test_a_store_warmed_with_tf32_answers_nobody_who_refuses_it(self, tmp_path: Path) -> None:
        """A08: and both answers live side by side."""
        op = some_op()
        script = script_of(
            op, named("tf32", 10.0, notes=("tensor_core", "tf32")), named("strict", 30.0), named("slower", 60.0)
        )
        for _ in range(2):
            async with open_searcher(store=tmp_path / "store", backends=[SimulatedBackend(script)]) as searcher:
                for allowed, expected in ((True, "tf32"), (False, "strict"), (True, "tf32")):
                    choice = await searcher.select(op, Policy(allow_tf32=allowed))
                    assert choice.algorithm == f"simulated/c:{expected}"

    async def test_what_another_library_found_is_neither_served_nor_relabelled(self, tmp_path: Path) -> None:
        """A09, A11: three versions on one store, with damaged rows among their records. Each hits its own only."""
        ops = some_ops(4)
        trace: list[TraceEvent] = []

        async def ask(version: str) -> tuple[set[str], int]:
            before = searches(trace)
            backend = SimulatedBackend(replace(Script(), facts={"library": version}), trace=trace)
            async with open_searcher(store=tmp_path / "store", backends=[backend]) as searcher:
                return {choice.digest for choice in await searcher.select_many(ops)}, searches(trace) - before

        # `searches` counts by problem, so that versions count together: 1 search, then 2, then 3 of each.
        found = {version: await ask(version) for version in ("1", "2", "3")}
        assert [count for _, count in found.values()] == [4, 4, 4]
        assert len(set().union(*(digests for digests, _ in found.values()))) == 12
        damaged = sorted(found["2"][0])[:1]
        spoil_row(tmp_path / "store", damaged[0])
        assert await ask("1") == (found["1"][0], 0)
        assert await ask("2") == (found["2"][0], 1), "the damaged one is searched again"
        assert await ask("3") == (found["3"][0], 0)
        assert await ask("2") == (found["2"][0], 0), "it has settled"


def spoil_row(directory: Path, digest: str) -> None:
    """Overwrite a record with what is none."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(directory / "cache.db", isolation_level=None)) as connection:
        changed = connection.execute("UPDATE Cache SET value = x'00ff' WHERE key = ?", (f"record:{digest}",))
        assert changed.rowcount == 1


class TestSizes:
    """Workspace and memory."""

    async def test_a_smaller_limit_is_answered_from_the_same_search(self, tmp_path: Path) -> None:
        """B01: 4 GiB, 256 MiB or nothing, from a warm store as well; a limit below all of them is a typed error."""
        op = some_op()
        script = script_of(
            op,
            named("a", 1_000.0, workspace_bytes=4 * GIB),
            named("b", 1_300.0, workspace_bytes=256 * MIB),
            named("c", 3_000.0, workspace_bytes=4096),
        )
        trace: list[TraceEvent] = []
        for _ in range(2):
            async with open_searcher(
                store=tmp_path / "s", backends=[SimulatedBackend(script, trace=trace)]
            ) as searcher:
                for limit, expected in ((None, "a"), (GIB, "b"), (4096, "c")):
                    choice = await searcher.select(op, Policy(workspace_limit_bytes=limit))
                    assert choice.algorithm == f"simulated/c:{expected}"
                with pytest.raises(NoAlgorithm, match="more than the limit"):
                    await searcher.select(op, Policy(workspace_limit_bytes=4095))
        assert searches(trace) == 1

    async def test_a_search_takes_no_more_than_the_limit_and_gives_it_back(self) -> None:
        """B03: every key has a candidate of 4 GiB; the limit is 512 MiB, and the device has hardly more."""
        problems = tuple(
            ProblemScript(
                op=op,
                candidates=(
                    named("big", 10.0, workspace_bytes=4 * GIB),
                    named("fits", 20.0, workspace_bytes=512 * MIB),
                ),
            )
            for op in some_ops(30)
        )
        trace: list[TraceEvent] = []
        backend = SimulatedBackend(
            Script(problems=problems, devices=(DeviceScript(memory_bytes=520 * MIB),)), trace=trace
        )
        free = backend.statistics()[0].free_bytes
        async with open_searcher(store="memory:", backends=[backend]) as searcher:
            choices = await searcher.select_many(some_ops(30), Policy(workspace_limit_bytes=512 * MIB))
            assert {choice.algorithm for choice in choices} == {"simulated/c:fits"}
            await until(lambda: backend.statistics()[0].free_bytes == free)
        assert not [event for event in trace if event.outcome == "out_of_memory"]

    async def test_a_workspace_of_161_gib_is_never_run_and_the_others_answer(self) -> None:
        """B04: the cliff at 2^31 elements, on either side of it."""
        trace: list[TraceEvent] = []
        ops = [ConvOp(input_shape=(1, 256, depth, 1090, 1922), filter_shape=(256, 256, 3, 3, 3)) for depth in (3, 4, 5)]
        problems = tuple(
            ProblemScript(
                op=op,
                candidates=(
                    named("cliff", 10.0, workspace_bytes=161 * GIB if op.input_shape[2] > 4 else 15 * GIB),
                    named("plain", 90.0),
                ),
            )
            for op in ops
        )
        script = Script(problems=problems, devices=(DeviceScript(memory_bytes=128 * GIB),))
        async with open_searcher(store="memory:", backends=[SimulatedBackend(script, trace=trace)]) as searcher:
            choices = await searcher.select_many(ops)
        assert [choice.algorithm for choice in choices] == ["simulated/c:cliff"] * 2 + ["simulated/c:plain"]
        launched = [e.algorithm for e in trace if e.call == "launch" and e.problem == problem_digest(ops[2])]
        assert "simulated/c:cliff" not in launched

    @pytest.mark.parametrize("limit", [0, 1, 512, (1 << 31) - 1, 1 << 31, 4096 * MIB, 1 << 33, None])
    async def test_a_limit_is_bytes_whatever_its_size(self, limit: int | None) -> None:
        """B05: each limit admits what needs as much, and not what needs one byte more."""
        op = some_op()
        script = script_of(
            op,
            named("all", 10.0, workspace_bytes=(limit or 0) + 1),
            named("just", 20.0, workspace_bytes=limit or 0),
            devices=(DeviceScript(memory_bytes=1 << 40),),
        )
        policy = Policy(workspace_limit_bytes=limit)
        async with open_searcher(store="memory:", backends=[SimulatedBackend(script)]) as searcher:
            choice = await searcher.select(op, policy)
        assert policy.workspace_limit_bytes == limit
        assert choice.algorithm == ("simulated/c:all" if limit is None else "simulated/c:just")

    @pytest.mark.parametrize("limit", [-1, float("nan"), "4GB", 0.5, 1e9 + 0.5, [1]])
    def test_what_is_no_limit_is_refused(self, limit: Any) -> None:
        """B05."""
        with pytest.raises(InvalidPolicy, match="workspace_limit_bytes"):
            Policy(workspace_limit_bytes=limit)

    async def test_tables_are_bounded_and_what_went_is_in_the_store(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """B06: whichever threads asked."""
        monkeypatch.setattr(answers, "ANSWERS_KEPT", 20)
        monkeypatch.setitem(cast("dict[str, int]", tiers.Tiers.__init__.__kwdefaults__), "memory_records", 20)
        ops = some_ops(100)
        trace: list[TraceEvent] = []
        async with open_searcher(store=tmp_path / "store", backends=[SimulatedBackend(trace=trace)]) as searcher:
            with ThreadPoolExecutor(16) as pool:
                loop = asyncio.get_running_loop()
                asked = [loop.run_in_executor(pool, searcher.select_blocking, op) for op in ops]
                assert len(await asyncio.gather(*asked)) == 100
            assert searches(trace) == 100
            assert searcher.statistics().answers <= 20
            hits = searcher.statistics().engine.store_hits
            assert [choice.algorithm for choice in await searcher.select_many(ops[:50])] == [
                (await answer).algorithm for answer in asked[:50]
            ]
            assert searcher.statistics().engine.store_hits > hits
        assert searches(trace) == 100
