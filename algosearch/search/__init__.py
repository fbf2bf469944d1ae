"""The engine: whom to ask, whom to tell."""

from __future__ import annotations

from algosearch.search.ambient import current_searcher, open_searcher, select_algo
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
    "Statistics",
    "EngineStatistics",
    "FlightStatus",
    "ChoicesDigest",
    "Verdict",
)
