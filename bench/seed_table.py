"""The table of the complaint: compiling ResNet-50's training step for more and more devices, four ways of asking.

Each cell is a compile in a process of its own (`seed_cell.py`): with an empty store (cold), and again from the store
that the cold one left (warm). A warm one of `async`, which takes hardly longer than its process, is run `--warm` times,
and the one in the middle is taken.

`naive` and `fixed` make a handle for every query of a batch norm, for every device, and would take hours at the end. A
cell is ended after `--patience` seconds and says so; what it would have asked in all is counted without asking, and
what its batch norms would take is estimated from those that were asked. `--budget` bounds the whole table: what is left
is divided among the cells still to come.

Searches are made under a policy that leaves less to try (`seed_cell.QUICK`), the same for all cells; `--full` for the
default one. The table is about asking.

On a quiet machine of 16 cores, and on one with a GPU:

    python bench/seed_table.py --backend cpu --budget 520 --json bench/results/seed_table_cpu.json
    python bench/seed_table.py --half --batch 4 --budget 285 --json bench/results/seed_table_gpu.json
    python bench/seed_text.py bench/results/seed_table_*.json > bench/results/seed_table.md
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, median_low
from time import perf_counter
from typing import Any

import machine
from apart import told
from report import arguments, report
from seed_cell import BACKENDS

from algosearch.compiler.strategies import STRATEGIES

PLACEMENTS = ((1, 1), (1, 4), (2, 8), (4, 8), (128, 8))
SLOW = ("naive", "fixed")
"""Measured last: with what is left of a budget when the others have come to an end."""
Row = dict[str, Any]


@dataclass
class Budget:
    """What is left for the cells still to come."""

    options: Any
    began: float = field(default_factory=perf_counter)
    known: dict[tuple[str, str], float] = field(default_factory=dict)
    """What a strategy's cold or warm cell last took, with its process and all."""
    overhead_s: float = 1.0

    def patience(self, left: list[tuple[str, str]]) -> float:
        """For the first of these cells: all that the others are not expected to need, and at least its share."""
        patience: float = self.options.patience
        if self.options.budget is None:
            return patience

        budget: float = self.options.budget
        seconds = max(0.0, budget - (perf_counter() - self.began))
        share = seconds / len(left)
        needed = sum(self.known.get(each, share / 2) for each in left[1:])
        return max(1.0, min(patience, max(share, seconds - needed) - self.overhead_s))

    def note(self, which: tuple[str, str], wall_s: float, row: Row) -> None:
        self.known[which] = wall_s
        if which[1] == "cold":
            self.overhead_s = max(self.overhead_s, wall_s - row["total_s"] - row.get("completed_s", 0.0))


def run(options: Any, strategy: str, store: Path, patience_s: float, nodes: int = 1, devices: int = 1) -> Row:
    """One cell in a fresh process."""
    line = [str(Path(__file__).with_name("seed_cell.py")), strategy, "--store", str(store)]
    line += ["--nodes", str(nodes), "--devices", str(devices), "--patience", f"{patience_s:.3f}"]
    line += ["--workload", options.workload, "--batch", str(options.batch)]
    line += [f"--{name}" for name in ("half", "full") if getattr(options, name)]
    line += ["--backend", options.backend] if options.backend else []
    return told(line)


def warm(options: Any, strategy: str, store: Path, patience_s: float, nodes: int, devices: int) -> Row:
    """A warm cell; of `async` the middle one of several, with the figures of all."""
    times = options.warm if strategy == "async" else 1
    rows = [run(options, strategy, store, patience_s, nodes, devices) for _ in range(times)]
    each = sorted(row["us_per_query"] for row in rows)
    middle = next(row for row in rows if row["us_per_query"] == median_low(each))
    return {**middle, "us_per_query_of_each": each}


def table(options: Any, directory: Path) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    placements = PLACEMENTS[: options.placements]
    cells = [(place, strategy, state) for place in placements for strategy in STRATEGIES for state in ("cold", "warm")]
    order = tuple(cells)
    cells.sort(key=lambda cell: cell[1] in SLOW)
    budget, after = Budget(options), [("alone", "cold")] * options.pairs
    for index, ((nodes, devices), strategy, state) in enumerate(cells):
        store = directory / f"{nodes}x{devices}-{strategy}"
        patience_s = budget.patience([*((strategy, state) for _, strategy, state in cells[index:]), *after])
        began = perf_counter()
        row = (warm if state == "warm" else run)(options, strategy, store, patience_s, nodes, devices)
        budget.note((strategy, state), perf_counter() - began, row)
        rows[f"{nodes}x{devices} {strategy} {state}"] = row | {"patience_s": patience_s}
        say(f"{nodes}x{devices} {strategy} {state}", row)
    names = [f"{nodes}x{devices} {strategy} {state}" for (nodes, devices), strategy, state in order]
    return {name: rows[name] for name in names}


