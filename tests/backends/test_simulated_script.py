"""Scripts: strictly read, refused when they make no sense, and filled up with plausible problems."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algosearch.backends.simulated import (
    CandidateScript,
    DeviceScript,
    Fault,
    Generated,
    InvalidScript,
    ProblemScript,
    Script,
    SimulatedBackend,
    problem_digest,
    problem_of,
)
from algosearch.errors import InvalidSetting
from algosearch.ops import BatchNormOp, ConvOp, Op, canonical
from algosearch.records import Algorithm
from tests.backends.simulated import CONV, NORM, A, B, opened

FULL = Script(
    devices=(
        DeviceScript(
            kind="Big", memory_bytes=1 << 34, speed=2.0, clock_start=0.5, clock_ramp_us=100.0, facts={"sm": "9"}
        ),
        DeviceScript(kind="Small", disturbed=0.1, resolution_us=0.5, incomplete="no compiler", unavailable="gone"),
    ),
    problems=(
        ProblemScript(
            op=CONV,
            candidates=(
                CandidateScript(algorithm=A, time_us=(3.0, 2.0), noise=0.01, faults=(Fault(at="time", does="hangs"),)),
                CandidateScript(algorithm=B, time_us=4.0, workspace_bytes=4096, notes=("fft", "tf32"), build_us=9.0),
            ),
            prepare_us=1.0,
            look_at=1,
            least_width=2,
            faults=(Fault(at="load", does="out_of_memory", message="no", after=1, times=2),),
        ),
        ProblemScript(op=NORM),
    ),
    generated=Generated(candidates=3, time_us=10.0),
    seed=5,
    facts={"library": "1"},
    hang_s=1.0,
    machine="there",
)

GENERATED = Generated()

convs = st.builds(
    lambda batch, per_group, filters, groups, size, taps, data_type: ConvOp(
        input_shape=(batch, per_group * groups, size, size),
        filter_shape=(filters * groups, per_group, taps, taps),
        groups=groups,
        padding_low=(taps // 2, taps // 2),
        input_type=data_type,
        filter_type=data_type,
        output_type=data_type,
    ),
    st.integers(1, 64),
    st.integers(1, 256),
    st.integers(1, 256),
    st.integers(1, 4),
    st.integers(1, 256),
    st.sampled_from((1, 3, 5)),
    st.sampled_from(("float16", "float32")),
)
norms = st.builds(
    BatchNormOp,
    shape=st.tuples(st.integers(1, 64), st.integers(1, 512), st.integers(1, 64), st.integers(1, 64)),
    phase=st.sampled_from(("training_forward", "inference", "backward")),
)
ops: st.SearchStrategy[Op] = st.one_of(convs, norms)


class TestFile:
    def test_a_script_survives_json(self, tmp_path: Path) -> None:
        path = tmp_path / "script.json"
        path.write_bytes(msgspec.json.encode(FULL))
        backend = SimulatedBackend.from_file(path, devices=2)
        assert backend.script == FULL
        assert len(backend.devices()) == 4

    def test_a_script_can_be_written_by_hand(self, tmp_path: Path) -> None:
        path = tmp_path / "script.json"
        path.write_text(
            """{"problems": [{"op": {"op": "conv", "input_shape": [1, 1, 5], "filter_shape": [1, 1, 3]},
                              "candidates": [{"algorithm": "simulated/hand:made", "time_us": 3}]}],
                "generated": {"candidates": 0}}"""
        )
        backend = SimulatedBackend.from_file(path)
        session = opened(backend)
        op = canonical(ConvOp(input_shape=(1, 1, 5), filter_shape=(1, 1, 3)))
        assert [each.algorithm for each in session.enumerate(op, None).candidates] == ["simulated/hand:made"]
        assert session.enumerate(CONV, None).candidates == ()

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", "is no script"),
            ('{"seed": 1', "is no script"),
            ('{"sed": 1}', "unknown field `sed`"),
            ('{"seed": "1"}', "Expected `int`"),
            ('{"hang_s": -1}', "script.hang_s = -1.0: must be finite and at least 0"),
            (
                '{"devices": [{"speed": 0}]}',
                "script.speed = 0.0: must be finite and positive - at `\\$.devices\\[0\\]`",
            ),
            ('{"problems": [{"op": {"op": "conv", "input_shape": [1], "filter_shape": [1]}}]}', "spatial dimensions"),
            ("[" * 100_000, "is no script"),
            ('{"machine": "\udcff"}', "is no script"),
        ],
    )
    def test_what_is_no_script_is_refused_with_the_place_and_the_reason(
        self, text: str, why: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "script.json"
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(InvalidSetting, match=why):
            SimulatedBackend.from_file(path)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidSetting, match="cannot be read: No such file"):
            SimulatedBackend.from_file(tmp_path / "absent")


@pytest.mark.parametrize(
    ("make", "field", "value"),
    [
        (CandidateScript, "algorithm", "not a name"),
        (CandidateScript, "algorithm", "cpu/numpy:direct"),
        (CandidateScript, "time_us", 0.0),
        (CandidateScript, "time_us", math.nan),
        (CandidateScript, "time_us", ()),
        (CandidateScript, "time_us", (1.0, -1.0)),
        (CandidateScript, "workspace_bytes", -1),
        (CandidateScript, "notes", ("tf32", "fft")),
        (CandidateScript, "noise", -0.1),
        (CandidateScript, "build_us", math.inf),
        (CandidateScript, "first_us", -1.0),
        (CandidateScript, "faults", (Fault(at="load", does="raises"),)),
        (ProblemScript, "candidates", (CandidateScript(algorithm=A, time_us=1.0),) * 2),
        (ProblemScript, "prepare_us", math.nan),
        (ProblemScript, "look_at", 0),
        (ProblemScript, "least_width", 0),
        (ProblemScript, "faults", (Fault(at="build", does="raises"),)),
        (DeviceScript, "kind", ""),
        (DeviceScript, "memory_bytes", -1),
        (DeviceScript, "speed", 0.0),
        (DeviceScript, "clock_start", 0.0),
        (DeviceScript, "clock_ramp_us", -1.0),
        (DeviceScript, "disturbed", 1.1),
        (DeviceScript, "resolution_us", math.nan),
        (Generated, "candidates", -1),
        (Generated, "noise", -1.0),
        (Generated, "time_us", 0.0),
        (Generated, "flops_per_us", 0.0),
        (Generated, "unsupported", 2.0),
        (Generated, "look_at", 0),
        (Generated, "least_width", 0),
        (Script, "problems", (ProblemScript(op=CONV), ProblemScript(op=CONV))),
        (Script, "hang_s", math.inf),
        (Fault, "after", -1),
        (Fault, "times", 0),
    ],
)
def test_a_script_that_makes_no_sense_is_refused(make: Callable[..., object], field: str, value: object) -> None:
    rest: dict[Any, dict[str, object]] = {
        CandidateScript: {"algorithm": A, "time_us": 1.0},
        ProblemScript: {"op": CONV},
        Fault: {"at": "time", "does": "raises"},
    }
    make(**rest.get(make, {}))
    with pytest.raises(InvalidScript) as caught:
        make(**{**rest.get(make, {}), field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(("at", "does"), [("build", "nan"), ("check", "zero"), ("enumerate", "out_of_memory")])
def test_faults_that_cannot_be(at: Any, does: Any) -> None:
    with pytest.raises(InvalidScript, match="does"):
        Fault(at=at, does=does)


def test_the_fingerprint_changes_with_what_changes_answers_only() -> None:
    replace = msgspec.structs.replace
    assert replace(FULL, machine="elsewhere", hang_s=2.0, facts={}, devices=()).fingerprint() == FULL.fingerprint()
    for other in ({"seed": 6}, {"problems": FULL.problems[:1]}, {"generated": Generated()}):
        assert replace(FULL, **other).fingerprint() != FULL.fingerprint()


class TestGenerated:
    @settings(deadline=None, max_examples=60)
    @given(op=ops, seed=st.integers(0, 9))
    def test_what_is_generated_is_plausible(self, op: Op, seed: int) -> None:
        op = canonical(op)
        problem = problem_of(op, GENERATED, seed)
        assert problem == problem_of(op, GENERATED, seed)
        assert problem.op == op
        assert len(problem.candidates) == GENERATED.candidates
        ideal_us = max(op.flops / GENERATED.flops_per_us, op.bytes_moved / GENERATED.bytes_per_us)
        for candidate in problem.candidates:
            assert Algorithm.parse(candidate.algorithm).backend == "simulated"
            assert isinstance(candidate.time_us, float)
            assert ideal_us * 0.8 <= candidate.time_us <= (ideal_us + 2.0) * 20
            assert candidate.workspace_bytes % 256 == 0
            assert candidate.workspace_bytes <= max(8192, 4 * op.bytes_moved)
            assert "tf32" not in candidate.notes or (isinstance(op, ConvOp) and op.input_type == "float32")

    @settings(deadline=None, max_examples=30)
    @given(op=ops)
    def test_another_seed_is_another_library(self, op: Op) -> None:
        op = canonical(op)
        assert problem_of(op, GENERATED, 0).candidates != problem_of(op, GENERATED, 1).candidates

    def test_more_candidates_extend_fewer(self) -> None:
        few, many = (problem_of(CONV, Generated(candidates=count), 0).candidates for count in (5, 12))
        assert many[:5] == few

    def test_it_does_what_it_is_told(self) -> None:
        told = Generated(candidates=40, time_us=100.0, noise=0.0, prepare_us=7.0, look_at=3, unsupported=0.5)
        problem = problem_of(CONV, told, 0)
        assert (problem.prepare_us, problem.look_at) == (7.0, 3)
        unsupported = [candidate for candidate in problem.candidates if candidate.faults]
        assert 5 < len(unsupported) < 35
        for candidate in problem.candidates:
            assert isinstance(candidate.time_us, float)
            assert 80.0 <= candidate.time_us <= 2000.0
            assert candidate.noise == 0.0

    def test_every_description_of_a_problem_has_one_truth(self) -> None:
        backend = SimulatedBackend(Script(problems=(ProblemScript(op=NORM),)))
        one = ConvOp(input_shape=(1, 8, 20), filter_shape=(8, 8, 3))
        assert backend.problem(one) == backend.problem(canonical(one))
        assert problem_digest(one) == problem_digest(canonical(one)) != problem_digest(CONV)
        assert backend.problem(BatchNormOp(shape=(2, 8, 1, 14, 14))).candidates == ()

    def test_every_process_generates_the_same(self) -> None:
        code = (
            "import msgspec; from algosearch.backends.simulated import *; from algosearch.ops import *\n"
            "op = canonical(ConvOp(input_shape=(2, 8, 9, 9), filter_shape=(16, 8, 3, 3)))\n"
            "import sys; sys.stdout.write(msgspec.json.encode(problem_of(op, Generated(), 0)).decode())"
        )
        texts = [
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
                timeout=50,
            ).stdout
            for seed in ("1", "2")
        ]
        here = problem_of(canonical(ConvOp(input_shape=(2, 8, 9, 9), filter_shape=(16, 8, 3, 3))), Generated(), 0)
        assert texts == [msgspec.json.encode(here)] * 2
