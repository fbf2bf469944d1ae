"""`algosearch show`: what a store knows, as a table; one record in full; why an op is a hit or a miss."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.verb import DONE, INCOMPLETE
from algosearch.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from algosearch.cli.contents import Contents, Entry

_DIGEST: Final = re.compile(r"[0-9a-f]{6,64}", re.IGNORECASE)
_INGREDIENT: Final = re.compile(r"(?P<name>[a-z][a-z0-9_.]*)=(?P<value>.*)")

Filter = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILTER|KEY]",
        help="A part of the problem, device or algorithm; NAME=VALUE of a key's ingredient (problem.groups=64); or a "
        "record's digest, of which six digits will do: that record in full.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(metavar="S", help="A directory. [default: ALGOSEARCH_STORE or the user's cache directory]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Explain = Annotated[
    str | None,
    typer.Option(metavar="OP", help="An op as JSON, or @FILE of such lines: is it a hit, and if not, why not?"),
]
Device = Annotated[
    str | None, typer.Option(metavar="D", help="With --explain: asked for this device. [default: the best found]")
]


def show(
    filter: Filter = None,
    store: Store = None,
    json: Json = False,
    explain: Explain = None,
    device: Device = None,
) -> int:
    """Tell what is in the store, and why.

    Without an argument, every record in one table. The store is only read, and not made if it is not there.
    """
    from algosearch.cli.contents import contents_of

    if filter is not None and explain is not None:
        raise InvalidSetting("--explain", explain, f"goes without a filter, and there is {filter!r}")
    terminal = Terminal()
    with terminal.logging():
        if explain is not None:
            return _explain(terminal, contents_of(store), explain, device, json)
        contents = contents_of(store)
        if filter is not None and _DIGEST.fullmatch(filter):
            meant = [entry for entry in contents.entries if entry.digest.startswith(filter.lower())]
            if len(meant) == 1:
                return _one(terminal, contents, meant[0], json)
            if meant:
                terminal.say(f"{len(meant)} digests begin with {filter}; one more digit tells them apart")
                return _list(terminal, contents, meant, json)
        return _list(terminal, contents, _matching(contents.entries, filter), json)


def _matching(entries: Sequence[Entry], filter: str | None) -> Sequence[Entry]:
    """Those that a filter admits: by ingredient if any of them has one of that name, else by a part of their text."""
    if filter is None:
        return entries
    named = _INGREDIENT.fullmatch(filter)
    if named is not None and any(named["name"] in entry.ingredients for entry in entries):
        wanted = _plain(named["value"])
        return [entry for entry in entries if _plain(entry.ingredients.get(named["name"], "")) == wanted]
    part = filter.lower()
    return [entry for entry in entries if any(part in text.lower() for text in _texts(entry))]


def _plain(value: str) -> str:
    return value.replace(" ", "").lower()


def _texts(entry: Entry) -> tuple[str, ...]:
    algorithm = entry.choice.algorithm if entry.choice else ""
    return entry.problem, entry.device, entry.ingredients["backend"], algorithm


def _list(terminal: Terminal, contents: Contents, entries: Sequence[Entry], json: bool) -> int:
    from algosearch.cli import pages

    if json:
        write_json(pages.list_object(contents, entries))
    else:
        terminal.present(*pages.list_page(contents, entries), results=True)
    empty = not contents.entries and not contents.unreadable
    if empty:
        terminal.say(
            f"there is no store at {contents.location}" if contents.missing else f"{contents.location} is empty"
        )
    elif not entries:
        terminal.say(f"none of {len(contents.entries)} records matches")
    return DONE if entries or empty or len(entries) == len(contents.entries) else INCOMPLETE


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
    explanations = [explain_op(op, environment, contents.entries, unreadable) for op in ops]
    if json:
        write_json({"store": contents.location, "explained": explanations})
    else:
        terminal.present(*pages.explanation_page(explanations), results=True)
    return DONE
