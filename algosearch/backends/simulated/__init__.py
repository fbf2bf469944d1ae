"""The simulated backend: a scripted library on scripted devices, with a trace of every call."""

from __future__ import annotations

from algosearch.backends.simulated.backend import DeviceStatistics, Pace, SimulatedBackend, Trace
from algosearch.backends.simulated.generate import problem_of
from algosearch.backends.simulated.script import (
    Accident,
    CandidateScript,
    Deed,
    DeviceScript,
    Fault,
    FaultStage,
    Generated,
    InvalidScript,
    Nonsense,
    Poison,
    ProblemScript,
    Script,
    problem_digest,
)
from algosearch.backends.simulated.session import SimulatedSession
from algosearch.backends.simulated.trace import Call, TraceEvent, read_trace, searched, searches, spent_us

__all__ = (
    "SimulatedBackend",
    "SimulatedSession",
    "DeviceStatistics",
    "Pace",
    "Trace",
    "Script",
    "DeviceScript",
    "ProblemScript",
    "CandidateScript",
    "Fault",
    "FaultStage",
    "Deed",
    "Accident",
    "Nonsense",
    "Poison",
    "Generated",
    "InvalidScript",
    "problem_of",
    "problem_digest",
    "Call",
    "TraceEvent",
    "read_trace",
    "searches",
    "searched",
    "spent_us",
)
