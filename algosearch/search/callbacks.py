"""What a mere callback of an event loop needs to start tasks."""

from __future__ import annotations

import sys
from contextvars import Context, copy_context
from typing import Any


def context_of_callbacks() -> Context:
    """A context in which it may. Where sniffio is installed anyio asks it which library runs,
    and outside of tasks it knows only what it is told. A task that takes what is posted would do, too, and costs a turn
    of the loop more: beside a caller that computes that is 5 ms."""
    context = copy_context()
    sniffio: Any = sys.modules.get("sniffio")  # anyio has imported it, if it is there
    if sniffio is not None:
        context.run(sniffio.current_async_library_cvar.set, "asyncio")
    return context
