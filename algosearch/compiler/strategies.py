"""Four ways to ask while compiling: three that systems have, and ours.

- `naive`, as the complaint had it: every answer is waited for at once; temporary sizes are asked in the logical
  inference of every pass, for every device; convolutions are cached, batch norms are not, and a handle is made and
  destroyed for each of their queries.
- `fixed`, the complaint's own cure: logical inference asks nothing more. The rest as before.
- `cached`: every query is cached; still, every answer is waited for at once.
- `async`: a request goes out as soon as an op's shapes are known, and is withdrawn when a pass replaces the op; answers
  are waited for where they are needed.

A strategy is told of every op that is inferred and of every graph that a pass has made; it answers with sizes and
choices. Each writes every query into the log of the compile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Final, Literal, Protocol, get_args

from algosearch.compiler.graph import GraphNode
from algosearch.compiler.queries import Again, Queries, Stage
from algosearch.errors import InvalidSetting, NoAlgorithm
from algosearch.ops import BatchNormOp, Op
from algosearch.records import Choice, Listing, Policy
from algosearch.search.request import Request
from algosearch.search.searcher import Searcher

__all__ = ("ASK_LIBRARY", "STRATEGIES", "AskAsync", "AskSynchronously", "Strategy", "StrategyName", "strategy_of")

StrategyName = Literal["naive", "fixed", "cached", "async"]
STRATEGIES: Final[tuple[StrategyName, ...]] = get_args(StrategyName)

ASK_LIBRARY: Final[frozenset[StrategyName]] = frozenset({"naive", "fixed"})
"""Those that need a `Probe`."""

Probe = Callable[[Op], Awaitable[Listing]]
"""Asks the library itself, with a handle made for this one question: what `naive` and `fixed` do for batch norms."""


def strategy_of(name: StrategyName, searcher: Searcher, queries: Queries, probe: Probe | None) -> Strategy:
    """The strategy of that name.

    Args:
        probe: for those in `ASK_LIBRARY`.

    Raises:
        InvalidSetting: there is none of that name, or it needs a probe.
    """
    match name:
        case "naive" | "fixed":
            if probe is None:
                raise InvalidSetting("probe", probe, f"{name} asks the library itself, by a HandleProbe")
            return AskSynchronously(searcher, queries, in_passes=name == "naive", probe=probe)
        case "cached":
            return AskSynchronously(searcher, queries, in_passes=False, probe=None)
        case "async":
            return AskAsync(searcher, queries)
        case _:
            raise InvalidSetting("strategy", name, f"must be one of {', '.join(STRATEGIES)}")


class Strategy(Protocol):
    """How a compile asks.

    `withdrawn` counts the requests that a pass made needless before they were answered. `policy` is what everything is
    asked under, unless a limit is to be tried: its searcher's, so that nothing is searched twice.

    `askers` is how many tasks of all devices ask about an op: each of them asks, one after the other.
    """

    withdrawn: int
    policy: Policy

    def inferred(self, node: GraphNode) -> None:
        """The shapes of a node have become known. Never waits."""
        ...

    async def passed(self, askers: Mapping[Op, int]) -> None:
        """A pass is done; these are the ops of its graph."""
        ...

    async def reserve_bytes(self, op: BatchNormOp) -> int:
        """The size of the reserve that a fused batch norm writes: the shape of an output, so needed early."""
        ...

    async def workspace_bytes(self, op: Op, *, askers: int) -> int:
        """The temporary memory of a task, as far as it is known when the task graph is made."""
        ...

    async def choice(self, op: Op, policy: Policy, *, askers: int) -> Choice:
        """What to run."""
        ...

    def ended(self) -> None:
        """The compile is over, whatever it came to: what it has asked and not been told, nobody waits for any more."""
        ...


class _Answers:
    """One answer to each question of a compile.

    A searcher remembers final answers. A provisional one (of mode `heuristic`, say) it finds anew for whoever asks;
    a compile would pay that for every device, and two of its stages might be told two different things.
    """

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._provisional: dict[tuple[Op, Policy], Choice] = {}

    async def select(self, op: Op, policy: Policy) -> Choice:
        """As `Searcher.select`."""
        kept = self._provisional.get((op, policy)) if self._provisional else None
        return self.keep(op, policy, await self._searcher.select(op, policy)) if kept is None else kept

    def keep(self, op: Op, policy: Policy, choice: Choice) -> Choice:
        """The answer that was found first, of this one and those before."""
        return self._provisional.setdefault((op, policy), choice) if choice.provisional else choice

    def asking(self, op: Op, policy: Policy, first: Choice) -> Callable[[], Awaitable[Choice]]:
        """What asks the same once more, now that the answer is `first`."""
        ask = self.select if first.provisional else self._searcher.select
        return lambda: ask(op, policy)


class AskSynchronously:
    """`naive`, `fixed` and `cached`: whoever asks waits, and nothing else goes on meanwhile.

    Args:
        in_passes: whether sizes are asked in the logical inference of every pass.
        probe: how batch norms are asked about; None: as convolutions are, through the searcher and its caches.
    """

    def __init__(self, searcher: Searcher, queries: Queries, *, in_passes: bool, probe: Probe | None) -> None:
        self._answers = _Answers(searcher)
        self._queries = queries
        self._in_passes = in_passes
        self._probe = probe
        self.policy = searcher.policy
        self.withdrawn = 0

    def inferred(self, node: GraphNode) -> None:
        """Nothing: these ask for a whole graph at a time."""

    async def passed(self, askers: Mapping[Op, int]) -> None:
        if self._in_passes:
            for op, count in askers.items():
                await self._ask("passes", "tmp size", op, self.policy, count)

    async def reserve_bytes(self, op: BatchNormOp) -> int:
        return (await self._ask("reserve", "reserve", op, self.policy, 1)).reserve_bytes

    async def workspace_bytes(self, op: Op, *, askers: int) -> int:
        return (await self._ask("task graph", "tmp size", op, self.policy, askers)).workspace_bytes

    async def choice(self, op: Op, policy: Policy, *, askers: int) -> Choice:
        # Each device has been told its task's size already, and with it the algorithm.
        return await self._ask("memory plan", "choice", op, policy, 1)

    async def _ask(self, stage: Stage, awaited: str, op: Op, policy: Policy, askers: int) -> Choice:
        began = perf_counter()
        choice = await self._choice(op, policy)
        ended, again = perf_counter(), Again()
        try:
            await again.ask(lambda: self._choice(op, policy), askers - 1)
        finally:  # a compile that takes too long is ended here
            self._queries.note(stage, awaited, op, began, ended, again)
        return choice

    async def _choice(self, op: Op, policy: Policy) -> Choice:
        if self._probe is not None and isinstance(op, BatchNormOp):
            listing = await self._probe(op)
            return policy.first(listing.candidates, problem=op.describe())
        return await self._answers.select(op, policy)

    def ended(self) -> None:
        """Nothing: what was asked has been answered."""


class AskAsync:
    """`async`: requests go out while the passes run, and only what is needed is waited for."""

    def __init__(self, searcher: Searcher, queries: Queries) -> None:
        self._searcher = searcher
        self._answers = _Answers(searcher)
        self._queries = queries
        self._requests: dict[Op, Request] = {}
        self.policy = searcher.policy
        self.withdrawn = 0

    def inferred(self, node: GraphNode) -> None:
        if node.op is not None and node.op not in self._requests:
            self._requests[node.op] = self._searcher.request(node.op)

    async def passed(self, askers: Mapping[Op, int]) -> None:
        for op in [op for op in self._requests if op not in askers]:
            request = self._requests.pop(op)
            self.withdrawn += not request.answered
            request.withdraw()

    async def reserve_bytes(self, op: BatchNormOp) -> int:
        began = perf_counter()
        choice = self._answers.keep(op, self.policy, await self._requests[op].choice())
        self._queries.note("reserve", "reserve", op, began, perf_counter())
        return choice.reserve_bytes

    async def workspace_bytes(self, op: Op, *, askers: int) -> int:
        # Once for each problem: the size of an equal task is known with it. Its choice is asked by every one.
        began, request = perf_counter(), self._requests[op]
        size = await _chosen_bytes(request) if request.answered else None
        if size is None:
            size = min((await request.workspace()).values(), default=0)
        self._queries.note("task graph", "workspace", op, began, perf_counter())
        return size

    async def choice(self, op: Op, policy: Policy, *, askers: int) -> Choice:
        began, request = perf_counter(), self._requests[op]
        if policy == self.policy and request.answered:
            choice = self._answers.keep(op, policy, await request.choice())
        else:
            choice = await self._answers.select(op, policy)
        ended, again = perf_counter(), Again()
        try:
            await again.ask(self._answers.asking(op, policy, choice), askers - 1)
        finally:
            self._queries.note("memory plan", "choice", op, began, ended, again)
        return choice

    def ended(self) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.withdraw()


async def _chosen_bytes(request: Request) -> int | None:
    """What an answered request's choice takes; None if there is none. Quicker than to spell out all its candidates."""
    try:
        return (await request.choice()).workspace_bytes
    except NoAlgorithm:
        return None
