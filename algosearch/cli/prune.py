"""`algosearch prune`: delete records of a store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from algosearch.cli.filters import select
from algosearch.cli.options import Json, Store
from algosearch.cli.stop import Stop
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.units import age, seconds_of, size
from algosearch.cli.verb import BY_SIGNAL, DONE, INCOMPLETE
from algosearch.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from algosearch.cli.contents import Contents, Entry
    from algosearch.cli.places import Place

_BATCH: Final = 500
"""Records a transaction: others who write wait for milliseconds."""

Argument = Annotated[str | None, typer.Argument(metavar="STORE", help="As --store.")]
OlderThan = Annotated[
    str | None, typer.Option(metavar="AGE", help="Last searched longer ago than this: 30d, 12h, 2w, 90min.")
]
Version = Annotated[
    str | None,
    typer.Option(metavar="V", help="Found by that version of algosearch, or with a library of it (9.1, numpy=2.1)."),
]
Kind = Annotated[str | None, typer.Option("--device", metavar="D", help="A part of the device's kind, or a backend.")]
Filter = Annotated[str | None, typer.Option("--filter", metavar="FILTER", help="As show takes it.")]
Undecodable = Annotated[bool, typer.Option("--undecodable", help="What cannot be read, beside what else is named.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be deleted.")]


def prune(
    where: Argument = None,
    store: Store = None,
    older_than: OlderThan = None,
    version: Version = None,
    device: Kind = None,
    what: Filter = None,
    undecodable: Undecodable = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Delete records of a store: those for which all that is said of them holds.

    What is deleted is searched again by whoever asks for it. The file keeps its size; its room is used again.
    """
    from algosearch.cli.contents import read_contents
    from algosearch.cli.places import one_store, place_of

    for option, value in (("--version", version), ("--device", device), ("--filter", what)):
        if value is not None and not value.strip():  # an unset variable of a script, and part of everything there is
            raise InvalidSetting(option, value, "must not be empty, for that would mean everything")
    wanted = _criteria(older_than, version, device)
    if not wanted and what is None and not undecodable:
        options = "--older-than, --version, --device, --filter or --undecodable"
        raise InvalidSetting("what to delete", "nothing", f"must be said by {options}")
    place = place_of(one_store(where, store))
    terminal = Terminal()
    with terminal.logging():
        contents = read_contents(terminal, place)
    with terminal.logging(), Stop() as stop:
        entries = select(contents, what).entries if wanted or what is not None else ()
        doomed = [entry for entry in entries if all(holds(entry) for holds in wanted)]
        done = _Pruning(contents, doomed, undecodable=undecodable)
        if not dry_run and not contents.missing:
            done.carry_out(terminal, place, lambda: stop.signum is not None)
        if json:
            write_json(done.as_object(dry_run=dry_run, interrupted=stop.signum is not None))
        else:
            _tell(terminal, done, dry_run=dry_run)
        if stop.signum is not None:
            return BY_SIGNAL + stop.signum
        return DONE if dry_run or not done.failed else INCOMPLETE


def _criteria(older_than: str | None, version: str | None, device: str | None) -> list[Callable[[Entry], bool]]:
    from algosearch.cli.census import facts_of

    holds: list[Callable[[Entry], bool]] = []
    if older_than is not None:
        limit_s = seconds_of(older_than)
        if limit_s is None:
            raise InvalidSetting("--older-than", older_than, "must be a number and one of s, min, h, d, w, as in 30d")
        before_s = time.time() - limit_s
        holds.append(lambda entry: entry.found_at_s < before_s)
    if version is not None:
        holds.append(
            lambda entry: any(
                version in (fact, fact.partition("=")[2]) for fact in (*facts_of(entry), f"algosearch={entry.version}")
            )
        )
    if device is not None:
        part = device.lower()
        holds.append(lambda entry: part in entry.device.lower() or part == entry.ingredients["backend"].lower())
    return holds


