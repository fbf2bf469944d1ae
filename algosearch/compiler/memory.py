"""The memory plan: lifetimes from the order of the tasks, one arena a device, and a workspace limit that makes it fit.

Tasks run one after the other, so the workspaces of two tasks never live at once and share their memory with whatever
else is dead by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from algosearch.compiler.arena import Arena, Block, BlockKey, lay_out_in_turns
from algosearch.compiler.graph import Graph, GraphNode, Tensor
from algosearch.compiler.plan import Buffer, Plan, PlannedTask
from algosearch.errors import DoesNotFit
from algosearch.ops import BatchNormOp, Op
from algosearch.records import Choice

__all__ = ("Choices", "Fitting", "fit", "planned")

Choices = Mapping[Op, Choice]
"""What runs each problem."""

_NAMED: Final = 10
"""Tasks and tensors that an error names; the largest."""


class Fitting(msgspec.Struct, frozen=True, kw_only=True):
    """Choices, and the arena that they need."""

    choices: Choices
    arena: Arena
    limit_bytes: int | None
    time_us: float
    """The sum of the tasks' times, as far as they were timed."""


def blocks_of(graph: Graph, choices: Choices) -> list[Block]:
    """Everything that a step makes, with its lifetime in tasks."""
    end = len(graph.nodes) - 1
    last = {tensor: index for index, node in enumerate(graph.nodes) for tensor in (*node.outputs, *node.inputs)}
    last.update(dict.fromkeys(graph.outputs, end))
    blocks = [
        Block(("tensor", tensor), _bytes_of(graph.tensors[tensor], node, choices), index, last[tensor])
        for index, node in enumerate(graph.nodes)
        for tensor in node.outputs
    ]
    blocks += [
        Block(("workspace", node.name), choices[node.op].workspace_bytes, index, index)
        for index, node in enumerate(graph.nodes)
        if node.op is not None
    ]
    return blocks


def _bytes_of(tensor: Tensor, node: GraphNode, choices: Choices) -> int:
    """A reserve is as large as what was picked needs, which under a limit may be other than when its size was asked."""
    if tensor.role == "reserve" and node.op is not None:
        return choices[node.op].reserve_bytes
    return tensor.bytes


def _time_us(op: Op, choice: Choice) -> float | None:
    """Of a task. The time of a pair is that of both its passes, and counts with the forward one."""
    if isinstance(op, BatchNormOp) and op.phase == "backward" and op.fusion != "none":
        return None
    return choice.time_us


async def fit(
    graph: Graph, choose: Callable[[int | None], Awaitable[Choices]], memory_bytes: int | None
) -> tuple[Fitting, Fitting]:
    """The fastest choices that fit, and those without a limit.

    Every task's workspace is held to one limit, the highest under which the arena fits; a task that cannot do with so
    little keeps the least that it can do with.

    Args:
        choose: the choices under a workspace limit.
        memory_bytes: of the arena; None: as much as it takes.

    Raises:
        DoesNotFit: under no limit; it names what fills the arena at the worst moment of the smallest one.

    Cancellation: passed on from `choose`; nothing is left behind.
    """

    async def under(limit_bytes: int | None, *, within_bytes: int | None = memory_bytes) -> Fitting:
        choices = await choose(limit_bytes)
        return Fitting(
            choices=choices,
            arena=await lay_out_in_turns(blocks_of(graph, choices), within_bytes=within_bytes),
            limit_bytes=limit_bytes,
            time_us=sum(_time_us(op, choices[op]) or 0.0 for op in graph.ops),
        )

    free = await under(None)
    if memory_bytes is None or free.arena.bytes <= memory_bytes:
        return free, free

    # The limits worth trying are the sizes that some candidate has. A lower one needs, as a rule, no larger arena, so
    # that a bisection finds the highest that will do.
    sizes = sorted({each.workspace_bytes for choice in free.choices.values() for each in choice.candidates} | {0})
    tried: dict[int, Fitting] = {}
    low, high = 0, len(sizes) - 1
    while low <= high:
        middle = (low + high) // 2
        limit = sizes[middle]
        tried[limit] = await under(limit)
        low, high = (middle + 1, high) if tried[limit].arena.bytes <= memory_bytes else (low, middle - 1)
    if not _any_fits(tried, memory_bytes) and _reserves_differ(free.choices):
        for limit in reversed(sizes):
            if limit not in tried:
                tried[limit] = await under(limit, within_bytes=None)  # there may be hundreds
            if tried[limit].arena.bytes <= memory_bytes:
                break

    if not _any_fits(tried, memory_bytes):
        # Of that which may become the smallest, an arena is looked for as long as one ever is: what is told to be
        # needed is all that is, and fits where it is given.
        limit = min(tried, key=lambda limit: (tried[limit].arena.lower_bound_bytes, -limit))
        tried[limit] = await under(limit, within_bytes=tried[limit].arena.lower_bound_bytes)
    if not _any_fits(tried, memory_bytes):
        least = min(tried.values(), key=lambda fitting: fitting.arena.bytes)
        raise DoesNotFit(graph.name, memory_bytes, least.arena.bytes, _filling(graph, least))
    return tried[max(limit for limit, each in tried.items() if each.arena.bytes <= memory_bytes)], free


