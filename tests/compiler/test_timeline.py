"""Time lines beside one another in one process."""

from __future__ import annotations

import logging

import msgspec

from algosearch.compiler.compile import Pipeline, compile_graph
from algosearch.compiler.timeline import Timeline
from tests.compiler.compiling import a_block, compiling

NAMES = ("algosearch.flights", "algosearch.workers")


def loggers() -> list[tuple[int, bool, int]]:
    return [(each.level, each.propagate, len(each.handlers)) for each in map(logging.getLogger, NAMES)]


async def traced(timeline: Timeline) -> None:
    async with compiling("async") as (_, strategy, queries, _):
        await compile_graph(a_block(), strategy, queries, pipeline=Pipeline(), timeline=timeline)


async def test_two_that_overlap_see_all_of_theirs_and_leave_the_loggers_as_they_were() -> None:
    before = loggers()
    first, second = Timeline(), Timeline()
    with first:
        second.__enter__()
    await traced(second)
    second.__exit__(None, None, None)
    assert loggers() == before
    seen = {event.get("cat") for event in msgspec.json.decode(second.encoded())["traceEvents"]}
    assert {"stage", "pass", "wait", "flight", "worker"} <= seen
    assert first.is_empty
