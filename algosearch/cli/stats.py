"""`algosearch stats`: what is in a store, in numbers."""

from __future__ import annotations

from typing import Annotated

import typer

from algosearch.cli.options import Json, Store
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.verb import DONE

Argument = Annotated[str | None, typer.Argument(metavar="STORE", help="As --store.")]


def stats(where: Argument = None, store: Store = None, json: Json = False) -> int:
    """Tell what is in a store, in numbers.

    Records and their bytes by op, backend, device, library version and age; trials, failures, claims, what cannot be
    read and why, and the time that the records save. The store is only read, and not made if it is not there.
    """
    from algosearch.cli.census import census_of, census_page
    from algosearch.cli.contents import read_contents
    from algosearch.cli.places import one_store, place_of

    terminal = Terminal()
    with terminal.logging():
        contents = read_contents(terminal, place_of(one_store(where, store)))
        census = census_of(contents)
        if json:
            write_json(census)
        if contents.nothing is not None:
            terminal.say(contents.nothing)
        elif not json:
            terminal.present(*census_page(census), results=True)
    return DONE
