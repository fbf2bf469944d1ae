"""An independent check of plans: it knows the plan's own text and nothing of how it was made."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import msgspec


def check_plan(encoded: bytes) -> None:
    """Raise AssertionError unless every block lies in the arena and no two that live at once share a byte.

    Lifetimes are worked out anew from what the tasks read and write; those that the plan states must agree.
    """
    plan = msgspec.json.decode(encoded)
    blocks = [*_workspaces(plan), *_buffers(plan)]
    for name, offset, size, _, _ in blocks:
        assert offset >= 0, name
        assert offset + size <= plan["arena_bytes"], name
        assert offset % 256 == 0, name
    alive_at: dict[int, list[tuple[str, int, int]]] = {}
    for name, offset, size, first, last in blocks:
        for task in range(first, last + 1):
            alive_at.setdefault(task, []).append((name, offset, size))
    for task, alive in alive_at.items():
        alive.sort(key=lambda block: block[1])
        for (left, offset, size), (right, after, _) in pairwise(alive):
            assert offset + size <= after, f"{left} and {right} overlap at task {task}"
    most = max((sum(-(-size // 256) * 256 for _, _, size in alive) for alive in alive_at.values()), default=0)
    assert most == plan["lower_bound_bytes"]
    assert plan["arena_bytes"] >= most


def overlapping(blocks: list[tuple[int, int, int, int]]) -> bool:
    """Whether two of (offset, size, first, last) share a byte while both live; by looking at every pair."""
    return any(
        a[2] <= b[3] and b[2] <= a[3] and a[0] < b[0] + b[1] and b[0] < a[0] + a[1] for a, b in combinations(blocks, 2)
    )


def _workspaces(plan: dict[str, Any]) -> list[tuple[str, int, int, int, int]]:
    found = []
    for index, task in enumerate(plan["tasks"]):
        if task["workspace_bytes"]:
            assert task["workspace_offset"] is not None, task["name"]
            found.append((task["name"], task["workspace_offset"], task["workspace_bytes"], index, index))
    return found


def _buffers(plan: dict[str, Any]) -> list[tuple[str, int, int, int, int]]:
    written: dict[str, int] = {}
    read: dict[str, int] = {}
    for index, task in enumerate(plan["tasks"]):
        written.update(dict.fromkeys(task["writes"], index))
        read.update(dict.fromkeys(task["reads"], index))
    found = []
    for buffer in plan["buffers"]:
        name = buffer["tensor"]
        assert buffer["first"] == written[name], name
        assert buffer["last"] >= read.get(name, written[name]), name
        found.append((name, buffer["offset"], buffer["bytes"], buffer["first"], buffer["last"]))
    # What a task reads is either made by an earlier one or outlives the step.
    for index, task in enumerate(plan["tasks"]):
        for name in task["reads"]:
            assert written.get(name, -1) < index, f"{task['name']} reads {name} before it is written"
    return found