def say(name: str, row: Row) -> None:
    print(
        f"{name:<20} {row['total_s']:9.3f} s  conv {row['conv_query_s']:8.3f}  norm {row['batch_norm_query_s']:8.3f}  "
        f"{row['share']:6.1%}  {row['queries']:>8} queries  {row['us_per_query']:10.2f} µs each  "
        f"{row['probes']:>7} probes  {row['trials']:>5} trials{'' if row['finished'] else '  UNFINISHED'}",
        file=sys.stderr,
        flush=True,
    )


def overlap(options: Any, directory: Path, rows: dict[str, Row]) -> tuple[dict[str, float], list[Row]]:
    """A cold compile against its two halves: the compile with nothing to search, and its searches alone."""
    pairs = []
    for number in range(options.pairs):
        cold = rows["1x1 async cold"] if not number else run(options, "async", directory / f"cold{number}", 600.0)
        pairs.append({"cold": cold, "alone": run(options, "alone", directory / f"alone{number}", 600.0)})
    cold_s = median(pair["cold"]["total_s"] for pair in pairs)
    alone_s = median(pair["alone"]["total_s"] for pair in pairs)
    warm_s = rows["1x1 async warm"]["total_s"]
    figures = {
        "async_cold_s": cold_s,
        "compile_without_search_s": warm_s,
        "search_alone_s": alone_s,
        "cold_over_longer": cold_s / max(warm_s, alone_s),
    }
    return figures, pairs


def figures_of(rows: dict[str, Row]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for strategy in ("fixed", "async"):
        of_strategy = {name: row for name, row in rows.items() if name.split()[1:] == [strategy, "warm"]}
        for name, row in of_strategy.items():
            place = name.split()[0]
            figures[f"{strategy}_warm_us_per_query_{place}"] = row["us_per_query"]
            figures[f"{strategy}_warm_total_ms_{place}"] = row["total_s"] * 1e3
            if "again_us_per_query" in row:
                figures[f"{strategy}_again_us_per_query_{place}"] = row["again_us_per_query"]
    for strategy in ("cached", "async"):
        cold = [row for name, row in rows.items() if name.split()[1:] == [strategy, "cold"] and row["finished"]]
        for count in ("searched", "probes", "trials") if cold else ():
            figures[f"{strategy}_cold_{count}"] = [row[count] for row in cold]
    figures["unfinished"] = sum(not row["finished"] for row in rows.values())
    return figures


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--workload", default="resnet50")
    parser.add_argument("--batch", type=int, default=1, help="of each device")
    parser.add_argument("--half", action="store_true", help="float16, channels last: for a GPU")
    parser.add_argument("--full", action="store_true", help="search under the default policy")
    parser.add_argument("--backend", choices=BACKENDS, help="left out, the first that has a device")
    parser.add_argument("--placements", type=int, default=len(PLACEMENTS), help="so many of the placements")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for one compile")
    parser.add_argument("--budget", type=float, help="seconds for the table")
    parser.add_argument("--warm", type=int, default=3, help="times that a warm cell of async is run")
    parser.add_argument(
        "--pairs", type=int, default=1, help="times that the searches are made alone, and a cold compile"
    )
    options = parser.parse_args()
    if options.backend == "cudnn":
        machine.needs(parser, gpus=1)
    began = perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        rows = table(options, Path(directory))
        halves, pairs = overlap(options, Path(directory), rows)
    figures = figures_of(rows) | halves | {"wall_s": perf_counter() - began}
    limits = {name: "≤ 2" for name in figures if name.startswith(("async_warm_us", "async_again_us"))}
    limits |= {name: "all equal" for name in figures if "_cold_" in name and isinstance(figures[name], list)}
    limits["async_cold_trials"] = "equal, but for what a race adds when it is disturbed"
    limits["cold_over_longer"] = "≤ 1.15 on a GPU"
    raw = {
        "options": {name: value for name, value in vars(options).items() if name != "json"},
        "device": rows["1x1 async warm"]["device"],
        "cells": rows,
        "pairs": pairs,
    }
    report(figures, limits, options.json, raw=raw)


if __name__ == "__main__":
    main()
