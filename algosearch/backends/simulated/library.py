"""What all sessions of one simulated backend have in common: its problems, scripted or made up, and its version."""

from __future__ import annotations

from algosearch.backends.simulated.generate import problem_of
from algosearch.backends.simulated.script import (
    BACKEND,
    CandidateScript,
    DeviceScript,
    ProblemScript,
    Script,
    problem_digest,
)
from algosearch.ops import Op, searched_as
from algosearch.records import Environment


class Problem:
    """An op that is searched and all that is known about it."""

    __slots__ = ("by_name", "digest", "op", "script")

    def __init__(self, op: Op, script: ProblemScript) -> None:
        self.op = op
        self.script = script
        self.digest = problem_digest(op)
        self.by_name: dict[str, CandidateScript] = {each.algorithm: each for each in script.candidates}

    def __repr__(self) -> str:
        return f"<Problem {self.digest} {self.op.describe()}, {len(self.by_name)} candidates>"


class Library:
    """Looks problems up, and makes up those that the script does not name. Any thread may ask."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._fingerprint = script.fingerprint()
        self._problems: dict[Op, Problem] = {}
        for problem in script.problems:
            op = searched_as(problem.op)
            self._problems[op] = Problem(op, problem)

    def __repr__(self) -> str:
        return f"<Library {self._fingerprint}, {len(self._problems)} problems known>"

    def problem(self, op: Op) -> Problem:
        """All about an op.

        Raises:
            AssertionError: the op is not what `searched_as` makes of it: no backend is given what the caller wrote.
        """
        problem = self._problems.get(op)
        if problem is None:
            if searched_as(op) != op:
                raise AssertionError(f"not what is searched for it: {op.describe()}")
            made_up = Problem(op, problem_of(op, self.script.generated, self.script.seed))
            problem = self._problems.setdefault(op, made_up)  # two threads make up equal ones: the first is kept
        return problem

    def environment(self, device: DeviceScript) -> Environment:
        """A device's environment. The script is the library, so its fingerprint stands for the library's version."""
        facts = {
            "script": self._fingerprint,
            "memory_bytes": str(device.memory_bytes),
            **self.script.facts,
            **device.facts,
        }
        return Environment(
            backend=BACKEND, device=device.kind, facts=tuple(sorted(facts.items())), incomplete=device.incomplete
        )