def _any_fits(tried: Mapping[int, Fitting], memory_bytes: int) -> bool:
    return any(each.arena.bytes <= memory_bytes for each in tried.values())


def _reserves_differ(choices: Choices) -> bool:
    """Whether less workspace may be paid for with a larger reserve, so that a higher limit needs less."""
    reserves = ({each.reserve_bytes for each in choice.candidates} for choice in choices.values())
    return any(len(sizes) > 1 for sizes in reserves)


def _filling(graph: Graph, fitting: Fitting) -> tuple[tuple[str, int], ...]:
    """What lives at the worst moment, the largest first, and the task that it is."""
    worst = fitting.arena.worst
    alive = [block for block in blocks_of(graph, fitting.choices) if block.first <= worst <= block.last and block.bytes]
    alive.sort(key=lambda block: (-block.bytes, block.key))
    return ((graph.nodes[worst].name, 0), *((_words(block.key), block.bytes) for block in alive[:_NAMED]))


def _words(key: BlockKey) -> str:
    kind, name = key
    return f"workspace of {name}" if kind == "workspace" else name


def planned(graph: Graph, devices: tuple[str, ...], fitting: Fitting, free: Fitting) -> Plan:
    """The plan of a fitting."""
    arena, choices = fitting.arena, fitting.choices
    buffers = tuple(
        Buffer(tensor=name, bytes=block.bytes, offset=arena.offsets[block.key], first=block.first, last=block.last)
        for block in blocks_of(graph, choices)
        for kind, name in [block.key]
        if block.bytes and kind == "tensor"
    )
    return Plan(
        graph=graph.name,
        devices=devices,
        tasks=tuple(_task(node, fitting) for node in graph.nodes),
        buffers=buffers,
        arena_bytes=arena.bytes,
        lower_bound_bytes=arena.lower_bound_bytes,
        resident_bytes=sum(tensor.bytes for tensor in graph.tensors.values() if tensor.outlives_step),
        workspace_limit_bytes=fitting.limit_bytes,
        unlimited_arena_bytes=free.arena.bytes,
        slower=_slower(fitting, free),
    )


def _slower(fitting: Fitting, free: Fitting) -> float | None:
    if fitting.limit_bytes is None:
        return 0.0
    return round(fitting.time_us / free.time_us - 1.0, 6) if free.time_us else None


def _task(node: GraphNode, fitting: Fitting) -> PlannedTask:
    if node.op is None:
        return PlannedTask(name=node.name, kind=node.kind, reads=node.inputs, writes=node.outputs)
    choice = fitting.choices[node.op]
    return PlannedTask(
        name=node.name,
        kind=node.kind,
        reads=node.inputs,
        writes=node.outputs,
        algorithm=choice.algorithm,
        workspace_bytes=choice.workspace_bytes,
        workspace_offset=fitting.arena.offsets.get(("workspace", node.name)),
        time_us=_time_us(node.op, choice),
    )
