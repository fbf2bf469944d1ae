"""`algosearch import`: records of a file into a store."""

from __future__ import annotations

import os
import stat
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from algosearch.cli.options import Json, Store
from algosearch.cli.stop import Stop
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.verb import BY_SIGNAL, DONE, INCOMPLETE, NOT_WRITTEN
from algosearch.errors import UndecodableRecord, UnreadableExport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from algosearch.cli.places import Place
    from algosearch.records import Record
    from algosearch.stores import Store as Home
    from algosearch.stores.archive import Damage, Reader

_BATCH: Final = 100
"""Records that are looked up in one trip."""
_ATTEMPTS: Final = 5
"""How often one record is offered while others commit the same key."""
_DAMAGE_SHOWN: Final = 10
_DAMAGE_KEPT: Final = 1000

File = Annotated[str, typer.Argument(metavar="FILE", help="A file that export wrote.")]


def import_(file: File, store: Store = None, json: Json = False) -> int:
    """Put the records of FILE into a store.

    Where both have a record of a key, the one of a higher generation stays, then the one with more searches, then the
    stored one. What is damaged is named and left out.
    """
    from algosearch.cli.places import place_of

    place = place_of(store)
    terminal = Terminal()
    with terminal.logging(), Stop() as stop:
        done = _Import(file)
        done.carry_out(terminal, place, lambda: stop.signum is not None)
        for each in done.damaged[:_DAMAGE_SHOWN]:
            terminal.warn(f"{file}, line {each.line}: {each.reason}")
        if done.damage > _DAMAGE_SHOWN:
            terminal.warn(f"{file}: {done.damage - _DAMAGE_SHOWN} more lines are damaged")
        if done.missing:
            terminal.warn(f"{file} is cut short: {done.missing} records are missing at its end")
        if done.not_kept:
            terminal.say(f"error: {done.not_kept} records could not be written to the store", style="red")
        if json:
            write_json(done.as_object(interrupted=stop.signum is not None))
        else:
            terminal.present(done.summary(), results=True)
        if stop.signum is not None:
            return BY_SIGNAL + stop.signum
        if done.not_kept:
            return NOT_WRITTEN
        return INCOMPLETE if done.damage or done.missing else DONE


class _Import:
    """A file on its way into a store, and the counts."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.store = ""
        self._shared = False
        """Whether that is a server."""
        self.added = 0
        """Keys that the store did not have."""
        self.replaced = 0
        self.stayed = 0
        """Keys of which the store's own record stays."""
        self.not_kept = 0
        """What the store could not write; why is logged."""
        self.damage = 0
        self.damaged: list[Damage] = []
        """The first of them."""
        self.missing = 0

    @property
    def records(self) -> int:
        """How many could be read."""
        return self.added + self.replaced + self.stayed + self.not_kept

    def carry_out(self, terminal: Terminal, place: Place, ended: Callable[[], bool]) -> None:
        """Import all of it, or until `ended()`.

        Raises:
            UnreadableExport: the file cannot be read, or nothing in it.
            StoreUnusable: the store cannot be written to.
        """
        import anyio

        from algosearch.stores.archive import Reader

        try:
            if not stat.S_ISREG(_mode_of(self._file)):
                raise UnreadableExport(self._file, "not a file")
            with open(self._file, "rb") as file:
                anyio.run(self._carry_out, terminal, place, Reader(file), ended)
        except OSError as error:
            raise UnreadableExport(self._file, error.strerror or str(error)) from error
        except UndecodableRecord as error:
            raise UnreadableExport(self._file, str(error)) from error

    async def _carry_out(self, terminal: Terminal, place: Place, reader: Reader, ended: Callable[[], bool]) -> None:
        from algosearch.cli.progress import Tally, progress
        from algosearch.cli.writing import opened_to_write

        # The first good record is read before the store is opened: what is no export makes no store.
        records = self._good_ones(reader)
        first = next(records, None)
        if first is None and (self.damage or reader.header is None):
            raise UnreadableExport(self._file, "no record in it can be read")
        async with opened_to_write(place) as store:
            self.store, self._shared = store.location, place.is_server
            with progress(terminal, after_s=1.0) as bar:
                tally = Tally(bar, 0 if reader.header is None else reader.header.records)
                batch: list[Record] = []
                for record in records if first is None else chain([first], records):
                    batch.append(record)
                    if len(batch) >= _BATCH:
                        await self._settle(store, batch)
                        tally.count("importing", done=len(batch))
                        batch = []
                        if ended():
                            return
                if not ended():
                    await self._settle(store, batch)
                    self.missing = reader.missing

    def _good_ones(self, reader: Reader) -> Iterator[Record]:
        """The records; damage is noted as it is met."""
        from algosearch.stores.archive import Damage

        for line in reader:
            if not isinstance(line, Damage):
                yield line
                continue
            self.damage += 1
            if len(self.damaged) < _DAMAGE_KEPT:
                self.damaged.append(line)

    async def _settle(self, store: Home, batch: Sequence[Record]) -> None:
        from algosearch.records import Record

        stored = await store.get_many([record.key for record in batch])
        known = {record.key.digest: record for record in stored if isinstance(record, Record)}
        for record in batch:
            await self._settle_one(store, record, known)

    async def _settle_one(self, store: Home, record: Record, known: dict[str, Record]) -> None:
        """Offer one record, as often as somebody else is faster.

        Args:
            known: what is stored, by digest; kept up to date.
        """
        from algosearch.stores.archive import wins

        digest = record.key.digest
        for _ in range(_ATTEMPTS):
            before = known.get(digest)
            if before is not None and not wins(record, before):
                break
            committed = await store.commit(record, after=0 if before is None else before.revision)
            if not committed.kept or (self._shared and committed.record.alone):
                self.not_kept += 1  # or only in this host's directory, and not on the server that was meant
                return
            known[digest] = committed.record
            if committed.won:
                self.added += before is None
                self.replaced += before is not None
                return
        self.stayed += 1

    def summary(self) -> str:
        """One line for people."""
        return (
            f"{self.records} records read: {self.added} added, {self.replaced} replaced, {self.stayed} stayed as they "
            f"are in {self.store}"
        )

    def as_object(self, *, interrupted: bool) -> dict[str, Any]:
        """For `--json`."""
        return {
            "file": self._file,
            "store": self.store,
            "records": self.records,
            "added": self.added,
            "replaced": self.replaced,
            "stayed": self.stayed,
            "not_kept": self.not_kept,
            "damaged": self.damage,
            "damage": self.damaged,
            "missing": self.missing,
            "interrupted": interrupted,
        }


def _mode_of(file: str) -> int:
    try:
        return os.stat(file).st_mode
    except ValueError as error:  # a zero byte, which no path can hold
        raise UnreadableExport(file, f"not a path: {error}") from error
