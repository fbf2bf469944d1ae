"""A whole search in which candidates misbehave and a neighbour has the memory: is every answer right, at what cost?

The convolutions of a network's training step are searched through the public API, store empty, the device in a child
process: first cleanly, then with trouble, each search in a process of its own. It hits who won the clean search:

- `hangs`: a kernel that never ends, in a first launch, and in the middle of a timed round;
- `overruns`: every run writes behind its result;
- `wild`: a write to nobody's address, which ruins the context; in a first launch, and in a round;
- `crowded`: another process has the device's memory, but for what each op needs with its two least hungry candidates;
- `released`: the same, until a third of the answers are there;
- `all`: the first four at once.

An answer is right if it is the clean one, or if, timed again (`oracle.py`), it takes at most 1 % longer, or what it
says itself (`Choice.tie_window`), and the noise, than the best of the record's candidates that were not injected and
found the memory. `struck` are the candidates that did something; `accounted_for` those of which the record says so
(`blamed`), or that lost so clearly that nobody had to look at their results (`beaten`: to overrun takes time);
`innocent` are others of which it says such a thing. The limit for the wall is the slowest clean search and a tenth,
for noise, and 2 s for each restart of the device's process, and the limits of what hung.

    python bench/injected.py --json bench/results/injected.json
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import apart
import machine
import msgspec
from injected_search import Found, What, be_neighbour, search
from injected_verdict import (
    Price,
    Question,
    is_pick,
    most_needed_bytes,
    needed_bytes,
    price,
    question,
    room_for_two_bytes,
    verdict,
    works,
)
from injection import Injection, Misdeed, ground_of
from networks import CASES, NETWORKS
from report import arguments, report, some

from algosearch.backends.cudnn.buffers import most_bytes
from algosearch.ops import ConvOp

PLACES: Final[dict[Misdeed, tuple[tuple[float, bool], ...]]] = {
    "hangs": ((0.15, False), (0.55, True)),
    "overruns": ((0.0, False), (0.45, False), (0.9, False)),
    "runs_wild": ((0.3, False), (0.75, True)),
}
"""Where in the list of ops, and whether in timed rounds only."""
SCENARIOS: Final[dict[str, tuple[Misdeed, ...]]] = {
    "hangs": ("hangs",),
    "overruns": ("overruns",),
    "wild": ("runs_wild",),
    "crowded": (),
    "released": (),
    "all": ("hangs", "overruns", "runs_wild"),
}
CROWDED: Final = ("crowded", "released", "all")
MIB: Final = 1 << 20
NOISE: Final = 0.1


def injections(
    misdeeds: Sequence[Misdeed], ops: Sequence[ConvOp], clean: Found, room_bytes: int
) -> tuple[Injection, ...]:
    """In the fastest of the candidates that there is room for."""
    found = []
    for does in misdeeds:
        for share, only_timed in PLACES[does]:
            place = int(share * len(ops))
            op, trials = ops[place], clean.answers[place].trials
            fitting = [each for each in trials if works(each) and needed_bytes(op, each) <= room_bytes]
            victim = min(fitting, key=lambda each: each.time_us or 0.0)
            found.append(Injection(op=op, algorithm=victim.algorithm, does=does, only_timed=only_timed))
    return tuple(found)


def elsewhere(role: str, content: object) -> str:
    """A part of the bench in a process of its own: what it printed last."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "asked.json"
        file.write_bytes(msgspec.json.encode(content))
        return apart.printed([__file__, role, str(file)])


def searched(what: What) -> Found:
    return msgspec.json.decode(elsewhere("--search", what), type=Found)


