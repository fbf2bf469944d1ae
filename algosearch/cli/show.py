"""`algosearch show`: what a store knows, as a table; one record in full; why an op is a hit or a miss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from algosearch.cli.options import Device, Json, Store
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.verb import DONE, INCOMPLETE
from algosearch.errors import InvalidSetting

if TYPE_CHECKING:
    from algosearch.cli.contents import Contents, Entry, Unreadable

_DIGEST: Final = re.compile(r"[0-9a-f]{6,64}", re.IGNORECASE)
_INGREDIENT: Final = re.compile(r"(?P<name>[a-z][a-z0-9_.]*)=(?P<value>.*)")

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
    json: Json = False,
) -> int:
    """Tell what is in the store, and why.

    Without an argument, every record in one table. The store is only read, and not made if it is not there.
    With --explain, what a search on the device would find.
    """
    from algosearch.cli.contents import contents_of

    if what is not None and explain is not None:
        raise InvalidSetting("--explain", explain, f"goes without a filter, and there is {what!r}")
    terminal = Terminal()
    with terminal.logging():
        contents = contents_of(store)
        if explain is not None:
            return _explain(terminal, contents, explain, device, json)
        if what is None:
            return _list(terminal, contents, contents.entries, contents.unreadable, json)
        if _DIGEST.fullmatch(what):
            prefix = what.lower()
            entries = [entry for entry in contents.entries if entry.digest.startswith(prefix)]
            unreadable = [each for each in contents.unreadable if each.digest.startswith(prefix)]
            if len(entries) == 1 and not unreadable:
                return _one(terminal, contents, entries[0], json)
            if entries or unreadable:
                return _list(terminal, contents, entries, unreadable, json)
        return _list(terminal, contents, _matching(contents.entries, what), (), json)


def _matching(entries: Sequence[Entry], what: str) -> Sequence[Entry]:
    """Those that a filter admits: by ingredient if any of them has one of that name, else by a part of their text."""
    named = _INGREDIENT.fullmatch(what)
    if named is not None and any(named["name"] in entry.ingredients for entry in entries):
        wanted = _plain(named["value"])
        return [entry for entry in entries if _plain(entry.ingredients.get(named["name"], "")) == wanted]
    part = what.lower()
    return [entry for entry in entries if any(part in text.lower() for text in _texts(entry))]


def _plain(value: str) -> str:
    return value.replace(" ", "").lower()


def _texts(entry: Entry) -> tuple[str, ...]:
    algorithm = entry.choice.algorithm if entry.choice else ""
    return entry.problem, entry.device, entry.ingredients["backend"], algorithm


def _list(
    terminal: Terminal,
    contents: Contents,
    entries: Sequence[Entry],
    unreadable: Sequence[Unreadable],
    json: bool,
) -> int:
    """Print those records; say so if there are none."""
    from algosearch.cli import pages

    if json:
        write_json(pages.list_object(contents, entries, unreadable))
    else:
        terminal.present(*pages.list_page(entries, unreadable), results=True)
    if entries or unreadable or _is_empty(terminal, contents):
        return DONE
    terminal.say(f"none of the {len(contents.entries)} records in {contents.location} matches")
    return INCOMPLETE


def _is_empty(terminal: Terminal, contents: Contents) -> bool:
    """Whether there is nothing to find; if so, it is said."""
    if contents.missing:
        terminal.say(f"there is no store at {contents.location}")
    elif not contents.entries and not contents.unreadable:
        terminal.say(f"the store {contents.location} is empty")
    else:
        return False
    return True


def _one(terminal: Terminal, contents: Contents, entry: Entry, json: bool) -> int:
    from algosearch.cli import pages

    if json:
        write_json(pages.record_object(contents, entry))
    else:
        terminal.present(*pages.record_page(entry), results=True)
    return DONE


def _explain(terminal: Terminal, contents: Contents, asked: str, device: str | None, json: bool) -> int:
    from algosearch.cli import pages
    from algosearch.cli.devices import environment_of
    from algosearch.cli.explain import explain_op, ops_of

    ops = ops_of(asked)
    environment = environment_of(device)
    unreadable = {each.digest: each.reason for each in contents.unreadable}
    _is_empty(terminal, contents)
    explanations = [explain_op(op, environment, contents.entries, unreadable) for op in ops]
    if json:
        write_json({"store": contents.location, "explained": explanations})
    else:
        terminal.present(*pages.explanation_page(explanations), results=True)
    return DONE
