"""What becomes of candidates that can wait, in a search from end to end over the fake libcudnn."""

from __future__ import annotations

from algosearch import open_searcher
from algosearch.backends.cudnn.candidates import engine_of
from algosearch.backends.cudnn.enums import BehaviorNote, NumericalNote
from algosearch.ops import ConvOp
from algosearch.records import Choice, Policy, Trial
from algosearch.settings import Mode
from tests.backends.cudnn.fake import FakeCudnn
from tests.backends.cudnn.host_backend import HostBackend
from tests.backends.cudnn.host_gpu import HostGpu

DEPTHWISE = ConvOp(input_shape=(1, 2, 48, 48), filter_shape=(2, 1, 1, 1), groups=2)
ENGINES = range(8)
TENSOR_CORE, COMPILED = (2, 4, 6), (6,)
FIRST = {0, 1, 3, 5, 7}
"""Whom a search looks at."""
NOT_SUPPORTED = 3000
SPACIOUS_BYTES = 64
NONE = Policy(workspace_limit_bytes=0)


def listed(fake: FakeCudnn, *, spacious: set[int] | None = None, workspace_bytes: int = SPACIOUS_BYTES) -> None:
    fake.forget_engines()
    for engine in ENGINES:
        fake.engine(
            engine,
            numerical=[NumericalNote.TENSOR_CORE] * (engine in TENSOR_CORE),
            behavior=[BehaviorNote.RUNTIME_COMPILATION] * (engine in COMPILED),
        )
        fake.config(engine, workspace_bytes=workspace_bytes * (engine in (spacious or ())))


async def found(
    fake: FakeCudnn, policy: Policy | None = None, *, mode: Mode = "race", gpu: HostGpu | None = None
) -> tuple[int, set[int]]:
    """The pick, and who ran."""
    backend = HostBackend(fake, gpu=gpu)
    async with open_searcher(store="memory:", backends=[backend], devices=["cudnn:0"], isolation="thread") as searcher:
        choice = await searcher.select(DEPTHWISE, policy=policy or Policy(), mode=mode)
    return engine_of(choice.algorithm)[0], tried(choice)


def tried(choice: Choice) -> set[int]:
    trials = (each for each in choice.candidates if isinstance(each, Trial))
    return {engine_of(each.algorithm)[0] for each in trials if each.time_us is not None}


async def test_what_can_wait_is_not_looked_at(fake: FakeCudnn) -> None:
    listed(fake)
    pick, ran = await found(fake)
    assert (pick in FIRST, ran) == (True, FIRST)


async def test_in_mode_exhaustive_it_is(fake: FakeCudnn) -> None:
    listed(fake)
    assert (await found(fake, mode="exhaustive"))[1] == set(ENGINES)


async def test_a_policy_that_refuses_some_has_enough_others(fake: FakeCudnn) -> None:
    """In their place nobody is looked at."""
    listed(fake, spacious={1})
    assert (await found(fake, NONE))[1] == FIRST - {1}


async def test_a_policy_that_has_too_few_is_given_what_costs_least(fake: FakeCudnn) -> None:
    listed(fake, spacious={1, 3})
    assert (await found(fake, NONE))[1] == {0, 5, 7, 2}


async def test_a_policy_that_only_those_meet_is_answered_with_one(fake: FakeCudnn) -> None:
    listed(fake, spacious=FIRST)
    assert await found(fake, NONE) == (2, {2, 4, 6})
    pick, _ = await found(fake, NONE, mode="heuristic")
    assert pick == 2


async def test_where_nobody_else_can_be_built_or_run_one_of_them_is_picked(fake: FakeCudnn) -> None:
    for call in ("build", "execute"):
        listed(fake)
        for engine in FIRST:
            fake.script(call, NOT_SUPPORTED, what=engine)
        assert await found(fake) == (2, {2, 4, 6})
        fake.reset()


async def test_where_there_is_no_memory_for_anybody_else_one_of_them_is_picked(fake: FakeCudnn) -> None:
    listed(fake, spacious=FIRST, workspace_bytes=1 << 27)
    gpu = HostGpu(l2_bytes=1 << 12, capacity_bytes=1 << 26)
    assert await found(fake, gpu=gpu) == (2, {2, 4, 6})


async def test_the_first_answer_is_the_first_that_suits(fake: FakeCudnn) -> None:
    """Not the library's own first one, which does not."""
    fake.forget_engines()
    for engine in range(4):
        fake.engine(engine, numerical=[NumericalNote.TENSOR_CORE] * (engine < 2))
        fake.config(engine)
    pick, _ = await found(fake, mode="heuristic")
    assert pick == 2
