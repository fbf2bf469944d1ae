"""The race: a pure state machine. What was measured goes in; what to build, run and check next comes out."""

from __future__ import annotations

from algosearch.race.instructions import Build, Check, Finished, Instruction, Launch, Outcome, Time, Widen
from algosearch.race.machine import Race
from algosearch.race.rules import RaceRules

__all__ = (
    "Race",
    "RaceRules",
    "Instruction",
    "Outcome",
    "Build",
    "Widen",
    "Launch",
    "Time",
    "Check",
    "Finished",
)
