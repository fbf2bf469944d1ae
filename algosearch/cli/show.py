"""`algosearch show`: what a store knows, as a table; one record in full; why an op is a hit or a miss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from algosearch.cli.filters import Selection, select
from algosearch.cli.options import Base, Device, Json, Store
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.verb import DONE, INCOMPLETE
from algosearch.errors import InvalidSetting

if TYPE_CHECKING:
    from algosearch.cli.contents import Contents, Entry
    from algosearch.cli.places import Place

What = Annotated[
    str | None,
    typer.Argument(
        metavar="FILTER|KEY",
        help="A part of the problem, device or algorithm; NAME=VALUE of a key's ingredient (problem.groups=64); or a "
        "record's digest, of which six digits will do: that record in full.",
    ),
]
Explain = Annotated[
    str | None,
    typer.Option(
        metavar="OP", help="An op as JSON, or @FILE of such lines: is it a hit on the device, and if not, why not?"
    ),
]


def show(
    what: What = None,
    explain: Explain = None,
    device: Device = None,
    store: Store = None,
    base: Base = None,
    json: Json = False,
) -> int:
    """Tell what is in the store, and why.

    Without an argument, every record in one table. The store is only read, and not made if it is not there.
    With --explain, what a search on the device would find.
    """
    from algosearch.cli.contents import read_contents
    from algosearch.cli.places import base_of, place_of

    if what is not None and explain is not None:
        raise InvalidSetting("--explain", explain, f"goes without a filter, and there is {what!r}")
    if base is not None and explain is None:
        raise InvalidSetting("--base", base, "goes with --explain; name it by --store to look into it")
    terminal = Terminal()
    with terminal.logging():
        contents = read_contents(terminal, place_of(store))
        if explain is not None:
            return _explain(terminal, contents, base_of(base), explain, device=device, json=json)
        found = select(contents, what)
        if found.by_digest and len(found.entries) == 1 and not found.unreadable:
            return _one(terminal, contents, found.entries[0], json)
        return _list(terminal, contents, found, json)


def _list(terminal: Terminal, contents: Contents, found: Selection, json: bool) -> int:
    """Print those records; say so if there are none."""
    from algosearch.cli import pages

    if json:
        write_json(pages.list_object(contents, found.entries, found.unreadable))
    else:
        terminal.present(*pages.list_page(found.entries, found.unreadable), results=True)
    if found.entries or found.unreadable:
        return DONE
    if contents.nothing is not None:
        terminal.say(contents.nothing)
        return DONE
    terminal.say(f"none of the {len(contents.entries)} records in {contents.location} matches")
    return INCOMPLETE


def _one(terminal: Terminal, contents: Contents, entry: Entry, json: bool) -> int:
    from algosearch.cli import pages

    if json:
        write_json(pages.record_object(contents, entry))
    else:
        terminal.present(*pages.record_page(entry), results=True)
    return DONE


def _explain(
    terminal: Terminal, contents: Contents, base: Place | None, asked: str, *, device: str | None, json: bool
) -> int:
    from algosearch.cli import pages
    from algosearch.cli.contents import read_contents
    from algosearch.cli.devices import environment_of
    from algosearch.cli.explain import explain_op, ops_of

    ops = ops_of(asked)
    environment = environment_of(device)
    if contents.nothing is not None:
        terminal.say(contents.nothing)
    unreadable = {each.digest: each.reason for each in contents.unreadable}
    if base is not None:
        contents = contents.behind(read_contents(terminal, base))
    explanations = [explain_op(op, environment, contents.entries, unreadable) for op in ops]
    if json:
        write_json({"store": contents.location, "explained": explanations})
    else:
        terminal.present(*pages.explanation_page(explanations), results=True)
    return DONE
