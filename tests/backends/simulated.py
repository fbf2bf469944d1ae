"""Ops and scripts that the tests of the simulated backend share."""

from __future__ import annotations

from typing import Any

from algosearch.backends.simulated import (
    CandidateScript,
    Generated,
    ProblemScript,
    Script,
    SimulatedBackend,
    SimulatedSession,
)
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical
from algosearch.records import Built, Burst, Failure

CONV = ConvOp(input_shape=(2, 8, 14, 14), filter_shape=(16, 8, 3, 3), padding_low=(1, 1))
POINTWISE = ConvOp(input_shape=(2, 8, 14, 14), filter_shape=(16, 8, 1, 1))
NORM = BatchNormOp(shape=(2, 8, 14, 14))
COMPILED = canonical(BatchNormOp(shape=(8, 8, 6, 6)))
"""Some of what is made up for it is compiled at run time."""
IMPOSSIBLE = ConvOp(input_shape=(1, 1, 9, 9, 9), filter_shape=(1, 1, 3, 3, 3))

A, B, C = "simulated/test:a", "simulated/test:b?tile=2", "simulated/test:c#tensor_op"


def scripted(*candidates: CandidateScript, op: Op = CONV, **rest: Any) -> Script:
    """One problem with these candidates; everything else cannot be done."""
    return Script(problems=(ProblemScript(op=op, candidates=candidates),), generated=Generated(candidates=0), **rest)


def opened(backend: SimulatedBackend, ordinal: int = 0) -> SimulatedSession:
    return backend.open(backend.devices()[ordinal])


def ready(backend: SimulatedBackend, op: Op = CONV) -> tuple[SimulatedSession, list[int]]:
    """An open session, all candidates of `op` built, and `op` loaded."""
    session = opened(backend)
    op = canonical(op)
    candidates = session.enumerate(op, None).candidates
    built = [session.build(op, candidate) for candidate in candidates]
    plans = [outcome.plan for outcome in built if isinstance(outcome, Built)]
    assert len(plans) == len(candidates) > 0
    assert session.load(op, max(candidate.workspace_bytes for candidate in candidates)) is None
    return session, plans


def run_everything(backend: SimulatedBackend) -> None:
    session, (plan,) = ready(backend)
    session.launch(plan, None)
    session.time([(plan, 1)], None)
    session.check(plan, None)


def time_us(outcome: Burst | Failure) -> float:
    assert isinstance(outcome, Burst)
    return outcome.time_us
