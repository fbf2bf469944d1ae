"""`algosearch export`: records of a store into one file."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from algosearch._version import VERSION
from algosearch.cli.filters import select
from algosearch.cli.options import Json, Store
from algosearch.cli.stop import Stop
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.units import size
from algosearch.cli.verb import BY_SIGNAL, DONE, INCOMPLETE, NOT_WRITTEN
from algosearch.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from algosearch.cli.contents import Entry

File = Annotated[str, typer.Argument(metavar="FILE", help="The file to write; one that is there is replaced.")]
What = Annotated[str | None, typer.Argument(metavar="FILTER", help="Only these records; as show takes it.")]


def export(file: File, what: What = None, store: Store = None, json: Json = False) -> int:
    """Write the records of a store into FILE, for `import` elsewhere.

    The file is there when it is complete, or not at all. Each line of it can be checked by itself.
    """
    from algosearch.cli.contents import read_contents
    from algosearch.cli.places import place_of

    try:
        target = Path(os.path.realpath(file))
    except (OSError, ValueError) as error:  # there is no current directory, or a zero byte in the name
        raise InvalidSetting("FILE", file, f"is no path: {error}") from error
    if target.exists() and not target.is_file():
        raise InvalidSetting("FILE", file, "is there and no file")
    terminal = Terminal()
    with terminal.logging():
        contents = read_contents(terminal, place_of(store))
    with terminal.logging(), Stop() as stop:
        found = select(contents, what)
        if contents.unreadable:
            terminal.warn(f"{len(contents.unreadable)} records cannot be read and are left out; show lists them")
        size_bytes = 0
        if found.entries:
            try:
                size_bytes = _write(terminal, target, found.entries, lambda: stop.signum is not None)
            except OSError as error:
                terminal.say(f"error: {file} cannot be written: {error.strerror or error}", style="red")
                return NOT_WRITTEN
        written = len(found.entries) if size_bytes else 0
        if stop.signum is not None and not written:
            terminal.say(f"interrupted: {file} is as it was")
        elif not found.entries:
            terminal.say(
                contents.nothing or f"none of the {len(contents.entries)} records in {contents.location} matches"
            )
        if json:
            left_out = len(contents.unreadable)
            write_json(
                {
                    "file": str(target) if written else None,
                    "store": contents.location,
                    "records": written,
                    "bytes": size_bytes,
                    "unreadable": left_out,
                }
            )
        elif written:
            terminal.present(f"wrote {written} records to {file}, {size(size_bytes)}", results=True)
        if stop.signum is not None and not written:
            return BY_SIGNAL + stop.signum
        return DONE if written else INCOMPLETE


def _write(terminal: Terminal, target: Path, entries: Sequence[Entry], ended: Callable[[], bool]) -> int:
    """Write them all, or leave the file as it was: then 0 is returned, else its bytes.

    Raises:
        OSError: it cannot be written.
    """
    from algosearch.cli.progress import Tally, progress
    from algosearch.stores.archive import header_line, record_line

    with _replacing(target) as (file, keep), progress(terminal, after_s=1.0) as bar:
        tally = Tally(bar, len(entries))
        file.write(header_line(version=VERSION, exported_at_s=int(time.time()), records=len(entries)))
        for entry in entries:
            if ended():
                return 0
            file.write(record_line(entry.record))
            tally.count("writing")
        keep()
        return file.tell()


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """A new file beside `target`, which takes its name at the end of the block if `keep` was called, and is gone
    otherwise."""
    # Not the process's number, which in a container may be that of one that was killed here before; and no longer than
    # any name may be, as the target's with more in it could be.
    draft = target.with_name(f".export-{secrets.token_hex(8)}.part")
    kept = False

    def keep() -> None:
        nonlocal kept
        kept = True

    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(handle, "wb") as file:
            yield file, keep
            if kept:
                file.flush()
                os.fsync(file.fileno())
        if kept:
            os.replace(draft, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
