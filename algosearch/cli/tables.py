"""Plain tables: no lines and no boxes, which grep and awk like as well as people do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from algosearch.cli.terminal import one_line


def table(*columns: str, numbers: Iterable[str] = (), rows: Iterable[Sequence[str]]) -> Table:
    """A table of text. The columns in `numbers` stand right."""
    numbers = frozenset(numbers)
    made = _empty()
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return _filled(made, rows)


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values, without a header."""
    made = _empty()
    made.show_header = False
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    return _filled(made, rows)


def _empty() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")


def _filled(made: Table, rows: Iterable[Sequence[str]]) -> Table:
    for row in rows:
        made.add_row(*(Text(one_line(cell)) for cell in row))
    return made
