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
    AlreadyEntered,
    DeadlineExpired,
    DeviceUnavailable,
    DoesNotFit,
    FoundAlone,
    InvalidCall,
    InvalidGraph,
    InvalidOp,
    InvalidPolicy,
    InvalidSetting,
    InvalidValue,
    ModelError,
    NoAlgorithm,
    NotBuilt,
    NotCached,
    NotCovered,
    NotRunnable,
    OtherEnvironment,
    RequestWithdrawn,
    RunFailed,
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
from algosearch.late import late_exports as _late_exports
from algosearch.ops import BatchNormOp, ConvOp
from algosearch.records import Algorithm, Choice, Key, Policy, Record, Rejection, Trial
from algosearch.search import open_searcher, select_algo

if TYPE_CHECKING:
    from algosearch.search import Plan, Request, Searcher, Statistics, Verdict

__all__ = (
    # asking
    "open_searcher",
    "select_algo",
    "Searcher",
    "Request",
    "Plan",
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
    "AlreadyEntered",
    "RequestWithdrawn",
    "FoundAlone",
    "WouldBlockLoop",
    "UnknownDevice",
    "DeviceUnavailable",
    "DoesNotFit",
    "InvalidGraph",
    "StoreUnusable",
    "UndecodableRecord",
    "UnreadableExport",
    "ModelError",
    "UnreadableModel",
    "UnknownDimension",
    "InvalidCall",
    "NotBuilt",
    "NotRunnable",
    "OtherEnvironment",
    "RunFailed",
    "__version__",
)

if not TYPE_CHECKING:
    # What callers are given and need not name. Their modules import asyncio and anyio: 60 ms.
    __getattr__, __dir__ = _late_exports(__name__, {"search": ("Searcher", "Request", "Plan", "Statistics", "Verdict")})