class _Pruning:
    """What is to be deleted, and what was."""

    def __init__(self, contents: Contents, entries: Sequence[Entry], *, undecodable: bool) -> None:
        from algosearch.records import wire

        self.contents = contents
        self.entries = [(entry, len(wire.encode(entry.record))) for entry in entries]
        self.unreadable = contents.unreadable if undecodable else ()
        readable_bytes = sum(len(wire.encode(entry.record)) for entry in contents.entries)
        stored_bytes = 0 if contents.statistics is None else contents.statistics.bytes
        self.unreadable_bytes = max(0, stored_bytes - readable_bytes) if self.unreadable else 0
        """Of all that cannot be read: a store tells no more."""
        self.deleted = 0
        self.deleted_bytes = 0
        self.renewed = 0
        """Left alone, for somebody has replaced or deleted them since they were listed."""
        self.failed = False
        """True if the store could not do it; what it was is logged."""

    @property
    def records(self) -> int:
        """How many are to be deleted."""
        return len(self.entries) + len(self.unreadable)

    @property
    def bytes(self) -> int:
        """And how long they are."""
        return sum(size_bytes for _, size_bytes in self.entries) + self.unreadable_bytes

    def carry_out(self, terminal: Terminal, place: Place, ended: Callable[[], bool]) -> None:
        """Delete, batch by batch, until all is gone or `ended()`."""
        import anyio

        if self.records:
            anyio.run(self._carry_out, terminal, place, ended)

    async def _carry_out(self, terminal: Terminal, place: Place, ended: Callable[[], bool]) -> None:
        from algosearch.cli.progress import Tally, progress
        from algosearch.cli.writing import opened_to_write

        with progress(terminal, after_s=1.0) as bar:
            tally = Tally(bar, self.records)
            async with opened_to_write(place) as store:
                for start in range(0, len(self.entries), _BATCH):
                    if ended() or self.failed:
                        return
                    batch = self.entries[start : start + _BATCH]
                    now = await store.get_many([entry.record.key for entry, _ in batch])
                    same = [each for each, record in zip(batch, now, strict=True) if record == each[0].record]
                    self.renewed += len(batch) - len(same)
                    deleted = await store.delete([entry.digest for entry, _ in same])
                    self._count(deleted, len(same), sum(size_bytes for _, size_bytes in same))
                    tally.count("deleting", done=len(batch))
                if self.unreadable and not ended() and not self.failed:
                    deleted = await store.delete([each.digest for each in self.unreadable])
                    self._count(deleted, len(self.unreadable), self.unreadable_bytes)

    def _count(self, deleted: int, wanted: int, size_bytes: int) -> None:
        self.deleted += deleted
        self.deleted_bytes += size_bytes if deleted == wanted else size_bytes * deleted // wanted
        self.failed = wanted > 0 and not deleted

    def as_object(self, *, dry_run: bool, interrupted: bool) -> dict[str, Any]:
        """For `--json`."""
        return {
            "store": self.contents.location,
            "dry_run": dry_run,
            "matched": {"records": self.records, "bytes": self.bytes},
            "deleted": {"records": self.deleted, "bytes": self.deleted_bytes},
            "renewed": self.renewed,
            "interrupted": interrupted,
            "records": [
                {
                    "digest": entry.digest,
                    "problem": entry.problem,
                    "device": entry.device,
                    "found_at_s": entry.found_at_s,
                    "bytes": size_bytes,
                }
                for entry, size_bytes in self.entries
            ],
            "unreadable": list(self.unreadable),
        }


def _tell(terminal: Terminal, done: _Pruning, *, dry_run: bool) -> None:
    from algosearch.cli.pages import SHORT
    from algosearch.cli.tables import table

    if done.contents.nothing is not None:
        terminal.say(done.contents.nothing)
    if not dry_run:
        kept = f"; {done.renewed} were changed meanwhile and are left alone" if done.renewed else ""
        text = f"deleted {done.deleted} of {done.records} records, {size(done.deleted_bytes)}{kept}"
        terminal.present(text, results=True)
        return
    now_s = time.time()
    rows = [
        *((e.digest[:SHORT], e.problem, e.device, age(now_s - e.found_at_s), size(n)) for e, n in done.entries),
        *((each.digest[:SHORT], f"unreadable: {each.reason}", "", "", "") for each in done.unreadable),
    ]
    if rows:
        terminal.present(
            table("key", "problem", "device", "age", "bytes", numbers=("age", "bytes"), rows=rows), results=True
        )
    terminal.present(f"would delete {done.records} records, {size(done.bytes)}", results=True)
