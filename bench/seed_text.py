"""What `seed_table.py` found, as a text: its tables, and what of the complaint's seconds the queries explain.

    python bench/seed_text.py bench/results/seed_table_*.json > bench/results/seed_table.md

Every figure of ours comes from the files; those of the complaint are here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]

COMPLAINT = {"1x1": 37.7 - 28.7, "1x4": 86.3 - 49.6, "2x8": 164.5 - 81.4}
"""Seconds that its cure saved, by nodes × devices."""

TITLE = """\
# The table of the complaint

Written by `bench/seed_text.py` from the files of `bench/seed_table.py`; every figure of ours is in them. A compile is
ResNet-50's training step, data-parallel over nodes × devices, by the compiler of this package: its passes, its task
graph and its memory plan, with the engine started and the device open.

- *naive*: as the complaint had it. *fixed*: its own cure, no temporary sizes in logical inference. Both ask the library
  itself about each batch norm, with a handle made and destroyed for each question. *cached*: every query cached, still
  one after the other. *async*: ours.
- *cold*: with an empty store; *warm*: a new process, with the store that the cold one left.
- *conv*, *norm*: seconds spent waiting for answers about convolutions and batch norms. *share*: of the total.
"""

EXPLAINED = """\
## What the queries explain, and what they do not

The complaint's cure took its compiler from 37.7 / 86.3 / 164.5 s to 28.7 / 49.6 / 81.4 s (1 × 1, 1 × 4, 2 × 8): 9.0,
36.7 and 83.1 s less. Its convolutions' InferTmpSize took 3.85, 3.76 and 4.3 s in all, the same for one device and for
sixteen, since it was cached. So they explain at most that much, and nothing of the growth. What grew with passes ×
devices were the queries of the batch norms, which had no cache and made a handle each.
"""

NOT_EXPLAINED = """\
### What they do not explain

After its cure the complaint's compiler still took 28.7, 49.6 and 81.4 s, and still more with more devices. Of that,
queries are what *fixed* spends here. For the rest, ours is no measure: passes, task graph and memory plan
take it {without} when every answer is known, with one device and with many, because it plans one device and places that
on all, builds no kernels and starts no runtime. No cache of algorithms would have saved those seconds.

