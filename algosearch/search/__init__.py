"""The engine: whom to ask, whom to tell.

Importing this costs next to nothing: what needs asyncio, anyio or a library comes when a searcher is opened, in a
thread of its own, or when one of the other names is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from algosearch.late import late_exports as _late_exports
from algosearch.search.ambient import current_searcher, open_searcher, select_algo

if TYPE_CHECKING:
    from algosearch.search.plans import Plan
    from algosearch.search.request import Request
    from algosearch.search.searcher import Searcher
    from algosearch.search.statistics import ChoicesDigest, EngineStatistics, FlightStatus, Statistics
    from algosearch.search.verification import Verdict

__all__ = (
    "open_searcher",
    "select_algo",
    "current_searcher",
    "Searcher",
    "Request",
    "Plan",
    "Statistics",
    "EngineStatistics",
    "FlightStatus",
    "ChoicesDigest",
    "Verdict",
)

if not TYPE_CHECKING:
    __getattr__, __dir__ = _late_exports(
        __name__,
        {
            "plans": ("Plan",),
            "request": ("Request",),
            "searcher": ("Searcher",),
            "statistics": ("ChoicesDigest", "EngineStatistics", "FlightStatus", "Statistics"),
            "verification": ("Verdict",),
        },
    )
