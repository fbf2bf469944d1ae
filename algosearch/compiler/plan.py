"""`Plan`: what a compile results in, and how it is written. Two compiles with equal answers give equal bytes.

Data parallelism gives every device the same program, so a plan states the program once, and which devices run it.
"""

from __future__ import annotations

import msgspec

from algosearch.records.plain import as_json

__all__ = ("Buffer", "Plan", "PlannedTask")


class PlannedTask(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the program, in the order in which they run."""

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    algorithm: str | None = None
    """What to run it with; None for a kind that no algorithm is searched for. The passes of a fused batch norm have the
    same one, for the backward one reads the reserve that the forward one wrote."""
    workspace_bytes: int = 0
    workspace_offset: int | None = None
    """Of its workspace in the arena, in bytes; None if it needs none."""
    time_us: float | None = None
    """A run of the algorithm, as it was timed in the search; None if it was not. The passes of a fused batch norm are
    timed as one: the forward one has the time of both, the backward one none."""


class Buffer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tensor that the step makes lies in the arena."""

    tensor: str
    bytes: int
    offset: int
    first: int
    """The task that writes it, by its place in the program."""
    last: int
    """The last that reads it."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A whole step."""

    graph: str
    devices: tuple[str, ...]
    """All that run the program, each on a batch of its own."""
    tasks: tuple[PlannedTask, ...]
    buffers: tuple[Buffer, ...]
    arena_bytes: int
    """Of each device: everything that a step makes, workspace included."""
    lower_bound_bytes: int
    """No arena for these tasks in this order can be smaller."""
    resident_bytes: int
    """Of each device, beside the arena: inputs, parameters, statistics."""
    workspace_limit_bytes: int | None = None
    """What every task's workspace was held to, as far as it could do with so little; None if it needed no limit."""
    unlimited_arena_bytes: int
    """What the arena would have been without a limit."""
    slower: float | None = 0.0
    """What the limit costs: the sum of the tasks' times against that without one, less 1. None: nothing was timed (mode
    `heuristic`), and nobody knows."""

    def encoded(self) -> bytes:
        """As JSON, a field a line, for people and for `diff`. Equal plans give equal bytes."""
        return msgspec.json.format(as_json(self), indent=1) + b"\n"
