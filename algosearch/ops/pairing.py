"""`searched_as`: what is searched when an op is asked about.

Nearly always the op itself, in its canonical description. But the backward pass of a fused batch norm reads a reserve
that only the forward pass of the same algorithm writes, so the two cannot be picked apart: whichever of them is asked
about, what is searched, stored and answered is their *pair*, one op of phase `training`, timed as one run. One key has
one record, and one policy one pick from it: that both passes get the same algorithm, and that it is the one whose sum
of times is least, is nobody's care afterwards. `docs/decisions/0012-fused-pairs.md` has what was rejected.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar, cast

from msgspec.structs import replace

from algosearch.ops.batch_norm import BatchNormOp
from algosearch.ops.canonical import canonical
from algosearch.ops.conv import ConvOp

AnyOp = TypeVar("AnyOp", bound=ConvOp | BatchNormOp)


def searched_as(op: AnyOp) -> AnyOp:
    """The canonical op that is searched for `op`: the pair, if it is one pass of a fused batch norm. Idempotent."""
    same = canonical(op)
    if isinstance(same, ConvOp) or same.fusion == "none" or same.phase == "training":
        return same
    return cast("AnyOp", _pair(same))


@lru_cache(maxsize=1024)
def _pair(op: BatchNormOp) -> BatchNormOp:
    return replace(op, phase="training")
