"""How exact candidates are: what each leaves, against the definition in float64, at a few places of each result."""

from __future__ import annotations

from collections.abc import Sequence

from algosearch.backends.cudnn.checking import Judgement
from algosearch.backends.cudnn.problem import problem_of
from algosearch.backends.cudnn.session import CudnnSession
from algosearch.ops import Op
from algosearch.records import Built, Burst, Candidate


def errors(session: CudnnSession, op: Op, candidates: Sequence[Candidate]) -> dict[str, float | None]:
    """By algorithm, as `Judgement.error`; of those that run and whose results are right."""
    built = [(each, session.build(op, each)) for each in candidates]
    plans = [(each, outcome.plan) for each, outcome in built if isinstance(outcome, Built)]
    failure = session.load(op, max((each.workspace_bytes for each, _ in plans), default=0))
    if failure is not None:
        raise MemoryError(failure.message)
    try:
        problem = problem_of(op, max((each.reserve_bytes for each, _ in plans), default=0))
        found: dict[str, float | None] = {}
        for candidate, plan in plans:
            # A check runs it once more, on buffers that hold nothing like its result.
            if isinstance(session.launch(plan, None), Burst) and session.check(plan, None) is None:
                assert session.buffers is not None
                judgement = Judgement(session._gpu, problem, session.buffers, candidate.notes, None)
                found[candidate.algorithm] = judgement.error()
        return found
    finally:
        session.unload()
        session.destroy([plan for _, plan in plans])
