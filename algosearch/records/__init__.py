"""What a search finds, and how an answer is picked from it. Frozen nouns and pure functions."""

from __future__ import annotations

from algosearch.records.algorithm import Algorithm, InvalidAlgorithm
from algosearch.records.choice import Choice, Precision, Rejection, Rule
from algosearch.records.key import Environment, InvalidEnvironment, Key
from algosearch.records.outcome import Built, Burst, Listing
from algosearch.records.policy import DEFAULT_POLICY, Policy
from algosearch.records.record import Provenance, Record, Search, SearchMode
from algosearch.records.trial import (
    FACTS,
    IS_TROUBLE,
    PRECISE,
    Candidate,
    Failure,
    FailureKind,
    Stage,
    Trial,
    packed,
    refusable,
)
from algosearch.records.trials import Trials

__all__ = (
    "Algorithm",
    "InvalidAlgorithm",
    "Candidate",
    "Listing",
    "Built",
    "Burst",
    "Failure",
    "FailureKind",
    "FACTS",
    "IS_TROUBLE",
    "Stage",
    "PRECISE",
    "Trial",
    "Trials",
    "packed",
    "refusable",
    "Provenance",
    "Search",
    "SearchMode",
    "Record",
    "Environment",
    "InvalidEnvironment",
    "Key",
    "Policy",
    "DEFAULT_POLICY",
    "Choice",
    "Precision",
    "Rejection",
    "Rule",
)