Nor are the seconds here the complaint's: its GPU, its library, the number of its passes and what it did in each are not
known. What is the same is what was asked, by whom, and how often; and so how the seconds grow.
"""


def table_of(file: Row) -> str:
    """All cells of one file."""
    raw = file["raw"]
    options, environment = raw["options"], file["environment"]
    policy = raw["cells"]["1x1 async cold"]["policy"]
    kind = "float16, channels last" if options["half"] else "float32, channels first"
    lines = [
        f"## {raw['device']}",
        "",
        f"{options['workload']}, batch {options['batch']} a device, {kind}; {environment['cores']} cores, "
        f"load {environment['load']} when it began, commit {environment['commit']}, {environment['date']}. "
        + (f"Searched under `{policy}`, for the table is about asking." if policy else "Searched in full."),
        "",
        "| devices | asks | | total s | conv s | norm s | share | queries | µs a query | probes | trials |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in raw["cells"].items():
        place, strategy, state = name.split()
        mark = "" if row["finished"] else " ¹"
        lines.append(
            f"| {place} | {strategy} | {state} | {row['total_s']:.3f}{mark} | {row['conv_query_s']:.3f} | "
            f"{row['batch_norm_query_s']:.3f} | {row['share']:.1%} | {row['queries']} | {row['us_per_query']:.2f} | "
            f"{row['probes']} | {row['trials']} |"
        )
    cut = {name: row for name, row in raw["cells"].items() if not row["finished"]}
    if cut:
        lines += ["", f"¹ Ended: it would have gone on. {_what_it_would_take(cut)}"]
    return "\n".join([*lines, "", *_figures(file), ""])


def _what_it_would_take(cut: dict[str, Row]) -> str:
    told = []
    for name, row in cut.items():
        estimate = row.get("estimated_batch_norm_query_s")
        if estimate is not None:
            told.append(
                f"{name}: {row['queries']} of {row['all_queries']} queries were answered; at the pace of those its "
                f"{row['all_batch_norm_queries']} about batch norms would take {_time(estimate)}"
            )
        elif "all_queries" in row:
            told.append(f"{name}: {row['queries']} of {row['all_queries']} queries were answered")
        else:
            told.append(f"{name}: {row['queries']} queries were answered")
    return "; ".join(told) + "."


def _figures(file: Row) -> list[str]:
    """What was promised, and whether it was kept."""
    cells = file["raw"]["cells"]
    warm = {name.split()[0]: row for name, row in cells.items() if name.endswith("async warm")}
    worst = max(row["us_per_query"] for row in warm.values())
    lines = [f"- *async* warm: at most {worst:.2f} µs a query (promised: 2). {_verdict(worst <= 2)}"]
    again = [row["again_us_per_query"] for row in warm.values() if "again_us_per_query" in row]
    if again:
        lines.append(
            f"- *async* again, in the same process: at most {max(again):.2f} µs a query. {_verdict(max(again) <= 2)} "
            "A new process reads each problem's record from disk once, 60 to 100 µs each; over the few queries of one "
            "device that is more than 2 µs a query, whatever is asked."
        )
    for place, row in warm.items():
        fixed = cells[f"{place} fixed warm"]
        lines.append(
            f"- {place}: *async* {row['total_s'] * 1e3:.0f} ms in all, {row['us_per_query']:.2f} µs a query; *fixed* "
            f"{fixed['total_s'] * 1e3:.0f} ms{'' if fixed['finished'] else ' and not done'}, "
            f"{fixed['us_per_query']:.2f} µs."
        )
    for strategy in ("cached", "async"):
        cold = {name.split()[0]: row for name, row in cells.items() if name.endswith(f"{strategy} cold")}
        done = {place: row for place, row in cold.items() if row["finished"]}
        if len(done) > 1:
            counts = {
                count: sorted({row[count] for row in done.values()}) for count in ("probes", "searched", "trials")
            }
            lines.append(
                f"- *{strategy}* cold, {', '.join(done)}: {_span(counts['probes'])} probes, "
                f"{_span(counts['searched'])} searches, {_span(counts['trials'])} trials. "
                + _verdict(len(counts["probes"]) == len(counts["searched"]) == 1)
                + ("" if len(counts["trials"]) == 1 else " A trial more or less is a race that was disturbed.")
            )
    ratio = file["cold_over_longer"]
    if not cells["1x1 async cold"]["finished"]:
        verdict = "The cold one was ended, so that this says nothing."
    else:  # elsewhere the device is the processor that compiles
        verdict = _verdict(ratio <= 1.15) if file["raw"]["device"].startswith("cudnn") else "Promised on a GPU only."
    lines.append(
        f"- *async* cold {file['async_cold_s']:.3f} s; without a search {file['compile_without_search_s']:.3f} s, its "
        f"searches alone {file['search_alone_s']:.3f} s: {ratio:.2f} times the longer (promised: 1.15). {verdict}"
    )
    return lines


def explained(file: Row) -> list[str]:
    """What the queries of one file's device come to."""
    cells = file["raw"]["cells"]
    places = [place for place in COMPLAINT if f"{place} naive warm" in cells]
    lines = [f"### {file['raw']['device']}", ""]
    for place in places:
        naive, fixed = cells[f"{place} naive warm"], cells[f"{place} fixed warm"]
        lines.append(
            f"- {place}, all searches done before: *naive* spends {_norms(naive)} on batch norms, *fixed* "
            f"{_norms(fixed)}; the complaint's cure saved {COMPLAINT[place]:.1f} s."
        )
    asked = [row for name, row in cells.items() if "naive" in name and row["handles"]]
    if asked:
        each_us = sum(row["batch_norm_query_s"] for row in asked) / sum(row["handles"] for row in asked) * 1e6
        warm = cells["1x1 async warm"]["us_per_query"]
        lines.append(f"- A query with a handle of its own takes {each_us:.0f} µs; one of *async*, warm, {warm:.2f} µs.")
    convs = ", ".join(_seconds(cells[f"{place} naive cold"], "conv_query_s") for place in places)
    again = ", ".join(_seconds(cells[f"{place} naive warm"], "conv_query_s") for place in places)
    lines.append(
        f"- Convolutions, *naive*, {', '.join(places)}: cold {convs}, warm {again}. The first query of each is a "
        "search, as it was in the complaint, and only a store saves it."
    )
    return [*lines, ""]


def _norms(row: Row) -> str:
    if row["finished"]:
        return f"{row['batch_norm_query_s']:.2f} s"
    estimate = row.get("estimated_batch_norm_query_s")
    return "more than it was given" if estimate is None else f"about {_time(estimate)} (an estimate, see ¹)"


def _seconds(row: Row, name: str) -> str:
    return f"{row[name]:.2f} s" if row["finished"] else f"{row[name]:.2f} s until it was ended"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _span(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _verdict(kept: bool) -> str:
    return "Kept." if kept else "**Not kept.**"


def main() -> None:
    files = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    if not files:
        sys.exit(__doc__)
    without_s = [
        row["total_s"] - row["conv_query_s"] - row["batch_norm_query_s"]
        for file in files
        for name, row in file["raw"]["cells"].items()
        if name.endswith("async warm")
    ]
    without = f"{min(without_s) * 1e3:.0f} to {max(without_s) * 1e3:.0f} ms"
    print("\n".join([TITLE, *map(table_of, files), EXPLAINED]))
    print("\n".join(line for file in files for line in explained(file)))
    print(NOT_EXPLAINED.format(without=without).rstrip())


if __name__ == "__main__":
    main()
