"""Options that mean the same in every verb."""

from __future__ import annotations

from typing import Annotated

import typer

Store = Annotated[
    str | None,
    typer.Option(metavar="S", help="A directory. [default: ALGOSEARCH_STORE, else the user's cache directory]"),
]
Base = Annotated[
    str | None,
    typer.Option(
        metavar="S", help="A directory that is only read, where the store has no record. [default: ALGOSEARCH_BASE]"
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="D", help="A device (cpu:0) or a backend (cpu). [default: the best that is found]")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and all else on stderr.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what becomes of every search.")]
