"""A census of a store: what is in it, counted by everything that one may want to know or to throw out by.

Pure: from what was read to numbers, and from numbers to pages.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from algosearch.cli.contents import Contents, Entry, Unreadable
from algosearch.cli.units import age, duration, size
from algosearch.records import Trial, wire
from algosearch.stores.inspection import FILE

if TYPE_CHECKING:
    from rich.console import RenderableType

_DAY_S: Final = 86_400
_AGES: Final = (("1 d", 1), ("7 d", 7), ("30 d", 30), ("90 d", 90), ("1 year", 365))
_OLDER: Final = "older"
_UNREADABLE_SHOWN: Final = 10
_KEPT: Final = ("", "-wal")
"""What of a store's file takes room on the disk; the rest is gone with the last process that has it open."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the records."""

    records: int
    bytes: int
    """As they are stored."""


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was damaged, or no store's, and was moved out of the way. Nobody reads it again."""

    path: str
    bytes: int


class Census(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers. Every record is in exactly one share of each kind but `facts`, where it is in one for each fact."""

    store: str
    missing: bool
    """True if there is no store at that place, so that everything below is empty."""
    records: int
    """Those that can be read."""
    bytes: int
    """Of those, as they are stored."""
    file_bytes: int
    """Of the file and its log on the disk, room to be used again included; 0 if there is no file."""
    set_aside: tuple[SetAside, ...]
    claims: int
    """Leases on keys: in force, or lapsed and not yet taken over."""
    claims_in_force: int
    """Keys that somebody is searching, or was until a moment ago."""
    operations: dict[str, Share]
    """By kind of op: `conv forward`, `batch_norm inference`."""
    backends: dict[str, Share]
    devices: dict[str, Share]
    """By kind of device."""
    facts: dict[str, Share]
    """By each named fact of the environment, library versions among them: `numpy=2.1.0`."""
    versions: dict[str, Share]
    """By the algosearch that made the last search."""
    ages: dict[str, Share]
    """By the time since the last search: under 1 d, under 7 d, …"""
    oldest_at_s: int | None
    """Unix time of the last search of the record of which it is longest ago; None without records."""
    newest_at_s: int | None
    searches: dict[str, int]
    """By mode."""
    alone: int
    """Searches made while the shared store was out of reach."""
    repaired: int
    """Records that a repair has replaced, once or more often."""
    trials: int
    stages: dict[str, int]
    """Trials without a failure, by how far they came."""
    failures: dict[str, int]
    """Trials with one, by kind."""
    without_algorithm: int
    """Records in which the default policy finds nothing to use."""
    search_seconds: float
    """The sum of what the stored searches took: what it took to find these records, and what a process that asks all
    of them does not spend again. How often they were read is not known."""
    unreadable: tuple[Unreadable, ...]


def census_of(contents: Contents, *, now_s: float | None = None) -> Census:
    """Count."""
    now_s = time.time() if now_s is None else now_s
    entries = [(entry, len(wire.encode(entry.record))) for entry in contents.entries]
    searches = [search for entry in contents.entries for search in entry.record.searches]
    trials: list[Trial] = [trial for search in searches for trial in search.trials]
    found_at = [entry.found_at_s for entry in contents.entries]
    statistics = contents.statistics
    directory = Path(contents.location)
    return Census(
        store=contents.location,
        missing=contents.missing,
        records=len(entries),
        bytes=sum(size_bytes for _, size_bytes in entries),
        file_bytes=sum(_bytes_of(directory / f"{FILE}{log}") for log in _KEPT),
        set_aside=set_aside_in(directory),
        claims=0 if statistics is None else statistics.claims,
        claims_in_force=0 if statistics is None else statistics.claims_in_force,
        operations=_shares(entries, lambda entry: [_kind_of(entry)]),
        backends=_shares(entries, lambda entry: [entry.ingredients["backend"]]),
        devices=_shares(entries, lambda entry: [entry.device]),
        facts=_shares(entries, facts_of),
        versions=_shares(entries, lambda entry: [entry.version]),
        ages=_in_order(_shares(entries, lambda entry: [_age_class(now_s - entry.found_at_s)])),
        oldest_at_s=min(found_at, default=None),
        newest_at_s=max(found_at, default=None),
        searches=dict(Counter(search.mode for search in searches)),
        alone=sum(search.provenance.alone for search in searches),
        repaired=sum(entry.record.generation > 0 for entry in contents.entries),
        trials=len(trials),
        stages=_counted(trial.stage for trial in trials if trial.failure is None),
        failures=_counted(trial.failure.kind for trial in trials if trial.failure is not None),
        without_algorithm=sum(entry.choice is None and entry.covered for entry in contents.entries),
        search_seconds=round(sum(search.provenance.seconds for search in searches), 6),
        unreadable=contents.unreadable,
    )


def facts_of(entry: Entry) -> list[str]:
    """The facts of its environment, as NAME=VALUE."""
    prefix = "facts."
    return [
        f"{name.removeprefix(prefix)}={text}" for name, text in entry.ingredients.items() if name.startswith(prefix)
    ]


def set_aside_in(directory: Path) -> tuple[SetAside, ...]:
    """The folders of a store's directory with files that were moved out of the way, the oldest first."""
    return tuple(
        SetAside(path=str(folder), bytes=sum(_bytes_of(file) for file in folder.iterdir()))
        for folder in sorted(directory.glob("set-aside-*"))
        if folder.is_dir()
    )


def census_page(census: Census, *, now_s: float | None = None) -> tuple[RenderableType, ...]:
    """The numbers for people."""
    from algosearch.cli.tables import facts, table

    now_s = time.time() if now_s is None else now_s
    ages = [age(now_s - at_s) for at_s in (census.newest_at_s, census.oldest_at_s) if at_s is not None]
    on_disk = f"; {size(census.file_bytes)} on the disk" if census.file_bytes else ""
    rows = [
        ("store", census.store),
        ("records", f"{census.records}, {size(census.bytes)}{on_disk}"),
        ("unreadable", str(len(census.unreadable))),
        ("last searched", " to ".join(dict.fromkeys(ages)) + " ago" if ages else ""),
        ("searches", _listed(census.searches) + (f"; {census.alone} of them alone" if census.alone else "")),
        ("trials", _listed({**census.stages, **census.failures})),
        ("no algorithm", f"{census.without_algorithm} records" if census.without_algorithm else ""),
        ("repaired", f"{census.repaired} records" if census.repaired else ""),
        ("claims", f"{census.claims_in_force} in force, {census.claims - census.claims_in_force} lapsed"),
        ("time saved", f"{duration(census.search_seconds)} of searching, by each process that asks all of it"),
        *(("set aside", f"{each.path}, {size(each.bytes)}") for each in census.set_aside),
    ]
    shares = {
        "op": census.operations,
        "backend": census.backends,
        "device": census.devices,
        "fact": census.facts,
        "algosearch": census.versions,
        "age under": census.ages,
    }
    parts: list[RenderableType] = [facts(row for row in rows if row[1])]
    for name, share in shares.items():
        if share:
            lines = ((each, str(part.records), size(part.bytes)) for each, part in share.items())
            parts += ["", table(name, "records", "bytes", numbers=("records", "bytes"), rows=lines)]
    if census.unreadable:
        parts += ["", *_unreadable(census.unreadable)]
    return tuple(parts)


def _unreadable(unreadable: Sequence[Unreadable]) -> Iterable[RenderableType]:
    from algosearch.cli.tables import table

    reasons = Counter(each.reason for each in unreadable)
    most = reasons.most_common(_UNREADABLE_SHOWN)
    yield table("unreadable", "reason", numbers=("unreadable",), rows=((str(n), reason) for reason, n in most))
    if len(reasons) > len(most):
        yield f"and {len(reasons) - len(most)} more reasons, which --json lists"


def _shares(entries: Sequence[tuple[Entry, int]], names: Callable[[Entry], Iterable[str]]) -> dict[str, Share]:
    """The share of each name, the largest first."""
    records, sizes = Counter[str](), Counter[str]()
    for entry, size_bytes in entries:
        for name in names(entry):
            records[name] += 1
            sizes[name] += size_bytes
    return {
        name: Share(records=number, bytes=sizes[name])
        for name, number in sorted(records.items(), key=lambda item: (-item[1], item[0]))
    }


def _kind_of(entry: Entry) -> str:
    named = entry.ingredients
    way = named.get("problem.direction") or named.get("problem.phase") or ""
    return f"{named['problem.op']} {way}".rstrip()


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(words).most_common())


def _age_class(seconds: float) -> str:
    return next((name for name, days in _AGES if seconds < days * _DAY_S), _OLDER)


def _in_order(ages: dict[str, Share]) -> dict[str, Share]:
    return {name: ages[name] for name in (*(name for name, _ in _AGES), _OLDER) if name in ages}


def _listed(counts: dict[str, int]) -> str:
    return f"{sum(counts.values())}: " + ", ".join(f"{n} {word}" for word, n in counts.items()) if counts else ""


def _bytes_of(file: Path) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0
