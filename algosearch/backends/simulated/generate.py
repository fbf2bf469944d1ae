"""A plausible library for every op: candidates made up from the op itself, the same in every process.

The numbers are modelled on what was seen of cuDNN: the library's first candidate is seldom the best and seldom bad,
what needs workspace is a little faster, times scatter over a factor of three, and in float32 many use TF32.

Invariant: what is generated depends on the canonical op, the settings and the seed, on nothing else; never on Python's
`hash`, which differs by process. (`random.Random` of a string is the same everywhere.)
"""

from __future__ import annotations

import random
from math import exp, prod
from typing import Final

from algosearch.backends.simulated.script import (
    BACKEND,
    CandidateScript,
    Fault,
    Generated,
    ProblemScript,
    problem_digest,
)
from algosearch.ops import BatchNormOp, Op

_LAUNCH_US: Final = 2.0
"""No kernel is shorter."""
_CONV_ENGINES: Final = ("implicit_gemm", "winograd", "direct", "fft", "split_k")
_NORM_ENGINES: Final = ("two_pass", "persistent", "welford")
_ENGINE_NOTES: Final[dict[str, tuple[str, ...]]] = {
    "winograd": ("winograd",),
    "fft": ("fft",),
    "split_k": ("nondeterministic",),
    "persistent": ("range_limited",),
}


def problem_of(op: Op, generated: Generated, seed: int) -> ProblemScript:
    """The candidates of a canonical op."""
    dice = random.Random(f"{seed} {problem_digest(op)}")
    ideal_us = generated.time_us or _LAUNCH_US + max(
        op.flops / generated.flops_per_us, op.bytes_moved / generated.bytes_per_us
    )
    return ProblemScript(
        op=op,
        candidates=tuple(_candidate(op, rank, ideal_us, generated, dice) for rank in range(generated.candidates)),
        prepare_us=generated.prepare_us,
        look_at=generated.look_at,
        least_width=generated.least_width,
    )


def _candidate(op: Op, rank: int, ideal_us: float, generated: Generated, dice: random.Random) -> CandidateScript:
    engine = dice.choice(_NORM_ENGINES if isinstance(op, BatchNormOp) else _CONV_ENGINES)
    notes = set(_ENGINE_NOTES.get(engine, ()))
    data_type = op.data_type if isinstance(op, BatchNormOp) else op.input_type
    if not isinstance(op, BatchNormOp):
        if data_type == "float32" and dice.random() < 0.4:
            notes |= {"tensor_core", "tf32"}
        elif data_type in ("float16", "bfloat16"):
            notes.add("tensor_core")
    compiled = dice.random() < 0.1
    if compiled:
        notes.add("runtime_compiled")
    workspace_bytes = 0 if dice.random() < 0.4 else _workspace_bytes(op, dice)
    slowdown = exp(abs(dice.gauss(0.0, 0.4))) * (1.0 + 0.03 * rank) * (0.9 if workspace_bytes else 1.0)
    if "tf32" in notes:
        slowdown *= 0.8
    unsupported = dice.random() < generated.unsupported
    return CandidateScript(
        algorithm=f"{BACKEND}/generated:{engine}?variant={rank}",
        time_us=round(1.2 * ideal_us * slowdown, 3),
        workspace_bytes=workspace_bytes,
        reserve_bytes=_reserve_bytes(op, rank),
        notes=tuple(sorted(notes)),
        noise=generated.noise,
        build_us=round(generated.build_us * dice.uniform(0.5, 1.5) * (10.0 if compiled else 1.0), 3),
        first_us=round(dice.uniform(20.0, 200.0), 3),
        faults=(Fault(at="build", does="not_supported"),) if unsupported else (),
    )


def _reserve_bytes(op: Op, rank: int) -> int:
    """Between the passes of a pair a bit of each element is kept, or a byte: which of the two, rank decides."""
    if not isinstance(op, BatchNormOp) or op.phase != "training":
        return 0
    return prod(op.shape) if rank % 2 else -(-prod(op.shape) // 8)


def _workspace_bytes(op: Op, dice: random.Random) -> int:
    """From 4 KiB to four times what the op moves (of a pair, its larger pass), all magnitudes alike, in units of 256
    bytes."""
    passes = op.passes if isinstance(op, BatchNormOp) else (op,)
    most = max(8192, *(4 * each.bytes_moved for each in passes))
    return int(4096 * (most / 4096) ** dice.random()) & ~255