def judged(
    ops: Sequence[ConvOp], clean: Found, rounds: Sequence[tuple[What, Found]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What is to be said of each search, and of the device."""
    asked: list[Question] = []
    for what, found in rounds:
        for op, before, answer in zip(ops, clean.answers, found.answers, strict=True):
            one = question(op, before, answer, what)
            if one is not None and one.candidates and is_pick(answer):
                asked.append(one)
    ground = rounds[0][0].ground
    prices, device = msgspec.json.decode(elsewhere("--price", (ground, asked)), type=tuple[list[Price], dict[str, str]])
    known = {(each.op, each.pick, each.candidates): at for each, at in zip(asked, prices, strict=True)}
    return [verdict(ops, clean, what, found, known) for what, found in rounds], device


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--search", type=Path, metavar="FILE", help="be one of the searches")
    parser.add_argument("--price", type=Path, metavar="FILE", help="time candidates again")
    parser.add_argument("--neighbour", nargs=2, metavar=("GROUND", "LEAVE"), help="be the neighbour")
    parser.add_argument("--ground", default="injection_cuda", help="the module of the device")
    parser.add_argument("--network", choices=NETWORKS, default="resnet50")
    parser.add_argument("--case", choices=tuple(CASES), default="fp16_nhwc")
    parser.add_argument("--batch", type=some, default=64)
    parser.add_argument("--scenarios", nargs="+", choices=tuple(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--leave-mib", type=some, help="what a neighbour leaves; left out, what the least hungry need")
    parser.add_argument("--times", type=some, default=3)
    options = parser.parse_args()
    if options.search:
        what = msgspec.json.decode(options.search.read_bytes(), type=What)
        with tempfile.TemporaryDirectory() as directory:
            print(msgspec.json.encode(asyncio.run(search(what, Path(directory)))).decode())
    elif options.price:
        ground, questions = msgspec.json.decode(options.price.read_bytes(), type=tuple[str, list[Question]])
        print(msgspec.json.encode(price(ground, questions)).decode())
    elif options.neighbour:
        be_neighbour(options.neighbour[0], int(options.neighbour[1]))
    else:
        if options.ground == "injection_cuda":
            machine.needs(parser, gpus=1)
        sys.exit(0 if bench(options) else 1)


def bench(options: Any) -> bool:
    """All of it; whether it is as it should be."""
    plain = What(ground=options.ground, network=options.network, case=options.case, batch=options.batch)
    slack_bytes = ground_of(plain.ground).slack_bytes
    ops = ground_of(plain.ground).ops(plain.network, plain.case, plain.batch)
    cleans = [searched(plain) for _ in range(options.times)]
    clean = sorted(cleans, key=lambda each: each.seconds)[len(cleans) // 2]
    room_bytes = room_for_two_bytes(ops, clean)
    if options.leave_mib:
        room_bytes = most_bytes(options.leave_mib * MIB - slack_bytes)
    leave_bytes = int(room_bytes * MIB / most_bytes(MIB)) + slack_bytes
    rounds: list[tuple[str, What, Found]] = []
    for _ in range(options.times):
        for name in options.scenarios:
            what = msgspec.structs.replace(
                plain,
                injections=injections(SCENARIOS[name], ops, clean, room_bytes if name in CROWDED else sys.maxsize),
                leave_bytes=leave_bytes if name in CROWDED else None,
                release_at=len(ops) // 3 if name == "released" else None,
            )
            rounds.append((name, what, searched(what)))
    verdicts, device = judged(ops, clean, [(what, found) for _, what, found in rounds])
    figures: dict[str, Any] = {
        "ops": len(ops),
        "clean_s": clean.seconds,
        "clean_slowest_s": max(each.seconds for each in cleans),
        "left_mib": leave_bytes / MIB,
        "most_needed_mib": most_needed_bytes(ops, clean) / MIB,
    }
    limits: dict[str, str] = {}
    good = True
    for name in options.scenarios:
        own = [each for (other, _, _), each in zip(rounds, verdicts, strict=True) if other == name]
        good &= add_scenario(figures, limits, name, own)
    for each in verdicts:
        print(*each["wrong"], sep="\n", end="\n" if each["wrong"] else "", file=sys.stderr)
    raw = {
        "device": device,
        "clean_s": [each.seconds for each in cleans],
        "samples": [{"scenario": name, **each} for (name, _, _), each in zip(rounds, verdicts, strict=True)],
    }
    report(figures, limits, options.json, raw)
    return good


def add_scenario(figures: dict[str, Any], limits: dict[str, str], name: str, own: list[dict[str, Any]]) -> bool:
    """The worst of its samples; whether they are as they should be."""
    worst = max(own, key=lambda each: each["seconds"] - each["more_s"])
    injected, ops, allowed_s = worst["injected"], figures["ops"], figures["clean_slowest_s"] * (1 + NOISE)
    figures |= {
        f"{name}_right": min(each["right"] for each in own),
        f"{name}_innocent": max(each["innocent"] for each in own),
        f"{name}_seconds": worst["seconds"],
        f"{name}_restarts": worst["restarts"],
        f"{name}_limits_s": worst["limits_s"],
    }
    limits |= {
        f"{name}_right": f"= {ops}",
        f"{name}_innocent": "= 0",
        f"{name}_seconds": f"≤ {allowed_s + worst['more_s']:.2f}",
    }
    good = all(
        each["right"] == ops and not each["innocent"] and each["seconds"] <= allowed_s + each["more_s"] for each in own
    )
    if injected:
        figures |= {f"{name}_{key}": min(each[key] for each in own) for key in ("struck", "accounted_for")}
        limits |= {f"{name}_{key}": f"= {injected}" for key in ("struck", "accounted_for")}
        good &= all(each["struck"] == each["accounted_for"] == injected for each in own)
    if name in CROWDED:
        figures[f"{name}_out_of_memory"] = min(each["out_of_memory"] for each in own)
        limits[f"{name}_out_of_memory"] = "> 0, where more was needed than left"
        if figures["most_needed_mib"] > figures["left_mib"]:
            good &= figures[f"{name}_out_of_memory"] > 0
    return good


if __name__ == "__main__":
    main()
