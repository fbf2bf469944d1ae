"""The engine: whom to ask, whom to tell.

Importing this costs next to nothing: what needs asyncio, anyio or a library comes when a searcher is opened, in a
thread of its own, or when one of the other names is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

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

_LAZY = {
    "Searcher": "searcher",
    "Request": "request",
    "Plan": "plans",
    "Verdict": "verification",
    **dict.fromkeys(("Statistics", "EngineStatistics", "FlightStatus", "ChoicesDigest"), "statistics"),
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        value = globals()[name] = getattr(import_module(f"algosearch.search.{_LAZY[name]}"), name)
        return value
    raise AttributeError(f"module 'algosearch.search' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
