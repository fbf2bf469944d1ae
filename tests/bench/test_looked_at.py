"""The short form of `bench/looked_at.py`, on the CPU."""

from collections.abc import Iterator, Sequence

import looked_at
import pytest
from around import Around

from algosearch.backends.base import Session
from algosearch.backends.cpu import CpuBackend
from algosearch.ops import ConvOp, Op
from algosearch.records import Burst, Candidate, Failure

OP = ConvOp(input_shape=(1, 4, 8, 8), filter_shape=(4, 4, 3, 3))


@pytest.fixture
def session() -> Iterator[Session]:
    backend = CpuBackend()
    opened = backend.open(backend.devices()[0])
    yield opened
    opened.close()


def of_all(session: Session, op: ConvOp) -> tuple[Candidate, ...]:
    return session.enumerate(op, None).candidates


def test_every_candidate_is_built_and_run_and_who_comes_near_is_timed(session: Session) -> None:
    candidates = of_all(session, OP)
    rows = looked_at.measured(session, OP, candidates)
    assert [row["algorithm"] for row in rows] == [each.algorithm for each in candidates]
    assert all(row["build_s"] >= 0 and row["launch_s"] > 0 for row in rows if "failure" not in row)
    fastest = min(row["first_us"] for row in rows if "first_us" in row)
    for row in rows:
        assert ("us" in row) == (row.get("first_us", float("inf")) <= looked_at.NEAR * fastest)


def test_nobody_is_run_behind_one_that_ruins_the_device(session: Session) -> None:
    class Ruined(Around):
        ran = 0

        def launch(self, plan: int, limit_us: float | None) -> Burst | Failure:
            self.ran += 1
            return super().launch(plan, limit_us) if self.ran == 1 else Failure("launch_failed", "ruined")

        def time(self, bursts: Sequence[tuple[int, int]], limit_us: float | None) -> tuple[Burst | Failure, ...]:
            raise AssertionError("nothing runs any more")

        def unload(self) -> None:
            raise AssertionError("nothing can be given back any more")

        def healthy(self) -> Failure | None:
            return None if self.ran < 2 else Failure("launch_failed", "ruined")

    rows = looked_at.measured(Ruined(session), OP, of_all(session, OP))
    assert "first_us" in rows[0]
    assert rows[1]["failure"] == "ruined"
    assert all("launch_s" not in row for row in rows[2:])


def test_an_op_for_which_there_is_no_memory_leaves_no_plans_behind(session: Session) -> None:
    class Full(Around):
        destroyed: tuple[int, ...] = ()

        def load(self, op: Op, workspace_bytes: int) -> Failure | None:
            return Failure("out_of_memory", "full")

        def destroy(self, plans: Sequence[int]) -> None:
            self.destroyed += tuple(plans)
            super().destroy(plans)

    full = Full(session)
    rows = looked_at.measured(full, OP, of_all(session, OP))
    assert len(full.destroyed) == sum("failure" not in row for row in rows) > 0
    assert not any("launch_s" in row for row in rows)


def row(us: float | None, *, build_s: float = 0.0, launch_s: float = 0.0, is_dear: bool = False) -> dict[str, object]:
    found: dict[str, object] = {"algorithm": "a", "is_dear": is_dear, "build_s": build_s, "launch_s": launch_s}
    return found if us is None else found | {"us": us}


def test_what_is_looked_at_is_held_against_all() -> None:
    ops = [
        {
            "look_at": 2,
            "candidates": [row(12.0, launch_s=1), row(11.0, build_s=2, is_dear=True), row(10.0, launch_s=3)],
        },
        {"look_at": 1, "candidates": [row(5.0, build_s=1), row(None, build_s=4, is_dear=True)]},
        {"look_at": 1, "candidates": [row(None)], "ruined": True},
    ]
    assert looked_at._figures(ops) == {
        "ops": 2,
        "ops_that_ruined": 1,
        "candidates": 5,
        "candidates_looked_at": 3,
        "compiling_s": 6.0,
        "compiling_looked_at_s": 2.0,
        "first_runs_s": 4.0,
        "first_runs_looked_at_s": 1.0,
        "regret_looked_at_mean": pytest.approx(0.05),
        "regret_looked_at_worst": pytest.approx(0.1),
    }
