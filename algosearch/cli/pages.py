"""What `show` prints: each page once for people (tables and lines) and once as the object of `--json`."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from rich.console import RenderableType
from rich.table import Table

from algosearch.cli.contents import Contents, Entry, Unreadable
from algosearch.cli.explain import Explanation
from algosearch.cli.tables import facts, table
from algosearch.cli.units import age, duration, run_time, size
from algosearch.records import Search, Trial

SHORT: Final = 12
"""Hex digits of a digest in a table."""


def list_page(entries: Sequence[Entry], unreadable: Sequence[Unreadable]) -> tuple[RenderableType, ...]:
    """Records, a line each, and below them what could not be read."""
    parts: list[RenderableType] = []
    if entries:
        parts.append(
            table(
                "key",
                "problem",
                "device",
                "searches",
                "best algorithm",
                "time",
                "workspace",
                "age",
                numbers=("searches", "time", "workspace", "age"),
                rows=map(_line, entries),
            )
        )
    if unreadable:
        parts.append(table("unreadable", "reason", rows=((each.digest[:SHORT], each.reason) for each in unreadable)))
    return tuple(parts)


def list_object(contents: Contents, entries: Sequence[Entry], unreadable: Sequence[Unreadable]) -> dict[str, Any]:
    """The same as an object."""
    return {
        "store": contents.location,
        "records": [
            {
                "digest": entry.digest,
                "problem": entry.problem,
                "backend": entry.ingredients["backend"],
                "device": entry.device,
                "searches": len(entry.record.searches),
                "found_at_s": entry.found_at_s,
                **_choice_object(entry),
            }
            for entry in entries
        ],
        "unreadable": list(unreadable),
    }


def record_page(entry: Entry) -> tuple[RenderableType, ...]:
    """One record in full."""
    record = entry.record
    parts: list[RenderableType] = [
        entry.problem,
        f"record {entry.digest}, generation {record.generation}",
        "",
        facts(sorted(entry.ingredients.items())),
    ]
    for number, search in enumerate(record.searches, 1):
        parts += ["", _provenance(number, search), _trials(search), "", *_front(search)]
    choice = entry.choice
    if choice is None:
        pick = entry.why_none
    else:
        pick = f"{choice.algorithm}, {choice.precision}, within {choice.tie_window:.1%} of the best"
    return (*parts, "", f"the default policy picks: {pick}")


def record_object(contents: Contents, entry: Entry) -> dict[str, Any]:
    """The same as an object."""
    return {
        "store": contents.location,
        "digest": entry.digest,
        "problem": entry.problem,
        "generation": entry.record.generation,
        "ingredients": entry.ingredients,
        "searches": [
            {
                "mode": search.mode,
                "complete": search.complete,
                "provenance": msgspec.structs.asdict(search.provenance),
                "trials": [_trial_object(trial) for trial in search.trials],
                "front": [trial.algorithm for trial in front(search.trials)],
            }
            for search in entry.record.searches
        ],
        **_choice_object(entry),
    }


def explanation_page(explanations: Sequence[Explanation]) -> tuple[RenderableType, ...]:
    """Hit or miss and why, and for a miss the nearest key."""
    parts: list[RenderableType] = []
    for each in explanations:
        parts += [
            f"{'hit' if each.hit else 'miss'}: {each.problem} on {each.device}",
            f"  key {each.digest[:SHORT]}: {each.reason}",
        ]
        nearest = each.nearest
        if nearest is not None:
            parts += [
                f"  the nearest record is {nearest.digest[:SHORT]}, {nearest.problem}; it differs in",
                table(
                    "  ingredient",
                    "asked",
                    "stored",
                    rows=(
                        (f"  {one.ingredient}", _or_none(one.asked), _or_none(one.stored))
                        for one in nearest.differences
                    ),
                ),
            ]
    return tuple(parts)


def front(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """The time/workspace front: least workspace first, each trial faster than all that need no more of it."""
    best: list[Trial] = []
    best_us = math.inf
    for trial in sorted(trials, key=lambda trial: (trial.workspace_bytes, trial.time_us or 0.0, trial.rank)):
        if trial.failure is None and trial.time_us is not None and trial.time_us < best_us:
            best.append(trial)
            best_us = trial.time_us
    return tuple(best)


def _line(entry: Entry) -> tuple[str, ...]:
    choice = entry.choice
    return (
        entry.digest[:SHORT],
        entry.problem,
        entry.device,
        str(len(entry.record.searches)),
        entry.why_none.split(":")[0] if choice is None else choice.algorithm,
        "" if choice is None or choice.time_us is None else run_time(choice.time_us),
        "" if choice is None else size(choice.workspace_bytes),
        age(time.time() - entry.found_at_s),
    )


def _choice_object(entry: Entry) -> dict[str, Any]:
    choice = entry.choice
    return {
        "algorithm": None if choice is None else choice.algorithm,
        "time_us": None if choice is None else choice.time_us,
        "workspace_bytes": None if choice is None else choice.workspace_bytes,
        "why_none": entry.why_none or None,
    }


def _provenance(number: int, search: Search) -> str:
    origin = search.provenance
    when = "at an impossible time"  # for a store may say anything
    with contextlib.suppress(OverflowError, OSError, ValueError):
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(origin.found_at_s))
    extent = "every candidate that the library has" if search.complete else "the first of the library's candidates"
    alone = ", found while the shared store was out of reach" if origin.alone else ""
    return (
        f"search {number}: {search.mode} over {extent}; {when}, by algosearch {origin.version}, "
        f"in {duration(origin.seconds)}{alone}"
    )


def _trials(search: Search) -> Table:
    return table(
        "algorithm",
        "rank",
        "workspace",
        "stage",
        "time",
        "error",
        "samples",
        "build",
        "notes",
        "failure",
        numbers=("rank", "workspace", "time", "error", "samples", "build"),
        rows=map(_trial_line, sorted(search.trials, key=_fastest_first)),
    )


def _trial_line(trial: Trial) -> tuple[str, ...]:
    failure = trial.failure
    return (
        trial.algorithm,
        str(trial.rank),
        size(trial.workspace_bytes),
        trial.stage,
        "" if trial.time_us is None else run_time(trial.time_us),
        "" if trial.error_us is None else f"± {run_time(trial.error_us)}",
        str(len(trial.samples_us)),
        "" if trial.build_us is None else run_time(trial.build_us),
        " ".join(trial.notes),
        "" if failure is None else f"{failure.kind}: {failure.message}",
    )


def _front(search: Search) -> tuple[RenderableType, ...]:
    best = front(search.trials)
    if not best:
        return ("nothing ran to the end",)
    rows = ((size(trial.workspace_bytes), run_time(trial.time_us or 0.0), trial.algorithm) for trial in best)
    return (table("workspace", "best time", "with", numbers=("workspace", "best time"), rows=rows),)


def _fastest_first(trial: Trial) -> tuple[bool, float, int]:
    return trial.failure is not None or trial.time_us is None, trial.time_us or 0.0, trial.rank


def _trial_object(trial: Trial) -> dict[str, Any]:
    failure = None if trial.failure is None else msgspec.structs.asdict(trial.failure)
    return {**msgspec.structs.asdict(trial), "failure": failure}


def _or_none(value: str | None) -> str:
    return "(none)" if value is None else value
