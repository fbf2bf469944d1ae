"""algosearch: which algorithm, and how much workspace? Each distinct question is answered once.

async with algosearch.open_searcher() as searcher:
    request = searcher.request(op)          # returns at once; starts or joins the one search
    sizes = await request.workspace()       # first milestone: bytes each candidate needs
    choice = await request.choice()         # second milestone

choice = await algosearch.select_algo(op)   # the one-liner
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from algosearch._version import VERSION as __version__
from algosearch.errors import (
    AlgosearchError,
    DeadlineExpired,
    DeviceUnavailable,
    InvalidOp,
    InvalidPolicy,
    InvalidSetting,
    InvalidValue,
    ModelError,
    NoAlgorithm,
    NotCached,
    NotCovered,
    RequestWithdrawn,
    SearcherClosed,
    SearchFailed,
    StoreUnusable,
    UndecodableRecord,
    UnknownDevice,
    UnknownDimension,
    UnreadableExport,
    UnreadableModel,
    WouldBlockLoop,
)
from algosearch.ops import BatchNormOp, ConvOp
from algosearch.records import Algorithm, Choice, Key, Policy, Record, Rejection, Trial

if TYPE_CHECKING:
    from algosearch.search import Request, Searcher, Statistics, Verdict, open_searcher, select_algo

__all__ = (
    # asking
    "open_searcher",
    "select_algo",
    "Searcher",
    "Request",
    "Statistics",
    "Verdict",
    # what is asked
    "ConvOp",
    "BatchNormOp",
    "Policy",
    # what is answered
    "Choice",
    "Rejection",
    "Algorithm",
    "Trial",
    "Record",
    "Key",
    # what can go wrong
    "AlgosearchError",
    "InvalidValue",
    "InvalidOp",
    "InvalidPolicy",
    "InvalidSetting",
    "NoAlgorithm",
    "NotCached",
    "NotCovered",
    "DeadlineExpired",
    "SearchFailed",
    "SearcherClosed",
    "RequestWithdrawn",
    "WouldBlockLoop",
    "UnknownDevice",
    "DeviceUnavailable",
    "StoreUnusable",
    "UndecodableRecord",
    "UnreadableExport",
    "ModelError",
    "UnreadableModel",
    "UnknownDimension",
    "__version__",
)

_LAZY = frozenset({"open_searcher", "select_algo", "Searcher", "Request", "Statistics", "Verdict"})
"""Names whose room imports asyncio and anyio, 60 ms that a program which only describes ops need not pay."""


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from algosearch import search

        value = globals()[name] = getattr(search, name)
        return value
    raise AttributeError(f"module 'algosearch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
