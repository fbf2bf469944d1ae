"""`algosearch doctor`: does this installation work, and if not, what is to be done?"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from algosearch.cli.options import Base, Json, Store
from algosearch.cli.terminal import Terminal, write_json
from algosearch.cli.units import duration, size
from algosearch.cli.verb import DONE, INCOMPLETE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from algosearch.cli.checkup import Checkup, DeviceFound
    from algosearch.cli.storefound import StoreFound


def doctor(store: Store = None, base: Base = None, json: Json = False) -> int:
    """Check devices, libraries, settings and the store, and say what is missing and how to get it.

    Nothing is changed. Every device is opened once, which takes up to seconds.
    """
    from algosearch.cli.checkup import check_up
    from algosearch.cli.progress import Moment, progress

    terminal = Terminal()
    began = perf_counter()
    with terminal.logging(), progress(terminal, after_s=1.0) as bar:
        steps = 0

        def watch(step: str) -> None:
            nonlocal steps
            bar.show(Moment(total=steps + 1, answered=steps, searched=0, elapsed_s=perf_counter() - began, trying=step))
            steps += 1

        found = check_up(store=store, base=base, watch=watch)
    if json:
        write_json(found)
    else:
        terminal.present(*_page(found), results=True)
    for each in found.doubts:
        terminal.warn(each)
    for each in found.broken:
        terminal.say(f"error: {each}", style="red")
    return INCOMPLETE if found.broken else DONE


def _page(found: Checkup) -> tuple[RenderableType, ...]:
    from algosearch.cli.tables import facts, table

    rows = []
    for backend in found.backends:
        rows += [(device.name, device.kind, _state(device)) for device in backend.devices]
        if backend.missing is not None:
            rows.append((backend.name, "", f"missing: {backend.missing}"))
    libraries = ", ".join(f"{name} {version or 'missing'}" for name, version in found.libraries.items())
    parts: list[RenderableType] = [
        facts(
            [
                ("algosearch", f"{found.version}, Python {found.python}, {found.system}"),
                ("libraries", libraries),
            ]
        ),
        "",
        table("device", "kind", "state", rows=rows),
        "",
        table("setting", "value", "from", rows=((each.name, each.value, each.source) for each in found.settings)),
    ]
    for what, store in (("store", found.store), ("base", found.base)):
        if store is not None:
            parts += ["", facts(_store_rows(what, store))]
    return (*parts, "", "something is broken" if found.broken else "all is well")


def _state(device: DeviceFound) -> str:
    if device.trouble is not None:
        return f"cannot be used: {device.trouble}"
    named = ", ".join(f"{name} {text}" for name, text in device.facts.items())
    return f"opened in {duration(device.seconds)}; {named}"


def _store_rows(what: str, store: StoreFound) -> list[tuple[str, str]]:
    access = ["readable"] * store.readable + ["writable"] * store.writable
    system = "" if store.served else f"{store.file_system or 'unknown'}{', over a network' if store.network else ''}"
    absent = "out of reach, " if store.served else "not there yet, "
    rows = [
        (what, f"{store.location} (from {store.source})"),
        ("state", ("there, " if store.exists else absent) + (" and ".join(access) or "of no use")),
        ("permissions", "" if store.mode is None else f"{store.mode}, of user {store.owner}"),
        ("file system", system),
        ("room", "" if store.free_bytes is None else f"{size(store.free_bytes)} free"),
        ("records", f"{store.records}, {size(store.bytes)}" if store.exists else ""),
    ]
    return [row for row in rows if row[1]]
